"""The fastest correct path for the device at hand: LayerNorm and RMSNorm, called as in :mod:`normlab.functional`.

``layer_norm`` and ``rms_norm`` here take the arguments of their namesakes there and give the same result up to
rounding, with half types accumulated in float32 and rounded once. The modules of :mod:`normlab.norms` use them, unless
:class:`enabled` says otherwise.

========================  =========================================  ==========================================
where                     RMSNorm                                    LayerNorm
========================  =========================================  ==========================================
CPU                       a mean square and two scalings, in blocks  torch's fused kernel, parameters of half
                          that stay in the cache; backward through   types widened
                          the fused kernel of LayerNorm
CUDA and other devices    torch's kernel                             torch's kernel
inside ``torch.compile``  the reference formula, half types in       the same
                          float32: fusing it is the compiler's job
========================  =========================================  ==========================================

On the CPU every result is right, also for vectors that these operations would get wrong: sizes whose squares leave
the number range, and for LayerNorm a mean that outweighs the spread, as in a constant vector. A batch that has one
(or a NaN) is computed by the reference formula instead. So is everything that is not a plain call: partial RMSNorm,
``torch.func`` transforms, forward-mode gradients, tensor subclasses, tracing. On other devices results are those of
torch's kernels. ScaleNorm, DyT and the norms across tokens have no fast path.

Gradients are right to any order: a backward pass that will itself be differentiated takes the formula of
:mod:`normlab.backward`. (Torch's own LayerNorm is wrong from the third order on.)
"""

from collections.abc import Callable
from contextvars import ContextVar
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from normlab import functional
from normlab.arithmetic import HALF_TYPES, check
from normlab.backward import layer_norm_backward, rms_norm_backward
from normlab.conventions import (
    LAYER_NORM_CONVENTIONS,
    RMS_NORM_CONVENTIONS,
    Convention,
    check_absent,
    choose_convention,
)

__all__ = ["enabled", "is_enabled", "layer_norm", "rms_norm"]

_on: ContextVar[bool] = ContextVar("whether norm modules take the fast path", default=True)


class enabled:
    """Let the norm modules take the fast path or, with ``fast.enabled(False)``, the reference.

    From now on, or as ``with fast.enabled(False):`` for a block of code. It holds for this thread (more exactly: this
    context, see the library module contextvars); a new thread starts with the default, the fast path. It is read in the forward
    pass. Inside ``torch.compile`` it is not read: there both are the same formula.
    """

    def __init__(self, on: bool = True):
        self._token = _on.set(bool(on))

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: Any) -> None:
        _on.reset(self._token)


def is_enabled() -> bool:
    """Whether norm modules take the fast path here; always inside ``torch.compile``."""
    return torch.compiler.is_compiling() or _on.get()


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    convention: Convention | str = Convention.DEFAULT,
) -> Tensor:
    """:func:`normlab.functional.layer_norm` by the fastest correct path; arguments, result and errors as there.

    For the backward pass it keeps x, the gain and two numbers per token.
    """
    check(x, eps, weight=weight, bias=bias)
    if convention is not Convention.DEFAULT:
        convention = choose_convention(convention, LAYER_NORM_CONVENTIONS, "layernorm")
        check_absent(convention, weight, bias)
        if convention is Convention.NEMOTRON and weight is not None:
            weight = weight + 1  # rounded as it is stored, as in the published code
    if torch.compiler.is_compiling():
        return functional.layer_norm(x.to(_accumulator(x)), weight, bias, eps).to(x.dtype)
    if not _is_plain(x, weight, bias):
        return functional.layer_norm(x, weight, bias, eps)
    if not x.is_cpu:
        wide, weight, bias = _cast(_widest(x, weight, bias), x, weight, bias)
        return F.layer_norm(wide, x.shape[-1:], weight, bias, eps).to(x.dtype)
    compute = _LayerNorm.apply if _wants_gradients(x, weight, bias) else _LayerNorm.compute
    y, mean, rate = compute(x, weight, bias, eps)
    fit = _moments_fit(mean, rate, eps)
    if not fit and rate.dtype in HALF_TYPES:  # they were rounded: look more closely
        y, mean, rate = _LayerNorm.widely(x, weight, bias, eps)
        fit = _moments_fit(mean, rate, eps)
    return y if fit else functional.layer_norm(x, weight, bias, eps)


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    convention: Convention | str = Convention.DEFAULT,
    fraction: float = 1.0,
) -> Tensor:
    """:func:`normlab.functional.rms_norm` by the fastest correct path; arguments, result and errors as there.

    For the backward pass it keeps x, the gain and one number per token.
    """
    if convention is not Convention.DEFAULT or fraction != 1:
        return _rms_norm_by_convention(x, weight, eps, convention, fraction)
    check(x, eps, weight=weight)
    if torch.compiler.is_compiling():
        return functional.rms_norm(x.to(_accumulator(x)), weight, eps).to(x.dtype)
    if not _is_plain(x, weight):
        return functional.rms_norm(x, weight, eps)
    if not x.is_cpu:
        wide, weight = _cast(_widest(x, weight), x, weight)
        return F.rms_norm(wide, x.shape[-1:], weight, eps).to(x.dtype)
    compute = _RMSNorm.apply if _wants_gradients(x, weight) else _RMSNorm.compute
    y, rate = compute(x, weight, eps)
    return y if _squares_fit(rate) else functional.rms_norm(x, weight, eps)


