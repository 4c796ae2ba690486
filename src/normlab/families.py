"""Real models as configurations of ours, and the move of their weights from ``transformers``.

Every family is one function that reads like the model's paper, its two knobs (norm, placement) first, and one table
of names. ``transformers`` (5 or newer) is never imported: a model is recognized by the name of its class.

Precision: GPT-2 and BERT compute in the dtype of their weights. The published code of the others narrows RMSNorms,
softmax and rotation to float32 even in a float64 model. Ours does so only for the angles of the rotation, whose
rounding grows with the position, and agrees to a few 1e-7 of the largest logit, the rest being the originals' rounding.
(With padding, originals in float64 may return NaN at real tokens: their mask does not fit into float32. Ours do not.)
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normlab.attention import QKNorm
from normlab.config import Activation, MLPKind, Positions, TransformerConfig
from normlab.norms import Convention, NormKind
from normlab.placement import Placement
from normlab.transformer import Transformer

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Family:
    """How the models of one class become ours.

    Args:
        config: from their configuration to ours. Raises ValueError for options that ours does not have.
        names: our module (or tensor) -> theirs; * stands for the number of the block.
        unpack: rewrites their weights where one tensor holds several of ours; takes weights and our config.
    """

    config: Callable[[Any], TransformerConfig]
    names: dict[str, str]
    unpack: Callable[[Weights, TransformerConfig], Weights] = lambda weights, config: weights


def from_transformers(model: nn.Module) -> Transformer:
    """Build our Transformer from a model of ``transformers`` and copy its weights.

    The result is in evaluation mode (and has no dropout anyway), its tensors keep dtype and device, and it computes
    the logits that ``model`` computes, and their gradients: the row of an embedding that ``padding_idx`` names gets
    none. The model itself is left as it is. Padding: ours returns zeros from attention
    at positions that see no token, the originals something arbitrary; at real tokens that makes no difference.
    Positions are counted from 0, padding included, unless ``position_ids`` says otherwise, as in the original.

    Args:
        model: of one of the classes in ``FAMILIES``, with any sizes.

    Raises:
        ValueError: a class that is not in the list, an option of its configuration that ours lacks, or parameters
            that are missing or left over; the message names them.
        RuntimeError: a parameter of another shape than the configuration says, from torch.
    """
    name = type(model).__name__
    if name not in FAMILIES:
        raise ValueError(f"unknown model class {name}; known classes: {', '.join(FAMILIES)}")
    family = FAMILIES[name]
    # named_parameters counts a tied tensor once and skips buffers.
    theirs = {name: parameter.detach() for name, parameter in model.named_parameters()}
    config = family.config(model.config)
    config = config.replace(tied_head=f"{family.names['head']}.weight" not in theirs)
    with torch.device("meta"):  # no memory, no random numbers: the weights arrive below
        ours = Transformer(config, seed=None).eval()
    weights = _rename(name, family, family.unpack(theirs, config), ours)
    if config.tied_head:
        weights["head.weight"] = weights["token_embedding.weight"]
    ours.load_state_dict(weights, assign=True)
    if config.tied_head:
        ours.head.weight = ours.token_embedding.weight
    for name, table in ours.named_children():
        if isinstance(table, nn.Embedding):
            table.padding_idx = getattr(model.get_submodule(family.names[name]), "padding_idx", None)
    return ours


def _rename(name: str, family: Family, theirs: Weights, ours: Transformer) -> Weights:
    """Copies of their weights under our names; all of theirs, for all of ours."""
    weights, missing = {}, []
    for parameter, _ in ours.named_parameters():
        source = _their_name(parameter, family.names)
        if source in theirs:
            weights[parameter] = theirs.pop(source).clone(memory_format=torch.contiguous_format)
        else:
            missing.append(source)
    if missing or theirs:
        raise ValueError(f"{name}: parameters that are missing: {missing}; left over: {list(theirs)}")
    return weights


def _their_name(parameter: str, names: dict[str, str]) -> str:
    """Their name of our parameter "blocks.3.….weight"; a whole name in the table goes before its module's."""
    number = re.search(r"\.(\d+)\.", parameter)
    pattern = re.sub(r"^blocks\.\d+", "blocks.*", parameter)
    module, _, kind = pattern.rpartition(".")
    source = names[pattern] if pattern in names else f"{names[module]}.{kind}"
    return source.replace("*", number[1]) if number else source


