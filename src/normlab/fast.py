"""The fastest correct path for the device at hand: LayerNorm and RMSNorm, called as in :mod:`normlab.functional`.

``layer_norm`` and ``rms_norm`` here take the arguments of their namesakes there and give the same result up to
rounding, with half types accumulated in float32 and rounded once. The modules of :mod:`normlab.norms` use them inside
``with fast.enabled():``, or after ``fast.enabled(True)``; otherwise they use the reference.

========================  =========================================  ==========================================
where                     RMSNorm                                    LayerNorm
========================  =========================================  ==========================================
CPU                       ``torch.linalg.vector_norm`` and two       torch's fused kernel
                          scalings; backward through the fused one
                          of LayerNorm
CUDA and other devices    torch's kernel                             torch's kernel
inside ``torch.compile``  the reference formula, half types in       the same
                          float32: fusing it is the compiler's job
========================  =========================================  ==========================================

On the CPU every result is right, also for vectors that these operations would get wrong: sizes whose squares leave
the number range, and for LayerNorm a mean that outweighs the spread, as in a constant vector. A batch that has one
(or a NaN) is computed by the reference formula instead, five to ten times slower. On other devices results are those of
torch's kernels. ScaleNorm, DyT and the norms across tokens have no fast path; partial RMSNorm is refused, and torch
refuses ``torch.func`` transforms and forward-mode gradients of RMSNorm. Below some 10,000 numbers a call costs more
than the arithmetic, and the reference is as fast.
"""

import sys
from functools import reduce
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from normlab import functional
from normlab.arithmetic import HALF_TYPES, check
from normlab.backward import rms_norm_backward
from normlab.conventions import (
    LAYER_NORM_CONVENTIONS,
    RMS_NORM_CONVENTIONS,
    Convention,
    check_absent,
    choose_convention,
)

__all__ = ["enabled", "formulas", "layer_norm", "rms_norm"]

_formulas: ModuleType = functional


class enabled:
    """Let the norm modules take the fast path, from now on or, as ``with fast.enabled():``, for a block of code.

    ``fast.enabled(False)`` goes back to the reference. The switch is read in the forward pass, by all threads.
    """

    def __init__(self, on: bool = True):
        global _formulas
        self._before = _formulas
        _formulas = sys.modules[__name__] if on else functional

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: Any) -> None:
        global _formulas
        _formulas = self._before


def formulas() -> ModuleType:
    """The module whose ``layer_norm`` and ``rms_norm`` are in force: :mod:`normlab.functional` or this one."""
    return _formulas


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    convention: Convention | str = Convention.DEFAULT,
) -> Tensor:
    """:func:`normlab.functional.layer_norm` by the fastest correct path; arguments, result and errors as there.

    For the backward pass it keeps x (half types in float32), the gain and two numbers per token. It can be
    differentiated twice.
    """
    convention = choose_convention(convention, LAYER_NORM_CONVENTIONS, "layernorm")
    check(x, eps, weight=weight, bias=bias)
    check_absent(convention, weight, bias)
    if convention is Convention.NEMOTRON and weight is not None:
        weight = 1 + weight.to(_accumulator(weight))
    if torch.compiler.is_compiling():
        return functional.layer_norm(x.to(_accumulator(x)), weight, bias, eps).to(x.dtype)
    if x.device.type != "cpu":
        wide, weight, bias = _cast(_widest(x, weight, bias), x, weight, bias)
        return F.layer_norm(wide, x.shape[-1:], weight, bias, eps).to(x.dtype)
    wide, gain, shift = _cast(_accumulator(x), x, weight, bias)
    y, mean, rate = torch.native_layer_norm(wide, x.shape[-1:], gain, shift, eps)
    if _in_range(rate) and _mean_is_small(mean.detach(), rate.detach(), eps):
        return y.to(x.dtype)
    return functional.layer_norm(x, weight, bias, eps)


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    convention: Convention | str = Convention.DEFAULT,
    fraction: float = 1.0,
) -> Tensor:
    """:func:`normlab.functional.rms_norm` by the fastest correct path; arguments, result and errors as there.

    For the backward pass it keeps x, the gain and one number per token. It can be differentiated twice.

    Raises:
        NotImplementedError: fraction is not 1. Partial RMSNorm has no fast path.
    """
    convention = choose_convention(convention, RMS_NORM_CONVENTIONS, "rmsnorm")
    check(x, eps, weight=weight)
    check_absent(convention, weight, None)
    if fraction != 1:
        raise NotImplementedError(f"fast.rms_norm takes all features, got fraction={fraction}; use normlab.functional")
    if weight is None or (convention in _GAIN_LAST and x.dtype == weight.dtype and x.dtype not in HALF_TYPES):
        return _rms_norm(x, weight, eps)
    match convention:
        case Convention.LLAMA:
            return weight * _rms_norm(x, None, eps)
        case Convention.T5:
            scores = _rms_norm(x.to(_accumulator(x)), None, eps)
            return weight * (scores.to(weight.dtype) if weight.dtype in HALF_TYPES else scores)
        case Convention.GEMMA:
            weight = 1 + weight.to(_accumulator(weight))
    return _rms_norm(x, weight, eps)


_GAIN_LAST = (Convention.LLAMA, Convention.T5)  # rounded to x's or the gain's dtype before the gain
_SAFE = (1e-15, 1e15)  # sizes whose squares and cubes, summed over a vector, stay inside float32


