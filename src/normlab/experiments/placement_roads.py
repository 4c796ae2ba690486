"""Chapter 5, roads after Pre and Post: what runs, why an output norm wants QK-norm, and what real models do."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn

from normlab import device
from normlab.attention import QKNorm, SelfAttention
from normlab.config import TransformerConfig
from normlab.data import corpus
from normlab.experiments import plays
from normlab.losses import next_token_loss
from normlab.placement import Placement
from normlab.transformer import Transformer

# --- every road, one step ---------------------------------------------------------------------------------------------


def build(line: str, layers: int = 8, seed: int = 0) -> Transformer:
    """A small model, LayerNorm unless ``line`` says otherwise: the arguments of TransformerConfig as they are typed."""
    options = {"norm": "layernorm"} | eval(f"dict({line})", {"__builtins__": {}}, {"dict": dict})
    return Transformer(TransformerConfig(vocab_size=40, context=16, layers=layers, width=32, heads=2, **options), seed)


def runs(model: Transformer) -> bool:
    """One step on random tokens: is the loss finite, and does every parameter get a finite gradient that is not 0?"""
    ids = torch.randint(0, 40, (2, 17), generator=torch.Generator().manual_seed(1))
    loss = next_token_loss(model, ids[:, :-1], ids[:, 1:])
    loss.backward()
    gradients = [p.grad for p in model.parameters()]
    return bool(loss.isfinite()) and all(g is not None and g.isfinite().all() and g.abs().max() > 0 for g in gradients)


def paired(values: Sequence[float], baseline: Sequence[float]) -> tuple[float, float]:
    """Mean difference of five paired runs and the half width of its 95 % t-interval.

    Raises:
        ValueError: not five pairs; the quantile is that of 4 degrees of freedom.
    """
    if len(values) != 5 or len(baseline) != 5:
        raise ValueError(f"five pairs are needed, got {len(values)} and {len(baseline)}")
    differences = [a - b for a, b in zip(values, baseline)]
    return fmean(differences), 2.7764 * stdev(differences) / 5**0.5


# --- output norm with and without QK-norm -----------------------------------------------------------------------------


def output_stack(layers: int, seed: int, qk_norm: str = "none", width: int = 32) -> Transformer:
    """x + RMSNorm(F(x)) in every sublayer, Xavier, 2 heads, float64."""
    config = TransformerConfig(
        vocab_size=len(corpus().vocabulary),
        context=plays.TOKENS,
        layers=layers,
        width=width,
        heads=2,
        placement=Placement.OUTPUT,
        qk_norm=qk_norm,
    )
    return Transformer(config, seed).double()


@contextmanager
def frozen_logits(model: Transformer) -> Iterator[None]:
    """Within the block no gradient flows through queries and keys; what the model computes is the same."""
    attentions = [m for m in model.modules() if isinstance(m, SelfAttention)]
    handles = [
        projection.register_forward_hook(lambda module, inputs, output: output.detach())
        for attention in attentions
        for projection in (attention.query, attention.key)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def gradients(model: Transformer, sequences: int = 8) -> tuple[float, list[float]]:
    """Gradient of the loss on held-out text: its norm over the value and output matrices of the first attention
    (which get one under :func:`frozen_logits` as well), its root mean square on the stream before every block.
    """
    ids, targets = plays.passages(sequences)
    streams: list[Tensor] = []
    hooks = [block.register_forward_pre_hook(lambda module, inputs: streams.append(inputs[0])) for block in model.blocks]
    first = model.blocks[0].residuals[0].sublayer
    with device.single_thread():
        try:
            loss = next_token_loss(model, ids, targets)
        finally:
            for hook in hooks:
                hook.remove()
        value, out, *slopes = torch.autograd.grad(loss, [first.value.weight, first.out.weight, *streams])
    return (value.square().sum() + out.square().sum()).sqrt().item(), [s.square().mean().sqrt().item() for s in slopes]


def slope(qk_norm: str, scale: float, seed: int = 0, tokens: int = 32, width: int = 32) -> float:
    """How strongly O(A(c x)) reacts to its input, c = ``scale``: ||J^T v|| / ||v|| for random x and v, float64.

    A is self-attention with Xavier weights, O an RMSNorm with eps = 0. With QK-norm O(A(c x)) = O(A(x)) for every c,
    so that the slope is exactly 1/c of that at c = 1.
    """
    attention = output_stack(1, seed, qk_norm, width).blocks[0].residuals[0].sublayer
    for norm in (attention.query_norm, attention.key_norm):
        if hasattr(norm, "eps"):
            norm.eps = 0.0
    generator = torch.Generator().manual_seed(100 + seed)
    x, v = (torch.randn(4, tokens, width, generator=generator, dtype=torch.float64) for _ in range(2))
    x = (scale * x).requires_grad_()
    with device.single_thread():
        y = attention(x)
        y = y / y.square().mean(-1, keepdim=True).sqrt()
        return (torch.autograd.grad((y * v).sum(), x)[0].norm() / v.norm()).item()


# --- the bound of QK-norm ---------------------------------------------------------------------------------------------


def logit_bound(attention: SelfAttention) -> float:
    """Largest logit that RMSNorms on queries and keys let through, whatever input and matrices are.

        per head: sqrt(d_h) max|g_q| max|g_k|
        joint: sqrt(H K) times as much, for H query and K key heads, since one head may hold all of a normed vector

    By Cauchy-Schwarz: a normed vector of n features is at most sqrt(n) max|g| long; scores are divided by sqrt(d_h).

    Raises:
        ValueError: no QK-norm.
    """
    if attention.qk_norm is QKNorm.NONE:
        raise ValueError("without QK-norm there is no bound")
    gains = [norm.weight.abs().max().item() for norm in (attention.query_norm, attention.key_norm)]
    heads = (attention.heads * attention.kv_heads) ** 0.5 if attention.qk_norm is QKNorm.JOINT else 1.0
    return heads * attention.head_dim**0.5 * gains[0] * gains[1]


def attention(qk_norm: str, seed: int = 0, gains: float = 0.0, scale: float = 1.0, **options: Any) -> SelfAttention:
    """Self-attention of width 32 with 4 heads, float64: matrices N(0, scale²/32), gains 1 + gains · N(0, 1)."""
    module = SelfAttention(32, 4, qk_norm=qk_norm, **options).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            draw = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            p.copy_(scale * draw / 32**0.5 if p.dim() > 1 else 1 + gains * draw)
    return module


# --- real models ------------------------------------------------------------------------------------------------------

_SIZES = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_SIZES |= {"intermediate_size": 48, "max_position_embeddings": 64}
_SIZES |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_GROUPED = _SIZES | {"num_key_value_heads": 2}
_HEADS = _GROUPED | {"head_dim": 8}
_EXPERTS = _HEADS | {"num_local_experts": 2}
_GPT2 = {"vocab_size": 40, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}
_T5 = {"vocab_size": 40, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
_MINIMAX = _EXPERTS | {"layer_types": ["full_attention"] * 2, "block_size": 4}

FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "BERT": ("BertForMaskedLM", "BertConfig", _SIZES),
    "T5": ("T5ForConditionalGeneration", "T5Config", _T5 | {"decoder_start_token_id": 0}),
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config", _GPT2),
    "GPT-NeoX": ("GPTNeoXForCausalLM", "GPTNeoXConfig", _SIZES),
    "Llama": ("LlamaForCausalLM", "LlamaConfig", _GROUPED),
    "Mistral": ("MistralForCausalLM", "MistralConfig", _HEADS),
    "Qwen 2": ("Qwen2ForCausalLM", "Qwen2Config", _GROUPED),
    "Qwen 3": ("Qwen3ForCausalLM", "Qwen3Config", _HEADS),
    "Phi-3": ("Phi3ForCausalLM", "Phi3Config", _GROUPED),
    "gpt-oss": ("GptOssForCausalLM", "GptOssConfig", _EXPERTS),
    "Granite": ("GraniteForCausalLM", "GraniteConfig", _GROUPED),
    "Gemma": ("GemmaForCausalLM", "GemmaConfig", _HEADS),
    "Gemma 2": ("Gemma2ForCausalLM", "Gemma2Config", _HEADS),
    "Gemma 3": ("Gemma3ForCausalLM", "Gemma3TextConfig", _HEADS),
    "GLM-4": ("Glm4ForCausalLM", "Glm4Config", _HEADS),
    "OLMo": ("OlmoForCausalLM", "OlmoConfig", _GROUPED),
    "OLMo 2": ("Olmo2ForCausalLM", "Olmo2Config", _GROUPED),
    "EXAONE 4": ("Exaone4ForCausalLM", "Exaone4Config", _HEADS),
    "Cohere": ("CohereForCausalLM", "CohereConfig", _GROUPED),
    "MiniMax-01": ("MiniMaxForCausalLM", "MiniMaxConfig", _MINIMAX),
}
NOT_DECODERS = ("BERT", "T5")


def tiny_models(seed: int = 0) -> dict[str, nn.Module]:
    """The families of the transformers library with 2 blocks and random weights and gains; {} where it is missing."""
    try:
        with warnings.catch_warnings(action="ignore"):
            import transformers
    except ImportError:
        return {}
    transformers.logging.set_verbosity_error()
    models = {}
    with torch.random.fork_rng(), warnings.catch_warnings(action="ignore"):
        for family, (model, config, sizes) in FAMILIES.items():
            models[family] = getattr(transformers, model)(getattr(transformers, config)(**sizes)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for built in models.values():
            for p in built.parameters():
                draw = torch.randn(p.shape, generator=generator)
                p.copy_(draw / p.shape[-1] ** 0.5 if p.dim() > 1 else p + 0.3 * draw)
    return models


@torch.no_grad()
def seen(model: nn.Module, modules: Sequence[nn.Module], ids: Tensor) -> list[tuple[Tensor, Tensor]]:
    """(input, output) of the given modules while ``ids`` [B, T] run through the model, in the order given."""
    found: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def keep(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        x = args[0] if args else kwargs["hidden_states"]
        found[module] = (x, output[0] if isinstance(output, tuple) else output)

    handles = [module.register_forward_hook(keep, with_kwargs=True) for module in modules]
    try:
        model(ids)
    finally:
        for handle in handles:
            handle.remove()
    return [found[module] for module in modules]