# --- sizes and options that many configurations name alike ---------------------------------------------------------

_ACTIVATIONS = {
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "relu": Activation.RELU,
}


def _activation(name: str) -> Activation:
    if name not in _ACTIVATIONS:
        raise ValueError(f"unknown activation {name!r}; known: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _sizes(theirs: Any) -> dict[str, Any]:
    return {
        "vocab_size": theirs.vocab_size,
        "context": theirs.max_position_embeddings,
        "layers": theirs.num_hidden_layers,
        "width": theirs.hidden_size,
        "heads": theirs.num_attention_heads,
    }


def _llama_like(theirs: Any) -> dict[str, Any]:
    """Sizes of a decoder with RoPE, grouped heads and a gated MLP."""
    return _sizes(theirs) | {
        "eps": theirs.rms_norm_eps,
        "kv_heads": theirs.num_key_value_heads,
        "head_dim": getattr(theirs, "head_dim", None),
        "attention_bias": getattr(theirs, "attention_bias", False),
        "positions": Positions.ROPE,
        "rope_angles": torch.float32,
        "mlp": MLPKind.GATED,
        "mlp_width": theirs.intermediate_size,
        "mlp_bias": getattr(theirs, "mlp_bias", False),
    }


def _rope_base(theirs: Any, kind: str | None = None) -> float:
    """Base of the rotation, where blocks differ: of the blocks of that ``kind``."""
    rope = getattr(theirs, "rope_parameters", None)
    if rope is None:
        raise ValueError("configurations without rope_parameters are of transformers 4; 5 or newer is needed")
    rope = rope if kind is None else rope.get(kind, {})
    if rope.get("rope_type") != "default":
        raise ValueError(f"rope_type must be 'default', got {rope.get('rope_type')!r}")
    if "rope_theta" not in rope:
        raise ValueError(f"rope_parameters must have a rope_theta, got {rope}")
    return rope["rope_theta"]


def _windows(theirs: Any) -> tuple[int | None, ...]:
    window = {"full_attention": None, "sliding_attention": theirs.sliding_window}
    for kind in theirs.layer_types:
        if kind not in window:
            raise ValueError(f"unknown layer type {kind!r}; known: {', '.join(window)}")
    return tuple(window[kind] for kind in theirs.layer_types)


def _demand(theirs: Any, **options: Any) -> None:
    for name, value in options.items():
        if getattr(theirs, name, None) not in (value, None):
            raise ValueError(f"{name} must be {value}, got {getattr(theirs, name)}")


# --- the families --------------------------------------------------------------------------------------------------


def gpt2(theirs: Any) -> TransformerConfig:
    """GPT-2 (Radford et al. 2019): LayerNorm moved to the door of each sublayer, a final norm, tanh-GELU."""
    _demand(theirs, add_cross_attention=False, scale_attn_by_inverse_layer_idx=False)
    return TransformerConfig(
        norm=NormKind.LAYERNORM,
        placement=Placement.PRE,
        convention=Convention.TORCH,
        **_sizes(theirs),
        eps=theirs.layer_norm_epsilon,
        query_scale=None if theirs.scale_attn_weights else 1.0,
        attention_bias=True,
        mlp_width=theirs.n_inner,
        activation=_activation(theirs.activation_function),
        mlp_bias=True,
    )


def bert(theirs: Any) -> TransformerConfig:
    """BERT (arXiv:1810.04805): the encoder of 2017 with LayerNorm on the stream, also behind the embeddings."""
    _demand(theirs, is_decoder=False, add_cross_attention=False)
    return TransformerConfig(
        norm=NormKind.LAYERNORM,
        placement=Placement.POST,
        convention=Convention.TORCH,
        **_sizes(theirs),
        eps=theirs.layer_norm_eps,
        embedding_norm=True,
        causal=False,
        attention_bias=True,
        mlp_width=theirs.intermediate_size,
        activation=_activation(theirs.hidden_act),
        mlp_bias=True,
        segments=theirs.type_vocab_size,
        head_transform=True,
        head_bias=True,
    )


def llama(theirs: Any) -> TransformerConfig:
    """Llama (arXiv:2302.13971): RMSNorm at the door of each sublayer, RoPE, SwiGLU."""
    return TransformerConfig(
        norm=NormKind.RMSNORM,
        placement=Placement.PRE,
        convention=Convention.LLAMA,
        **_llama_like(theirs),
        rope_base=_rope_base(theirs),
        activation=_activation(theirs.hidden_act),
    )


def mistral(theirs: Any) -> TransformerConfig:
    """Mistral (arXiv:2310.06825): Llama with grouped heads and, in its first version, a sliding window."""
    windows = None if theirs.sliding_window is None else (theirs.sliding_window,) * theirs.num_hidden_layers
    return llama(theirs).replace(windows=windows)


def qwen3(theirs: Any) -> TransformerConfig:
    """Qwen3 (arXiv:2505.09388): Llama with an RMSNorm on each head's queries and keys."""
    return llama(theirs).replace(qk_norm=QKNorm.PER_HEAD, windows=_windows(theirs))


def gemma2(theirs: Any) -> TransformerConfig:
    """Gemma 2 (arXiv:2408.00118): RMSNorm on input and output of each sublayer, soft-caps, every other block local."""
    return _gemma(
        theirs,
        rope_base=_rope_base(theirs),
        attention_softcap=theirs.attn_logit_softcapping,
    )


def gemma3(theirs: Any) -> TransformerConfig:
    """Gemma 3 (arXiv:2503.19786): QK-norm in place of the cap on scores, a base of its own for local blocks."""
    return _gemma(
        theirs,
        qk_norm=QKNorm.PER_HEAD,
        rope_base=_rope_base(theirs, "full_attention"),
        rope_local_base=_rope_base(theirs, "sliding_attention"),
    )


def _gemma(theirs: Any, **options: Any) -> TransformerConfig:
    _demand(theirs, use_bidirectional_attention=False)
    return TransformerConfig(
        norm=NormKind.RMSNORM,
        placement=Placement.PERI,
        convention=Convention.GEMMA,
        **_llama_like(theirs),
        windows=_windows(theirs),
        query_scale=theirs.query_pre_attn_scalar**-0.5,
        logit_softcap=theirs.final_logit_softcapping,
        activation=_activation(theirs.hidden_activation),
        embedding_multiplier=theirs.hidden_size**0.5,
        **options,
    )


def olmo2(theirs: Any) -> TransformerConfig:
    """OLMo 2 (arXiv:2501.00656): RMSNorm only on what a sublayer returns, QK-norm over all heads together."""
    return TransformerConfig(
        norm=NormKind.RMSNORM,
        placement=Placement.OUTPUT,
        convention=Convention.OLMO2,
        **_llama_like(theirs),
        qk_norm=QKNorm.JOINT,
        rope_base=_rope_base(theirs),
        activation=_activation(theirs.hidden_act),
    )


def gpt_neox(theirs: Any) -> TransformerConfig:
    """GPT-NeoX (arXiv:2204.06745): attention and MLP side by side, a LayerNorm each, part of each head turned."""
    return TransformerConfig(
        norm=NormKind.LAYERNORM,
        placement=Placement.PARALLEL if theirs.use_parallel_residual else Placement.PRE,
        convention=Convention.TORCH,
        parallel_shared_norm=False,
        **_sizes(theirs),
        eps=theirs.layer_norm_eps,
        attention_bias=theirs.attention_bias,
        positions=Positions.ROPE,
        rope_base=_rope_base(theirs),
        rope_fraction=theirs.rope_parameters.get("partial_rotary_factor", 1.0),
        rope_angles=torch.float32,
        mlp_width=theirs.intermediate_size,
        activation=_activation(theirs.hidden_act),
        mlp_bias=True,
    )


# --- names: ours -> theirs -----------------------------------------------------------------------------------------

_A, _M = "blocks.*.residuals.0", "blocks.*.residuals.1"  # attention and MLP of a block

_LLAMA_STEM = {
    "token_embedding": "model.embed_tokens",
    f"{_A}.sublayer.query": "model.layers.*.self_attn.q_proj",
    f"{_A}.sublayer.key": "model.layers.*.self_attn.k_proj",
    f"{_A}.sublayer.value": "model.layers.*.self_attn.v_proj",
    f"{_A}.sublayer.out": "model.layers.*.self_attn.o_proj",
    f"{_M}.sublayer.gate": "model.layers.*.mlp.gate_proj",
    f"{_M}.sublayer.up": "model.layers.*.mlp.up_proj",
    f"{_M}.sublayer.down": "model.layers.*.mlp.down_proj",
    "final_norm": "model.norm",
    "head": "lm_head",
}
_QK_NORM = {
    f"{_A}.sublayer.query_norm": "model.layers.*.self_attn.q_norm",
    f"{_A}.sublayer.key_norm": "model.layers.*.self_attn.k_norm",
}
# "post_attention_layernorm" stands before the MLP in Llama, and behind attention in Gemma 2 and OLMo 2.
_LLAMA = _LLAMA_STEM | {
    f"{_A}.norm": "model.layers.*.input_layernorm",
    f"{_M}.norm": "model.layers.*.post_attention_layernorm",
}
_OLMO2 = (
    _LLAMA_STEM
    | _QK_NORM
    | {
        f"{_A}.output_norm": "model.layers.*.post_attention_layernorm",
        f"{_M}.output_norm": "model.layers.*.post_feedforward_layernorm",
    }
)
_GEMMA2 = _LLAMA_STEM | {
    f"{_A}.norm": "model.layers.*.input_layernorm",
    f"{_A}.output_norm": "model.layers.*.post_attention_layernorm",
    f"{_M}.norm": "model.layers.*.pre_feedforward_layernorm",
    f"{_M}.output_norm": "model.layers.*.post_feedforward_layernorm",
}
_GPT2 = {
    "token_embedding": "transformer.wte",
    "position_embedding": "transformer.wpe",
    f"{_A}.norm": "transformer.h.*.ln_1",
    f"{_A}.sublayer.query": "transformer.h.*.attn.c_attn.query",  # unpacked below
    f"{_A}.sublayer.key": "transformer.h.*.attn.c_attn.key",
    f"{_A}.sublayer.value": "transformer.h.*.attn.c_attn.value",
    f"{_A}.sublayer.out": "transformer.h.*.attn.c_proj",
    f"{_M}.norm": "transformer.h.*.ln_2",
    f"{_M}.sublayer.up": "transformer.h.*.mlp.c_fc",
    f"{_M}.sublayer.down": "transformer.h.*.mlp.c_proj",
    "final_norm": "transformer.ln_f",
    "head": "lm_head",
}
_BERT = {
    "token_embedding": "bert.embeddings.word_embeddings",
    "position_embedding": "bert.embeddings.position_embeddings",
    "segment_embedding": "bert.embeddings.token_type_embeddings",
    "embedding_norm": "bert.embeddings.LayerNorm",
    f"{_A}.sublayer.query": "bert.encoder.layer.*.attention.self.query",
    f"{_A}.sublayer.key": "bert.encoder.layer.*.attention.self.key",
    f"{_A}.sublayer.value": "bert.encoder.layer.*.attention.self.value",
    f"{_A}.sublayer.out": "bert.encoder.layer.*.attention.output.dense",
    f"{_A}.norm": "bert.encoder.layer.*.attention.output.LayerNorm",
    f"{_M}.sublayer.up": "bert.encoder.layer.*.intermediate.dense",
    f"{_M}.sublayer.down": "bert.encoder.layer.*.output.dense",
    f"{_M}.norm": "bert.encoder.layer.*.output.LayerNorm",
    "head_transform.linear": "cls.predictions.transform.dense",
    "head_transform.norm": "cls.predictions.transform.LayerNorm",
    "head": "cls.predictions.decoder",
    "head.bias": "cls.predictions.bias",
}
_GPT_NEOX = {
    "token_embedding": "gpt_neox.embed_in",
    f"{_A}.norm": "gpt_neox.layers.*.input_layernorm",
    f"{_A}.sublayer.query": "gpt_neox.layers.*.attention.query_key_value.query",  # unpacked below
    f"{_A}.sublayer.key": "gpt_neox.layers.*.attention.query_key_value.key",
    f"{_A}.sublayer.value": "gpt_neox.layers.*.attention.query_key_value.value",
    f"{_A}.sublayer.out": "gpt_neox.layers.*.attention.dense",
    f"{_M}.norm": "gpt_neox.layers.*.post_attention_layernorm",
    f"{_M}.sublayer.up": "gpt_neox.layers.*.mlp.dense_h_to_4h",
    f"{_M}.sublayer.down": "gpt_neox.layers.*.mlp.dense_4h_to_h",
    "final_norm": "gpt_neox.final_layer_norm",
    "head": "lm_head",
}


def _split(weights: Weights, packed: str, pieces: Callable[[Tensor], tuple[Tensor, ...]]) -> Weights:
    """Replace every tensor of a module called ``packed`` by the query, key and value that it holds."""
    result: Weights = {}
    for name, tensor in weights.items():
        module, _, kind = name.rpartition(".")
        if module.endswith(packed):
            parts = zip(("query", "key", "value"), pieces(tensor), strict=True)
            result |= {f"{module}.{part}.{kind}": piece for part, piece in parts}
        else:
            result[name] = tensor
    return result


def _unpack_gpt2(weights: Weights, config: TransformerConfig) -> Weights:
    """GPT-2 stores the matrices of its blocks transposed; query, key and value follow each other."""
    straight = {name: w.T if ".h." in name and w.dim() == 2 else w for name, w in weights.items()}
    return _split(straight, "c_attn", lambda w: w.chunk(3))


def _unpack_bert(weights: Weights, config: TransformerConfig) -> Weights:
    """The bias of the head has two names. Where they are not one tensor, the model reads the decoder's."""
    own = weights.pop("cls.predictions.decoder.bias", None)
    return weights if own is None else weights | {"cls.predictions.bias": own}


def _unpack_gpt_neox(weights: Weights, config: TransformerConfig) -> Weights:
    """In GPT-NeoX query, key and value follow each other within each head."""
    heads = config.heads
    return _split(
        weights,
        "query_key_value",
        lambda w: tuple(part.flatten(0, 1) for part in w.unflatten(0, (heads, 3, -1)).unbind(1)),
    )


FAMILIES: dict[str, Family] = {
    "GPT2LMHeadModel": Family(gpt2, _GPT2, _unpack_gpt2),
    "BertForMaskedLM": Family(bert, _BERT, _unpack_bert),
    "LlamaForCausalLM": Family(llama, _LLAMA),
    "MistralForCausalLM": Family(mistral, _LLAMA),
    "Qwen3ForCausalLM": Family(qwen3, _LLAMA | _QK_NORM),
    "Gemma2ForCausalLM": Family(gemma2, _GEMMA2),
    "Gemma3ForCausalLM": Family(gemma3, _GEMMA2 | _QK_NORM),
    "Olmo2ForCausalLM": Family(olmo2, _OLMO2),
    "GPTNeoXForCausalLM": Family(gpt_neox, _GPT_NEOX, _unpack_gpt_neox),
}
