"""What published models do differently from the plain formula: where they round, and how they store the gain.

:func:`normlab.functional.layer_norm` and ``rms_norm`` take a :class:`Convention`; its arithmetic stands here, so that the
formulas themselves stay short.
"""

import math
from enum import Enum

import torch
import torch.nn.functional as F
from torch import Tensor

from normlab.arithmetic import HALF_TYPES, affine, check_number


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

    LLAMA and T5 multiply last, so bfloat16 input and float32 gains give a float32 result. In
    :func:`normlab.functional.layer_norm` TORCH, NEMOTRON and BARE run torch's kernel and have its derivatives, which
    are wrong from the third order on (forward mode: from the second). The layers, by default, have the right ones.
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


def choose_convention(convention: Convention | str, known: tuple[Convention, ...], kind: str) -> Convention:
    """The :class:`Convention` of that name; ValueError unless it is one of those ``known`` for this kind of norm."""
    if convention not in known:
        given = convention.value if isinstance(convention, Convention) else convention
        names = ", ".join(c.value for c in known)
        raise ValueError(f"convention {given!r} is not known for {kind}; known: {names}")
    return convention if isinstance(convention, Convention) else Convention(convention)  # torch 2.6 compiles no such call


def check_absent(convention: Convention, weight: Tensor | None, bias: Tensor | None) -> None:
    """ValueError if a weight or bias is given that has no place in the convention."""
    if convention is Convention.BARE and weight is not None:
        raise ValueError("convention 'bare' has no weight, but one was given")
    if convention in (Convention.BARE, Convention.NO_BIAS) and bias is not None:
        raise ValueError(f"convention {convention.value!r} has no bias, but one was given")


def count_features(x: Tensor, fraction: float, convention: Convention) -> int:
    """How many features of x [..., d] partial RMSNorm looks at: ceil(fraction * d), at least one."""
    check_fraction(fraction, convention)
    return max(1, math.ceil(fraction * x.shape[-1] - 1e-9))  # 0.07 * 100 is a little more than 7


def check_fraction(fraction: float, convention: Convention) -> None:
    """ValueError if fraction lies outside (0, 1], or below 1 under another convention than DEFAULT."""
    check_number("fraction", fraction)
    if not 0 < fraction <= 1 or (fraction < 1 and convention is not Convention.DEFAULT):
        raise ValueError(
            "fraction must lie in (0, 1], and be 1 except under the default convention, "
            f"got fraction={fraction} under {convention.value!r}"
        )


def published_layer_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, convention: Convention
) -> Tensor:
    """LayerNorm with the operations, and so the roundings, of the published code that ``convention`` names."""
    match convention:
        case Convention.TORCH:
            return _torch_layer_norm(x, weight, bias, eps)
        case Convention.NEMOTRON:
            return _torch_layer_norm(x, None if weight is None else weight + 1, bias, eps)
        case Convention.BARE:
            return F.layer_norm(_to_float32(x), x.shape[-1:], eps=eps).to(x.dtype)
    wide = _to_float32(x)
    scores = _published_scores(wide - wide.mean(-1, keepdim=True), eps)
    return affine(scores, weight, None).to(x.dtype)


def published_rms_norm(x: Tensor, weight: Tensor | None, eps: float, convention: Convention) -> Tensor:
    """RMSNorm with the operations, and so the roundings, of the published code that ``convention`` names."""
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


def _published_scores(x: Tensor, eps: float) -> Tensor:
    """x over its root mean square."""
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
