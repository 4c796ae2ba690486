"""Families of the ``transformers`` library in miniature, with random weights: what they do, nobody has to download."""

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

VOCABULARY = 40
_SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_SIZES |= {"max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_MLP = _SIZES | {"intermediate_size": 48}
_GROUPED = _MLP | {"num_key_value_heads": 2}
_HEADS = _GROUPED | {"head_dim": 16}  # 4 heads of 16 in a stream of 32
_EXPERTS = _HEADS | {"num_local_experts": 2, "num_experts_per_tok": 1}
_GPT2 = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_GPT2 |= {"bos_token_id": 1, "eos_token_id": 2}
_T5 = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
_T5 |= {"decoder_start_token_id": 0}
# The library's default is 1; the published configuration of MiniMax-Text-01 has this number in all three places.
MINIMAX_ALPHA = 3.5565588200778455
_MINIMAX = _EXPERTS | {"layer_types": ["full_attention"] * 2, "block_size": 4}
_MINIMAX |= dict.fromkeys(("full_attn_alpha_factor", "linear_attn_alpha_factor", "mlp_alpha_factor"), MINIMAX_ALPHA)

FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "BERT": ("BertForMaskedLM", "BertConfig", _MLP),
    "BitNet": ("BitNetForCausalLM", "BitNetConfig", _GROUPED),
    "Cohere": ("CohereForCausalLM", "CohereConfig", _GROUPED),
    "EXAONE 4": ("Exaone4ForCausalLM", "Exaone4Config", _HEADS),
    "GLM-4": ("Glm4ForCausalLM", "Glm4Config", _HEADS),
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config", _GPT2),
    "GPT-NeoX": ("GPTNeoXForCausalLM", "GPTNeoXConfig", _MLP),
    "Gemma": ("GemmaForCausalLM", "GemmaConfig", _HEADS),
    "Gemma 2": ("Gemma2ForCausalLM", "Gemma2Config", _HEADS),
    "Gemma 3": ("Gemma3ForCausalLM", "Gemma3TextConfig", _HEADS),
    "Granite": ("GraniteForCausalLM", "GraniteConfig", _GROUPED),
    "Llama": ("LlamaForCausalLM", "LlamaConfig", _GROUPED),
    "Mamba": ("MambaForCausalLM", "MambaConfig", {k: _SIZES[k] for k in list(_SIZES)[:3]}),
    "MiniMax-01": ("MiniMaxForCausalLM", "MiniMaxConfig", _MINIMAX),
    "Mistral": ("MistralForCausalLM", "MistralConfig", _HEADS),
    "Nemotron": ("NemotronForCausalLM", "NemotronConfig", _HEADS),
    "OLMo": ("OlmoForCausalLM", "OlmoConfig", _GROUPED),
    "OLMo 2": ("Olmo2ForCausalLM", "Olmo2Config", _GROUPED),
    "OPT": ("OPTForCausalLM", "OPTConfig", _SIZES | {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "Phi-3": ("Phi3ForCausalLM", "Phi3Config", _GROUPED),
    "Qwen 2": ("Qwen2ForCausalLM", "Qwen2Config", _GROUPED),
    "Qwen 3": ("Qwen3ForCausalLM", "Qwen3Config", _HEADS),
    "StableLM": ("StableLmForCausalLM", "StableLmConfig", _GROUPED),
    "T5": ("T5ForConditionalGeneration", "T5Config", _T5),
    "gpt-oss": ("GptOssForCausalLM", "GptOssConfig", _EXPERTS),
    "nanochat": ("NanoChatForCausalLM", "NanoChatConfig", _GROUPED),
}


def tiny_model(family: str, seed: int = 0, **options: Any) -> nn.Module:
    """A family with 2 blocks in eval mode; ``options`` are those of its configuration.

    Its weights are large enough that every part of it matters, its gains are not all 1 and its shifts not all 0.
    """
    with torch.random.fork_rng(), warnings.catch_warnings(action="ignore"):
        import transformers

        transformers.logging.set_verbosity_error()
        model, config, sizes = FAMILIES[family]
        built = getattr(transformers, model)(getattr(transformers, config)(**sizes | options)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in built.parameters():
            draw = torch.randn(p.shape, generator=generator)
            p.copy_(draw / p.shape[-1] ** 0.5 if p.dim() > 1 else p + 0.3 * draw)
    return built


def tiny_models(families: Iterable[str], seed: int = 0) -> dict[str, nn.Module]:
    """:func:`tiny_model` of each family; {} where the library is missing."""
    try:
        return {family: tiny_model(family, seed) for family in families}
    except ModuleNotFoundError as missing:
        if missing.name != "transformers":
            raise
        return {}
