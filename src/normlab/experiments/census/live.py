"""Models of the census in a cell: built, run, and what goes in and out of their modules."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normlab import device
from normlab.experiments.census import families, measure


def models(names: Iterable[str]) -> dict[str, nn.Module]:
    """The model types built small; {} where the transformers library is missing."""
    try:
        return {name: families.build(families.candidate(name), seed=1) for name in names}
    except ModuleNotFoundError as missing:
        if missing.name != "transformers":
            raise
        return {}


def rows(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Fresh rows of the census."""
    return {name: measure.row(families.candidate(name)) for name in names}


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
