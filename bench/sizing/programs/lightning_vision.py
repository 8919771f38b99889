"""Lightning trains and validates a torchvision model."""

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
parser.add_argument("model")
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--precision", default="bf16-mixed")
parser.add_argument("--accumulate", type=int, default=1)
args = parser.parse_args()
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Images(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return args.batch * 4

    def __getitem__(self, index: int):
        return torch.randn(3, args.size, args.size), index % 1000


class Classifier(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = getattr(torchvision.models, args.model)(weights=None)

    def training_step(self, batch, index):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("loss", torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-4)


loaders = [torch.utils.data.DataLoader(Images(), args.batch) for _ in range(2)]
with tempfile.TemporaryDirectory() as folder:
    L.Trainer(
        max_epochs=1, precision=args.precision, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=args.accumulate, default_root_dir=folder,
    ).fit(Classifier(), *loaders)  # fmt: skip
