"""Prepares training data as people do: `naive` keeps each form of it, `stream` reads it in pieces.

prepare_data.py naive|stream ROWS.jsonl CHECKPOINT"""

import json
import sys
import time
from itertools import islice

import datasets
import tokenizers

import oomproof

datasets.disable_progress_bars()
LENGTH, PIECE, PAUSE = 64, 250, 0.2


def make_tokenizer(texts):
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.train_from_iterator(
        texts, tokenizers.trainers.WordLevelTrainer(special_tokens=["?"], show_progress=False)
    )
    made.enable_padding(length=LENGTH)
    made.enable_truncation(LENGTH)

    def encode(texts):
        return {"input_ids": [encoded.ids for encoded in made.encode_batch(texts)]}

    return encode


def pieces(path):
    with open(path) as file:
        while rows := [json.loads(line) for line in islice(file, PIECE)]:
            yield rows


def naive(path, checkpoint):
    examples, train_data, dataset = [], [], None
    for rows in pieces(path):
        if oomproof.stop_requested():
            with open(checkpoint, "w") as file:
                json.dump({"rows": len(examples)}, file)
            print(f"saved after {len(examples)} rows", flush=True)
            return
        examples.extend(rows)
        texts = [f"### Question: {row['text']} ### Answer: {row['id']}" for row in rows]
        train_data.extend(texts)
        part = datasets.Dataset.from_list([{"text": text} for text in texts])
        dataset = part if dataset is None else datasets.concatenate_datasets([dataset, part])
        time.sleep(PAUSE)
    encode = make_tokenizer(train_data[:500])
    tokenized = dataset.map(lambda rows: encode(rows["text"]), batched=True, keep_in_memory=True)
    print(f"tokenized {len(tokenized)} rows", flush=True)


def stream(path):
    from oomproof.data import tokenize

    with open(path) as file:
        encode = make_tokenizer([json.loads(next(file))["text"] for _ in range(500)])
    tokenized = tokenize(path, encode, cache_dir=path + ".cache")
    print(f"tokenized {len(tokenized)} rows", flush=True)


if sys.argv[1] == "naive":
    naive(sys.argv[2], sys.argv[3])
else:
    stream(sys.argv[2])
