"""Scripts of example folders (transformers, accelerate, PEFT, Lightning, torchvision, PyTorch) with their models and defaults; the data is random."""

import argparse
import copy
import logging
import tempfile

import numpy as np
import torch
import torchvision
import transformers as hf
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("example")
args = parser.parse_args()


class Rows(torch.utils.data.Dataset):
    def __init__(self, count, make, first=0) -> None:
        self.count, self.make, self.first = count, make, first

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index):
        return self.make(np.random.default_rng(self.first + index))


def ids(rng, count, vocabulary):
    return torch.from_numpy(rng.integers(5, vocabulary, count))


def length(rng, usual, longest, spread):
    return int(np.clip(rng.lognormal(np.log(usual), spread), 4, longest))


def trained(
    model,
    make,
    batch,
    batches,
    collator=None,
    kind=hf.Trainer,
    arguments=hf.TrainingArguments,
    metrics=None,
    **options,
):
    with tempfile.TemporaryDirectory() as folder:
        kind(
            model=model,
            args=arguments(
                output_dir=folder, per_device_train_batch_size=batch, num_train_epochs=1, eval_strategy="epoch",
                report_to=[], disable_tqdm=True, **options,
            ),
            train_dataset=Rows(batch * batches, make), eval_dataset=Rows(48, make, 10**6), data_collator=collator,
            compute_metrics=metrics,
        ).train()  # fmt: skip


def glue():
    """run_glue: BERT, 32 sentences padded to 128."""

    def make(rng):
        words, used = ids(rng, 128, 28000), length(rng, 24, 128, 0.5)
        seen = (torch.arange(128) < used).long()
        return {
            "input_ids": words * seen,
            "attention_mask": seen,
            "token_type_ids": torch.zeros(128, dtype=torch.long),
            "labels": int(rng.integers(2)),
        }

    trained(
        hf.BertForSequenceClassification(hf.BertConfig(vocab_size=28996)), make, 32, 8, hf.default_data_collator, learning_rate=2e-5,
        metrics=lambda pair: {"accuracy": float((pair.predictions.argmax(-1) == pair.label_ids).mean())},
    )  # fmt: skip


def clm():
    """run_clm: GPT-2 on blocks of 1,024 tokens, eight a batch; logits are not kept, only how right they are."""

    def make(rng):
        words = ids(rng, 1024, 50000)
        return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words.clone()}

    trained(
        hf.GPT2LMHeadModel(hf.GPT2Config()), make, 8, 5, hf.default_data_collator,
        metrics=lambda pair: {"accuracy": float((pair.predictions[:, :-1] == pair.label_ids[:, 1:]).mean())},
        kind=lambda **options: hf.Trainer(preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1), **options),
    )  # fmt: skip


def mlm():
    """run_mlm: RoBERTa-base on lines as long as they are, eight a batch, a seventh of the words hidden."""

    def make(rng):
        return {"input_ids": ids(rng, length(rng, 140, 512, 0.8), 50000)}

    def collate(rows):
        words = nn.utils.rnn.pad_sequence(
            [row["input_ids"] for row in rows], batch_first=True, padding_value=1
        )
        chosen = (torch.rand(words.shape) < 0.15) & (words != 1)
        return {
            "input_ids": words.masked_fill(chosen, 50264),
            "attention_mask": (words != 1).long(),
            "labels": words.masked_fill(~chosen, -100),
        }

    config = hf.RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1)
    trained(
        hf.RobertaForMaskedLM(config), make, 8, 24, collate,
        metrics=lambda pair: {"accuracy": float((pair.predictions == pair.label_ids).mean())},
        kind=lambda **options: hf.Trainer(preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1), **options),
    )  # fmt: skip