_GAIN_LAST = (Convention.LLAMA, Convention.T5)  # rounded to x's or the gain's dtype before the gain


def _rms_norm_by_convention(
    x: Tensor, weight: Tensor | None, eps: float, convention: Convention | str, fraction: float
) -> Tensor:
    if fraction != 1:
        return functional.rms_norm(x, weight, eps, convention=convention, fraction=fraction)
    check(x, eps, weight=weight)
    convention = choose_convention(convention, RMS_NORM_CONVENTIONS, "rmsnorm")
    check_absent(convention, weight, None)
    if weight is None or (convention in _GAIN_LAST and x.dtype == weight.dtype and x.dtype not in HALF_TYPES):
        return rms_norm(x, weight, eps)
    match convention:
        case Convention.LLAMA:
            return weight * rms_norm(x, None, eps)
        case Convention.T5:
            scores = rms_norm(x.to(_accumulator(x)), None, eps)
            return weight * (scores.to(weight.dtype) if weight.dtype in HALF_TYPES else scores)
        case Convention.GEMMA:
            weight = 1 + weight.to(_accumulator(weight))
    return rms_norm(x, weight, eps)


# --- on the CPU ---------------------------------------------------------------------------------------------------


def _wants_gradients(*tensors: Tensor | None) -> bool:
    """Whether autograd has to keep books; without them a call is faster."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


class _LayerNorm(torch.autograd.Function):
    """weight * (x - mean) * rate + bias, and mean and rate = 1/sqrt(var + eps) [..., 1], which may be inexact."""

    @staticmethod
    def compute(x, weight, bias, eps):
        if any(p is not None and p.dtype is not x.dtype for p in (weight, bias)):
            return _LayerNorm.widely(x, weight, bias, eps)
        return torch.native_layer_norm(x, x.shape[-1:], weight, bias, eps)

    @staticmethod
    def widely(x, weight, bias, eps):
        """The same with mean and rate in the accumulating dtype, which the kernel takes from the parameters."""
        kind = _accumulator(x)
        if weight is None and kind is not x.dtype:
            weight = x.new_ones(x.shape[-1], dtype=kind)
        weight, bias = _cast(kind, weight, bias)
        return torch.native_layer_norm(x, x.shape[-1:], weight, bias, eps)

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        y, mean, rate = _LayerNorm.widely(x, weight, bias, eps)
        ctx.save_for_backward(x, weight, bias, mean, rate)
        ctx.mark_non_differentiable(mean, rate)
        ctx.eps = eps
        return y, mean, rate

    @staticmethod
    def backward(ctx, grad, *_):
        x, weight, bias, mean, rate = ctx.saved_tensors
        gain, shift = _cast(rate.dtype, weight, bias)
        wanted = ctx.needs_input_grad[:3]

        def pull_back(grad, x, mean, rate):
            return torch.ops.aten.native_layer_norm_backward(grad, x, x.shape[-1:], mean, rate, gain, shift, wanted)

        if torch.is_grad_enabled():  # someone will differentiate this again, and mean and rate depend on x
            dx, dweight, dbias = layer_norm_backward(grad, x, weight, ctx.eps)
        else:
            dx, dweight, dbias = _gradients(pull_back, grad, x, mean, rate)
        return dx if wanted[0] else None, _like(weight, dweight), _like(bias, dbias), None


class _RMSNorm(torch.autograd.Function):
    """weight * x * rate, and rate [..., 1] = 1/sqrt(mean(x^2) + eps), which may be out of range."""

    @staticmethod
    def compute(x, weight, eps):
        if x.numel() <= _BLOCK:
            wide = x if x.dtype not in HALF_TYPES else x.float()
            rate = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
            y = wide * rate if weight is None else (wide * rate).mul_(weight)
            return y if wide is x else y.to(x.dtype), rate
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        rate = x.new_empty(*x.shape[:-1], 1, dtype=_accumulator(x))
        (gain,) = _cast(rate.dtype, weight)
        blocks = _blocks(x, y, rate)
        buffer = None if x.dtype is rate.dtype else torch.empty_like(blocks[0][0], dtype=rate.dtype)
        for x_rows, y_rows, rate_rows in blocks:
            wide = x_rows if buffer is None else buffer[: len(x_rows)].copy_(x_rows)
            if buffer is None:
                length = _length(wide)
            else:  # half types round away what _length is careful about
                length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
            rate_rows.fill_(eps).addcmul_(length, length, value=1 / x.shape[-1]).rsqrt_()
            scores = torch.mul(wide, rate_rows, out=y_rows if buffer is None else wide)
            if gain is not None:
                scores.mul_(gain)
            if buffer is not None:
                y_rows.copy_(scores)
        return y, rate

    @staticmethod
    def forward(ctx, x, weight, eps):
        y, rate = _RMSNorm.compute(x, weight, eps)
        ctx.save_for_backward(x, weight, rate)
        ctx.mark_non_differentiable(rate)
        ctx.eps = eps
        return y, rate

    @staticmethod
    def backward(ctx, grad, _):
        x, weight, rate = ctx.saved_tensors
        (gain,) = _cast(rate.dtype, weight)
        wanted = [*ctx.needs_input_grad[:2], False]

        def pull_back(grad, x, rate):
            # LayerNorm's fused backward, told that the mean is zero, is RMSNorm's but for the centering of the
            # gradient: rate (u - mean(u) - x̂ mean(u x̂)) with u = gain * grad. Adding rate * mean(u) puts that back.
            width, zero = x.shape[-1], torch.zeros_like(rate)
            dx, dgain, _ = torch.ops.aten.native_layer_norm_backward(grad, x, [width], zero, rate, gain, None, wanted)
            if wanted[0]:
                sums = grad.sum(-1) if gain is None else torch.mv(grad.reshape(-1, width), gain)
                dx.add_(sums.view_as(rate) * rate / width)
            return dx, dgain

        if torch.is_grad_enabled():  # someone will differentiate this again, and rate depends on x
            dx, dweight = rms_norm_backward(grad, x, weight, ctx.eps)
        else:
            dx, dweight = _gradients(pull_back, grad, x, rate)
        return dx if wanted[0] else None, _like(weight, dweight) if wanted[1] else None, None


def _gradients(
    pull_back: Callable[..., tuple[Tensor, ...]], grad: Tensor, x: Tensor, *statistics: Tensor
) -> tuple[Tensor, ...]:
    """What ``pull_back(grad, x, *statistics)`` returns, dx and the gradients of parameters, in the accumulating dtype.

    Half types are widened block by block; the shares of the parameters' gradients add up.
    """
    kind = statistics[-1].dtype
    if x.dtype is kind:
        return pull_back(grad.to(kind), x, *statistics)
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    totals: list[Any] = []
    for x_rows, grad_rows, dx_rows, *rows in _blocks(x, grad, dx, *statistics):
        part, *shares = pull_back(*_cast(kind, grad_rows, x_rows), *rows)
        if part is not None:
            dx_rows.copy_(part)
        totals = [s if t is None or s is None else t.add_(s) for t, s in zip(totals or [None] * len(shares), shares)]
    return dx, *totals


def _length(x: Tensor) -> Tensor:
    """Euclidean length of each vector [..., 1], in one read of x and without a temporary of its size.

    vector_norm adds up one square after the other, and over 4096 equal entries float32 would be off by 2e-6: so
    take lengths of blocks first, then the length of those lengths.
    """
    block = 256
    blocks, rest = divmod(x.shape[-1], block)
    if blocks < 2:
        return torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    body, tail = x.split([blocks * block, rest], dim=-1) if rest else (x, None)
    parts = torch.linalg.vector_norm(body.reshape(*x.shape[:-1], blocks, block), dim=-1)
    if tail is not None:
        parts = torch.cat([parts, torch.linalg.vector_norm(tail, dim=-1, keepdim=True)], dim=-1)
    return _length(parts)


_BLOCK = 1 << 18  # numbers that stay in the cache from one operation to the next


def _blocks(*tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """The tensors [..., k] as blocks of rows [n, k]: about _BLOCK numbers a thread, twice as many of half types."""
    x = tensors[0]
    rows = x.shape[:-1].numel()
    at_once = _BLOCK * torch.get_num_threads() * (2 if x.dtype in HALF_TYPES else 1)
    step = max(1, at_once // max(1, x.shape[-1]))
    return list(zip(*(t.reshape(rows, t.shape[-1]).split(step) for t in tensors)))


# --- whether the fast operations may be trusted -------------------------------------------------------------------

_SAFE = (1e-15, 1e15)  # rates for whose inverses squares and cubes, summed over a vector, stay inside float32
_ROUNDING = {kind: 8 * torch.finfo(kind).eps for kind in (torch.float64, torch.float32, *HALF_TYPES)}


def _is_plain(*tensors: Tensor | None) -> bool:
    """Whether this is an ordinary eager call. A transform, a tracer or a subclass of Tensor cannot be asked for the
    values that :func:`_squares_fit` looks at, or wants derivatives that the fast operations do not have."""
    for t in tensors:
        if t is not None and type(t) is not Tensor and type(t) is not nn.Parameter:
            return False
    return (
        not torch._C._are_functorch_transforms_active()  # torch.autograd.Function asks this as well
        and torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is None  # make_fx
        and forward_ad._current_level < 0
        and not torch._C._is_tracing()
    )


def _squares_fit(rate: Tensor) -> bool:
    """Whether the fast operations can square and cube the sizes of all vectors, or their inverses; NaN they cannot."""
    low, high = _range(rate)
    return _SAFE[0] < low and high < _SAFE[1]


def _moments_fit(mean: Tensor, rate: Tensor, eps: float) -> bool:
    """:func:`_squares_fit`, and whether every |mean| is at most 4 spreads. LayerNorm's kernel rounds the mean, and so
    loses that factor.

    With spread^2 rate^2 = var / (var + eps) = 1 - eps rate^2 that is (mean rate)^2 + 16 eps rate^2 <= 16. A mean of
    exactly 0, as in a vector of zeros, is small whatever rounding makes of the second term.
    """
    if not rate.numel():
        return True
    (low, high), (least, largest) = _range(rate), _range(mean)
    if not (_SAFE[0] < low and high < _SAFE[1]):
        return False
    most = 16 * (1 - _ROUNDING[rate.dtype])
    if (max(-least, largest) * high) ** 2 + min(16 * eps * high * high, most) <= most:
        return True  # the largest mean would fit the largest rate
    mean, rate = _cast(_accumulator(rate), mean, rate)
    room = rate.square().mul_(-16 * eps).add_(most).clamp_(min=0)  # added to 16, a small square would be rounded away
    return bool(((mean * rate).square_() <= room).all())


def _range(x: Tensor) -> tuple[float, float]:
    """The smallest and the largest number, NaN if one is; 1 for both of none."""
    if x.numel() <= 1:
        return (x.item(),) * 2 if x.numel() else (1.0, 1.0)
    low, high = x.aminmax()
    return low.item(), high.item()


# --- dtypes -------------------------------------------------------------------------------------------------------


def _accumulator(x: Tensor) -> torch.dtype:
    """float32 for half types, else the dtype of x."""
    return torch.float32 if x.dtype in HALF_TYPES else x.dtype


def _widest(*tensors: Tensor | None) -> torch.dtype:
    """The dtype that holds all of them: torch's kernels on accelerators take no mixture."""
    return reduce(torch.promote_types, (t.dtype for t in tensors if t is not None))


def _cast(dtype: torch.dtype, *tensors: Tensor | None) -> list[Any]:
    return [t if t is None or t.dtype is dtype else t.to(dtype) for t in tensors]


def _like(parameter: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    """The gradient of a parameter in its dtype; None if there is no such parameter."""
    return None if parameter is None or gradient is None else gradient.to(parameter.dtype)
