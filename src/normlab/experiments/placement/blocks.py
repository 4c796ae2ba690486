"""Chapter 5, the block itself: weights of other libraries' blocks under the names of the one that the chapter writes out.

Those names are query, key, value, out, up, down, norm1, norm2 and, in a Llama block, gate; each with .weight, and .bias
where there is one. What stands before them in a parameter's name does not matter.
"""

import warnings
from types import EllipsisType

import torch
from torch import Tensor, nn

from normlab.config import Activation, MLPKind, Positions, TransformerConfig
from normlab.norms import NormKind
from normlab.placement import Placement
from normlab.transformer import Block

Weights = dict[str, Tensor]

WIDTH, HEADS, HIDDEN = 32, 2, 4 * 32
LLAMA_HIDDEN, LLAMA_EPS = 88, 1e-6


def short(name: str) -> str:
    """The last module and the parameter: attention.query.weight -> query.weight."""
    return ".".join(name.split(".")[-2:])


@torch.no_grad()
def load(block: nn.Module, weights: Weights) -> nn.Module:
    """Copy ``weights`` into ``block`` by their :func:`short` names.

    Raises:
        ValueError: names or shapes of the two differ.
    """
    mine = {short(name): p for name, p in block.named_parameters()}
    if mine.keys() != weights.keys():
        odd = ", ".join(sorted(mine.keys() ^ weights.keys()))
        raise ValueError(f"the block and the weights have different names, only one of them has: {odd}")
    for name, p in mine.items():
        if p.shape != weights[name].shape:
            raise ValueError(f"{name} must have shape {tuple(weights[name].shape)}, got {tuple(p.shape)}")
        p.copy_(weights[name])
    return block


def _split(weight: Tensor, bias: Tensor) -> Weights:
    """Queries, keys and values out of one matrix [3 d, d] and its bias [3 d]."""
    parts = zip(("query", "key", "value"), weight.chunk(3), bias.chunk(3), strict=True)
    return {f"{part}.{kind}": p for part, w, b in parts for kind, p in (("weight", w), ("bias", b))}


def from_torch(layer: nn.TransformerEncoderLayer) -> Weights:
    """Weights of PyTorch's encoder layer, in which queries, keys and values are one matrix."""
    theirs = layer.state_dict()
    packed = _split(theirs.pop("self_attn.in_proj_weight"), theirs.pop("self_attn.in_proj_bias"))
    names = {"out_proj": "out", "linear1": "up", "linear2": "down", "norm1": "norm1", "norm2": "norm2"}
    return packed | {f"{names[module]}.{kind}": theirs[name] for name in theirs for module, kind in [short(name).split(".")]}


def from_normlab(block: Block) -> Weights:
    """Weights of a block of :class:`normlab.transformer.Transformer`."""
    first, second = block.residuals
    parts = {short(name): p for r in (first, second) for name, p in r.sublayer.state_dict().items()}
    norms = {f"norm{i}.{kind}": p for i, r in ((1, first), (2, second)) for kind, p in r.norm.state_dict().items()}
    return parts | norms


def from_gpt2(block: nn.Module) -> Weights:
    """Weights of a GPT-2 block of transformers, which stores matrices as [in, out]."""
    theirs = {name: p.T if p.dim() == 2 else p for name, p in block.state_dict().items()}
    packed = _split(theirs.pop("attn.c_attn.weight"), theirs.pop("attn.c_attn.bias"))
    names = {"attn.c_proj": "out", "mlp.c_fc": "up", "mlp.c_proj": "down", "ln_1": "norm1", "ln_2": "norm2"}
    return packed | {f"{new}.{kind}": theirs[f"{old}.{kind}"] for old, new in names.items() for kind in ("weight", "bias")}


def from_llama(layer: nn.Module) -> Weights:
    """Weights of a Llama layer of transformers."""
    names = {f"self_attn.{k}_proj": v for k, v in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "out"))}
    names |= {f"mlp.{name}_proj": name for name in ("gate", "up", "down")}
    names |= {"input_layernorm": "norm1", "post_attention_layernorm": "norm2"}
    return {f"{new}.weight": layer.state_dict()[f"{old}.weight"] for old, new in names.items()}