def whisper():
    """run_speech_recognition_seq2seq: Whisper small, sixteen a batch, float16, checkpointing, generation of 225 tokens in the evaluation."""
    config = hf.WhisperConfig(
        d_model=768, encoder_layers=12, decoder_layers=12, encoder_attention_heads=12, decoder_attention_heads=12,
        encoder_ffn_dim=3072, decoder_ffn_dim=3072,
    )  # fmt: skip

    def make(rng):
        return {
            "input_features": torch.from_numpy(rng.random((80, 3000), dtype=np.float32)),
            "labels": ids(rng, length(rng, 30, 200, 0.5), 50000),
        }

    def collate(rows):
        return {
            "input_features": torch.stack([row["input_features"] for row in rows]),
            "labels": nn.utils.rnn.pad_sequence(
                [row["labels"] for row in rows], batch_first=True, padding_value=-100
            ),
        }

    model = hf.WhisperForConditionalGeneration(config)
    model.generation_config.suppress_tokens = model.generation_config.begin_suppress_tokens = None
    trained(
        model, make, 16, 8, collate, hf.Seq2SeqTrainer, hf.Seq2SeqTrainingArguments,
        lambda pair: {"length": float(np.count_nonzero(pair.predictions != -100))}, gradient_accumulation_steps=2, learning_rate=1e-5,
        warmup_steps=500, gradient_checkpointing=True, fp16=True, predict_with_generate=True, generation_max_length=225,
        per_device_eval_batch_size=16, logging_steps=25, save_strategy="no",
    )  # fmt: skip


class Adapter(nn.Module):
    """A LoRA layer as PEFT builds it: float32 matrices beside a frozen layer, dropout before them."""

    def __init__(self, base, rank=16, alpha=32, dropout=0.05) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)
        self.scaling, self.lora_dropout = alpha / rank, nn.Dropout(dropout)

    def forward(self, x):
        result = self.base_layer(x)
        kind = result.dtype
        made = self.lora_B(self.lora_A(self.lora_dropout(x.to(self.lora_A.weight.dtype))))
        return (result + made * self.scaling).to(kind)


def sft():
    """Supervised fine-tuning with LoRA on every linear layer, in bfloat16 with checkpointing: Qwen2.5 0.5B, eight texts of up to 1,024 tokens."""
    config = hf.Qwen2Config(
        hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2,
        vocab_size=151936, tie_word_embeddings=True, dtype="bfloat16",
    )  # fmt: skip
    model = hf.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.requires_grad_(False)
    for module in list(model.model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and not isinstance(module, Adapter):
                setattr(module, name, Adapter(child))
    model.enable_input_require_grads()

    def make(rng):
        return {"input_ids": ids(rng, length(rng, 300, 1024, 0.7), 150000)}

    def collate(rows):
        words = nn.utils.rnn.pad_sequence(
            [row["input_ids"] for row in rows], batch_first=True, padding_value=0
        )
        seen = (words != 0).long()
        return {"input_ids": words, "attention_mask": seen, "labels": words.masked_fill(seen == 0, -100)}

    trained(
        model, make, 8, 16, collate, learning_rate=1e-4, bf16=True, gradient_checkpointing=True, logging_steps=10,
        gradient_checkpointing_kwargs={"use_reentrant": False}, save_strategy="no",
    )  # fmt: skip


def nlp():
    """accelerate's nlp_example: BERT on pairs of sentences, sixteen a batch, as long as the longest, evaluated 32 at a time."""
    from accelerate import Accelerator

    accelerator = Accelerator()

    def make(rng):
        return ids(rng, length(rng, 52, 110, 0.3), 28000), int(rng.integers(2))

    def collate(rows):
        words = nn.utils.rnn.pad_sequence([row[0] for row in rows], batch_first=True)
        return {"input_ids": words, "attention_mask": (words != 0).long(), "token_type_ids": torch.zeros_like(words),
                "labels": torch.tensor([row[1] for row in rows])}  # fmt: skip

    train = torch.utils.data.DataLoader(
        Rows(16 * 24, make), shuffle=True, collate_fn=collate, batch_size=16, drop_last=True
    )
    evaluation = torch.utils.data.DataLoader(
        Rows(32 * 4, make, 10**6), shuffle=False, collate_fn=collate, batch_size=32
    )
    model = hf.BertForSequenceClassification(hf.BertConfig(vocab_size=28996)).to(accelerator.device)
    optimizer = torch.optim.AdamW(params=model.parameters(), lr=2e-5)
    scheduler = hf.get_linear_schedule_with_warmup(
        optimizer=optimizer, num_warmup_steps=100, num_training_steps=len(train)
    )
    model, optimizer, train, evaluation, scheduler = accelerator.prepare(
        model, optimizer, train, evaluation, scheduler
    )
    model.train()
    for batch in train:
        batch.to(accelerator.device) if hasattr(batch, "to") else None
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    model.eval()
    found = 0
    for batch in evaluation:
        with torch.no_grad():
            out = model(**batch)
        predictions, labels = accelerator.gather_for_metrics((out.logits.argmax(dim=-1), batch["labels"]))
        found += int((predictions == labels).sum())
    accelerator.print(f"right: {found}")


def cv():
    """accelerate's cv_example: the head of a frozen ResNet-50 learns 37 kinds of animals, 64 a batch."""
    from accelerate import Accelerator

    accelerator = Accelerator()

    def make(rng):
        return {
            "image": torch.from_numpy(rng.random((3, 224, 224), dtype=np.float32)),
            "label": int(rng.integers(37)),
        }

    train = torch.utils.data.DataLoader(Rows(64 * 4, make), shuffle=True, batch_size=64)
    evaluation = torch.utils.data.DataLoader(Rows(64 * 2, make, 10**6), shuffle=False, batch_size=64)
    model = torchvision.models.resnet50(weights=None, num_classes=37).to(accelerator.device)
    for parameter in model.parameters():
        parameter.requires_grad = False
    for parameter in model.fc.parameters():
        parameter.requires_grad = True
    mean = torch.tensor([0.485, 0.456, 0.406])[None, :, None, None].to(accelerator.device)
    std = torch.tensor([0.229, 0.224, 0.225])[None, :, None, None].to(accelerator.device)
    optimizer = torch.optim.Adam(params=model.parameters(), lr=3e-2 / 25)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer=optimizer, max_lr=3e-2, epochs=1, steps_per_epoch=len(train)
    )
    model, optimizer, train, evaluation, scheduler = accelerator.prepare(
        model, optimizer, train, evaluation, scheduler
    )
    model.train()
    for batch in train:
        batch = {key: value.to(accelerator.device) for key, value in batch.items()}
        loss = nn.functional.cross_entropy(model((batch["image"] - mean) / std), batch["label"])
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    model.eval()
    found = 0
    for batch in evaluation:
        batch = {key: value.to(accelerator.device) for key, value in batch.items()}
        with torch.no_grad():
            outputs = model((batch["image"] - mean) / std)
        predictions, labels = accelerator.gather_for_metrics((outputs.argmax(dim=-1), batch["label"]))
        found += int((predictions == labels).sum())
    accelerator.print(f"right: {found}")


