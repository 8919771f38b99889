"""The Trainer of transformers beyond causal language models: tags with gathered logits, translation with generation, images with workers."""

import argparse
import tempfile

import numpy as np
import torch
import transformers as hf

parser = argparse.ArgumentParser()
parser.add_argument("recipe")
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--length", type=int, default=256)
parser.add_argument("--accumulate", type=int, default=2)
args = parser.parse_args()


class Rows(torch.utils.data.Dataset):
    def __init__(self, count, make) -> None:
        self.count, self.make = count, make

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index):
        return self.make(torch.Generator().manual_seed(index))


def words(vocabulary, length, generator):
    return torch.randint(5, vocabulary, (length,), generator=generator)


def trained(model, make, kind=hf.Trainer, arguments=hf.TrainingArguments, metrics=None, **options):
    with tempfile.TemporaryDirectory() as folder:
        kind(
            model=model,
            args=arguments(
                folder, max_steps=3, per_device_train_batch_size=args.batch, gradient_accumulation_steps=args.accumulate,
                eval_strategy="steps", eval_steps=3, logging_steps=1, report_to=[], save_strategy="no",
                disable_tqdm=True, **options,
            ),
            train_dataset=Rows(1000, make), eval_dataset=Rows(args.batch * 3, make), compute_metrics=metrics,
        ).train()  # fmt: skip


def tags():
    config = hf.RobertaConfig(vocab_size=50265, max_position_embeddings=514, num_labels=9)

    def make(generator):
        ids = words(50265, args.length, generator)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids % 9}

    trained(
        hf.RobertaForTokenClassification(config), make, fp16=True, per_device_eval_batch_size=2 * args.batch,
        metrics=lambda pair: {"right": float(np.mean(pair.predictions.argmax(-1) == pair.label_ids))},
    )  # fmt: skip


def translation():
    config = hf.T5Config(
        d_model=768, d_ff=2048, d_kv=64, num_layers=12, num_heads=12, feed_forward_proj="gated-gelu",
        tie_word_embeddings=False, decoder_start_token_id=0, vocab_size=32128,
    )  # fmt: skip

    def make(generator):
        ids = words(32000, args.length, generator)
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "labels": words(32000, 64, generator),
        }

    trained(
        hf.T5ForConditionalGeneration(config), make, hf.Seq2SeqTrainer, hf.Seq2SeqTrainingArguments, bf16=True,
        per_device_eval_batch_size=args.batch, predict_with_generate=True, generation_max_length=48,
    )  # fmt: skip


def images():
    config = hf.Dinov2Config(
        hidden_size=384, num_attention_heads=6, num_labels=101, image_size=224, patch_size=14
    )

    def make(generator):
        return {
            "pixel_values": torch.randn(3, 224, 224, generator=generator),
            "labels": int(torch.randint(0, 101, (), generator=generator)),
        }

    trained(
        hf.Dinov2ForImageClassification(config), make, bf16=True, per_device_eval_batch_size=args.batch,
        dataloader_num_workers=2, gradient_checkpointing=True, max_grad_norm=1.0,
    )  # fmt: skip


torch.manual_seed(0)
globals()[args.recipe]()
