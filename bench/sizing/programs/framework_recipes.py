"""Frameworks' own loops: the Trainer on texts by length, on images with EMA-free fine-tuning, Lightning with two optimizers, accelerate with accumulation."""

import argparse
import logging
import tempfile

import torch
import torch.nn.functional as F
import transformers as hf
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("recipe")
parser.add_argument("--batch", type=int, default=16)
args = parser.parse_args()


class Rows(torch.utils.data.Dataset):
    def __init__(self, count, make) -> None:
        self.count, self.make = count, make

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index):
        return self.make(torch.Generator().manual_seed(index))


def trained(model, make, count, collate=None, **options):
    with tempfile.TemporaryDirectory() as folder:
        hf.Trainer(
            model=model,
            args=hf.TrainingArguments(
                folder, per_device_train_batch_size=args.batch, eval_strategy="epoch", num_train_epochs=1, logging_steps=50,
                report_to=[], save_strategy="no", disable_tqdm=True, **options,
            ),
            train_dataset=Rows(count, make), eval_dataset=Rows(args.batch * 4, make), data_collator=collate,
        ).train()  # fmt: skip


def summaries():
    """BART on pairs of many lengths, padded batch by batch, an epoch of 50 batches and its evaluation."""
    config = hf.BartConfig(d_model=768, encoder_layers=6, decoder_layers=6, encoder_attention_heads=12, decoder_attention_heads=12,
                           encoder_ffn_dim=3072, decoder_ffn_dim=3072)  # fmt: skip

    def make(generator):
        long, short = (
            int(torch.randint(low, high, (), generator=generator)) for low, high in ((100, 700), (20, 130))
        )
        return {
            "input_ids": torch.randint(5, 50000, (long,), generator=generator),
            "labels": torch.randint(5, 50000, (short,), generator=generator),
        }

    def collate(rows):
        pad = nn.utils.rnn.pad_sequence
        ids = pad([row["input_ids"] for row in rows], batch_first=True, padding_value=1)
        return {"input_ids": ids, "attention_mask": (ids != 1).long(),
                "labels": pad([row["labels"] for row in rows], batch_first=True, padding_value=-100)}  # fmt: skip

    trained(
        hf.BartForConditionalGeneration(config),
        make,
        args.batch * 50,
        collate,
        bf16=True,
        gradient_accumulation_steps=2,
    )


def photos():
    """ConvNeXt V2 with label smoothing in float16, batches by two workers, Adafactor."""
    config = hf.ConvNextV2Config(
        num_labels=200, image_size=224, depths=[3, 3, 9, 3], hidden_sizes=[96, 192, 384, 768]
    )

    def make(generator):
        return {
            "pixel_values": torch.randn(3, 224, 224, generator=generator),
            "labels": int(torch.randint(0, 200, (), generator=generator)),
        }

    trained(
        hf.ConvNextV2ForImageClassification(config), make, args.batch * 4, fp16=True, optim="adafactor", label_smoothing_factor=0.1,
        dataloader_num_workers=2, per_device_eval_batch_size=2 * args.batch, dataloader_pin_memory=True,
    )  # fmt: skip


def adversaries():
    """Lightning with manual optimization: a VAE whose decoder is judged, two optimizers, validation."""
    try:
        import lightning as L
    except ImportError:
        import pytorch_lightning as L
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Judged(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            down, up, judge, inner = [], [], [], 3
            for outer in (64, 128, 256, 512):
                down += [nn.Conv2d(inner, outer, 4, 2, 1), nn.BatchNorm2d(outer), nn.LeakyReLU(0.2)]
                judge += [
                    nn.Conv2d(inner, outer, 4, 2, 1),
                    nn.InstanceNorm2d(outer, affine=True),
                    nn.LeakyReLU(0.2),
                ]
                up[:0] = [nn.ConvTranspose2d(outer, inner, 4, 2, 1), nn.BatchNorm2d(inner), nn.ReLU()]
                inner = outer
            self.down, self.middle = nn.Sequential(*down, nn.Flatten()), nn.Linear(512 * 64, 512)
            self.back, self.up = (
                nn.Linear(256, 512 * 64),
                nn.Sequential(nn.Unflatten(1, (512, 8, 8)), *up[:-2], nn.Tanh()),
            )
            self.judge = nn.Sequential(*judge, nn.Conv2d(512, 1, 8))

        def forward(self, x):
            mean, spread = self.middle(self.down(x)).chunk(2, 1)
            return self.up(self.back(mean + (0.5 * spread).exp() * torch.randn_like(mean))), mean, spread

        def training_step(self, batch, index):
            first, second = self.optimizers()
            x = batch[0]
            made, mean, spread = self(x)
            loss = (
                F.mse_loss(made, x)
                - 0.5 * (1 + spread - mean.pow(2) - spread.exp()).mean()
                - 0.01 * self.judge(made).mean()
            )
            first.zero_grad()
            self.manual_backward(loss)
            first.step()
            second.zero_grad()
            self.manual_backward(
                F.softplus(-self.judge(x)).mean() + F.softplus(self.judge(made.detach())).mean()
            )
            second.step()

        def validation_step(self, batch, index):
            self.log("lost", F.mse_loss(self(batch[0])[0], batch[0]))

        def configure_optimizers(self):
            made = [
                *self.down.parameters(),
                *self.middle.parameters(),
                *self.back.parameters(),
                *self.up.parameters(),
            ]
            return torch.optim.Adam(made, 2e-4), torch.optim.Adam(self.judge.parameters(), 2e-4)

    def make(generator):
        return (torch.rand(3, 128, 128, generator=generator),)

    with tempfile.TemporaryDirectory() as folder:
        L.Trainer(
            max_epochs=1, accelerator="gpu", devices=1, precision="bf16-mixed", default_root_dir=folder, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        ).fit(
            Judged(), torch.utils.data.DataLoader(Rows(args.batch * 5, make), args.batch),
            torch.utils.data.DataLoader(Rows(args.batch * 2, make), args.batch),
        )  # fmt: skip


torch.manual_seed(0)
globals()[args.recipe]()
