"""Tiny models of ``transformers`` with random weights, and what their published code says about their norms.

Helpers for tests, no tests. transformers is imported inside, so that collecting the other tests stays fast.
"""

import torch
from torch import nn

VOCAB = 41
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MLP = _SIZES | {"intermediate_size": 48}
_GROUPED = _MLP | {"num_key_value_heads": 2}
_HEADS = _GROUPED | {"head_dim": 16}  # 4 heads of 16 in a stream of 32
_GPT2 = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_GPT2 |= {"bos_token_id": 1, "eos_token_id": 2}
_OPT = _SIZES | {"ffn_dim": 48, "word_embed_proj_dim": 32}

CONFIGS = {
    "GPT2": ("GPT2Config", "GPT2LMHeadModel", _GPT2),
    "BERT": ("BertConfig", "BertForMaskedLM", _MLP),
    "Llama": ("LlamaConfig", "LlamaForCausalLM", _GROUPED),
    "Mistral": ("MistralConfig", "MistralForCausalLM", _HEADS),
    "Qwen3": ("Qwen3Config", "Qwen3ForCausalLM", _HEADS),
    "Gemma2": ("Gemma2Config", "Gemma2ForCausalLM", _HEADS),
    "Gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", _HEADS),
    "OLMo": ("OlmoConfig", "OlmoForCausalLM", _GROUPED),
    "OLMo2": ("Olmo2Config", "Olmo2ForCausalLM", _GROUPED),
    "GPT-NeoX": ("GPTNeoXConfig", "GPTNeoXForCausalLM", _MLP),
    "GPT-NeoX sequential": ("GPTNeoXConfig", "GPTNeoXForCausalLM", _MLP | {"use_parallel_residual": False}),
    "Cohere": ("CohereConfig", "CohereForCausalLM", _GROUPED | {"use_qk_norm": True}),
    "Nemotron": ("NemotronConfig", "NemotronForCausalLM", _HEADS),
    "nanochat": ("NanoChatConfig", "NanoChatForCausalLM", _GROUPED),
    "GLM-4": ("Glm4Config", "Glm4ForCausalLM", _HEADS),
    "EXAONE 4": ("Exaone4Config", "Exaone4ForCausalLM", _HEADS),
    "OPT": ("OPTConfig", "OPTForCausalLM", _OPT),
    "OPT post": ("OPTConfig", "OPTForCausalLM", _OPT | {"do_layer_norm_before": False}),
    "StableLM": ("StableLmConfig", "StableLmForCausalLM", _GROUPED | {"qk_layernorm": True}),
    "BitNet": ("BitNetConfig", "BitNetForCausalLM", _GROUPED),
    "Granite": ("GraniteConfig", "GraniteForCausalLM", _GROUPED | {"residual_multiplier": 0.22}),
    "T5": (
        "T5Config",
        "T5ForConditionalGeneration",
        {"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
        | {"decoder_start_token_id": 0},
    ),
    "Mamba": ("MambaConfig", "MambaForCausalLM", {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2}),
}


def tiny(family: str, seed: int = 0, **options) -> nn.Module:
    """The family in eval mode, with weights large enough that every part of it matters and gains away from 1."""
    import transformers

    transformers.logging.set_verbosity_error()
    config, model, settings = CONFIGS[family]
    settings = settings | options
    built = getattr(transformers, model)(getattr(transformers, config)(**settings)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in built.parameters():
            draw = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(draw / parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else parameter + 0.3 * draw)
    return built


def ids(seed: int = 0, sequences: int = 2, tokens: int = 7) -> torch.Tensor:
    return torch.randint(1, VOCAB, (sequences, tokens), generator=torch.Generator().manual_seed(seed))


def scramble(model: nn.Module) -> nn.Module:
    """Give every submodule the name of its neighbor, and every class another name; what the model computes stays."""
    for module in list(model.modules()):
        if isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential):
            continue
        names = list(module._modules)
        lies = dict(zip(names, names[1:] + names[:1]))
        module._modules = {lies[name]: child for name, child in module._modules.items()}
        module.__class__ = _under_false_names(type(module), lies)
    return model


def _under_false_names(cls: type, lies: dict[str, str]) -> type:
    def get(self, name):
        modules = self.__dict__["_modules"]
        return modules[lies[name]] if lies.get(name) in modules else cls.__getattr__(self, name)

    return type("LayerNorm" if "RMS" in cls.__name__ else "RMSNorm", (cls,), {"__getattr__": get})
