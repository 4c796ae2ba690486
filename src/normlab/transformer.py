"""A Transformer whose normalization is set by two knobs: how to compute it, and where to put it."""

from collections.abc import Callable
from enum import Enum

import torch
from torch import Tensor, nn

from normlab.arithmetic import check_mask, fill_padding
from normlab.attention import QKNorm, SelfAttention
from normlab.config import SUBLAYERS, Activation, Init, MLPKind, OutputScale, Positions, TransformerConfig
from normlab.norms import Identity
from normlab.placement import (
    WITH_NORM,
    WITH_OUTPUT_NORM,
    Placement,
    Residual,
    apply_norm,
    deepnorm_single,
    tfixup_gain,
)

__all__ = [
    "Activation",
    "Block",
    "HeadTransform",
    "Init",
    "MLP",
    "MLPKind",
    "OutputScale",
    "Positions",
    "SUBLAYERS",
    "Transformer",
    "TransformerConfig",
    "initialize",
]

_ACTIVATIONS: dict[Activation, Callable[[], nn.Module]] = {
    Activation.GELU: nn.GELU,
    Activation.GELU_TANH: lambda: nn.GELU(approximate="tanh"),
    Activation.SILU: nn.SiLU,
    Activation.RELU: nn.ReLU,
}


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

    def forward(self, x: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None) -> Tensor:
        """Stream x [B, T, d] -> stream [B, T, d].

        At padded places x must be finite, as :meth:`Transformer.embed` leaves it. The output at real tokens depends
        on nothing that stands there, but the gradients of the parameters do if it is NaN: 0 * NaN is NaN.
        """
        context = {"attention_mask": attention_mask, "position_ids": position_ids}
        block_input, normed = x, None
        for residual in self.residuals:
            if self.placement is Placement.PARALLEL and residual.norm is not None:
                normed = apply_norm(residual.norm, block_input, attention_mask, residual.norm_scale)
            x = residual(x, normed=normed, **context)
        return x


def _residual(config: TransformerConfig, layer: int, kind: str, first: bool) -> Residual:
    """Sublayer and norms of one residual sublayer, as the block's placement wants them."""
    placement = config.placements[layer - 1]
    sublayer = _attention(config, layer) if kind == "attention" else _mlp(config)
    norm: nn.Module | None = None
    if placement is Placement.HYBRID and kind == "attention":
        norm = Identity()  # its norms stand on queries, keys and values
    elif placement is Placement.PARALLEL:
        norm = config.make_norm() if first or not config.parallel_shared_norm else None
    elif placement in WITH_NORM:
        norm = config.make_norm()
    return Residual(
        sublayer,
        norm,
        placement,
        output_norm=config.make_norm() if placement in WITH_OUTPUT_NORM else None,
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
            on every device and instruction set. None leaves them undrawn, for weights that are loaded.
    """

    def __init__(self, config: TransformerConfig, seed: int | None = 0):
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
        if seed is not None:
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
        _check_call(self.config, ids, position_ids, segment_ids)
        T = ids.shape[-1]
        x = self.token_embedding(ids)
        if self.config.embedding_multiplier is not None:
            x = x * torch.full((), self.config.embedding_multiplier, dtype=x.dtype, device=x.device)
        if self.position_embedding is not None:
            if position_ids is None:
                position_ids = torch.arange(T, device=ids.device)
            x = x + self.position_embedding(position_ids)
        if self.segment_embedding is not None:
            if segment_ids is None:
                segment_ids = torch.zeros_like(ids)
            x = x + self.segment_embedding(segment_ids)
        if attention_mask is not None:
            x = fill_padding(x, check_mask("attention_mask", attention_mask, ids.shape))
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
            attention_mask: [B, T], 1 or True at real tokens; None if all are real. Padding has no influence on the
                logits of real tokens, not even NaN in its embedding.
            position_ids: [T] or [B, T]; None means 0, 1, 2, ..., padding included.
            segment_ids: [B, T], below config.segments; None means 0 everywhere.

        Raises:
            TypeError: an argument that is no tensor.
            ValueError: an argument of another shape, or one that this model has no use for; a sequence longer than
                config.context; a mask with other values than 0 and 1 or without any real token (an additive mask).
        """
        x = self.embed(ids, position_ids, segment_ids, attention_mask)
        if attention_mask is not None:
            attention_mask = attention_mask.bool()
        for block in self.blocks:
            x = block(x, attention_mask=attention_mask, position_ids=position_ids)
        x = apply_norm(self.final_norm, x, attention_mask)
        if self.head_transform is not None:
            x = self.head_transform(x, attention_mask)
        logits = self.head(x)
        cap = self.config.logit_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)


def _check_call(
    config: TransformerConfig, ids: Tensor, position_ids: Tensor | None, segment_ids: Tensor | None
) -> None:
    for name, given in (("ids", ids), ("position_ids", position_ids), ("segment_ids", segment_ids)):
        if not (isinstance(given, Tensor) or (given is None and name != "ids")):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(given).__name__}")
    if ids.dim() != 2:
        raise ValueError(f"ids must have shape [B, T], got {tuple(ids.shape)}")
    if ids.shape[1] > config.context:
        raise ValueError(
            f"sequence of {ids.shape[1]} tokens is longer than the context of {config.context}"
        )
    if segment_ids is not None and not config.segments:
        raise ValueError("segment_ids were given to a model without segments (config.segments=0)")
    if segment_ids is not None and segment_ids.shape != ids.shape:
        raise ValueError(f"segment_ids must have the shape of ids {tuple(ids.shape)}, got {tuple(segment_ids.shape)}")
    turns = config.positions is Positions.ROPE and "attention" in config.sublayers
    if position_ids is not None and not (turns or config.positions is Positions.LEARNED):
        raise ValueError(
            "position_ids were given to a model without positions "
            f"(config.positions={config.positions.value!r}, config.sublayers={config.sublayers})"
        )
    if position_ids is not None and position_ids.shape not in (ids.shape, ids.shape[1:]):
        raise ValueError(
            f"position_ids must have shape {tuple(ids.shape)} or ({ids.shape[1]},), got {tuple(position_ids.shape)}"
        )


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
