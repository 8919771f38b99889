"""Lightning trains a segmenter: float16, accumulation, clipping, a schedule, validation at a larger batch."""

import argparse
import logging
import tempfile

import torch
import torchvision

try:
    import lightning as L
except ImportError:
    import pytorch_lightning as L

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--size", type=int, default=384)
args = parser.parse_args()
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Scenes(torch.utils.data.Dataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        generator = torch.Generator().manual_seed(index)
        return (
            torch.randn(3, args.size, args.size, generator=generator),
            torch.randint(0, 19, (args.size, args.size), generator=generator),
        )


class Segmenter(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torchvision.models.segmentation.deeplabv3_mobilenet_v3_large(
            weights=None, weights_backbone=None, num_classes=19, aux_loss=True
        )

    def training_step(self, batch, index):
        out = self.net(batch[0])
        loss = torch.nn.functional.cross_entropy(out["out"], batch[1])
        return loss + 0.5 * torch.nn.functional.cross_entropy(out["aux"], batch[1])

    def validation_step(self, batch, index):
        found = self.net(batch[0])["out"].argmax(1)
        self.log("right", (found == batch[1]).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.02, momentum=0.9, weight_decay=1e-4)
        return [optimizer], [torch.optim.lr_scheduler.PolynomialLR(optimizer, 10)]


with tempfile.TemporaryDirectory() as folder:
    L.Trainer(
        max_epochs=1, accelerator="gpu", devices=1, precision="16-mixed", accumulate_grad_batches=2, gradient_clip_val=1.0,
        default_root_dir=folder, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=1,
    ).fit(
        Segmenter(),
        torch.utils.data.DataLoader(Scenes(args.batch * 8), args.batch, num_workers=2, pin_memory=True),
        torch.utils.data.DataLoader(Scenes(args.batch * 4), 2 * args.batch),
    )  # fmt: skip
