"""Texts, a tokenizer, a model and token files for rehearse_unmodified.py, made here: nothing is downloaded.

    python program_data.py FOLDER [--tiny]

FOLDER/nanoGPT gets what its own prepare.py files would write, FOLDER/hf what its examples are pointed at.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from array import array
from pathlib import Path

SYLLABLES = (
    "an",
    "bar",
    "cor",
    "del",
    "en",
    "far",
    "gil",
    "hol",
    "im",
    "jas",
    "kel",
    "lor",
    "mar",
    "nen",
    "ost",
    "pel",
    "ros",
    "zan",
)
GPT2_TOKENS = 50257


def sentence(chance: random.Random, words: int) -> str:
    text = " ".join(
        "".join(chance.choice(SYLLABLES) for _ in range(chance.randint(1, 3))) for _ in range(words)
    )
    return text.capitalize() + chance.choice(".?!")


def nano(folder: Path, chance: random.Random) -> None:
    """Its character data by its own prepare.py, which takes an input.txt that is there; its GPT-2 data as token files."""
    lines = (f"{chance.choice('ABCDEFG')}:\n{sentence(chance, 12)}\n" for _ in range(12_000))
    characters = folder / "data" / "shakespeare_char"
    (characters / "input.txt").write_text("\n".join(lines))
    subprocess.run(
        [sys.executable, "prepare.py"], cwd=characters, check=True, stdout=subprocess.DEVNULL, timeout=120
    )
    for name, count in (("train.bin", 1 << 21), ("val.bin", 1 << 18)):
        tokens = array("H", (chance.randrange(GPT2_TOKENS) for _ in range(count)))
        (folder / "data" / "openwebtext" / name).write_bytes(tokens.tobytes())


def hugging_face(folder: Path, chance: random.Random, tiny: bool) -> None:
    for name, count in (("train", 400 if tiny else 20_000), ("validation", 200 if tiny else 2_000)):
        (folder / f"{name}.txt").write_text("\n".join(sentence(chance, 20) for _ in range(count)))
        with (folder / f"{name}.json").open("w") as file:
            for _ in range(200 if tiny else 4_000):
                words = (
                    chance.choice((12, 20, 30, 40)) if chance.random() < 0.97 else chance.randint(100, 600)
                )
                file.write(
                    json.dumps({"sentence1": sentence(chance, words), "label": chance.choice(("no", "yes"))})
                    + "\n"
                )
    from tokenizers import ByteLevelBPETokenizer
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    learned = ByteLevelBPETokenizer()
    learned.train(
        [str(folder / "train.txt")], vocab_size=1000, special_tokens=["<pad>", "<unk>"], show_progress=False
    )
    words = PreTrainedTokenizerFast(
        tokenizer_object=learned._tokenizer, pad_token="<pad>", unk_token="<unk>", model_max_length=1024
    )
    words.save_pretrained(folder / "tokenizer")
    size = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    config = BertConfig(**(size if tiny else {}), num_labels=2)
    BertForSequenceClassification(config).save_pretrained(folder / "bert")
    words.model_max_length = 512
    words.save_pretrained(folder / "bert")


def main() -> None:
    folder, tiny = Path(sys.argv[1]), "--tiny" in sys.argv
    chance = random.Random(16)
    nano(folder / "nanoGPT", chance)
    hugging_face(folder / "hf", chance, tiny)


if __name__ == "__main__":
    main()
