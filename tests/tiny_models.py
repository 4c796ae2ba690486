"""Tiny models of ``transformers`` as the tests of our inspection take them, and one whose names all lie.

Helpers for tests, no tests.
"""

import pytest
import torch
from torch import nn

from normlab.experiments import tiny_transformers
from normlab.experiments.tiny_transformers import VOCABULARY

OPTIONS = {  # that show more of a family than its defaults do
    "Cohere": {"use_qk_norm": True},
    "Granite": {"residual_multiplier": 0.22},
    "StableLM": {"qk_layernorm": True},
}


def tiny(family: str, **options) -> nn.Module:
    """:func:`normlab.experiments.tiny_transformers.tiny_model` of a family or variant."""
    return tiny_transformers.tiny_model(family, **OPTIONS.get(family, {}) | options)


def ids(seed: int = 0, sequences: int = 2, tokens: int = 7) -> torch.Tensor:
    return torch.randint(1, VOCABULARY, (sequences, tokens), generator=torch.Generator().manual_seed(seed))


def dbrx_or_skip() -> None:
    """The DBRX of transformers 5.14 cannot run its own experts."""
    with torch.no_grad():
        try:
            tiny("DBRX")(ids())
        except RuntimeError as problem:
            pytest.skip(f"this transformers' DBRX fails by itself: {problem}")


def scramble(model: nn.Module) -> nn.Module:
    """Give every submodule the name of its neighbor, and every class another name; what the model computes stays."""
    for module in list(model.modules()):
        if isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential):
            continue
        names = list(module._modules)
        lies = dict(zip(names, names[1:] + names[:1]))
        module._modules = {lies[name]: child for name, child in module._modules.items()}
        module.__class__ = _under_false_names(type(module), lies)
    return model


def _under_false_names(cls: type, lies: dict[str, str]) -> type:
    def get(self, name):
        modules = self.__dict__["_modules"]
        return modules[lies[name]] if lies.get(name) in modules else cls.__getattr__(self, name)

    return type("LayerNorm" if "RMS" in cls.__name__ else "RMSNorm", (cls,), {"__getattr__": get})
