"""Normalization formulas as pure functions of tensors (knob one: how to compute).

Both functions work on the last axis, return the dtype of ``x`` and are meant to be read. Half-precision input
(float16, bfloat16) is widened before the first square: 300 squared is infinite in float16, and the layer would
silently return zeros. float64 input is never narrowed.
"""

import torch
from torch import Tensor

_HALF_TYPES = (torch.float16, torch.bfloat16)


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """LayerNorm: the standard score of each vector, then a learned scale and shift per feature.

        y = weight * (x - mean) / sqrt(var + eps) + bias,   mean and var over the last axis

    ``var`` is the biased variance (divide by d, not d - 1), and ``eps`` stands inside the root.

    Args:
        x: float tensor [..., d], d >= 1. Any other axis may be empty.
        weight: gain [d], or None for 1.
        bias: shift [d], or None for 0.
        eps: non-negative; has the unit of x squared. With eps = 0 a constant vector gives NaN (0/0).

    Returns:
        Tensor with the shape and dtype of x. A NaN or infinity spoils its own vector only.

    Raises:
        TypeError: x, weight or bias is not a real floating-point tensor.
        ValueError: x has no axis or width 0, weight or bias is not of shape [d], or eps is negative or not finite.

    Source: Ba, Kiros and Hinton 2016, arXiv:1607.06450.
    """
    _check(x, eps, weight=weight, bias=bias)
    wide = _widen(x)
    centered = wide - wide.mean(-1, keepdim=True)
    # The rounded mean of a constant vector can miss it by one unit in the last place, and a small eps would
    # magnify that to a visible score. A second centering removes it.
    centered = centered - centered.mean(-1, keepdim=True)
    y = centered / (centered.square().mean(-1, keepdim=True) + eps).sqrt()
    return _affine(y, weight, bias).to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """RMSNorm: divide each vector by its root mean square, then a learned scale per feature.

        y = weight * x / sqrt(mean(x^2) + eps),   mean over the last axis

    Args:
        x: float tensor [..., d], d >= 1. Any other axis may be empty.
        weight: gain [d], or None for 1.
        eps: non-negative; has the unit of x squared. With eps = 0 a zero vector gives NaN (0/0).

    Returns:
        Tensor with the shape and dtype of x. A NaN or infinity spoils its own vector only.

    Raises:
        TypeError, ValueError: as in :func:`layer_norm`.

    Source: Zhang and Sennrich 2019, arXiv:1910.07467. Their equation has no eps; here it stands inside the root,
    as in most current models.
    """
    _check(x, eps, weight=weight)
    wide = _widen(x)
    y = wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt()
    return _affine(y, weight, None).to(x.dtype)


def _widen(x: Tensor) -> Tensor:
    """Half types to float64, so that the result is rounded once; float32 where the device has no float64."""
    if x.dtype not in _HALF_TYPES:
        return x
    return x.to(torch.float32 if x.device.type == "mps" else torch.float64)


def _affine(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None:
        y = y * weight.to(y.dtype)
    if bias is not None:
        y = y + bias.to(y.dtype)
    return y


def _check(x: Tensor, eps: float, **parameters: Tensor | None) -> None:
    for name, value in {"x": x, **parameters}.items():
        if value is None and name != "x":
            continue
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
        if not value.is_floating_point():
            raise TypeError(f"{name} must be a real floating-point tensor, got {value.dtype}")
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"x must have a last axis of at least one feature, got shape {tuple(x.shape)}")
    for name, value in parameters.items():
        if value is not None and value.shape != x.shape[-1:]:
            raise ValueError(
                f"{name} must have shape ({x.shape[-1]},) to match the last axis of x, got {tuple(value.shape)}"
            )
    if not 0 <= eps < float("inf"):
        raise ValueError(f"eps must be finite and not negative, got {eps}")
