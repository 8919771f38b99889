"""Which of our modules look at which of the job's: name of the imported module → our modules, in this order.

Each has ``install(module, agent)``, called once, right after that module was imported in the job. A name that has no
file in this folder is skipped. Submodules are named where the package itself loads its parts late.
"""

from __future__ import annotations

HOOKS: dict[str, list[str]] = {
    "torch": ["phases_torch", "allocator", "gpu_limit", "spill"],
    "torch.utils.data.dataloader": ["phases_torch"],
    "torch._dynamo.utils": ["phases_torch"],
    "safetensors.torch": ["phases_files"],
    "transformers.modeling_utils": ["phases_files"],
    "transformers.generation.utils": ["generation"],
    "transformers.trainer": ["phases_transformers"],
    "lightning.pytorch.trainer.trainer": ["phases_lightning"],
    "pytorch_lightning.trainer.trainer": ["phases_lightning"],
    "accelerate.accelerator": ["phases_files"],
    "wandb.sdk.wandb_run": ["wandb_metrics"],
}
