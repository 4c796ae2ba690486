"""Normalization layers as modules that hold the parameters (knob one: how to compute).

Parameter names are torch's (``weight``, ``bias``), so that state dicts are interchangeable with
``torch.nn.LayerNorm`` and ``torch.nn.RMSNorm``. Every module is called as ``norm(x, mask=None)`` with x [..., d] and
mask [...] (1/True = real token); a norm that treats each token alone has no use for the mask and ignores it.
"""

from enum import Enum

import torch
from torch import Tensor, nn

from normlab import functional
from normlab.functional import LAYER_NORM_CONVENTIONS, RMS_NORM_CONVENTIONS, Convention, choose_convention

__all__ = ["Convention", "Identity", "LayerNorm", "NormKind", "RMSNorm", "make_norm"]


class NormKind(str, Enum):
    """How a normalization layer computes."""

    LAYERNORM = "layernorm"
    RMSNORM = "rmsnorm"
    IDENTITY = "identity"


class LayerNorm(nn.Module):
    """:func:`normlab.functional.layer_norm` with a learned gain ``weight`` [width] and shift ``bias`` [width].

    The convention decides which of the two exist. Under NEMOTRON ``weight`` is the gain minus 1 and starts at 0.
    """

    def __init__(self, width: int, eps: float = 1e-5, convention: Convention | str = Convention.DEFAULT):
        super().__init__()
        self.width = width
        self.eps = eps
        self.convention = choose_convention(convention, LAYER_NORM_CONVENTIONS, "layernorm")
        self.weight = _gain(width, self.convention)
        has_bias = self.convention in (Convention.DEFAULT, Convention.NEMOTRON)
        self.bias = nn.Parameter(torch.zeros(width)) if has_bias else None

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return functional.layer_norm(x, self.weight, self.bias, self.eps, convention=self.convention)

    def extra_repr(self) -> str:
        return f"{self.width}, eps={self.eps}, convention={self.convention.value}"


class RMSNorm(nn.Module):
    """:func:`normlab.functional.rms_norm` with a learned gain ``weight`` [width].

    Under GEMMA ``weight`` is the gain minus 1 and starts at 0; under BARE it is None.
    """

    def __init__(
        self,
        width: int,
        eps: float = 1e-6,
        convention: Convention | str = Convention.DEFAULT,
        fraction: float = 1.0,
    ):
        super().__init__()
        self.width = width
        self.eps = eps
        self.convention = choose_convention(convention, RMS_NORM_CONVENTIONS, "rmsnorm")
        self.fraction = fraction
        self.weight = _gain(width, self.convention)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return functional.rms_norm(x, self.weight, self.eps, convention=self.convention, fraction=self.fraction)

    def extra_repr(self) -> str:
        return f"{self.width}, eps={self.eps}, convention={self.convention.value}, fraction={self.fraction}"


class Identity(nn.Identity):
    """No normalization: returns x."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x


def make_norm(
    kind: NormKind | str,
    width: int,
    *,
    eps: float | None = None,
    convention: Convention | str = Convention.DEFAULT,
    **options,
) -> nn.Module:
    """Build a normalization layer over vectors of ``width`` features.

    Args:
        kind: a :class:`NormKind` or its string.
        width: number of features, at least 1.
        eps: None means 1e-5 for layernorm and 1e-6 for the others, the usual values.
        convention: a :class:`Convention` or its string; other kinds than layernorm and rmsnorm know only DEFAULT.
        options: passed on to the class of that kind, for example ``fraction`` of :class:`RMSNorm`.

    Raises:
        ValueError: unknown kind (the message lists the kinds), a convention that the kind does not know, or width
            below 1.
        TypeError: an option that the kind does not have.
    """
    try:
        kind = NormKind(kind)
    except ValueError:
        known = ", ".join(k.value for k in NormKind)
        raise ValueError(f"unknown norm kind {kind!r}; known kinds: {known}") from None
    if width < 1:
        raise ValueError(f"width must be at least 1, got {width}")
    if kind is NormKind.LAYERNORM:
        return LayerNorm(width, 1e-5 if eps is None else eps, convention, **options)
    if kind is NormKind.RMSNORM:
        return RMSNorm(width, 1e-6 if eps is None else eps, convention, **options)
    choose_convention(convention, (Convention.DEFAULT,), kind.value)
    return Identity(**options)


def _gain(width: int, convention: Convention) -> nn.Parameter | None:
    """The stored gain of a fresh layer, whose effect is always a gain of 1."""
    if convention is Convention.BARE:
        return None
    stored_minus_one = convention in (Convention.GEMMA, Convention.NEMOTRON)
    return nn.Parameter(torch.zeros(width) if stored_minus_one else torch.ones(width))
