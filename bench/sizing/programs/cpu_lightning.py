"""Lightning on the CPU: an LSTM that tags sequences."""

import logging
import tempfile

import lightning
import torch
from torch import nn

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Tagger(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50000, 128)
        self.lstm = nn.LSTM(128, 256, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(512, 40)

    def loss(self, batch):
        return nn.functional.cross_entropy(
            self.head(self.lstm(self.embedding(batch[0]))[0]).flatten(0, 1), batch[1].flatten()
        )

    def training_step(self, batch, index):
        return self.loss(batch)

    def validation_step(self, batch, index):
        self.log("loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


data = torch.utils.data.TensorDataset(torch.randint(0, 50000, (256, 64)), torch.randint(0, 40, (256, 64)))
with tempfile.TemporaryDirectory() as folder:
    lightning.Trainer(max_epochs=2, accelerator="cpu", default_root_dir=folder, enable_progress_bar=False, logger=False,
                      enable_model_summary=False).fit(
        Tagger(), torch.utils.data.DataLoader(data, 64, shuffle=True), torch.utils.data.DataLoader(data, 64)
    )  # fmt: skip
