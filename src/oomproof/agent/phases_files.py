"""Loading and saving by the libraries around PyTorch: from_pretrained, save_pretrained, safetensors, accelerate."""

from __future__ import annotations

from .agent_core import in_phase

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .agent_core import Agent

_METHODS = {
    "transformers.modeling_utils": (
        "PreTrainedModel",
        {"from_pretrained": "load", "save_pretrained": "save"},
    ),
    "accelerate.accelerator": (
        "Accelerator",
        {"save_state": "save", "load_state": "load", "save_model": "save"},
    ),
    "safetensors.torch": (None, {"save_file": "save", "load_file": "load"}),
}


def install(module: Any, agent: Agent) -> None:
    owner_name, methods = _METHODS[module.__name__]
    owner = module if owner_name is None else getattr(module, owner_name)
    for name, phase in methods.items():
        plain = owner.__dict__.get(name)
        if isinstance(plain, classmethod):
            setattr(owner, name, classmethod(in_phase(agent, phase, plain.__func__)))
        elif plain is not None:
            setattr(owner, name, in_phase(agent, phase, plain))
