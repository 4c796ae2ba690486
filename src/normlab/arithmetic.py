"""What the formulas share: the normalized vector itself, safe ranges, dtypes, checks of arguments."""

import math
from numbers import Integral, Real

import torch
from torch import Tensor

HALF_TYPES = (torch.float16, torch.bfloat16)
FLOAT_TYPES = (torch.float32, torch.float64, *HALF_TYPES)  # in which torch can compute; float8 is for storage


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


def fill_padding(x: Tensor, real: Tensor) -> Tensor:
    """x [..., d] with one fixed vector wherever ``real`` [...] is False.

    A weight of 0 does not silence what stands there: 0 * NaN is NaN, in the backward pass too. The vector is neither 0
    nor constant, because a norm without eps takes neither.
    """
    harmless = torch.linspace(-1, 1, x.shape[-1], dtype=x.dtype, device=x.device)
    return torch.where(real[..., None], x, harmless)


def grouped(x: Tensor, groups: int) -> Tensor:
    return x.unflatten(-1, (groups, x.shape[-1] // groups))


# --- checks of arguments: TypeError for what is no such thing, ValueError for what is out of range ------------------


def check(x: Tensor, eps: float, **parameters: Tensor | None) -> None:
    """x [..., d] is something to normalize, eps a possible one, and each of the parameters has shape [d] or is None."""
    check_tensor("x", x)
    shape = x.shape[-1:]
    if not shape:
        raise ValueError("x must have a last axis of features, got a single number of shape ()")
    for name, value in parameters.items():
        if value is None:
            continue
        check_tensor(name, value)
        if value.shape != shape:
            raise ValueError(
                f"{name} must have shape {tuple(shape)} to match the last axis of x, got {tuple(value.shape)}"
            )
    if type(eps) is not float or not 0 <= eps < math.inf:
        check_eps(eps)


def check_tensor(name: str, value: Tensor) -> None:
    """A tensor of floats in which torch can compute."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if value.dtype not in FLOAT_TYPES:
        raise TypeError(
            f"{name} must be a real floating-point tensor (float16, bfloat16, float32 or float64), got {value.dtype}"
        )


def check_scalar(name: str, value: Tensor | None) -> None:
    """None, or a tensor of shape []."""
    if value is None:
        return
    check_tensor(name, value)
    if value.dim():
        raise ValueError(f"{name} must be a single number of shape (), got {tuple(value.shape)}")


def check_eps(eps: float) -> None:
    """A finite number, 0 or above."""
    check_number("eps", eps)
    if eps < 0:
        raise ValueError(f"eps must be finite and not negative, got {eps}")


def check_number(name: str, value: float, above: float = -math.inf) -> None:
    """A finite number, above ``above``."""
    if not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {_describe(value)}")
    if not above < value < math.inf:
        bound = "" if above == -math.inf else f" and above {above:g}"
        raise ValueError(f"{name} must be finite{bound}, got {value}")


def check_share(name: str, value: float) -> None:
    """A number in [0, 1]."""
    check_number(name, value)
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must lie in [0, 1], got {value}")


def check_count(name: str, value: int, least: int = 1) -> None:
    """A whole number, not below ``least``."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {_describe(value)}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def _describe(value: object) -> str:
    return f"a {type(value).__name__}" if isinstance(value, Tensor) else repr(value)


def check_width(x: Tensor, width: int) -> None:
    """The last axis of x has the ``width`` of a norm without parameters, whose shapes would tell otherwise."""
    check_tensor("x", x)
    if x.dim() and x.shape[-1] != width:
        raise ValueError(f"the last axis of x must have {width} features, got {x.shape[-1]} in {tuple(x.shape)}")


def check_mask(name: str, mask: Tensor, shape: tuple[int | str, ...]) -> Tensor:
    """A mask of that shape (a name in it: of any size there), 1 or True at real tokens and 0 elsewhere, as bool.

    Its values are looked at where they can be, which is neither inside ``torch.compile`` and ``torch.export``, nor on
    the meta device, nor under ``torch.func.vmap``.

    Raises:
        TypeError: no tensor, or one of complex numbers or float8.
        ValueError: a mask of another shape or with other values, or one that hides every token: an additive mask (0
            at real tokens, -inf or -10000 elsewhere) would otherwise be read the wrong way round.
    """
    if not isinstance(mask, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(mask).__name__}")
    if mask.is_complex() or (mask.is_floating_point() and mask.dtype not in FLOAT_TYPES):
        raise TypeError(f"{name} must be a bool, integer or real tensor, got {mask.dtype}")
    if mask.dim() != len(shape) or any(n != m for n, m in zip(shape, mask.shape) if not isinstance(n, str)):
        wanted = ", ".join(map(str, shape))
        raise ValueError(f"{name} must have shape ({wanted}), one entry per token, got {tuple(mask.shape)}")
    real = mask.bool()
    if torch.compiler.is_compiling():
        return real
    meaning = f"{name} must hold 1 or True at real tokens and 0 elsewhere"
    if mask.dtype is not torch.bool and _value(((mask != 0) & (mask != 1)).any()):
        raise ValueError(f"{meaning}, got values in {_some_values(mask)}")
    if mask.numel() and _value(real.any()) is False:
        raise ValueError(f"{meaning}, got {_some_values(mask)} everywhere, which hides every token")
    return real


def _value(answer: Tensor) -> bool | None:
    """The answer, None where it cannot be read: on the meta device, of a fake tensor, under vmap."""
    try:
        return bool(answer)
    except RuntimeError:
        return None


def _some_values(mask: Tensor) -> str:
    values = [str(value) for value in mask.unique().tolist()]
    return ", ".join(values if len(values) <= 6 else [*values[:3], "...", *values[-2:]])
