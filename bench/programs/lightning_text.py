"""Lightning's own demo: LightningTransformer on a text, with the loader it brings along."""

from __future__ import annotations

import lightning
from lightning.pytorch.demos import LightningTransformer, WikiText2

if __name__ == "__main__":  # data/wikitext-2.txt is there already, so nothing is downloaded
    model = LightningTransformer(vocab_size=WikiText2().vocab_size)
    trainer = lightning.Trainer(
        max_steps=150, accelerator="cpu", logger=False, enable_progress_bar=False, default_root_dir="text"
    )
    trainer.fit(model)
