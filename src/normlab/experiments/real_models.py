"""Families of the transformers library in miniature, and what goes in and out of their modules."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normlab import device
from normlab.inspection import report

_SIZES = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_SIZES |= {"intermediate_size": 48, "max_position_embeddings": 64}
_SIZES |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_GROUPED = _SIZES | {"num_key_value_heads": 2}
_HEADS = _GROUPED | {"head_dim": 8}
_EXPERTS = _HEADS | {"num_local_experts": 2, "num_experts_per_tok": 1}
_GPT2 = {"vocab_size": 40, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}
_T5 = {"vocab_size": 40, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
# The library's default is 1; the published configuration of MiniMax-Text-01 has this number in all three places.
MINIMAX_ALPHA = 3.5565588200778455
_MINIMAX = _EXPERTS | {"layer_types": ["full_attention"] * 2, "block_size": 4}
_MINIMAX |= dict.fromkeys(("full_attn_alpha_factor", "linear_attn_alpha_factor", "mlp_alpha_factor"), MINIMAX_ALPHA)

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


def inspected(models: dict[str, nn.Module]) -> dict[str, report.ModelReport]:
    """:func:`normlab.inspect` of every model, on one thread: they are too small for more."""
    with device.single_thread():
        return {family: report.inspect(model) for family, model in models.items()}


@torch.no_grad()
def seen(model: nn.Module, modules: Sequence[nn.Module], ids: Tensor) -> list[tuple[Tensor, Tensor]]:
    """(input, output) of the given modules while ``ids`` [B, T] run through the model, in the order given."""
    found: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def keep(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        x = args[0] if args else kwargs["hidden_states"]
        found[module] = (x, output[0] if isinstance(output, tuple) else output)

    handles = [module.register_forward_hook(keep, with_kwargs=True) for module in modules]
    try:
        with device.single_thread():
            model(ids)
    finally:
        for handle in handles:
            handle.remove()
    return [found[module] for module in modules]
