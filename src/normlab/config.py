"""What shapes a Transformer: the two knobs, and everything that real model families differ in besides."""

import dataclasses
import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import nn

from normlab.arithmetic import check_count, check_eps, check_number
from normlab.attention import QKNorm, Rotary
from normlab.norms import Convention, NormKind, make_norm
from normlab.placement import Placement, leaves_stream_normalized


class Init(str, Enum):
    """How weights are drawn. All are Gaussian with mean 0; biases start at 0, norm parameters keep their defaults."""

    XAVIER = "xavier"  # variance 2 / (fan_in + fan_out); embeddings: tokens + positions together have variance 1
    GPT2 = "gpt2"  # std 0.02 everywhere
    GPT2_SCALED = "gpt2-scaled"  # as GPT2, but std 0.02 / sqrt(2 L) for the two projections that write to the stream
    DEEPNORM = "deepnorm"  # as XAVIER, times beta for value, out and the MLP; see placement.deepnorm_single
    TFIXUP = "tfixup"  # as XAVIER, times (9 L)^(-1/4) for these and the embeddings; see placement.tfixup_gain


class Activation(str, Enum):
    """Nonlinearity of the MLP. The smooth ones keep training reproducible across machines; ReLU does not."""

    GELU = "gelu"
    GELU_TANH = "gelu_tanh"  # the approximation of GPT-2 and Gemma
    SILU = "silu"
    RELU = "relu"


class MLPKind(str, Enum):
    """Shape of the MLP."""

    PLAIN = "plain"  # down(activation(up(x)))
    GATED = "gated"  # down(activation(gate(x)) * up(x)): Llama, Gemma


class Positions(str, Enum):
    """How the model learns where a token stands."""

    LEARNED = "learned"  # a table of ``context`` vectors, added to the token embedding
    ROPE = "rope"  # queries and keys are turned, see attention.Rotary
    NONE = "none"  # only the causal mask tells


class OutputScale(str, Enum):
    """Factor on what the sublayers' norms give out in block l = 1, 2, ...; QK-norms are not meant."""

    NONE = "none"
    INVERSE_SQRT_LAYER = "inverse_sqrt_layer"  # 1/sqrt(l): LayerNorm Scaling, arXiv:2502.05795


_ENUMS: dict[str, type[Enum]] = {
    "norm": NormKind,
    "convention": Convention,
    "qk_norm": QKNorm,
    "output_scale": OutputScale,
    "positions": Positions,
    "mlp": MLPKind,
    "activation": Activation,
    "init": Init,
}
_SCALABLE = (Placement.PRE, Placement.PERI, Placement.OUTPUT, Placement.PARALLEL)
SUBLAYERS = ("attention", "mlp")


