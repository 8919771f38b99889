"""What changes in the mathematics when a batch is split into passes: batch statistics, losses that compare samples, means over unequal counts."""

from __future__ import annotations

import re
from collections.abc import Iterable

from oomproof.records import dataclass

# Losses that compare the samples of a batch with each other, by what libraries call them (sentence-transformers, pytorch-metric-learning, CLIP)
_COMPARING = re.compile(
    r"Contrastive|InfoNCE|NTXent|MultipleNegatives|TripletMargin|SupCon|ClipLoss|SigLip|^CLIP\w*Model|Barlow|VICReg|CoSENT|GISTEmbed",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Seen:
    """Of a training's modules: batch normalisations in training mode, classes that compare samples; tensors of batch × batch."""

    batch_norms: int = 0
    comparing: tuple[str, ...] = ()
    squares: int = 0
    unequal: str = ""  # what shows that samples do not count alike

    def joined(self, other: Seen) -> Seen:
        names = tuple(sorted({*self.comparing, *other.comparing}))
        return Seen(
            max(self.batch_norms, other.batch_norms),
            names,
            self.squares or other.squares,
            self.unequal or other.unequal,
        )


def compares(class_name: str) -> bool:
    return bool(_COMPARING.search(class_name))


def split_notes(seen: Seen, accum: int) -> tuple[str, ...]:
    """A sentence for each; none where nothing is split."""
    if accum <= 1:
        return ()
    return tuple(_notes(seen))


def _notes(seen: Seen) -> Iterable[str]:
    if seen.batch_norms:
        layers = f"{seen.batch_norms} layers" if seen.batch_norms > 1 else "a layer"
        yield (
            f"BatchNorm ({layers}) takes its statistics from each pass, not from the whole batch: results differ from an unsplit one; "
            "GroupNorm, or frozen statistics, do not"
        )
    if seen.comparing or seen.squares:
        by = f" ({', '.join(seen.comparing)})" if seen.comparing else ""
        yield (
            f"the loss{by} compares samples of a batch with each other: split, each sample meets fewer others, which is another training; "
            "gradient caching (GradCache, CachedMultipleNegativesRankingLoss) keeps them"
        )
    if seen.unequal:
        yield (
            f"samples do not count alike ({seen.unequal}): the mean of the passes' means is not the mean of the batch; "
            "batch.groups(loader, count=…) gives each pass its weight"
        )