def draw(*shape: int, seed: int = 5) -> Tensor:
    """Normal numbers in float64, the same on every machine."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def of_normlab(placement: Placement | str) -> Block:
    """This package's block as GPT-2's is: LayerNorm, exact GELU, biases everywhere; width 32, 2 heads, float64."""
    options = {"norm": NormKind.LAYERNORM, "attention_bias": True, "mlp_bias": True}
    config = TransformerConfig(8, 8, layers=1, width=WIDTH, heads=HEADS, placement=placement, **options)  # type: ignore[arg-type]
    return Block(config).double()


@torch.no_grad()
def randomize(module: nn.Module, seed: int = 0) -> nn.Module:
    """Draw all parameters in float64: matrices with standard deviation 1/√(fan_in), gains around 1, biases around 0."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in module.double().named_parameters():
        noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        p.copy_(noise / p.shape[-1] ** 0.5 if p.dim() == 2 else 0.3 * noise + (not name.endswith("bias")))
    return module


def _first_layer(model: str, config: str, x: Tensor, **sizes) -> tuple[nn.Module, Tensor, Tensor] | None:
    """The first of two layers of a model of transformers, what it reads and what it returns; None without the library."""
    try:
        with warnings.catch_warnings(action="ignore"):
            import transformers

            transformers.logging.set_verbosity_error()
            with torch.random.fork_rng():
                built = getattr(transformers, model)(getattr(transformers, config)(vocab_size=8, **sizes)).eval()
    except ImportError:
        return None
    randomize(built)
    with torch.no_grad():
        states = built(inputs_embeds=x, output_hidden_states=True).hidden_states
    return (built.h if hasattr(built, "h") else built.layers)[0], states[0], states[1]


def gpt2_block(x: Tensor) -> tuple[Weights, Tensor, Tensor] | None:
    """Weights, input and output of a GPT-2 block of transformers (width 32, 2 heads, exact GELU), run on x [B, T, 32].

    The input is x plus positions. Random weights, float64; None where transformers is missing.
    """
    sizes = {"n_embd": WIDTH, "n_head": HEADS, "n_layer": 2, "activation_function": "gelu"}
    found = _first_layer("GPT2Model", "GPT2Config", x, **sizes)
    return None if found is None else (from_gpt2(found[0]), *found[1:])


def llama_block(x: Tensor) -> tuple[Weights, Tensor] | None:
    """Weights and output of a Llama layer of transformers (width 32, 2 heads, 88 hidden features), run on x [B, T, 32].

    Random weights, float64, in which the library still computes norms and rotation in float32; None where it is missing.
    """
    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "num_hidden_layers": 2}
    sizes |= {"intermediate_size": LLAMA_HIDDEN}
    found = _first_layer("LlamaModel", "LlamaConfig", x, rms_norm_eps=LLAMA_EPS, **sizes)
    return None if found is None else (from_llama(found[0]), found[2])


# --- the exercise ------------------------------------------------------------------------------------------------------


def llama_of_normlab(x: Tensor) -> tuple[Weights, Tensor]:
    """The same as :func:`llama_block` from this package's own Transformer, without any other library."""
    config = TransformerConfig(
        vocab_size=8,
        context=x.shape[1],
        layers=1,
        width=WIDTH,
        heads=HEADS,
        eps=LLAMA_EPS,
        positions=Positions.ROPE,
        mlp=MLPKind.GATED,
        mlp_width=LLAMA_HIDDEN,
        activation=Activation.SILU,
    )
    block = Block(config)
    randomize(block, seed=1)
    with torch.no_grad():
        return from_normlab(block), block(x)


def output_of(block_class: type[nn.Module], weights: Weights, x: Tensor) -> Tensor | EllipsisType | None:
    """What a reader's block of the given class computes with these weights; ... while the class is still blank.

    Raises:
        ValueError: parameters of other names or shapes than asked for.
    """
    block = block_class(WIDTH, HEADS, LLAMA_HIDDEN).double()
    if not any(True for _ in block.parameters()):
        return ...
    with torch.no_grad():
        return load(block, weights)(x)
