"""Where the first NaN or infinity of a run came from, found by running the step again with hooks."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def first_output(model: nn.Module, forward: Callable[[], object]) -> str | None:
    """The first module whose output is not finite although its inputs are, while ``forward`` runs the model.

    Modules are asked in the order in which they finish, so that the innermost culprit comes before the blocks
    around it. None if there is no such module.
    """
    found: list[str] = []

    def ask(name: str, module: nn.Module):
        def hook(_, inputs, output):
            if not found and is_finite(inputs) and not is_finite(output):
                found.append(f"the output of {_describe(name, module)}")

        return module.register_forward_hook(hook)

    with torch.no_grad(), _hooks(model, ask):
        forward()
    return found[0] if found else None


def first_gradient(model: nn.Module, loss: Callable[[], Tensor]) -> str | None:
    """The first module, on the way back from ``loss()``, that makes a gradient NaN or infinite.

    That is: the gradient that reaches its output is finite, the one that leaves through its inputs, or that of a
    parameter of its own, is not. None if there is no such module. The gradients of the model are overwritten.
    """
    left = []  # modules in the order in which the gradient leaves them, if it came to them finite

    def ask(name: str, module: nn.Module):
        def hook(_, grad_inputs, grad_outputs):
            if is_finite(grad_outputs):
                left.append((name, module, is_finite(grad_inputs)))

        return module.register_full_backward_hook(hook)

    with warnings.catch_warnings(), _hooks(model, ask):
        warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)
        model.zero_grad()
        loss().backward()
    for name, module, inputs_are_finite in left:
        if not inputs_are_finite:
            return f"the gradient of the inputs of {_describe(name, module)}"
    # Only now: a tied weight also carries gradient from elsewhere.
    for name, module, _ in left:
        for parameter, p in module.named_parameters(recurse=False):
            if not is_finite(p.grad):
                return f"the gradient of {parameter} of {_describe(name, module)}"
    return None


def is_finite(value: object) -> bool:
    """Whether all tensors in ``value``, a tensor or nested tuples, lists and dictionaries of them, are finite."""
    return all(bool(torch.isfinite(t).all()) for t in _tensors(value))


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | tuple | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


@contextmanager
def _hooks(model: nn.Module, register: Callable) -> Iterator[None]:
    handles = [register(name, module) for name, module in model.named_modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _describe(name: str, module: nn.Module) -> str:
    """Like ``blocks.0.norm (LayerNorm, whose weight is not finite)``."""
    broken = [n for n, p in module.named_parameters(recurse=False) if not is_finite(p)]
    details = [type(module).__name__] + [f"whose {n} is not finite" for n in broken]
    return f"{name or 'the model'} ({', '.join(details)})"
