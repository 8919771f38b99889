"""transformers' task guides for texts, with their models, batches and arguments: words are random, and as long as in the guides' data."""

import argparse
import tempfile

import numpy as np
import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers

parser = argparse.ArgumentParser()
parser.add_argument("guide")
parser.add_argument("--batches", type=int, default=12, help="of the epoch")
args = parser.parse_args()


def tokenizer_of(vocabulary, **special):
    words = {f"w{index}": index for index in range(vocabulary - 5)}
    for index, word in enumerate(("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")):
        words[word] = vocabulary - 5 + index
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]",
        mask_token="[MASK]", **special,
    )  # fmt: skip


class Rows(torch.utils.data.Dataset):
    """``make`` of a generator that is the same for a row in every epoch."""

    def __init__(self, count, make, first=0) -> None:
        self.count, self.make, self.first = count, make, first

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index):
        return self.make(np.random.default_rng(self.first + index))


def length(rng, usual, longest, spread=0.6):
    """Texts are as long as a lognormal draw, and cut where the guide cuts them."""
    return int(np.clip(rng.lognormal(np.log(usual), spread), 4, longest))


def ids(rng, count, vocabulary=28000):
    return rng.integers(5, vocabulary, count).tolist()


def right(pair):
    predictions = pair.predictions[0] if isinstance(pair.predictions, tuple) else pair.predictions
    return {"accuracy": float((predictions.argmax(-1) == pair.label_ids).mean())}


def trained(
    model,
    make,
    kind=hf.Trainer,
    arguments=hf.TrainingArguments,
    collator=None,
    metrics=None,
    batch=16,
    **options,
):
    with tempfile.TemporaryDirectory() as folder:
        kind(
            model=model,
            args=arguments(
                output_dir=folder, per_device_train_batch_size=batch, per_device_eval_batch_size=batch, num_train_epochs=1,
                weight_decay=0.01, eval_strategy="epoch", report_to=[], disable_tqdm=True, **options,
            ),
            train_dataset=Rows(batch * args.batches, make), eval_dataset=Rows(batch * 4, make, 10**6),
            data_collator=collator, compute_metrics=metrics,
        ).train()  # fmt: skip


BEST = {"save_strategy": "epoch", "load_best_model_at_end": True, "learning_rate": 2e-5}


def sequence_classification():
    """Reviews of films, cut at 512 tokens, padded batch by batch."""
    tokenizer = tokenizer_of(30522, model_max_length=512)

    def make(rng):
        return {"input_ids": ids(rng, length(rng, 230, 512)), "label": int(rng.integers(2))}

    model = hf.DistilBertForSequenceClassification(hf.DistilBertConfig(num_labels=2))
    trained(model, make, collator=hf.DataCollatorWithPadding(tokenizer=tokenizer), metrics=right, **BEST)


def token_classification():
    """Names in short messages."""
    tokenizer = tokenizer_of(30522, model_max_length=512)

    def make(rng):
        words = ids(rng, length(rng, 24, 120, 0.5))
        return {
            "input_ids": words,
            "attention_mask": [1] * len(words),
            "labels": [word % 13 for word in words],
        }

    model = hf.DistilBertForTokenClassification(hf.DistilBertConfig(num_labels=13))
    trained(
        model,
        make,
        collator=hf.DataCollatorForTokenClassification(tokenizer=tokenizer),
        metrics=right,
        **BEST,
    )


def question_answering():
    """Questions and passages, always 384 tokens."""

    def make(rng):
        start = int(rng.integers(350))
        return {
            "input_ids": ids(rng, 384),
            "attention_mask": [1] * 384,
            "start_positions": start,
            "end_positions": start + 5,
        }

    model = hf.DistilBertForQuestionAnswering(hf.DistilBertConfig())
    trained(model, make, collator=hf.DefaultDataCollator(), learning_rate=2e-5)


def language_modeling():
    """DistilGPT2 on blocks of 128 tokens, eight a batch."""
    tokenizer = tokenizer_of(50257)

    def make(rng):
        words = ids(rng, 128, 50000)
        return {"input_ids": words, "attention_mask": [1] * 128, "labels": words}

    model = hf.GPT2LMHeadModel(hf.GPT2Config(n_layer=6))
    collator = hf.DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm=False)
    trained(model, make, collator=collator, batch=8, learning_rate=2e-5)


def masked_language_modeling():
    """DistilRoBERTa on blocks of 128 tokens, eight a batch, a seventh of the words masked."""
    tokenizer = tokenizer_of(50265)

    def make(rng):
        return {"input_ids": ids(rng, 128, 50000), "attention_mask": [1] * 128}

    config = hf.RobertaConfig(
        vocab_size=50265, num_hidden_layers=6, max_position_embeddings=514, type_vocab_size=1
    )
    collator = hf.DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm_probability=0.15)
    trained(hf.RobertaForMaskedLM(config), make, collator=collator, batch=8, learning_rate=2e-5)


def _pairs(usual, longest, answer, answer_longest):
    tokenizer = tokenizer_of(32128)
    model = hf.T5ForConditionalGeneration(hf.T5Config(decoder_start_token_id=0))

    def make(rng):
        words = ids(rng, length(rng, usual, longest))
        return {"input_ids": words, "attention_mask": [1] * len(words),
                "labels": ids(rng, length(rng, answer, answer_longest))}  # fmt: skip

    def metrics(pair):
        return {"length": float(np.mean([np.count_nonzero(row) for row in pair.predictions]))}

    trained(
        model, make, hf.Seq2SeqTrainer, hf.Seq2SeqTrainingArguments,
        hf.DataCollatorForSeq2Seq(tokenizer=tokenizer, model=model), metrics, learning_rate=2e-5, save_total_limit=3,
        predict_with_generate=True, fp16=True,
    )  # fmt: skip


def translation():
    """T5-small on sentences of books, in float16, with generation in the evaluation."""
    _pairs(26, 128, 30, 128)


def summarization():
    """T5-small on bills of law, cut at 1,024 tokens, in float16, with generation in the evaluation."""
    _pairs(1400, 1024, 100, 128)


def multiple_choice():
    """BERT on four endings of a sentence."""
    tokenizer = tokenizer_of(30522)

    def make(rng):
        endings = [ids(rng, length(rng, 40, 120, 0.35)) for _ in range(4)]
        return {
            "input_ids": endings,
            "attention_mask": [[1] * len(words) for words in endings],
            "labels": int(rng.integers(4)),
        }

    trained(
        hf.BertForMultipleChoice(hf.BertConfig()), make, collator=hf.DataCollatorForMultipleChoice(tokenizer=tokenizer),
        metrics=right, save_strategy="epoch", load_best_model_at_end=True, learning_rate=5e-5,
    )  # fmt: skip


torch.manual_seed(0)
globals()[args.guide]()
