"""A Transformer whose normalization is set by two knobs: how to compute it, and where to put it."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from normlab.attention import QKNorm, Rotary, SelfAttention
from normlab.norms import Convention, Identity, NormKind, make_norm
from normlab.placement import (
    PARTS,
    Placement,
    Residual,
    apply_norm,
    deepnorm_single,
    leaves_stream_normalized,
    tfixup_gain,
)


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
    """Factor on the output of the norms of block l = 1, 2, ..."""

    NONE = "none"
    INVERSE_SQRT_LAYER = "inverse_sqrt_layer"  # 1/sqrt(l): LayerNorm Scaling, arXiv:2502.05795


_ACTIVATIONS: dict[Activation, Callable[[], nn.Module]] = {
    Activation.GELU: nn.GELU,
    Activation.GELU_TANH: lambda: nn.GELU(approximate="tanh"),
    Activation.SILU: nn.SiLU,
    Activation.RELU: nn.ReLU,
}
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
    """Everything that shapes a :class:`Transformer`. Enums may be given by their strings.

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
        ValueError: a value that does not exist or does not fit the others; the message names both.
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
    mlp: MLPKind = MLPKind.PLAIN
    mlp_bias: bool = False
    embedding_multiplier: float | None = None
    segments: int = 0
    head_transform: bool = False
    head_bias: bool = False
    tied_head: bool = False

    def __post_init__(self):
        for name in ("vocab_size", "context", "layers", "width", "heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
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
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads must be divisible by kv_heads, got heads={self.heads}, kv_heads={self.kv_heads}")
        if any(w is not None and w < 1 for w in self.windows or ()):
            raise ValueError(f"a window must be at least 1 or None, got {self.windows}")
        for name in ("attention_softcap", "logit_softcap"):
            cap = getattr(self, name)
            if cap is not None and not cap > 0:
                raise ValueError(f"{name} must be above 0, got {cap}")
        if not 0 < self.rope_fraction <= 1:
            raise ValueError(f"rope_fraction must be above 0 and at most 1, got {self.rope_fraction}")
        if self.rope_local_base is not None and self.windows is None:
            raise ValueError("rope_local_base is for blocks with a window, but windows is None")
        self.rotary(1)
        if self.output_scale is not OutputScale.NONE:
            for placement in self.placements:
                if placement not in _SCALABLE:
                    known = ", ".join(p.value for p in _SCALABLE)
                    raise ValueError(f"output_scale fits the placements {known}, got {placement.value}")

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
        return Rotary(int(self.head_dim * self.rope_fraction), self.rope_base if local is None else local)

    def make_norm(self, width: int | None = None) -> nn.Module:
        """A new norm as the config wants it, over ``width`` features (None: the stream's)."""
        return make_norm(
            self.norm, self.width if width is None else width, eps=self.eps, convention=self.convention
        )

    def replace(self, **changes: Any) -> "TransformerConfig":
        """A copy with some fields changed. Unlike ``dataclasses.replace``, it decides anew what was left to a rule:
        final_norm, mlp_width, kv_heads and head_dim where they were None."""
        return dataclasses.replace(self, **{**dict.fromkeys(self.__dict__["_derived"]), **changes})


class MLP(nn.Module):
    """The position-wise feed-forward sublayer: down(activation(up(x))), gated: down(activation(gate(x)) * up(x))."""

    def __init__(
        self,
        width: int,
        hidden: int,
        activation: Activation,
        kind: MLPKind = MLPKind.PLAIN,
        bias: bool = False,
    ):
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=bias) if kind is MLPKind.GATED else None
        self.up = nn.Linear(width, hidden, bias=bias)
        self.activation = _ACTIVATIONS[activation]()
        self.down = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor, **context: Tensor | None) -> Tensor:
        """x [B, T, d] -> [B, T, d], every position on its own; masks and positions are not needed."""
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        return self.down(self.activation(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Transformer block ``layer`` (from 1): the residual sublayers of ``config.sublayers``, one after the other."""

    def __init__(self, config: TransformerConfig, layer: int = 1):
        super().__init__()
        self.placement = config.placements[layer - 1]
        self.residuals: list[Residual] = nn.ModuleList(  # type: ignore[assignment]
            _residual(config, layer, kind, first=i == 0) for i, kind in enumerate(config.sublayers)
        )

    def forward(
        self, x: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        """Stream x [B, T, d] -> stream [B, T, d]."""
        context = {"attention_mask": attention_mask, "position_ids": position_ids}
        block_input, normed = x, None
        for residual in self.residuals:
            if self.placement is Placement.PARALLEL and residual.norm is not None:
                normed = residual.normalize(residual.norm, block_input, attention_mask)
            x = residual(x, normed=normed, **context)
        return x


def _residual(config: TransformerConfig, layer: int, kind: str, first: bool) -> Residual:
    """Sublayer and norms of one residual sublayer, as the block's placement wants them."""
    placement = config.placements[layer - 1]
    parts = PARTS[placement]
    sublayer = _attention(config, layer) if kind == "attention" else _mlp(config)
    norm: nn.Module | None = None
    if placement is Placement.HYBRID and kind == "attention":
        norm = Identity()  # its norms stand on queries, keys and values
    elif "norm" in parts or ("normed" in parts and (first or not config.parallel_shared_norm)):
        norm = config.make_norm()
    return Residual(
        sublayer,
        norm,
        placement,
        output_norm=config.make_norm() if "output_norm" in parts else None,
        alpha=deepnorm_single(config.layers)[0],
        norm_scale=layer**-0.5 if config.output_scale is OutputScale.INVERSE_SQRT_LAYER else 1.0,
    )


def _attention(config: TransformerConfig, layer: int) -> SelfAttention:
    hybrid = config.placements[layer - 1] is Placement.HYBRID
    return SelfAttention(
        config.width,
        config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        causal=config.causal,
        bias=config.attention_bias,
        qk_norm=QKNorm.PER_HEAD if hybrid and config.qk_norm is QKNorm.NONE else config.qk_norm,
        value_norm=hybrid,
        make_norm=config.make_norm,
        rotary=config.rotary(layer),
        norm_after_rotary=config.qk_norm_after_rope,
        scale=config.query_scale,
        softcap=config.attention_softcap,
        window=config.window(layer),
    )


def _mlp(config: TransformerConfig) -> MLP:
    return MLP(config.width, config.mlp_width, config.activation, config.mlp, config.mlp_bias)


class HeadTransform(nn.Module):
    """norm(activation(linear(x))) between the last block and the head: BERT."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.linear = nn.Linear(config.width, config.width)
        self.activation = _ACTIVATIONS[config.activation]()
        self.norm = config.make_norm()

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """x [B, T, d] -> [B, T, d]."""
        return apply_norm(self.norm, self.activation(self.linear(x)), attention_mask)


class Transformer(nn.Module):
    """Token ids in, logits out: embedding, blocks, final norm, head.

    Args:
        config: see :class:`TransformerConfig`.
        seed: of the weights. They are drawn in float64 on the CPU, so that a seed means the same weights
            on every device and instruction set.
    """

    def __init__(self, config: TransformerConfig, seed: int = 0):
        super().__init__()
        self.config = config
        learned = config.positions is Positions.LEARNED
        self.token_embedding = nn.Embedding(config.vocab_size, config.width)
        self.position_embedding = nn.Embedding(config.context, config.width) if learned else None
        self.segment_embedding = nn.Embedding(config.segments, config.width) if config.segments else None
        self.embedding_norm: nn.Module = config.make_norm() if config.embedding_norm else Identity()
        self.blocks: list[Block] = nn.ModuleList(  # type: ignore[assignment]
            Block(config, layer) for layer in range(1, config.layers + 1)
        )
        self.final_norm: nn.Module = config.make_norm() if config.final_norm else Identity()
        self.head_transform = HeadTransform(config) if config.head_transform else None
        self.head = nn.Linear(config.width, config.vocab_size, bias=config.head_bias)
        if config.tied_head:
            self.head.weight = self.token_embedding.weight
        initialize(self, seed)

    def embedding_tables(self) -> list[nn.Embedding]:
        """The tables whose rows add up to the stream before the first block."""
        tables = (self.token_embedding, self.position_embedding, self.segment_embedding)
        return [table for table in tables if table is not None]

    def embed(
        self,
        ids: Tensor,
        position_ids: Tensor | None = None,
        segment_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """Token ids [B, T] -> the stream before the first block [B, T, d]; arguments as in :meth:`forward`."""
        T = ids.shape[-1]
        if T > self.config.context:
            raise ValueError(f"sequence of {T} tokens is longer than the context of {self.config.context}")
        x = self.token_embedding(ids)
        if self.config.embedding_multiplier is not None:
            x = x * torch.full((), self.config.embedding_multiplier, dtype=x.dtype, device=x.device)
        if self.position_embedding is not None:
            x = x + self.position_embedding(torch.arange(T, device=ids.device) if position_ids is None else position_ids)
        if self.segment_embedding is not None:
            x = x + self.segment_embedding(torch.zeros_like(ids) if segment_ids is None else segment_ids)
        return apply_norm(self.embedding_norm, x, attention_mask)

    def forward(
        self,
        ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        segment_ids: Tensor | None = None,
    ) -> Tensor:
        """Token ids [B, T] -> logits [B, T, vocab_size].

        Args:
            attention_mask: [B, T], 1 or True at real tokens; None if all are real.
            position_ids: [T] or [B, T]; None means 0, 1, 2, ..., padding included.
            segment_ids: [B, T], below config.segments; None means 0 everywhere.
        """
        if ids.dim() != 2:
            raise ValueError(f"ids must have shape [B, T], got {tuple(ids.shape)}")
        for name, given in (("attention_mask", attention_mask), ("segment_ids", segment_ids)):
            if given is not None and given.shape != ids.shape:
                raise ValueError(f"{name} must have the shape of ids {tuple(ids.shape)}, got {tuple(given.shape)}")
        if position_ids is not None and position_ids.shape not in (ids.shape, ids.shape[1:]):
            raise ValueError(
                f"position_ids must have shape {tuple(ids.shape)} or ({ids.shape[1]},), got {tuple(position_ids.shape)}"
            )
        x = self.embed(ids, position_ids, segment_ids, attention_mask)
        for block in self.blocks:
            x = block(x, attention_mask=attention_mask, position_ids=position_ids)
        x = apply_norm(self.final_norm, x, attention_mask)
        if self.head_transform is not None:
            x = self.head_transform(x, attention_mask)
        logits = self.head(x)
        cap = self.config.logit_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)


def initialize(model: Transformer, seed: int) -> None:
    """Draw all weight matrices anew as ``model.config.init`` says. Biases become 0, norm parameters are left alone."""
    generator = torch.Generator().manual_seed(seed)
    roles = _roles(model)
    for module in model.modules():
        if not isinstance(module, nn.Linear | nn.Embedding):
            continue
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if module is model.head and model.config.tied_head:
            continue  # drawn as the embedding
        with torch.no_grad():
            # float32 normals differ in the last bit between instruction sets, float64 ones do not.
            draw = torch.randn(module.weight.shape, generator=generator, dtype=torch.float64)
            module.weight.copy_(_initial_std(model, module, roles.get(module)) * draw)


class _Role(Enum):
    """What the initializations tell apart; query, key and head have no role."""

    EMBEDDING = "embedding"
    BRANCH = "branch"  # value, and the inner matrices of the MLP
    WRITER = "writer"  # the last matrix of a sublayer, which writes to the stream


def _roles(model: Transformer) -> dict[nn.Module, _Role]:
    roles: dict[nn.Module, _Role] = {table: _Role.EMBEDDING for table in model.embedding_tables()}
    for block in model.blocks:
        for residual in block.residuals:
            match residual.sublayer:
                case SelfAttention() as attention:
                    roles |= {attention.value: _Role.BRANCH, attention.out: _Role.WRITER}
                case MLP() as mlp:
                    roles |= {mlp.up: _Role.BRANCH, mlp.down: _Role.WRITER}
                    if mlp.gate is not None:
                        roles[mlp.gate] = _Role.BRANCH
    return roles


def _initial_std(model: Transformer, module: nn.Linear | nn.Embedding, role: _Role | None) -> float:
    config = model.config
    if config.init in (Init.GPT2, Init.GPT2_SCALED):
        scaled = config.init is Init.GPT2_SCALED and role is _Role.WRITER
        return 0.02 / (2 * config.layers) ** 0.5 if scaled else 0.02
    if role is not _Role.EMBEDDING:
        fan_out, fan_in = module.weight.shape
        std = (2 / (fan_in + fan_out)) ** 0.5
    elif config.tied_head and module is model.token_embedding:
        std = config.width**-0.5  # logits of a normed stream then have variance 1
    else:
        std = (1 / len(model.embedding_tables())) ** 0.5
    if config.init is Init.DEEPNORM and role in (_Role.BRANCH, _Role.WRITER):
        return std * deepnorm_single(config.layers)[1]
    if config.init is Init.TFIXUP and role is not None:
        return std * tfixup_gain(config.layers)
    return std
