"""Normalization layers as modules that hold the parameters (knob one: how to compute).

Parameter names are torch's (``weight``, ``bias``), so that state dicts are interchangeable with
``torch.nn.LayerNorm`` and ``torch.nn.RMSNorm``.
"""

from enum import Enum

import torch
from torch import Tensor, nn

from normlab import functional


class NormKind(str, Enum):
    """How a normalization layer computes."""

    LAYERNORM = "layernorm"
    RMSNORM = "rmsnorm"
    IDENTITY = "identity"


class LayerNorm(nn.Module):
    """:func:`normlab.functional.layer_norm` with a learned gain ``weight`` [width] and shift ``bias`` [width]."""

    def __init__(self, width: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.weight.numel()}, eps={self.eps}"


class RMSNorm(nn.Module):
    """:func:`normlab.functional.rms_norm` with a learned gain ``weight`` [width]."""

    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.weight.numel()}, eps={self.eps}"


def make_norm(kind: NormKind | str, width: int, *, eps: float | None = None) -> nn.Module:
    """Build a normalization layer over vectors of ``width`` features.

    Args:
        kind: a :class:`NormKind` or its string.
        width: number of features, at least 1.
        eps: None means 1e-5 for layernorm and 1e-6 for the others, the usual values.

    Raises:
        ValueError: unknown kind (the message lists the kinds), or width below 1.
    """
    try:
        kind = NormKind(kind)
    except ValueError:
        known = ", ".join(k.value for k in NormKind)
        raise ValueError(f"unknown norm kind {kind!r}; known kinds: {known}") from None
    if width < 1:
        raise ValueError(f"width must be at least 1, got {width}")
    if kind is NormKind.LAYERNORM:
        return LayerNorm(width, 1e-5 if eps is None else eps)
    if kind is NormKind.RMSNORM:
        return RMSNorm(width, 1e-6 if eps is None else eps)
    return nn.Identity()