@dataclass(frozen=True)
class TransformerConfig:
    """Everything that shapes a :class:`normlab.transformer.Transformer`. Enums may be given by their strings.

    Args:
        vocab_size: number of token ids.
        context: longest sequence, in tokens.
        layers: number of blocks L. A block has one residual sublayer per entry of ``sublayers``.
        width: features d of the residual stream.

        norm: knob one, how to compute.
        convention: how the norms store their gain and where they round; :class:`normlab.norms.Convention`.
        eps: of all norms; None for the usual value of the kind.

        placement: knob two, where to put it; one for all blocks or a tuple with one per block (Mix-LN).
        final_norm: before the head. None means: exactly if the stream leaves the last block un-normalized.
        embedding_norm: on the stream before the first block (BERT, BLOOM, Peri-LN's paper).
        parallel_shared_norm: in PARALLEL, one norm for both sublayers (GPT-J) instead of one each (GPT-NeoX).
        output_scale: see :class:`OutputScale`. Only where no norm stands on the stream itself.

        heads: query heads.
        kv_heads: key and value heads; None for as many as heads.
        head_dim: features per head; None for width / heads.
        causal: False for an encoder, in which every token sees every other.
        qk_norm: norms of kind ``norm`` on queries and keys. HYBRID has them always, per head unless told otherwise.
        qk_norm_after_rope: norm behind the rotation instead of before it.
        query_scale: factor on the scores; None for head_dim^(-1/2).
        attention_softcap, logit_softcap: c squeezes scores or logits s to c * tanh(s / c); None for no cap.
        windows: for each block how many positions a token sees, itself included, or None for all of them.
        attention_bias: biases of all four projections.

        positions: see :class:`Positions`.
        rope_base, rope_local_base: base of the rotation; the second in blocks with a window, None for the same.
        rope_fraction: share of each head's features that turn.
        rope_angles: dtype of the angles, see :class:`normlab.attention.Rotary`.

        mlp: plain or gated.
        mlp_width: hidden features of the MLP; None means 4 * width, or 8/3 * width (rounded down) if gated.
        activation: of the MLP.
        mlp_bias: biases of the MLP.
        sublayers: which sublayers a block has, in order.

        embedding_multiplier: factor on token embeddings, rounded to their dtype (Gemma: sqrt(width)).
        segments: kinds of segment (BERT: 2), each with a learned vector; 0 for none.
        head_transform: a linear layer with bias, activation and norm before the head (BERT).
        head_bias: bias of the head.
        tied_head: head and token embedding are one matrix.
        init: how weights are drawn.

    Raises:
        TypeError: a size that is no integer, or another number that is none.
        ValueError: a value that does not exist, is out of range (NaN and infinity are), or does not fit the others; the
            message names both.
    """

    vocab_size: int
    context: int
    layers: int
    width: int
    heads: int = 1
    norm: NormKind = NormKind.RMSNORM
    placement: Placement | tuple[Placement, ...] = Placement.PRE
    eps: float | None = None
    final_norm: bool = None  # type: ignore[assignment]  # never None after __post_init__
    mlp_width: int = None  # type: ignore[assignment]
    activation: Activation = Activation.GELU
    init: Init = Init.XAVIER
    sublayers: tuple[str, ...] = SUBLAYERS
    convention: Convention = Convention.DEFAULT
    embedding_norm: bool = False
    parallel_shared_norm: bool = True
    output_scale: OutputScale = OutputScale.NONE
    kv_heads: int = None  # type: ignore[assignment]
    head_dim: int = None  # type: ignore[assignment]
    causal: bool = True
    qk_norm: QKNorm = QKNorm.NONE
    qk_norm_after_rope: bool = False
    query_scale: float | None = None
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    windows: tuple[int | None, ...] | None = None
    attention_bias: bool = False
    positions: Positions = Positions.LEARNED
    rope_base: float = 10000.0
    rope_local_base: float | None = None
    rope_fraction: float = 1.0
    rope_angles: torch.dtype = torch.float64
    mlp: MLPKind = MLPKind.PLAIN
    mlp_bias: bool = False
    embedding_multiplier: float | None = None
    segments: int = 0
    head_transform: bool = False
    head_bias: bool = False
    tied_head: bool = False

    def __post_init__(self):
        for name in ("vocab_size", "context", "layers", "width", "heads"):
            check_count(name, getattr(self, name))
        if self.head_dim is None and self.width % self.heads:
            raise ValueError(f"width must be divisible by heads, got width={self.width}, heads={self.heads}")
        if not self.sublayers or any(s not in SUBLAYERS for s in self.sublayers):
            raise ValueError(f"sublayers must name one or more of {SUBLAYERS}, got {self.sublayers}")
        # Strings are welcome; from here on they are enum members, or the enum has named the bad value.
        for name, kind in _ENUMS.items():
            object.__setattr__(self, name, kind(getattr(self, name)))
        self._set_placement()
        self._set_defaults()
        self._check()

    def _set_placement(self) -> None:
        one = isinstance(self.placement, str)
        placement = Placement(self.placement) if one else tuple(Placement(p) for p in self.placement)
        object.__setattr__(self, "placement", placement)
        if isinstance(self.windows, int):
            raise ValueError(f"windows must have one entry per block ({self.layers}), got the number {self.windows}")
        if self.windows is not None:
            object.__setattr__(self, "windows", tuple(self.windows))
        for name in ("placement", "windows"):
            value = getattr(self, name)
            if isinstance(value, tuple) and len(value) != self.layers:
                raise ValueError(f"{name} must have one entry per block ({self.layers}), got {len(value)}")

    def _set_defaults(self) -> None:
        gated = self.mlp is MLPKind.GATED
        defaults = {
            "final_norm": not leaves_stream_normalized(self.placements[-1]),
            "mlp_width": 8 * self.width // 3 if gated else 4 * self.width,
            "kv_heads": self.heads,
            "head_dim": self.width // self.heads,
        }
        derived = {name for name in defaults if getattr(self, name) is None}
        for name in derived:
            object.__setattr__(self, name, defaults[name])
        object.__setattr__(self, "_derived", derived)  # no field: it takes no part in comparisons

    def _check(self) -> None:
        for name in ("kv_heads", "head_dim", "mlp_width"):
            check_count(name, getattr(self, name))
        if self.heads % self.kv_heads:
            raise ValueError(f"heads must be divisible by kv_heads, got heads={self.heads}, kv_heads={self.kv_heads}")
        check_count("segments", self.segments, least=0)
        for i, window in enumerate(self.windows or ()):
            if window is not None:
                check_count(f"windows[{i}]", window)
        self._check_numbers()
        if self.rope_local_base is not None and self.windows is None:
            raise ValueError("rope_local_base is for blocks with a window, but windows is None")
        for layer in range(1, self.layers + 1):
            self.rotary(layer)
        if self.output_scale is not OutputScale.NONE:
            for placement in self.placements:
                if placement not in _SCALABLE:
                    known = ", ".join(p.value for p in _SCALABLE)
                    raise ValueError(f"output_scale fits the placements {known}, got {placement.value}")

    def _check_numbers(self) -> None:
        positive = ("attention_softcap", "logit_softcap", "rope_base", "rope_local_base")
        for name in ("query_scale", "embedding_multiplier", *positive):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), above=0 if name in positive else -math.inf)
        check_number("rope_fraction", self.rope_fraction, above=0)
        if self.rope_fraction > 1:
            raise ValueError(f"rope_fraction must be at most 1, got {self.rope_fraction}")
        if self.eps is not None:
            check_eps(self.eps)

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Placement of each block."""
        return self.placement if isinstance(self.placement, tuple) else (self.placement,) * self.layers

    def window(self, layer: int) -> int | None:
        """Window of block ``layer`` (from 1), None if it sees everything."""
        return self.windows[layer - 1] if self.windows else None

    def rotary(self, layer: int) -> Rotary | None:
        """Rotation of block ``layer`` (from 1), None without RoPE."""
        if self.positions is not Positions.ROPE:
            return None
        local = None if self.window(layer) is None else self.rope_local_base
        base = self.rope_base if local is None else local
        return Rotary(int(self.head_dim * self.rope_fraction), base, self.rope_angles)

    def make_norm(self, width: int | None = None) -> nn.Module:
        """A new norm as the config wants it, over ``width`` features (None: the stream's)."""
        return make_norm(self.norm, self.width if width is None else width, eps=self.eps, convention=self.convention)

    def replace(self, **changes: Any) -> "TransformerConfig":
        """A copy with some fields changed. Unlike ``dataclasses.replace``, it decides anew what was left to a rule:
        final_norm, mlp_width, kv_heads and head_dim where they were None."""
        return dataclasses.replace(self, **{**dict.fromkeys(self.__dict__["_derived"]), **changes})
