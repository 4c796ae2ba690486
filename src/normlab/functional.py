"""Normalization formulas as pure functions of tensors (knob one: how to compute).

All are meant to be read. They return the dtype of ``x`` unless a :class:`Convention` says otherwise. Half-precision
input (float16, bfloat16) is widened before the first square: 300 squared is infinite in float16, and the layer would
silently return zeros. float64 input is never narrowed. Vectors of any finite size are normalized: before a square
could overflow, the vector is scaled by a power of two, which changes no bit of the result.

``layer_norm``, ``rms_norm``, ``scale_norm``, ``dyt`` and ``group_norm`` over features treat every token alone.
``batch_norm``, ``power_norm`` and ``group_norm`` over tokens mix tokens; they take a ``mask`` of x's shape without
the last axis, in which 1 or True marks a real token. Padding then has no influence on any result, not even NaN
in it, and comes out as zeros.
"""

import math
from enum import Enum

import torch
import torch.nn.functional as F
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
from normlab.core import HALF_TYPES, affine, check, check_scalar, normalize, peak, safe_scale, widen

__all__ = [
    "LAYER_NORM_CONVENTIONS",
    "RMS_NORM_CONVENTIONS",
    "Convention",
    "GroupOver",
    "Moments",
    "batch_moments",
    "batch_norm",
    "choose_convention",
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


class Convention(str, Enum):
    """How real models deviate from the plain formula: where they round, and how they store the gain.

    x̂ is the normalized vector, w the stored gain, b the shift. All but DEFAULT compute x̂ in float32 for half types
    exactly as the named models' published code does, so that results agree to the last bit; squares above the
    largest float32 then overflow as they do there. float64 input stays float64, where most published code narrows it.

    ========  ===================  ========================================  =============================
    name      of                   result                                    used by
    ========  ===================  ========================================  =============================
    DEFAULT   LayerNorm, RMSNorm   w·x̂ + b in float64, rounded once          this course
    LLAMA     RMSNorm              w · round(x̂)                              Llama, Mistral, Qwen 3
    GEMMA     RMSNorm              round((1 + w)·x̂), w starts at 0           Gemma 1 to 3, Qwen3-Next
    OLMO2     RMSNorm              round(w·x̂)                                OLMo 2, gpt-oss
    T5        RMSNorm              w · x̂, x̂ rounded only if w is half        T5
    TORCH     LayerNorm            torch's kernel, w·x̂ + b rounded once      GPT-2, BERT, GPT-NeoX
    NEMOTRON  LayerNorm            torch's kernel with gain 1 + w            Nemotron
    NO_BIAS   LayerNorm            round(w·x̂)                                Cohere
    BARE      LayerNorm, RMSNorm   round(x̂): no gain, no shift               OLMo 1; nanochat
    ========  ===================  ========================================  =============================

    LLAMA and T5 multiply last, so bfloat16 input and float32 gains give a float32 result.
    """

    DEFAULT = "default"
    LLAMA = "llama"
    GEMMA = "gemma"
    OLMO2 = "olmo2"
    T5 = "t5"
    TORCH = "torch"
    NEMOTRON = "nemotron"
    NO_BIAS = "no_bias"
    BARE = "bare"


LAYER_NORM_CONVENTIONS = (
    Convention.DEFAULT,
    Convention.NEMOTRON,
    Convention.NO_BIAS,
    Convention.BARE,
    Convention.TORCH,
)
RMS_NORM_CONVENTIONS = (
    Convention.DEFAULT,
    Convention.LLAMA,
    Convention.GEMMA,
    Convention.OLMO2,
    Convention.T5,
    Convention.BARE,
)


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
        convention: DEFAULT, TORCH, NEMOTRON, NO_BIAS or BARE; see :class:`Convention`.

    Returns:
        Tensor with the shape and dtype of x. A NaN or infinity spoils its own vector only.

    Raises:
        TypeError: x, weight or bias is not a real floating-point tensor.
        ValueError: x has no axis, weight or bias is not of shape [d] or has no place in the convention,
            eps is negative or not finite, or the convention is not one of LayerNorm.

    Source: Ba, Kiros and Hinton 2016, arXiv:1607.06450.
    """
    convention = choose_convention(convention, LAYER_NORM_CONVENTIONS, "layernorm")
    check(x, eps, weight=weight, bias=bias)
    check_absent(convention, weight, bias)
    match convention:
        case Convention.TORCH:
            return _torch_layer_norm(x, weight, bias, eps)
        case Convention.NEMOTRON:
            gain = None if weight is None else weight + 1
            return _torch_layer_norm(x, gain, bias, eps)
        case Convention.BARE:
            return F.layer_norm(_to_float32(x), x.shape[-1:], eps=eps).to(x.dtype)
        case Convention.NO_BIAS:
            wide = _to_float32(x)
            scores = _published_scores(wide - wide.mean(-1, keepdim=True), eps)
            return affine(scores, weight, None).to(x.dtype)
    return affine(normalize(widen(x), eps, center=True)[0], weight, bias).to(x.dtype)


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
        convention: DEFAULT, LLAMA, GEMMA, OLMO2, T5 or BARE; see :class:`Convention`.
        fraction: p in (0, 1]; below 1 this is partial RMSNorm: the mean square of the first ceil(p * d) features
            stands for that of all. Only under DEFAULT.

    Returns:
        Tensor with the shape and dtype of x (LLAMA and T5: see :class:`Convention`). A NaN or infinity spoils its
        own vector only.

    Raises:
        TypeError: as in :func:`layer_norm`.
        ValueError: as in :func:`layer_norm`; fraction outside (0, 1], or below 1 under another convention.

    Source: Zhang and Sennrich 2019, arXiv:1910.07467. Their equation has no eps; here it stands inside the root,
    as in most current models.
    """
    convention = choose_convention(convention, RMS_NORM_CONVENTIONS, "rmsnorm")
    check(x, eps, weight=weight)
    check_absent(convention, weight, None)
    if not 0 < fraction <= 1 or (fraction < 1 and convention is not Convention.DEFAULT):
        raise ValueError(
            "fraction must lie in (0, 1], and be 1 except under the default convention, "
            f"got fraction={fraction} under {convention.value!r}"
        )
    if convention is Convention.DEFAULT:
        features = math.ceil(fraction * x.shape[-1] - 1e-9)  # 0.07 * 100 is a little more than 7
        scores, _ = normalize(widen(x), eps, center=False, features=features)
        return affine(scores, weight, None).to(x.dtype)
    scores = _published_scores(_to_float32(x), eps)
    if weight is None:
        return scores.to(x.dtype)
    match convention:
        case Convention.LLAMA:
            return weight * scores.to(x.dtype)
        case Convention.GEMMA:
            return (scores * (1 + _to_float32(weight))).to(x.dtype)
        case Convention.T5:
            return weight * (scores.to(weight.dtype) if weight.dtype in HALF_TYPES else scores)
    return (weight * scores).to(x.dtype)


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
    return affine(torch.tanh(alpha * wide), weight, bias).to(x.dtype)


def identity(x: Tensor) -> Tensor:
    """No normalization: x itself."""
    return x


def choose_convention(convention: Convention | str, known: tuple[Convention, ...], kind: str) -> Convention:
    """The :class:`Convention` of that name; ValueError unless it is one of those ``known`` for this kind of norm."""
    if convention not in known:
        given = convention.value if isinstance(convention, Convention) else convention
        names = ", ".join(c.value for c in known)
        raise ValueError(f"convention {given!r} is not known for {kind}; known: {names}")
    return Convention(convention)


def _published_scores(x: Tensor, eps: float) -> Tensor:
    """x over its root mean square with the operations, and so the roundings, of most published code."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def _torch_layer_norm(x: Tensor, gain: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """F.layer_norm for any mix of dtypes: what it refuses by itself is widened first."""
    kinds = {t.dtype for t in (gain, bias) if t is not None}
    taken = kinds <= {x.dtype} or (x.device.type == "cpu" and x.dtype in HALF_TYPES and kinds == {torch.float32})
    if taken:
        return F.layer_norm(x, x.shape[-1:], gain, bias, eps)
    kind = torch.float64 if torch.float64 in {x.dtype, *kinds} else torch.float32
    gain, bias = (None if t is None else t.to(kind) for t in (gain, bias))
    return F.layer_norm(x.to(kind), x.shape[-1:], gain, bias, eps).to(x.dtype)


def _to_float32(x: Tensor) -> Tensor:
    return x.float() if x.dtype in HALF_TYPES else x


def check_absent(convention: Convention, weight: Tensor | None, bias: Tensor | None) -> None:
    if convention is Convention.BARE and weight is not None:
        raise ValueError("convention 'bare' has no weight, but one was given")
    if convention in (Convention.BARE, Convention.NO_BIAS) and bias is not None:
        raise ValueError(f"convention {convention.value!r} has no bias, but one was given")
