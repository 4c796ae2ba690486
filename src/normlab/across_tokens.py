"""Norms whose statistics may cross tokens: BatchNorm, GroupNorm, PowerNorm. Import them from normlab.functional.

They also run on the meta device, inside ``torch.func`` transforms and in graphs (``torch.compile(fullgraph=True)``,
``torch.export``), where the values of a mask cannot be looked at. Two checks are left out there: that a mask holds
nothing but 0 and 1, and that a batch has the two real tokens that a variance needs. With fewer, its statistics are NaN.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from normlab.arithmetic import affine, check, check_mask, grouped, normalize, peak, safe_scale, widen


@dataclass(frozen=True)
class Moments:
    """Mean and biased variance [d] of every feature over ``count`` tokens; a tensor [] where no value can be read."""

    mean: Tensor
    var: Tensor
    count: int | Tensor

    @property
    def unbiased_var(self) -> Tensor:
        """Variance with count - 1 below: what BatchNorm stores for evaluation, as an estimate for all data."""
        return self.var * (self.count / (self.count - 1))


def batch_moments(x: Tensor, mask: Tensor | None = None) -> Moments:
    """Moments of every feature over all real tokens of x [..., d]; half types give float64.

    Raises:
        ValueError: fewer than two real tokens, whose variance would say nothing.
    """
    tokens = _batch(x, mask, "batch_moments needs at least two real tokens")
    scale = safe_scale(peak(tokens.rows, 0), 1.0)
    mean = tokens.mean(tokens.rows * scale)
    centered = tokens.rows * scale - mean
    var = tokens.mean((centered - tokens.mean(centered)).square())
    return Moments((mean / scale)[0], (var / scale / scale)[0], tokens.count)


def batch_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-6,
    *,
    mask: Tensor | None = None,
    moments: Moments | None = None,
) -> Tensor:
    """BatchNorm: the standard score of each feature over all real tokens of the batch, then scale and shift.

        y = weight * (x - mean) / sqrt(var + eps) + bias,   mean and var over every axis but the last

    Args:
        x: float tensor [..., d], features last (torch's BatchNorm1d wants them second).
        weight: gain [d], or None for 1.
        bias: shift [d], or None for 0.
        eps: non-negative, inside the root. torch's default is 1e-5.
        mask: [...], 1/True for real tokens, or None if all are.
        moments: mean and variance to use in place of those of the batch (evaluation); its count is not read.

    Returns:
        Tensor with the shape and dtype of x, zeros at padding.

    Raises:
        TypeError, ValueError: as in :func:`layer_norm`; mask of another shape; without ``moments`` fewer than two
            real tokens.

    Source: Ioffe and Szegedy 2015, arXiv:1502.03167; the masking is how one applies it to text.
    """
    check(x, eps, weight=weight, bias=bias)
    if moments is None:
        tokens = _batch(x, mask, "batch_norm needs at least two real tokens to train on")
        scores = _scores(tokens.rows, eps, center=True, axes=0, padding=tokens.padding)
    else:
        tokens = _tokens(x, mask)
        scores = (tokens.rows - moments.mean) / (moments.var + eps).sqrt()
    return tokens.back(affine(scores, weight, bias))


class GroupOver(str, Enum):
    """What one statistic of :func:`group_norm` covers."""

    FEATURES = "features"  # the features of one group in one token: the tokens stay apart
    TOKENS = "tokens"  # the features of one group in all tokens of a sequence, as in torch.nn.GroupNorm


def group_norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-6,
    *,
    over: GroupOver | str = GroupOver.FEATURES,
    mask: Tensor | None = None,
) -> Tensor:
    """GroupNorm: the standard score within each group of neighboring features, then scale and shift per feature.

    Over FEATURES one group is LayerNorm. Over TOKENS later tokens change earlier ones, so it is not causal.

    Args:
        x: float tensor [B, ..., d], features last (torch.nn.GroupNorm wants them second).
        groups: number of groups; divides d.
        weight: gain [d], or None for 1.
        bias: shift [d], or None for 0.
        eps: non-negative, inside the root. torch's default is 1e-5.
        over: FEATURES or TOKENS, or their strings.
        mask: [B, ...], 1/True for real tokens. Over FEATURES there is no use for it.

    Returns:
        Tensor with the shape and dtype of x; over TOKENS zeros at padding.

    Raises:
        TypeError, ValueError: as in :func:`layer_norm`; groups does not divide d; mask of another shape; over TOKENS
            x without a batch axis.

    Source: Wu and He 2018, arXiv:1803.08494.
    """
    check(x, eps, weight=weight, bias=bias)
    if groups < 1 or x.shape[-1] % groups:
        raise ValueError(f"groups must divide the {x.shape[-1]} features of x, got groups={groups}")
    over = over if isinstance(over, GroupOver) else GroupOver(over)  # torch 2.6 compiles no such call
    if over is GroupOver.FEATURES:
        scores, _ = normalize(grouped(widen(x), groups), eps, center=True)
        return affine(scores.flatten(-2), weight, bias).to(x.dtype)
    if x.dim() < 2:
        raise ValueError(f"over tokens x must have shape [batch, ..., features], got {tuple(x.shape)}")
    real = None if mask is None else check_mask("mask", mask, x.shape[:-1])
    padding = None if real is None else ~real.unsqueeze(1).flatten(1).unsqueeze(-1)  # [B, tokens, 1]
    tokens = _zero(widen(x).unsqueeze(1).flatten(1, -2), padding)  # [B, tokens, d]
    inner = None if padding is None else padding[..., None]
    scores = _scores(grouped(tokens, groups), eps, center=True, axes=(1, -1), padding=inner)
    return _zero(affine(scores.flatten(-2), weight, bias), padding).to(x.dtype).reshape(x.shape)


def power_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-6,
    *,
    mask: Tensor | None = None,
    phi: Tensor | None = None,
    nu: Tensor | None = None,
    backward_decay: float = 0.9,
) -> Tensor:
    """PowerNorm: divide each feature by its root mean square over the batch, or by a running one.

        y = weight * x / sqrt(phi + eps) + bias

    With ``nu`` the backward pass is PowerNorm's own. The exact gradient of a batch statistic takes from the incoming
    gradient g the part mean(g x̂) x̂; here nu x̂ is taken, and nu follows mean(g x̂) slowly:

        dx = (g - nu x̂) / sqrt(phi + eps)
        nu <- nu (1 - (1 - a) mean(x̂^2)) + (1 - a) mean(g x̂),   a = backward_decay

    Args:
        x: float tensor [..., d].
        weight: gain [d], or None for 1.
        bias: shift [d], or None for 0.
        eps: non-negative, inside the root. The paper's code has 1e-5.
        mask: [...], 1/True for real tokens, or None if all are.
        phi: mean square [d] of every feature to divide by (running); None for that of this batch (warm-up).
        nu: running mean(g x̂) [d], **updated in place** when the backward pass runs, which then is no derivative of
            y: it cannot be differentiated again, nor run for many g at once (``jacrev``); None for the exact gradient.
        backward_decay: a in [0, 1].

    Returns:
        Tensor with the shape and dtype of x, zeros at padding.

    Raises:
        TypeError, ValueError: as in :func:`layer_norm`; mask of another shape.

    Source: Shen et al. 2020, arXiv:2003.07845, algorithm of PN. Their code divides dx by the root of the batch's
    mean square instead of phi.
    """
    check(x, eps, weight=weight, bias=bias, phi=phi, nu=nu)
    tokens = _tokens(x, mask)
    if nu is not None:
        phi = mean_square(x, mask) if phi is None else phi
        scores = _PowerScores.apply(tokens.rows, phi.to(tokens.rows.dtype), nu, tokens.padding, eps, backward_decay)
    elif phi is not None:
        scores = tokens.rows / (phi.to(tokens.rows.dtype) + eps).sqrt()
    else:
        scores = _scores(tokens.rows, eps, center=False, axes=0, padding=tokens.padding)
    return tokens.back(affine(_zero(scores, tokens.padding), weight, bias))


@torch.no_grad()
def mean_square(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean square [d] of every feature over the real tokens of x [..., d], 0 if none is; half types give float64."""
    tokens = _tokens(x, mask)
    scale = safe_scale(peak(tokens.rows, 0), 1.0)
    return (tokens.mean((tokens.rows * scale).square()) / scale / scale)[0]


class _PowerScores(torch.autograd.Function):
    """x / sqrt(phi + eps) over rows [n, d] with the backward pass described in :func:`power_norm`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, phi, nu, padding, eps, decay):
        return x / (phi + eps).sqrt()

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, phi, nu, padding, eps, decay = inputs
        ctx.save_for_backward(output, phi, padding)
        ctx.nu, ctx.eps, ctx.decay = nu, eps, decay

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        scores, phi, padding = ctx.saved_tensors
        nu, keep = ctx.nu, ctx.decay
        mean = lambda t: _mean(t, 0, padding)[0]
        dx = (grad - nu * scores) / (phi + ctx.eps).sqrt()
        nu.copy_(nu * (1 - (1 - keep) * mean(scores.square())) + (1 - keep) * mean(grad * scores))
        return dx, None, None, None, None, None


def group_scaling(x: Tensor, groups: int, eps: float = 1e-6, *, mask: Tensor | None = None) -> Tensor:
    """Divide each group of neighboring features by its root mean square, token by token: RMSNorm per group.

    PowerNorm's published code does it before PowerNorm proper. Arguments and errors as in :func:`group_norm`; where
    ``mask`` [...] has padding, zeros come out.
    """
    check(x, eps)
    if groups < 1 or x.shape[-1] % groups:
        raise ValueError(f"groups must divide the {x.shape[-1]} features of x, got groups={groups}")
    padding = None if mask is None else ~check_mask("mask", mask, x.shape[:-1])[..., None]
    scores, _ = normalize(grouped(widen(_zero(x, padding)), groups), eps, center=False)
    return _zero(scores.flatten(-2), padding).to(x.dtype)


# --- statistics over real tokens ------------------------------------------------------------------------------------


def _readable(mask: Tensor) -> bool:
    """Whether Python may look at the values: not in a graph, inside a torch.func transform or on the meta device."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    try:
        bool(mask.any())
    except RuntimeError:  # meta and fake tensors, and those of torch.fx
        return False
    return True


@dataclass(frozen=True)
class _Tokens:
    """The tokens of x [..., d] as ``rows`` [n, d], half types widened.

    Where the mask can be read, the rows are the real tokens alone, so that padding changes no bit of a sum. Elsewhere
    their number cannot depend on it: then padding stays, as zeros, and every mean leaves it out.
    """

    rows: Tensor
    count: int | Tensor  # of real tokens
    padding: Tensor | None  # [n, 1], True at rows that are padding; None if no row is
    back: Callable[[Tensor], Tensor]  # from rows to the shape and dtype of x, with zeros at padding

    def mean(self, y: Tensor) -> Tensor:
        """Mean of y [n, d] over the real rows, [1, d]."""
        return _mean(y, 0, self.padding)


def _tokens(x: Tensor, mask: Tensor | None) -> _Tokens:
    rows = widen(x)[None].flatten(0, -2)
    if mask is None:
        return _Tokens(rows, rows.shape[0], None, lambda y: y.to(x.dtype).reshape(x.shape))
    real = check_mask("mask", mask, x.shape[:-1])
    if _readable(mask):
        rows = widen(x[real])
        return _Tokens(rows, rows.shape[0], None, lambda y: torch.zeros_like(x).index_put((real,), y.to(x.dtype)))
    padding, count = ~real.reshape(-1, 1), real.sum().to(rows.dtype)
    return _Tokens(_zero(rows, padding), count, padding, lambda y: _zero(y, padding).to(x.dtype).reshape(x.shape))


def _batch(x: Tensor, mask: Tensor | None, requirement: str) -> _Tokens:
    """:func:`_tokens`, at least two of them real; if that cannot be seen and is not so, the rows are NaN."""
    tokens = _tokens(x, mask)
    if tokens.padding is not None:
        few = torch.as_tensor(tokens.count) < 2
        rows = tokens.rows.masked_fill(few, float("nan"))
        return _Tokens(rows, tokens.count, tokens.padding & ~few, tokens.back)
    if tokens.count < 2:
        raise ValueError(f"{requirement}, got {tokens.count} in {tuple(x.shape)}")
    return tokens


def _zero(x: Tensor, padding: Tensor | None) -> Tensor:
    """x with zeros at padding. Multiplying by 0 would not do: 0 * NaN is NaN, forward and backward."""
    return x if padding is None else x.masked_fill(padding, 0.0)


def _mean(x: Tensor, axes: int | tuple[int, ...], padding: Tensor | None) -> Tensor:
    """Mean of x over ``axes``, kept at size 1, without the places that are padding; 0 over no place at all."""
    if padding is None:
        return x.mean(axes, keepdim=True) if x.numel() else x.sum(axes, keepdim=True)
    count = (~padding).expand_as(x).sum(axes, keepdim=True)
    return _zero(x, padding).sum(axes, keepdim=True) / count.clamp(min=1)


def _scores(x: Tensor, eps: float, *, center: bool, axes: int | tuple[int, ...], padding: Tensor | None) -> Tensor:
    """:func:`normlab.arithmetic.normalize` over the places that are not padding; zeros at padding."""
    if padding is None:
        return normalize(x, eps, center=center, axes=axes)[0]
    scale = safe_scale(peak(x, axes), eps)
    x = x * scale
    if center:
        for _ in range(2):
            x = _zero(x - _mean(x, axes, padding), padding)
        change = safe_scale(peak(x, axes) / scale, eps) / scale
        x, scale = x * change, scale * change
    root = (_mean(x.square(), axes, padding) + eps * scale * scale).sqrt()
    return _zero(x / root, padding)