def cifar():
    """Lightning's CIFAR-10 baseline: a ResNet-18 for pictures of 32 × 32, 256 a batch, SGD in one cycle."""
    try:
        import lightning as L
    except ImportError:
        import pytorch_lightning as L
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Baseline(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = torchvision.models.resnet18(weights=None, num_classes=10)
            self.model.conv1 = nn.Conv2d(3, 64, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)
            self.model.maxpool = nn.Identity()

        def forward(self, x):
            return nn.functional.log_softmax(self.model(x), dim=1)

        def training_step(self, batch, index):
            loss = nn.functional.nll_loss(self(batch[0]), batch[1])
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch, index):
            logits = self(batch[0])
            self.log("val_loss", nn.functional.nll_loss(logits, batch[1]), prog_bar=True)
            self.log("val_acc", (logits.argmax(1) == batch[1]).float().mean(), prog_bar=True)

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
            scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, epochs=1, steps_per_epoch=8)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def make(rng):
        return torch.from_numpy(rng.random((3, 32, 32), dtype=np.float32)), int(rng.integers(10))

    loaders = [
        torch.utils.data.DataLoader(Rows(256 * count, make, first), 256, num_workers=2)
        for count, first in ((8, 0), (2, 10**6))
    ]
    with tempfile.TemporaryDirectory() as folder:
        L.Trainer(
            max_epochs=1, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=folder,
        ).fit(Baseline(), *loaders)  # fmt: skip


