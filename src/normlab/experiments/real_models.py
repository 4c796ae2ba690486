"""Families of the transformers library in miniature, and what goes in and out of their modules."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normlab import device
from normlab.experiments import tiny_transformers
from normlab.experiments.tiny_transformers import MINIMAX_ALPHA
from normlab.inspection import report

__all__ = ["FAMILIES", "MINIMAX_ALPHA", "NOT_DECODERS", "inspected", "seen", "tiny_models"]

FAMILIES = ("BERT", "T5", "GPT-2", "GPT-NeoX", "Llama", "Mistral", "Qwen 2", "Qwen 3", "Phi-3", "gpt-oss", "Granite")
FAMILIES += ("Gemma", "Gemma 2", "Gemma 3", "GLM-4", "OLMo", "OLMo 2", "EXAONE 4", "Cohere", "MiniMax-01")
NOT_DECODERS = ("BERT", "T5")


def tiny_models() -> dict[str, nn.Module]:
    """The families of the chapter in miniature; {} where the transformers library is missing."""
    return tiny_transformers.tiny_models(FAMILIES, seed=1)


def inspected(models: dict[str, nn.Module]) -> dict[str, report.ModelReport]:
    """:func:`normlab.inspect` of every model, on one thread: they are too small for more."""
    with device.single_thread():
        return {family: report.inspect(model) for family, model in models.items()}


@torch.no_grad()
def seen(model: nn.Module, modules: Sequence[nn.Module], ids: Tensor) -> list[tuple[Tensor, Tensor]]:
    """(input, output) of the given modules while ``ids`` [B, T] run through the model, in the order given."""
    found: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def keep(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        x = args[0] if args else kwargs["hidden_states"]
        found[module] = (x, output[0] if isinstance(output, tuple) else output)

    handles = [module.register_forward_hook(keep, with_kwargs=True) for module in modules]
    try:
        with device.single_thread():
            model(ids)
    finally:
        for handle in handles:
            handle.remove()
    return [found[module] for module in modules]
