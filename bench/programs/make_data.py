"""Text and a tokenizer for the programs of bench/false_stops.py. `make_data.py FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

if __name__ == "__main__":
    home = Path(sys.argv[1])
    data = home / "data"
    (data / "words").mkdir(parents=True, exist_ok=True)
    text = (home / "sources/examples/distributed/minGPT-ddp/mingpt/data/input.txt").read_text()
    (data / "train.txt").write_text(text)
    (data / "valid.txt").write_text(text[:100_000])
    for name, part in (
        ("train", text[:150_000]),
        ("valid", text[150_000:180_000]),
        ("test", text[180_000:210_000]),
    ):
        (data / "words" / f"{name}.txt").write_text(part)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = {
        "eos": "<|end|>",
        "bos": "<|end|>",
        "pad": "[PAD]",
        "mask": "[MASK]",
        "cls": "[CLS]",
        "sep": "[SEP]",
    }
    words = list(dict.fromkeys(special.values()))
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(vocab_size=2000, special_tokens=words))
    named = {f"{name}_token": word for name, word in special.items()}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **named).save_pretrained(
        data / "tokenizer"
    )
