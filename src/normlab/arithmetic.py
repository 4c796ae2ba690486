"""What the formulas share: the normalized vector itself, safe ranges, dtypes, checks of arguments."""

import math

import torch
from torch import Tensor

HALF_TYPES = (torch.float16, torch.bfloat16)


def normalize(
    x: Tensor, eps: float, *, center: bool, axes: int | tuple[int, ...] = -1, features: int | None = None
) -> tuple[Tensor, Tensor]:
    """What the norms share: x, centered or not, times 1/sqrt(mean(x^2) + eps) over ``axes``.

    Returns the normalized x, and that rate with ``axes`` kept at size 1 (for backward passes). ``features`` takes the
    mean over only the first so many entries of the last axis. The arguments are not checked.
    """
    x, scale = _fit(x, 1.0, eps, axes)
    if center:
        x = x - x.mean(axes, keepdim=True)
        # The rounded mean of a constant vector can miss it by one unit in the last place, and a small eps would
        # magnify that to a visible score. A second centering removes it.
        x = x - x.mean(axes, keepdim=True)
        x, scale = _fit(x, scale, eps, axes)  # what is left may be small although x was huge: then eps counts again
    mean_square = x[..., :features].square().mean(axes, keepdim=True)
    root = (mean_square + eps * scale * scale).sqrt()
    return x / root, scale / root


def _fit(x: Tensor, scale: Tensor | float, eps: float, axes: int | tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """x, which has been multiplied by ``scale``, at a power of two at which its squares fit, and that power."""
    change = safe_scale(peak(x, axes) / scale, eps) / scale
    return x * change, scale * change


def peak(x: Tensor, axes: int | tuple[int, ...] = -1) -> Tensor:
    """The largest absolute value of each vector, with ``axes`` kept at size 1; 0 for vectors without features."""
    x = x.detach().abs()
    return x.amax(axes, keepdim=True) if x.numel() else x.sum(axes, keepdim=True)


def safe_scale(peak: Tensor, eps: float) -> Tensor:
    """The power of two to multiply a vector with this peak by, so that no sum of squares overflows: mostly 1.

    With eps = 0 very small vectors are scaled up as well; otherwise eps outweighs their squares.
    """
    limit = 2.0 ** (math.log2(torch.finfo(peak.dtype).max) // 3)
    scale = torch.ones_like(peak).masked_fill(peak > limit, limit**-2)
    return scale.masked_fill(peak < 1 / limit, limit**2) if eps == 0 else scale


def widen(x: Tensor) -> Tensor:
    """Half types to float64, so that the result is rounded once; float32 where the device has no float64."""
    if x.dtype not in HALF_TYPES:
        return x
    return x.to(torch.float32 if x.device.type == "mps" else torch.float64)


def affine(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None:
        y = y * weight.to(y.dtype)
    if bias is not None:
        y = y + bias.to(y.dtype)
    return y


def grouped(x: Tensor, groups: int) -> Tensor:
    return x.unflatten(-1, (groups, x.shape[-1] // groups))


def check_scalar(name: str, value: Tensor | None) -> None:
    if value is not None and value.dim():
        raise ValueError(f"{name} must be a single number of shape (), got {tuple(value.shape)}")


def check(x: Tensor, eps: float, **parameters: Tensor | None) -> None:
    for name, value in {"x": x, **parameters}.items():
        if value is None and name != "x":
            continue
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
        if not value.is_floating_point():
            raise TypeError(f"{name} must be a real floating-point tensor, got {value.dtype}")
    if x.dim() == 0:
        raise ValueError("x must have a last axis of features, got a single number of shape ()")
    for name, value in parameters.items():
        if value is not None and value.shape != x.shape[-1:]:
            raise ValueError(
                f"{name} must have shape ({x.shape[-1]},) to match the last axis of x, got {tuple(value.shape)}"
            )
    if not 0 <= eps < float("inf"):
        raise ValueError(f"eps must be finite and not negative, got {eps}")
