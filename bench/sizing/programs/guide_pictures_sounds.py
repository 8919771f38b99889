"""transformers' task guides for pictures, films and sound, with their models, batches and arguments; the data is random."""

import argparse
import tempfile

import numpy as np
import torch
import transformers as hf
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("guide")
parser.add_argument("--batches", type=int, default=8, help="of the epoch")
args = parser.parse_args()


class Rows(torch.utils.data.Dataset):
    def __init__(self, count, make, first=0) -> None:
        self.count, self.make, self.first = count, make, first

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index):
        return self.make(np.random.default_rng(self.first + index))


def picture(rng, *shape):
    return torch.from_numpy(rng.random(shape, dtype=np.float32))


def trained(
    model,
    make,
    batch,
    kind=hf.Trainer,
    arguments=hf.TrainingArguments,
    collator=None,
    metrics=None,
    evals=3,
    **options,
):
    options = {"eval_strategy": "epoch", "num_train_epochs": 1, **options}
    with tempfile.TemporaryDirectory() as folder:
        kind(
            model=model,
            args=arguments(
                output_dir=folder, per_device_train_batch_size=batch, per_device_eval_batch_size=batch,
                remove_unused_columns=False, report_to=[], disable_tqdm=True, **options,
            ),
            train_dataset=Rows(batch * args.batches, make), eval_dataset=Rows(batch * evals, make, 10**6),
            data_collator=collator, compute_metrics=metrics,
        ).train()  # fmt: skip


def right(pair):
    predictions = pair.predictions[0] if isinstance(pair.predictions, tuple) else pair.predictions
    return {"accuracy": float((predictions.argmax(-1) == pair.label_ids).mean())}


def image_classification():
    """ViT-base on 101 kinds of food, sixteen a batch, four batches a step."""

    def make(rng):
        return {"pixel_values": picture(rng, 3, 224, 224), "labels": int(rng.integers(101))}

    trained(
        hf.ViTForImageClassification(hf.ViTConfig(num_labels=101)), make, 16, collator=hf.DefaultDataCollator(), metrics=right,
        gradient_accumulation_steps=4, learning_rate=5e-5, warmup_steps=0.1, save_strategy="epoch", load_best_model_at_end=True,
    )  # fmt: skip


def semantic_segmentation():
    """SegFormer's smallest on scenes, two a batch; the evaluation scales its logits up."""
    config = hf.SegformerConfig(num_labels=150)

    def make(rng):
        return {
            "pixel_values": picture(rng, 3, 512, 512),
            "labels": torch.from_numpy(rng.integers(0, 150, (512, 512))),
        }

    def metrics(pair):
        with torch.no_grad():
            logits = nn.functional.interpolate(
                torch.from_numpy(pair.predictions), size=pair.label_ids.shape[-2:], mode="bilinear"
            )
        return {"accuracy": float((logits.argmax(1).numpy() == pair.label_ids).mean())}

    trained(
        hf.SegformerForSemanticSegmentation(config), make, 2, metrics=metrics, learning_rate=6e-5, save_total_limit=3,
        eval_strategy="steps", save_strategy="steps", save_steps=6, eval_steps=6, logging_steps=1, eval_accumulation_steps=5,
    )  # fmt: skip


def video_classification():
    """VideoMAE-base on sixteen frames, eight films a batch."""

    def make(rng):
        return {"pixel_values": picture(rng, 16, 3, 224, 224), "labels": int(rng.integers(10))}

    def collate(rows):
        return {
            "pixel_values": torch.stack([row["pixel_values"] for row in rows]),
            "labels": torch.tensor([row["labels"] for row in rows]),
        }

    trained(
        hf.VideoMAEForVideoClassification(hf.VideoMAEConfig(num_labels=10)), make, 8, collator=collate, metrics=right, evals=2,
        learning_rate=5e-5, warmup_steps=0.1, save_strategy="epoch", load_best_model_at_end=True, logging_steps=10, max_steps=4,
    )  # fmt: skip


def image_captioning():
    """GIT-base on cartoons and captions, 32 a batch, two batches a step, in float16."""
    config = hf.GitConfig(num_image_with_embedding=None)

    def make(rng):
        words = torch.from_numpy(rng.integers(5, 30000, 77))
        return {
            "pixel_values": picture(rng, 3, 224, 224),
            "input_ids": words,
            "attention_mask": torch.ones_like(words),
            "labels": words,
        }

    trained(
        hf.GitForCausalLM(config), make, 32, collator=hf.DefaultDataCollator(), evals=2, learning_rate=5e-5, fp16=True, save_total_limit=3,
        gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=2, save_strategy="no", logging_steps=50, label_names=["labels"],
        prediction_loss_only=True,
    )  # fmt: skip


