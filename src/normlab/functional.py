"""Normalization formulas as pure functions of tensors (knob one: how to compute).

All are meant to be read, and are the reference that everything else is tested against; the modules of
:mod:`normlab.norms` take :mod:`normlab.fast` instead, which is up to fifty times faster. They return the dtype of ``x``
unless a :class:`normlab.conventions.Convention` says otherwise. Half-precision input (float16, bfloat16) is widened
before the first square: 300 squared is infinite in float16, and the layer would silently return zeros. float64 input is
never narrowed. Vectors of any finite size are normalized: before a square could overflow, the vector is scaled by a
power of two, which changes no bit of the result.

``layer_norm``, ``rms_norm``, ``scale_norm``, ``dyt`` and ``group_norm`` over features treat every token alone.
``batch_norm``, ``power_norm`` and ``group_norm`` over tokens mix tokens; they take a ``mask`` of x's shape without
the last axis, in which 1 or True marks a real token. Padding then has no influence on any result, not even NaN
in it, and comes out as zeros.
"""

import torch
from torch import Tensor

from normlab.across_tokens import (
    GroupOver,
    Moments,
    batch_moments,
    batch_norm,
    group_norm,
    group_scaling,
    mean_square,
    power_norm,
)
from normlab.arithmetic import affine, check, check_number, check_scalar, normalize, peak, safe_scale, widen
from normlab.conventions import (
    LAYER_NORM_CONVENTIONS,
    RMS_NORM_CONVENTIONS,
    Convention,
    check_absent,
    choose_convention,
    count_features,
    published_layer_norm,
    published_rms_norm,
)

__all__ = [
    "GroupOver",
    "Moments",
    "batch_moments",
    "batch_norm",
    "dyt",
    "group_norm",
    "group_scaling",
    "identity",
    "layer_norm",
    "mean_square",
    "power_norm",
    "rms_norm",
    "scale_norm",
]


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    convention: Convention | str = Convention.DEFAULT,
) -> Tensor:
    """LayerNorm: the standard score of each vector, then a learned scale and shift per feature.

        y = weight * (x - mean) / sqrt(var + eps) + bias,   mean and var over the last axis

    ``var`` is the biased variance (divide by d, not d - 1), and ``eps`` stands inside the root.

    Args:
        x: float tensor [..., d]. Any axis may be empty.
        weight: gain [d], or None for 1. Under NEMOTRON the gain minus 1.
        bias: shift [d], or None for 0.
        eps: non-negative; has the unit of x squared. With eps = 0 a constant vector gives NaN (0/0).
        convention: DEFAULT, TORCH, NEMOTRON, NO_BIAS or BARE; see :class:`normlab.conventions.Convention`.

    Returns:
        Tensor with the shape and dtype of x. A NaN or infinity spoils its own vector only.

    Raises:
        TypeError: x, weight or bias is not a real floating-point tensor (float8 is for storage only), or eps no number.
        ValueError: x has no axis, weight or bias is not of shape [d] or has no place in the convention,
            eps is negative or not finite, or the convention is not one of LayerNorm.

    Source: Ba, Kiros and Hinton 2016, arXiv:1607.06450.
    """
    convention = choose_convention(convention, LAYER_NORM_CONVENTIONS, "layernorm")
    check(x, eps, weight=weight, bias=bias)
    check_absent(convention, weight, bias)
    if convention is not Convention.DEFAULT:
        return published_layer_norm(x, weight, bias, eps, convention)
    scores, _ = normalize(widen(x), eps, center=True)
    return affine(scores, weight, bias).to(x.dtype)


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    convention: Convention | str = Convention.DEFAULT,
    fraction: float = 1.0,
) -> Tensor:
    """RMSNorm: divide each vector by its root mean square, then a learned scale per feature.

        y = weight * x / sqrt(mean(x^2) + eps),   mean over the last axis

    Args:
        x: float tensor [..., d]. Any axis may be empty.
        weight: gain [d], or None for 1. Under GEMMA the gain minus 1.
        eps: non-negative; has the unit of x squared. With eps = 0 a zero vector gives NaN (0/0).
        convention: DEFAULT, LLAMA, GEMMA, OLMO2, T5 or BARE; see :class:`normlab.conventions.Convention`.
        fraction: p in (0, 1]; below 1 this is partial RMSNorm: the mean square of the first ceil(p * d) features
            stands for that of all. Only under DEFAULT.

    Returns:
        Tensor with the shape and dtype of x (under LLAMA and T5 perhaps of weight). A NaN or infinity spoils its own
        vector only.

    Raises:
        TypeError: as in :func:`layer_norm`.
        ValueError: as in :func:`layer_norm`; fraction outside (0, 1], or below 1 under another convention.

    Source: Zhang and Sennrich 2019, arXiv:1910.07467. Their equation has no eps; here it stands inside the root,
    as in most current models.
    """
    convention = choose_convention(convention, RMS_NORM_CONVENTIONS, "rmsnorm")
    check(x, eps, weight=weight)
    check_absent(convention, weight, None)
    features = count_features(x, fraction, convention)
    if convention is not Convention.DEFAULT:
        return published_rms_norm(x, weight, eps, convention)
    scores, _ = normalize(widen(x), eps, center=False, features=features)
    return affine(scores, weight, None).to(x.dtype)


def scale_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """ScaleNorm: bring each vector to one learned length.

        y = weight * x / max(norm(x), eps),   norm(x) the Euclidean length over the last axis

    Args:
        x: float tensor [..., d].
        weight: one number, shape [] (the length of the result, usually sqrt(d) at first), or None for 1.
        eps: non-negative; the smallest length that is divided by. With eps = 0 a zero vector gives NaN (0/0). For
            shorter vectors the slope is weight / eps, more than float16 can hold.

    Returns:
        Tensor with the shape and dtype of x.

    Raises:
        TypeError, ValueError: as in :func:`layer_norm`, but weight must have shape [].

    Source: Nguyen and Salazar 2019, arXiv:1910.05895; their code has eps = 1e-5.
    """
    check(x, eps)
    check_scalar("weight", weight)
    wide = widen(x)
    scale = safe_scale(peak(wide), eps)
    length = torch.linalg.vector_norm(wide * scale, dim=-1, keepdim=True)
    return affine(wide * scale / torch.maximum(length, eps * scale), weight, None).to(x.dtype)


def dyt(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, alpha: Tensor | float = 0.5) -> Tensor:
    """Dynamic tanh, which replaces a norm by squashing every feature alone: no statistic at all.

        y = weight * tanh(alpha * x) + bias

    Args:
        x: float tensor [..., d].
        weight: gain [d], or None for 1.
        bias: shift [d], or None for 0.
        alpha: one number, float or tensor of shape [].

    Returns:
        Tensor with the shape and dtype of x.

    Raises:
        TypeError, ValueError: as in :func:`layer_norm`; alpha a tensor of another shape than [].

    Source: Zhu et al. 2025, arXiv:2503.10622.
    """
    check(x, 0.0, weight=weight, bias=bias)
    wide = widen(x)
    if isinstance(alpha, Tensor):
        check_scalar("alpha", alpha)
        alpha = alpha.to(wide.dtype)
    else:
        check_number("alpha", alpha)
    return affine(torch.tanh(alpha * wide), weight, bias).to(x.dtype)


def identity(x: Tensor) -> Tensor:
    """No normalization: x itself."""
    return x
