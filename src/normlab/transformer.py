"""A small decoder-only Transformer whose normalization is set by two knobs."""

from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor, nn

from normlab.attention import CausalSelfAttention
from normlab.norms import NormKind, make_norm
from normlab.placement import Placement, Residual, leaves_stream_normalized


class Init(str, Enum):
    """How weights are drawn. All are Gaussian with mean 0; biases and norm parameters keep their defaults."""

    XAVIER = "xavier"  # variance 2 / (fan_in + fan_out); embeddings: token + position together have variance 1
    GPT2 = "gpt2"  # std 0.02 everywhere
    GPT2_SCALED = "gpt2-scaled"  # as GPT2, but std 0.02 / sqrt(2 L) for the two projections that write to the stream


class Activation(str, Enum):
    """Nonlinearity of the MLP. The smooth ones keep training reproducible across machines; ReLU does not."""

    GELU = "gelu"
    SILU = "silu"
    RELU = "relu"


_ACTIVATIONS = {Activation.GELU: nn.GELU, Activation.SILU: nn.SiLU, Activation.RELU: nn.ReLU}
SUBLAYERS = ("attention", "mlp")


@dataclass(frozen=True)
class TransformerConfig:
    """Everything that shapes a :class:`Transformer`.

    Args:
        vocab_size: number of token ids.
        context: longest sequence, in tokens.
        layers: number of blocks L. A block has one residual sublayer per entry of ``sublayers``.
        width: features d of the residual stream.
        heads: attention heads; must divide width.
        norm: knob one, how to compute.
        placement: knob two, where to put it.
        eps: of all norms; None for the usual value of the kind.
        final_norm: None means: exactly if the stream would leave the stack un-normalized.
        mlp_width: hidden features of the MLP; None means 4 * width.
        activation: of the MLP.
        init: how weights are drawn.
        sublayers: which sublayers a block has, in order.
    """

    vocab_size: int
    context: int
    layers: int
    width: int
    heads: int = 1
    norm: NormKind = NormKind.RMSNORM
    placement: Placement = Placement.PRE
    eps: float | None = None
    final_norm: bool | None = None
    mlp_width: int | None = None
    activation: Activation = Activation.GELU
    init: Init = Init.XAVIER
    sublayers: tuple[str, ...] = SUBLAYERS

    def __post_init__(self):
        for name in ("vocab_size", "context", "layers", "width", "heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"width must be divisible by heads, got width={self.width}, heads={self.heads}")
        if not self.sublayers or any(s not in SUBLAYERS for s in self.sublayers):
            raise ValueError(f"sublayers must name one or more of {SUBLAYERS}, got {self.sublayers}")
        # Strings are welcome; from here on they are enum members, or the enum has named the bad value.
        for name, kind in (
            ("norm", NormKind),
            ("placement", Placement),
            ("activation", Activation),
            ("init", Init),
        ):
            object.__setattr__(self, name, kind(getattr(self, name)))
        if self.final_norm is None:
            object.__setattr__(self, "final_norm", not leaves_stream_normalized(self.placement))
        if self.mlp_width is None:
            object.__setattr__(self, "mlp_width", 4 * self.width)


class MLP(nn.Module):
    """down(activation(up(x))), the position-wise feed-forward sublayer."""

    def __init__(self, width: int, hidden: int, activation: Activation):
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=False)
        self.activation = _ACTIVATIONS[activation]()
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """x [B, T, d] -> [B, T, d], every position on its own; the mask is not needed."""
        return self.down(self.activation(self.up(x)))


class Block(nn.Module):
    """One Transformer block: the residual sublayers of ``config.sublayers``, one after the other."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        make = {
            "attention": lambda: CausalSelfAttention(config.width, config.heads),
            "mlp": lambda: MLP(config.width, config.mlp_width, config.activation),
        }
        self.residuals = nn.ModuleList(
            Residual(make[name](), make_norm(config.norm, config.width, eps=config.eps), config.placement)
            for name in config.sublayers
        )

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        for residual in self.residuals:
            x = residual(x, attention_mask=attention_mask)
        return x


class Transformer(nn.Module):
    """Decoder-only Transformer with learned positions and an untied head.

    Args:
        config: see :class:`TransformerConfig`.
        seed: of the weights. They are drawn in float64 on the CPU, so that a seed means the same weights
            on every device and instruction set.
    """

    def __init__(self, config: TransformerConfig, seed: int = 0):
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.width)
        self.position_embedding = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.final_norm = make_norm(
            config.norm if config.final_norm else NormKind.IDENTITY, config.width, eps=config.eps
        )
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        initialize(self, seed)

    def embed(self, ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """Token ids [B, T] -> the stream before the first block [B, T, d]."""
        T = ids.shape[-1]
        if T > self.config.context:
            raise ValueError(f"sequence of {T} tokens is longer than the context of {self.config.context}")
        if position_ids is None:
            position_ids = torch.arange(T, device=ids.device)
        return self.token_embedding(ids) + self.position_embedding(position_ids)

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None) -> Tensor:
        """Token ids [B, T] -> logits [B, T, vocab_size]. In attention_mask [B, T] 1 or True is a real token."""
        if ids.dim() != 2:
            raise ValueError(f"ids must have shape [B, T], got {tuple(ids.shape)}")
        if attention_mask is not None and attention_mask.shape != ids.shape:
            raise ValueError(
                f"attention_mask must have the shape of ids {tuple(ids.shape)}, got {tuple(attention_mask.shape)}"
            )
        x = self.embed(ids, position_ids)
        for block in self.blocks:
            x = block(x, attention_mask=attention_mask)
        return self.head(self.final_norm(x))


def initialize(model: Transformer, seed: int) -> None:
    """Draw all weight matrices anew as ``model.config.init`` says. Biases and norm parameters are left alone."""
    generator = torch.Generator().manual_seed(seed)
    init, layers = model.config.init, model.config.layers
    embeddings = {model.token_embedding, model.position_embedding}
    writers = {
        r.sublayer.out if isinstance(r.sublayer, CausalSelfAttention) else r.sublayer.down
        for block in model.blocks
        for r in block.residuals
    }
    for module in model.modules():
        if not isinstance(module, nn.Linear | nn.Embedding):
            continue
        if init is Init.XAVIER:
            fan_out, fan_in = module.weight.shape
            std = 0.5**0.5 if module in embeddings else (2 / (fan_in + fan_out)) ** 0.5
        else:
            std = 0.02
            if init is Init.GPT2_SCALED and module in writers:
                std /= (2 * layers) ** 0.5
        with torch.no_grad():
            # float32 normals differ in the last bit between instruction sets, float64 ones do not.
            draw = torch.randn(module.weight.shape, generator=generator, dtype=torch.float64)
            module.weight.copy_(std * draw)