def visual_question_answering():
    """ViLT on questions about pictures, four a batch."""
    config = hf.ViltConfig(num_labels=2000)

    def make(rng):
        labels = torch.zeros(2000)
        labels[int(rng.integers(2000))] = 1.0
        return {
            "pixel_values": picture(rng, 3, 384, 512), "pixel_mask": torch.ones(384, 512, dtype=torch.long),
            "input_ids": torch.from_numpy(rng.integers(5, 30000, 40)), "attention_mask": torch.ones(40, dtype=torch.long),
            "token_type_ids": torch.zeros(40, dtype=torch.long), "labels": labels,
        }  # fmt: skip

    trained(
        hf.ViltForQuestionAnswering(config), make, 4, collator=hf.DefaultDataCollator(), save_steps=200, logging_steps=50,
        learning_rate=5e-5, save_total_limit=2, eval_strategy="no",
    )  # fmt: skip


class Teaching(hf.Trainer):
    def __init__(self, teacher=None, **options) -> None:
        super().__init__(**options)
        self.teacher = teacher.to(self.args.device).eval()
        self.loss = nn.KLDivLoss(reduction="batchmean")

    def compute_loss(self, student, inputs, return_outputs=False, **more):
        out = student(**inputs)
        with torch.no_grad():
            taught = self.teacher(**inputs)
        soft = nn.functional.softmax(taught.logits / 5, dim=-1)
        loss = 0.5 * out.loss + 0.5 * self.loss(nn.functional.log_softmax(out.logits / 5, dim=-1), soft) * 25
        return (loss, out) if return_outputs else loss


def knowledge_distillation():
    """A MobileNetV2 learns from a ViT, 48 a batch, in float16."""
    teacher = hf.ViTForImageClassification(hf.ViTConfig(num_labels=3))

    def make(rng):
        return {"pixel_values": picture(rng, 3, 224, 224), "labels": int(rng.integers(3))}

    trained(
        hf.MobileNetV2ForImageClassification(hf.MobileNetV2Config(num_labels=3)), make, 48, lambda **options: Teaching(teacher, **options),
        collator=hf.DefaultDataCollator(), metrics=right, fp16=True, logging_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True,
    )  # fmt: skip


def audio_classification():
    """wav2vec2-base on commands of one second, 32 a batch, four batches a step."""
    config = hf.Wav2Vec2Config(num_labels=14)

    def make(rng):
        return {"input_values": picture(rng, 16000), "labels": int(rng.integers(14))}

    trained(
        hf.Wav2Vec2ForSequenceClassification(config), make, 32, collator=hf.DefaultDataCollator(), metrics=right, learning_rate=3e-5,
        gradient_accumulation_steps=4, warmup_steps=0.1, save_strategy="epoch", load_best_model_at_end=True,
    )  # fmt: skip


def speech_recognition():
    """wav2vec2-base with CTC on calls of many lengths, eight a batch, two batches a step, float16 and checkpointing."""
    config = hf.Wav2Vec2Config(vocab_size=32, ctc_loss_reduction="mean", ctc_zero_infinity=True)

    def make(rng):
        seconds = float(np.clip(rng.lognormal(np.log(8.0), 0.5), 2.0, 24.0))
        return {
            "input_values": picture(rng, int(16000 * seconds)),
            "labels": torch.from_numpy(rng.integers(5, 32, int(6 * seconds))),
        }

    def collate(rows):
        pad = nn.utils.rnn.pad_sequence
        return {
            "input_values": pad([row["input_values"] for row in rows], batch_first=True),
            "labels": pad([row["labels"] for row in rows], batch_first=True, padding_value=-100),
        }

    def metrics(pair):
        return {"length": float((pair.predictions.argmax(-1) > 4).mean())}

    trained(
        hf.Wav2Vec2ForCTC(config), make, 8, collator=collate, metrics=metrics, learning_rate=1e-5, gradient_accumulation_steps=2,
        warmup_steps=500, gradient_checkpointing=True, fp16=True, save_strategy="no", logging_steps=25,
    )  # fmt: skip


def text_to_speech():
    """SpeechT5 on read sentences, four a batch, eight batches a step, float16 and checkpointing."""

    def make(rng):
        return {
            "input_ids": torch.from_numpy(
                rng.integers(5, 80, int(np.clip(rng.lognormal(np.log(90), 0.4), 20, 200)))
            ),
            "labels": picture(rng, 2 * int(np.clip(rng.lognormal(np.log(130), 0.4), 30, 300)), 80),
            "speaker_embeddings": picture(rng, 512),
        }

    def collate(rows):
        pad = nn.utils.rnn.pad_sequence
        words = pad([row["input_ids"] for row in rows], batch_first=True, padding_value=1)
        return {
            "input_ids": words, "attention_mask": (words != 1).long(),
            "labels": pad([row["labels"] for row in rows], batch_first=True, padding_value=-100.0),
            "speaker_embeddings": torch.stack([row["speaker_embeddings"] for row in rows]),
        }  # fmt: skip

    model = hf.SpeechT5ForTextToSpeech(hf.SpeechT5Config(vocab_size=81))
    model.config.use_cache = False
    trained(
        model, make, 4, hf.Seq2SeqTrainer, hf.Seq2SeqTrainingArguments, collate, gradient_accumulation_steps=8, learning_rate=1e-5,
        warmup_steps=500, gradient_checkpointing=True, fp16=True, eval_strategy="epoch", save_strategy="no", logging_steps=25,
        label_names=["labels"], prediction_loss_only=True,
    )  # fmt: skip


torch.manual_seed(0)
globals()[args.guide]()