def _rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """weight * x / sqrt(mean(x^2) + eps), the gain before the one rounding to the dtype of x."""
    if torch.compiler.is_compiling():
        return functional.rms_norm(x.to(_accumulator(x)), weight, eps).to(x.dtype)
    if x.device.type != "cpu":
        wide, weight = _cast(_widest(x, weight), x, weight)
        return F.rms_norm(wide, x.shape[-1:], weight, eps).to(x.dtype)
    y, rate = _RMSNorm.apply(x, weight, eps)
    return y if _in_range(rate) else functional.rms_norm(x, weight, eps)


class _RMSNorm(torch.autograd.Function):
    """On the CPU: weight * x * rate, and rate [..., 1] = 1/sqrt(mean(x^2) + eps), which may be out of range."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        if torch.get_num_threads() > 1 or not x.is_contiguous() or x.dtype in HALF_TYPES:
            y, rate = _scale(x, weight, eps)
        else:
            y, rate = _scale_in_blocks(x, weight, eps)
        ctx.save_for_backward(x, weight, rate)
        ctx.mark_non_differentiable(rate)
        ctx.eps = eps
        return y.to(x.dtype), rate

    @staticmethod
    def backward(ctx, grad, _):
        x, weight, rate = ctx.saved_tensors
        if torch.is_grad_enabled():
            # Someone will differentiate this again, and rate depends on x: take the formula that says so.
            dx, dweight = rms_norm_backward(grad, x, weight, ctx.eps)
            return dx, None if weight is None else dweight, None
        grad, wide, gain = _cast(rate.dtype, grad, x, weight)
        wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[1], False]
        # LayerNorm's fused backward, told that the mean is zero, is RMSNorm's but for the centering of the gradient:
        # rate (u - mean(u) - x̂ mean(u x̂)) with u = weight * grad. Adding rate * mean(u) puts that back.
        dx, dweight, _ = torch.ops.aten.native_layer_norm_backward(
            grad, wide, x.shape[-1:], torch.zeros_like(rate), rate, gain, None, wanted
        )
        if wanted[0]:
            sums = grad.sum(-1) if gain is None else torch.mv(grad.reshape(-1, x.shape[-1]), gain)
            dx = dx.add_(sums.view_as(rate) * rate / x.shape[-1]).to(x.dtype)
        return dx, dweight.to(weight.dtype) if wanted[1] else None, None


def _scale(x: Tensor, weight: Tensor | None, eps: float, y: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """weight * x * rate, in the accumulating dtype, and rate; the first into y if that is given."""
    rate = _length(x, _accumulator(x)).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    y = torch.mul(x, rate, out=y)  # if new, the only new tensor of this size: page faults cost more than arithmetic
    return y if weight is None else y.mul_(weight), rate


def _scale_in_blocks(x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """The same in blocks of rows that stay in the cache from one operation to the next. For one thread: several
    would wait for each other at every block.
    """
    y, width = torch.empty_like(x), x.shape[-1]
    rows = max(1, (1 << 18) // width)
    blocks = zip(x.view(-1, width).split(rows), y.view(-1, width).split(rows))
    rates = [_scale(x_block, weight, eps, y_block)[1] for x_block, y_block in blocks]
    return y, torch.cat(rates).view(*x.shape[:-1], 1)


def _length(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Euclidean length over the last axis, kept at size 1. One read of x, no temporary of its size.

    vector_norm adds up one square after the other, and over 4096 equal entries float32 would be off by 2e-6: so
    take lengths of blocks first, then the length of those lengths.
    """
    block = 256
    blocks, rest = divmod(x.shape[-1], block)
    if blocks < 2:
        return torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=dtype)
    body, tail = x.split([blocks * block, rest], dim=-1)
    parts = torch.linalg.vector_norm(body.unflatten(-1, (blocks, block)), dim=-1, dtype=dtype)
    if rest:
        parts = torch.cat([parts, torch.linalg.vector_norm(tail, dim=-1, keepdim=True, dtype=dtype)], dim=-1)
    return _length(parts, dtype)


def _in_range(rate: Tensor) -> bool:
    """Whether the fast operations can square and cube the sizes of all vectors, or their inverses; NaN they cannot."""
    if not rate.numel():
        return True
    low, high = (extreme.item() for extreme in rate.aminmax())
    return _SAFE[0] < low and high < _SAFE[1]


def _mean_is_small(mean: Tensor, rate: Tensor, eps: float) -> bool:
    """Whether every |mean| is at most 4 spreads. LayerNorm's kernel rounds the mean, and so loses that factor."""
    spread = 1 - eps * rate.square() - 8 * torch.finfo(rate.dtype).eps  # var / (var + eps), less what rounding adds
    return bool(((mean * rate).square() <= 16 * spread.clamp(min=0)).all())


def _accumulator(x: Tensor) -> torch.dtype:
    """float32 for half types, else the dtype of x."""
    return torch.promote_types(x.dtype, torch.float32)


def _widest(*tensors: Tensor | None) -> torch.dtype:
    """The dtype that holds all of them: torch's kernels on accelerators take no mixture."""
    return reduce(torch.promote_types, (t.dtype for t in tensors if t is not None))


def _cast(dtype: torch.dtype, *tensors: Tensor | None) -> list[Any]:
    return [t if t is None else t.to(dtype) for t in tensors]
