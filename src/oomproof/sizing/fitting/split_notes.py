"""What changes in the mathematics when a batch is split into passes: batch statistics, losses that compare samples, means over unequal counts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from oomproof.records import dataclass
from oomproof.sizing.planning.fit_points import comparing_note, norms_note

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
    evaluates_first: bool = False  # many passes before the first optimizer step

    def joined(self, other: Seen) -> Seen:
        names = tuple(sorted({*self.comparing, *other.comparing}))
        return Seen(
            max(self.batch_norms, other.batch_norms),
            names,
            self.squares or other.squares,
            self.unequal or other.unequal,
            self.evaluates_first or other.evaluates_first,
        )


def compares(class_name: str) -> bool:
    return bool(_COMPARING.search(class_name))


def split_notes(seen: Seen, batch: int, effective: int) -> tuple[str, ...]:
    """Of ``effective`` samples on one device in passes of ``batch``: a sentence for each; none where nothing is split."""
    return tuple(_notes(seen, batch, effective)) if batch < effective else ()


def _notes(seen: Seen, batch: int, effective: int) -> Iterator[str]:
    if seen.batch_norms:
        yield norms_note(seen.batch_norms, batch, effective)
    if seen.comparing or seen.squares:
        yield f"{comparing_note(batch, effective)}; gradient caching does (GradCache, CachedMultipleNegativesRankingLoss)"
    if seen.unequal:
        yield (
            f"samples do not count alike ({seen.unequal}): the mean of the passes' means is not the mean of the batch; "
            "batch.groups(loader, count=…) gives each pass its weight"
        )
