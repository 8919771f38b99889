"""A LightningModule and a Trainer, as its documentation has them. Nothing here knows oomproof."""

import sys
import time

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, index):
        x, y = batch
        return ((self.layer(x) - y) ** 2).mean()

    def validation_step(self, batch, index):
        x, y = batch
        self.log("val", ((self.layer(x) - y) ** 2).mean())
        if sys.argv[3:] == ["slow"] and not self.trainer.sanity_checking:
            print("validating", flush=True)
            time.sleep(0.01)

    def on_validation_end(self):
        print(f"validated at step {self.global_step}", flush=True)

    def on_save_checkpoint(self, checkpoint):
        if self.trainer.validating or self.trainer.state.stage == "validate":
            print("saved in the middle of a validation", flush=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main():
    folder, steps = sys.argv[1], int(sys.argv[2])
    data = DataLoader(TensorDataset(torch.randn(800, 8), torch.randn(800, 1)), batch_size=4)
    trainer = lightning.Trainer(
        default_root_dir=folder,
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(Line(), data, data)
    print(f"the script goes on after fit(), with validations of {trainer.limit_val_batches}", flush=True)


if __name__ == "__main__":
    main()