def recipe():
    """torchvision's classification recipe: ResNet-50 at 176, 128 a batch, float16, label smoothing, mixup, an average of the weights."""
    device = torch.device("cuda")
    model = torchvision.models.resnet50(weights=None).to(device)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.SGD(
        [{"params": others, "weight_decay": 0.0}, {"params": decayed, "weight_decay": 2e-5}],
        lr=0.5,
        momentum=0.9,
    )
    scaler = torch.cuda.amp.GradScaler()
    average = torch.optim.swa_utils.AveragedModel(
        model, device=device, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999), use_buffers=True
    )
    mix = torchvision.transforms.v2.RandomChoice(
        [
            torchvision.transforms.v2.MixUp(alpha=0.2, num_classes=1000),
            torchvision.transforms.v2.CutMix(alpha=1.0, num_classes=1000),
        ]
    )

    def make(rng):
        return torch.from_numpy(rng.random((3, 176, 176), dtype=np.float32)), int(rng.integers(1000))

    def collate(rows):
        return mix(*torch.utils.data.default_collate(rows))

    loader = torch.utils.data.DataLoader(
        Rows(128 * 4, make), 128, shuffle=True, num_workers=4, pin_memory=True, collate_fn=collate
    )
    model.train()
    for image, target in loader:
        image, target = image.to(device), target.to(device)
        with torch.cuda.amp.autocast(enabled=True):
            output = model(image)
            loss = criterion(output, target)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        average.update_parameters(model)
        print(f"loss {loss.item():.3f}", flush=True)
    average.eval()
    check = torch.utils.data.DataLoader(
        Rows(128 * 2, lambda rng: (torch.from_numpy(rng.random((3, 224, 224), dtype=np.float32)), 1)), 128
    )
    with torch.inference_mode():
        for image, target in check:
            output = average(image.to(device, non_blocking=True))
            print(f"test {criterion(output, target.to(device, non_blocking=True)).item():.3f}", flush=True)


class Strokes(nn.Module):
    """The network that redraws: reflected edges, instance norms, five residual blocks."""

    def __init__(self) -> None:
        super().__init__()

        def layer(inner, outer, size, stride=1, scale=0, last=False):
            parts = [nn.Upsample(scale_factor=scale, mode="nearest")] if scale else []
            parts += [nn.ReflectionPad2d(size // 2), nn.Conv2d(inner, outer, size, stride)]
            return nn.Sequential(*parts, *([] if last else [nn.InstanceNorm2d(outer, affine=True)]))

        self.down = nn.Sequential(
            layer(3, 32, 9), nn.ReLU(), layer(32, 64, 3, 2), nn.ReLU(), layer(64, 128, 3, 2), nn.ReLU()
        )
        self.blocks = nn.ModuleList(
            nn.Sequential(layer(128, 128, 3), nn.ReLU(), layer(128, 128, 3)) for _ in range(5)
        )
        self.up = nn.Sequential(
            layer(128, 64, 3, scale=2),
            nn.ReLU(),
            layer(64, 32, 3, scale=2),
            nn.ReLU(),
            layer(32, 3, 9, last=True),
        )

    def forward(self, x):
        x = self.down(x)
        for block in self.blocks:
            x = x + block(x)
        return self.up(x)


def style():
    """PyTorch's fast_neural_style: four pictures of 256 × 256, judged by the features of a frozen VGG-16."""
    device = torch.device("cuda")

    def make(rng):
        return torch.from_numpy(rng.random((3, 256, 256), dtype=np.float32) * 255), 0

    loader = torch.utils.data.DataLoader(Rows(4 * 8, make), batch_size=4)
    net = Strokes().to(device)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    loss_of = nn.MSELoss()
    layers = (
        copy.deepcopy(torchvision.models.vgg16(weights=None).features[:23]).to(device).requires_grad_(False)
    )

    def features(x):
        found = []
        for index, layer in enumerate(layers):
            x = layer(x)
            if index in (3, 8, 15, 22):
                found.append(x)
        return found

    def gram(y):
        flat = y.flatten(2)
        return flat.bmm(flat.transpose(1, 2)) / (y.shape[1] * y.shape[2] * y.shape[3])

    def normalized(batch):
        mean = batch.new_tensor([0.485, 0.456, 0.406]).view(-1, 1, 1)
        std = batch.new_tensor([0.229, 0.224, 0.225]).view(-1, 1, 1)
        return (batch.div_(255.0) - mean) / std

    wanted = [
        gram(y) for y in features(normalized(torch.rand(3, 256, 256).mul(255).repeat(4, 1, 1, 1).to(device)))
    ]
    total = 0.0
    for x, _ in loader:
        optimizer.zero_grad()
        x = x.to(device)
        y = net(x)
        y, x = normalized(y), normalized(x)
        found, real = features(y), features(x)
        loss = 1e5 * loss_of(found[1], real[1])
        for have, want in zip(found, wanted, strict=True):
            loss = loss + 1e10 * loss_of(gram(have), want[: len(x)])
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"loss {total:.3f}", flush=True)


torch.manual_seed(0)
globals()[args.example]()
