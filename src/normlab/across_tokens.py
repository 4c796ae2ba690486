"""Norms whose statistics may cross tokens: BatchNorm, GroupNorm, PowerNorm. Import them from normlab.functional."""

from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from normlab.arithmetic import affine, check, grouped, normalize, peak, real_tokens, safe_scale, scatter, widen


@dataclass(frozen=True)
class Moments:
    """Mean and biased variance [d] of every feature over ``count`` tokens."""

    mean: Tensor
    var: Tensor
    count: int

    @property
    def unbiased_var(self) -> Tensor:
        """Variance with count - 1 below: what BatchNorm stores for evaluation, as an estimate for all data."""
        return self.var * (self.count / (self.count - 1))


def batch_moments(x: Tensor, mask: Tensor | None = None) -> Moments:
    """Moments of every feature over all real tokens of x [..., d]; half types give float64.

    Raises:
        ValueError: fewer than two real tokens, whose variance would say nothing.
    """
    tokens = widen(x[real_tokens(x, mask)])
    if len(tokens) < 2:
        raise ValueError(f"statistics of a batch need at least two real tokens, got {len(tokens)} in {tuple(x.shape)}")
    scale = safe_scale(peak(tokens, 0), 1.0)
    centered = tokens * scale - (tokens * scale).mean(0)
    var = (centered - centered.mean(0)).square().mean(0)
    return Moments((tokens * scale).mean(0) / scale[0], var / scale[0] / scale[0], len(tokens))


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
    real = real_tokens(x, mask)
    tokens = widen(x[real])
    if moments is not None:
        scores = (tokens - moments.mean) / (moments.var + eps).sqrt()
    elif len(tokens) < 2:
        raise ValueError(
            f"batch_norm needs at least two real tokens to train on, got {len(tokens)} in {tuple(x.shape)}"
        )
    else:
        scores, _ = normalize(tokens, eps, center=True, axes=0)
    return scatter(affine(scores, weight, bias), real, x)


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
    if GroupOver(over) is GroupOver.FEATURES:
        scores, _ = normalize(grouped(widen(x), groups), eps, center=True)
        return affine(scores.flatten(-2), weight, bias).to(x.dtype)
    if x.dim() < 2:
        raise ValueError(f"over tokens x must have shape [batch, ..., features], got {tuple(x.shape)}")
    real = real_tokens(x, mask)
    sequences = [widen(row[where]) for row, where in zip(x, real, strict=True)]  # [real tokens, d] each
    normalized = [
        normalize(grouped(tokens, groups), eps, center=True, axes=(0, -1))[0].flatten(-2) if len(tokens) else tokens
        for tokens in sequences
    ]
    none = widen(x[:0]).flatten(0, -2)  # so that an empty batch can be joined too
    return scatter(affine(torch.cat([none, *normalized]), weight, bias), real, x)


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
        nu: running mean(g x̂) [d], **updated in place** when the backward pass runs, which then cannot be
            differentiated again; None for the exact gradient.
        backward_decay: a in [0, 1].

    Returns:
        Tensor with the shape and dtype of x, zeros at padding.

    Raises:
        TypeError, ValueError: as in :func:`layer_norm`; mask of another shape.

    Source: Shen et al. 2020, arXiv:2003.07845, algorithm of PN. Their code divides dx by the root of the batch's
    mean square instead of phi.
    """
    check(x, eps, weight=weight, bias=bias, phi=phi, nu=nu)
    real = real_tokens(x, mask)
    tokens = widen(x[real])
    if not len(tokens):
        return torch.zeros_like(x)
    if nu is not None:
        used = mean_square(x, mask) if phi is None else phi
        scores = _PowerScores.apply(tokens, used.to(tokens.dtype), nu, eps, backward_decay)
    elif phi is not None:
        scores = tokens / (phi.to(tokens.dtype) + eps).sqrt()
    else:
        scores, _ = normalize(tokens, eps, center=False, axes=0)
    return scatter(affine(scores, weight, bias), real, x)


@torch.no_grad()
def mean_square(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean square [d] of every feature over the real tokens of x [..., d], at least one; half types give float64."""
    tokens = widen(x[real_tokens(x, mask)])
    scale = safe_scale(peak(tokens, 0), 1.0)
    return (tokens * scale).square().mean(0) / scale[0] / scale[0]


class _PowerScores(torch.autograd.Function):
    """x / sqrt(phi + eps) over tokens [n, d] with the backward pass described in :func:`power_norm`."""

    @staticmethod
    def forward(ctx, x, phi, nu, eps, decay):
        root = (phi + eps).sqrt()
        scores = x / root
        ctx.save_for_backward(scores, root)
        ctx.nu, ctx.decay = nu, decay
        return scores

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        scores, root = ctx.saved_tensors
        nu, keep = ctx.nu, ctx.decay
        dx = (grad - nu * scores) / root
        nu.copy_(nu * (1 - (1 - keep) * scores.square().mean(0)) + (1 - keep) * (grad * scores).mean(0))
        return dx, None, None, None, None


def group_scaling(x: Tensor, groups: int, eps: float = 1e-6) -> Tensor:
    """Divide each group of neighboring features by its root mean square, token by token: RMSNorm per group.

    PowerNorm's published code does it before PowerNorm proper. Arguments and errors as in :func:`group_norm`.
    """
    check(x, eps)
    if groups < 1 or x.shape[-1] % groups:
        raise ValueError(f"groups must divide the {x.shape[-1]} features of x, got groups={groups}")
    scores, _ = normalize(grouped(widen(x), groups), eps, center=False)
    return scores.flatten(-2).to(x.dtype)
