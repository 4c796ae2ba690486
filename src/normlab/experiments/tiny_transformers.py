"""Families of the ``transformers`` library in miniature, with random weights: what they do, nobody has to download."""

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY = 40
_SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_SIZES |= {"max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_BARE = {name: _SIZES[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers", "pad_token_id")}
_MLP = _SIZES | {"intermediate_size": 48}
_GROUPED = _MLP | {"num_key_value_heads": 2}
_HEADS = _GROUPED | {"head_dim": 16}  # 4 heads of 16 in a stream of 32
_EXPERTS = _GROUPED | {"num_local_experts": 2, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 24}
_HEADS_EXPERTS = _EXPERTS | {"head_dim": 16}
_LATENT = _MLP | {"num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 12, "v_head_dim": 8}
_LATENT |= {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
_ROUTED = {"n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 24, "n_group": 1, "topk_group": 1}
_ROUTED |= {"first_k_dense_replace": 1}
_DELTA = {"layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 4}
_DELTA |= {"linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
_MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_chunk_size": 8}
_PER_LAYER = {"vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0}
_PER_LAYER |= {"layer_types": ["sliding_attention", "full_attention"]}
_GPT2 = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_GPT2 |= {"bos_token_id": 1, "eos_token_id": 2}
_MPT = {"vocab_size": VOCABULARY, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}
_T5 = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
_T5 |= {"decoder_start_token_id": 0}
_BART = {"vocab_size": VOCABULARY, "d_model": 32, "max_position_embeddings": 64, "decoder_start_token_id": 2}
_BART |= {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("layers", 2), ("ffn_dim", 48))}
_BART |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "forced_eos_token_id": 2}
_BART |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_VIT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_VIT |= {"image_size": 16, "patch_size": 8}
_WAVE = _BARE | {"num_attention_heads": 4, "intermediate_size": 48, "num_feat_extract_layers": 2}
_WAVE |= {"conv_dim": [16, 16], "conv_stride": [4, 4], "conv_kernel": [4, 4]}
_WAVE |= {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
_RELATIVE = _MLP | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
# The library's default is 1; the published configuration of MiniMax-Text-01 has this number in all three places.
MINIMAX_ALPHA = 3.5565588200778455
_MINIMAX = _HEADS_EXPERTS | {"layer_types": ["full_attention"] * 2, "block_size": 4}
_MINIMAX |= dict.fromkeys(("full_attn_alpha_factor", "linear_attn_alpha_factor", "mlp_alpha_factor"), MINIMAX_ALPHA)

_GPT_NEO = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 8}
_GPT_NEO |= {"max_position_embeddings": 64, "attention_types": [[["global", "local"], 1]]}
_DBRX = _MPT | {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0}}
_DBRX |= {"ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 2, "moe_top_k": 1}}
_LAUREL = {"laurel_rank": 4, "activation_sparsity_pattern": [0.0, 0.0], "intermediate_size": [48, 48]}
_JAMBA = {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1}
_JAMBA |= {"mamba_d_state": 8, "mamba_dt_rank": 4, "use_mamba_kernels": False}
_NEMOTRON_H = {"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "chunk_size": 8, "n_groups": 2}
_NEMOTRON_H |= {"layers_block_type": ["mamba", "attention", "mlp"], "num_hidden_layers": 3}
_RECURRENT = {"lru_width": 32, "attention_window_size": 8, "block_types": ["recurrent", "attention"]}
_DISTIL = {"vocab_size": VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}
_DISTIL |= {"max_position_embeddings": 64}
_BUCKETS = {"position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True}
_XLM = {"vocab_size": VOCABULARY, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64}
_SWITCH = {"num_decoder_layers": 2, "num_experts": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
_WHISPER = {"num_mel_bins": 8, "max_source_positions": 8, "max_target_positions": 16}
_SPECTROGRAM = {"num_mel_bins": 16, "max_length": 16, "frequency_stride": 8, "time_stride": 8}

# Class of the model, class of its configuration, and sizes.
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "AFMoE": ("AfmoeForCausalLM", "AfmoeConfig", _HEADS_EXPERTS | {"num_dense_layers": 1}),
    "AIMv2": ("Aimv2VisionModel", "Aimv2VisionConfig", _VIT),
    "ALBERT": ("AlbertForMaskedLM", "AlbertConfig", _MLP | {"embedding_size": 16}),
    "Apertus": ("ApertusForCausalLM", "ApertusConfig", _GROUPED),
    "Arcee": ("ArceeForCausalLM", "ArceeConfig", _GROUPED),
    "AST": ("ASTModel", "ASTConfig", _VIT | _SPECTROGRAM),
    "Bamba": ("BambaForCausalLM", "BambaConfig", _GROUPED | _MAMBA2 | {"attn_layer_indices": [1]}),
    "BART": ("BartForConditionalGeneration", "BartConfig", _BART),
    "BEiT": ("BeitModel", "BeitConfig", _VIT),
    "BERT": ("BertForMaskedLM", "BertConfig", _MLP),
    "BioGPT": ("BioGptForCausalLM", "BioGptConfig", _MLP),
    "BitNet": ("BitNetForCausalLM", "BitNetConfig", _GROUPED),
    "Blenderbot": ("BlenderbotForConditionalGeneration", "BlenderbotConfig", _BART),
    "BLOOM": (
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    ),
    "CLIP text": ("CLIPTextModel", "CLIPTextConfig", _MLP),
    "CLIP vision": ("CLIPVisionModel", "CLIPVisionConfig", _VIT),
    "CodeGen": ("CodeGenForCausalLM", "CodeGenConfig", _GPT2 | {"n_ctx": 64, "rotary_dim": 4}),
    "Cohere": ("CohereForCausalLM", "CohereConfig", _GROUPED),
    "Cohere 2": ("Cohere2ForCausalLM", "Cohere2Config", _GROUPED),
    "CTRL": ("CTRLLMHeadModel", "CTRLConfig", _GPT2 | {"dff": 48}),
    "DBRX": ("DbrxForCausalLM", "DbrxConfig", _DBRX),
    "DeBERTa": ("DebertaForMaskedLM", "DebertaConfig", _RELATIVE),
    "DeBERTa-v2": ("DebertaV2ForMaskedLM", "DebertaV2Config", _RELATIVE | _BUCKETS),
    "DeepSeek-V2": ("DeepseekV2ForCausalLM", "DeepseekV2Config", _LATENT | _ROUTED),
    "DeepSeek-V3": ("DeepseekV3ForCausalLM", "DeepseekV3Config", _LATENT | _ROUTED),
    "DiffLlama": ("DiffLlamaForCausalLM", "DiffLlamaConfig", _GROUPED),
    "DINOv2": ("Dinov2Model", "Dinov2Config", _VIT | {"mlp_ratio": 2}),
    "DINOv3": ("DINOv3ViTModel", "DINOv3ViTConfig", _VIT),
    "DistilBERT": ("DistilBertForMaskedLM", "DistilBertConfig", _DISTIL),
    "Doge": ("DogeForCausalLM", "DogeConfig", _GROUPED),
    "dots1": ("Dots1ForCausalLM", "Dots1Config", _HEADS | _ROUTED | {"n_shared_experts": 1}),
    "ELECTRA": ("ElectraForMaskedLM", "ElectraConfig", _MLP | {"embedding_size": 16}),
    "ERNIE 4.5": ("Ernie4_5ForCausalLM", "Ernie4_5Config", _HEADS),
    "ESM": ("EsmForMaskedLM", "EsmConfig", _MLP | {"mask_token_id": 3, "position_embedding_type": "rotary"}),
    "EuroBERT": ("EuroBertForMaskedLM", "EuroBertConfig", _GROUPED),
    "EXAONE 4": ("Exaone4ForCausalLM", "Exaone4Config", _HEADS),
    "Falcon": ("FalconForCausalLM", "FalconConfig", _SIZES),
    "Falcon-H1": ("FalconH1ForCausalLM", "FalconH1Config", _HEADS | _MAMBA2 | {"mamba_d_ssm": 64}),
    "Falcon-Mamba": ("FalconMambaForCausalLM", "FalconMambaConfig", _BARE | {"state_size": 8, "intermediate_size": 64}),
    "FlexOlmo": ("FlexOlmoForCausalLM", "FlexOlmoConfig", _EXPERTS),
    "FNet": ("FNetForMaskedLM", "FNetConfig", _MLP),
    "Gemma": ("GemmaForCausalLM", "GemmaConfig", _HEADS),
    "Gemma 2": ("Gemma2ForCausalLM", "Gemma2Config", _HEADS),
    "Gemma 3": ("Gemma3ForCausalLM", "Gemma3TextConfig", _HEADS),
    "Gemma 3n": ("Gemma3nForCausalLM", "Gemma3nTextConfig", _HEADS | _PER_LAYER | _LAUREL),
    "Gemma 4": ("Gemma4ForCausalLM", "Gemma4TextConfig", _HEADS | _PER_LAYER | {"global_head_dim": 16}),
    "GLM": ("GlmForCausalLM", "GlmConfig", _HEADS),
    "GLM-4": ("Glm4ForCausalLM", "Glm4Config", _HEADS),
    "GLM-4 MoE": ("Glm4MoeForCausalLM", "Glm4MoeConfig", _HEADS | _ROUTED | {"use_qk_norm": True}),
    "GPT": ("OpenAIGPTLMHeadModel", "OpenAIGPTConfig", _GPT2),
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config", _GPT2),
    "GPT-BigCode": ("GPTBigCodeForCausalLM", "GPTBigCodeConfig", _GPT2),
    "GPT-J": ("GPTJForCausalLM", "GPTJConfig", _GPT2 | {"rotary_dim": 4}),
    "GPT-Neo": ("GPTNeoForCausalLM", "GPTNeoConfig", _GPT_NEO),
    "GPT-NeoX": ("GPTNeoXForCausalLM", "GPTNeoXConfig", _MLP),
    "gpt-oss": ("GptOssForCausalLM", "GptOssConfig", _HEADS_EXPERTS),
    "Granite": ("GraniteForCausalLM", "GraniteConfig", _GROUPED),
    "Granite MoE": ("GraniteMoeForCausalLM", "GraniteMoeConfig", _EXPERTS),
    "GTE": ("GteForMaskedLM", "GteConfig", _MLP),
    "Helium": ("HeliumForCausalLM", "HeliumConfig", _GROUPED | {"head_dim": 8}),
    "HuBERT": ("HubertModel", "HubertConfig", _WAVE),
    "Hunyuan": ("HunYuanDenseV1ForCausalLM", "HunYuanDenseV1Config", _HEADS),
    "HyperCLOVA X": ("HyperCLOVAXForCausalLM", "HyperCLOVAXConfig", _GROUPED),
    "Jais 2": ("Jais2ForCausalLM", "Jais2Config", _GROUPED),
    "Jamba": ("JambaForCausalLM", "JambaConfig", _EXPERTS | _JAMBA),
    "JetMoE": ("JetMoeForCausalLM", "JetMoeConfig", _EXPERTS | {"kv_channels": 8}),
    "LFM2": ("Lfm2ForCausalLM", "Lfm2Config", _GROUPED | {"layer_types": ["conv", "full_attention"]}),
    "Llama": ("LlamaForCausalLM", "LlamaConfig", _GROUPED),
    "Llama 4": (
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        _HEADS_EXPERTS | {"intermediate_size_mlp": 48, "no_rope_layers": [1, 0]},
    ),
    "M2M-100": ("M2M100ForConditionalGeneration", "M2M100Config", _BART),
    "Mamba": ("MambaForCausalLM", "MambaConfig", {k: _SIZES[k] for k in list(_SIZES)[:3]}),
    "Mamba 2": (
        "Mamba2ForCausalLM",
        "Mamba2Config",
        _BARE | {"num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 2, "chunk_size": 8},
    ),
    "Marian": ("MarianMTModel", "MarianConfig", _BART),
    "mBART": ("MBartForConditionalGeneration", "MBartConfig", _BART),
    "Megatron-BERT": ("MegatronBertForMaskedLM", "MegatronBertConfig", _MLP),
    "MiniCPM3": ("MiniCPM3ForCausalLM", "MiniCPM3Config", _LATENT),
    "MiniMax-01": ("MiniMaxForCausalLM", "MiniMaxConfig", _MINIMAX),
    "MiniMax-M2": ("MiniMaxM2ForCausalLM", "MiniMaxM2Config", _HEADS_EXPERTS),
    "Ministral": ("MinistralForCausalLM", "MinistralConfig", _HEADS),
    "Ministral 3": ("Ministral3ForCausalLM", "Ministral3Config", _HEADS),
    "Mistral": ("MistralForCausalLM", "MistralConfig", _HEADS),
    "Mixtral": ("MixtralForCausalLM", "MixtralConfig", _HEADS_EXPERTS),
    "MobileBERT": (
        "MobileBertForMaskedLM",
        "MobileBertConfig",
        _MLP | {"embedding_size": 16, "intra_bottleneck_size": 16},
    ),
    "ModernBERT": ("ModernBertForMaskedLM", "ModernBertConfig", _MLP),
    "ModernBERT decoder": ("ModernBertDecoderForCausalLM", "ModernBertDecoderConfig", _MLP),
    "MPNet": ("MPNetForMaskedLM", "MPNetConfig", _MLP),
    "MPT": ("MptForCausalLM", "MptConfig", _MPT | {"expansion_ratio": 2}),
    "mT5": ("MT5ForConditionalGeneration", "MT5Config", _T5),
    "nanochat": ("NanoChatForCausalLM", "NanoChatConfig", _GROUPED),
    "Nemotron": ("NemotronForCausalLM", "NemotronConfig", _HEADS),
    "Nemotron-H": ("NemotronHForCausalLM", "NemotronHConfig", _HEADS | _NEMOTRON_H),
    "NomicBERT": ("NomicBertForMaskedLM", "NomicBertConfig", _MLP),
    "OLMo": ("OlmoForCausalLM", "OlmoConfig", _GROUPED),
    "OLMo 2": ("Olmo2ForCausalLM", "Olmo2Config", _GROUPED),
    "OLMo 3": ("Olmo3ForCausalLM", "Olmo3Config", _GROUPED),
    "OLMo hybrid": ("OlmoHybridForCausalLM", "OlmoHybridConfig", _GROUPED | _DELTA),
    "OLMoE": ("OlmoeForCausalLM", "OlmoeConfig", _EXPERTS),
    "OPT": ("OPTForCausalLM", "OPTConfig", _SIZES | {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "Pegasus": ("PegasusForConditionalGeneration", "PegasusConfig", _BART),
    "Persimmon": ("PersimmonForCausalLM", "PersimmonConfig", _MLP),
    "Phi": ("PhiForCausalLM", "PhiConfig", _GROUPED),
    "Phi-3": ("Phi3ForCausalLM", "Phi3Config", _GROUPED),
    "PhiMoE": ("PhimoeForCausalLM", "PhimoeConfig", _EXPERTS),
    "Qwen 2": ("Qwen2ForCausalLM", "Qwen2Config", _GROUPED),
    "Qwen 2 MoE": ("Qwen2MoeForCausalLM", "Qwen2MoeConfig", _EXPERTS | {"shared_expert_intermediate_size": 24}),
    "Qwen 3": ("Qwen3ForCausalLM", "Qwen3Config", _HEADS),
    "Qwen 3 MoE": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", _HEADS_EXPERTS),
    "Qwen3-Next": (
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        _HEADS_EXPERTS | _DELTA | {"shared_expert_intermediate_size": 24},
    ),
    "RecurrentGemma": ("RecurrentGemmaForCausalLM", "RecurrentGemmaConfig", _HEADS | _RECURRENT),
    "RemBERT": (
        "RemBertForMaskedLM",
        "RemBertConfig",
        _MLP | {"input_embedding_size": 16, "output_embedding_size": 16},
    ),
    "RoBERTa": ("RobertaForMaskedLM", "RobertaConfig", _MLP),
    "RoBERTa-PreLayerNorm": ("RobertaPreLayerNormForMaskedLM", "RobertaPreLayerNormConfig", _MLP),
    "RWKV": ("RwkvForCausalLM", "RwkvConfig", _BARE | {"context_length": 64}),
    "Seed-OSS": ("SeedOssForCausalLM", "SeedOssConfig", _HEADS),
    "SigLIP vision": ("SiglipVisionModel", "SiglipVisionConfig", _VIT),
    "SmolLM3": ("SmolLM3ForCausalLM", "SmolLM3Config", _GROUPED),
    "SqueezeBERT": ("SqueezeBertForMaskedLM", "SqueezeBertConfig", _MLP | {"embedding_size": 32}),
    "StableLM": ("StableLmForCausalLM", "StableLmConfig", _GROUPED),
    "Starcoder2": ("Starcoder2ForCausalLM", "Starcoder2Config", _GROUPED),
    "Switch": ("SwitchTransformersForConditionalGeneration", "SwitchTransformersConfig", _T5 | _SWITCH),
    "T5": ("T5ForConditionalGeneration", "T5Config", _T5),
    "T5Gemma": (
        "T5GemmaForConditionalGeneration",
        "T5GemmaConfig",
        {"encoder": _HEADS, "decoder": _HEADS, "vocab_size": VOCABULARY},
    ),
    "VaultGemma": ("VaultGemmaForCausalLM", "VaultGemmaConfig", _HEADS),
    "ViT": ("ViTModel", "ViTConfig", _VIT),
    "wav2vec2": ("Wav2Vec2Model", "Wav2Vec2Config", _WAVE),
    "Whisper": ("WhisperForConditionalGeneration", "WhisperConfig", _BART | _WHISPER),
    "XGLM": (
        "XGLMForCausalLM",
        "XGLMConfig",
        {"vocab_size": VOCABULARY, "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48},
    ),
    "XLM": ("XLMWithLMHeadModel", "XLMConfig", _XLM),
    "XLM-R": ("XLMRobertaForMaskedLM", "XLMRobertaConfig", _MLP),
    "XLM-R XL": ("XLMRobertaXLForMaskedLM", "XLMRobertaXLConfig", _MLP),
    "XLNet": (
        "XLNetLMHeadModel",
        "XLNetConfig",
        {"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48},
    ),
}
VARIANTS = {  # other settings of a family that move its norms
    "Falcon 40B": ("Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "Falcon sequential": ("Falcon", {"parallel_attn": False}),
    "GPT-NeoX sequential": ("GPT-NeoX", {"use_parallel_residual": False}),
    "OPT post": ("OPT", {"do_layer_norm_before": False}),
    "StableLM parallel": ("StableLM", {"use_parallel_residual": True, "qk_layernorm": True}),
    "Phi QK": ("Phi", {"qk_layernorm": True}),
    "Cohere QK": ("Cohere", {"use_qk_norm": True}),
    "Granite scaled": ("Granite", {"residual_multiplier": 0.22}),
    "BLOOM post": ("BLOOM", {"apply_residual_connection_post_layernorm": True}),
    "wav2vec2 stable": ("wav2vec2", {"do_stable_layer_norm": True, "feat_extract_norm": "layer"}),
}
_IMAGES = {"pixel_values": (2, 3, 16, 16)}
_INPUTS: dict[str, dict[str, tuple[int, ...]]] = {  # shapes of what is no text
    **dict.fromkeys(("ViT", "BEiT", "DINOv2", "DINOv3", "SigLIP vision", "CLIP vision", "AIMv2"), _IMAGES),
    **dict.fromkeys(("wav2vec2", "wav2vec2 stable", "HuBERT"), {"input_values": (2, 160)}),
    "AST": {"input_values": (2, 16, 16)},
    "Whisper": {"input_features": (2, 8, 16)},
}


def tiny_model(family: str, seed: int = 0, **options: Any) -> nn.Module:
    """A family or variant with 2 or 3 blocks in eval mode; ``options`` are those of its configuration.

    Its weights are large enough that every part of it matters, its gains are not all 1 and its shifts not all 0.
    """
    with torch.random.fork_rng(), warnings.catch_warnings(action="ignore"):
        import transformers

        transformers.logging.set_verbosity_error()
        base, changes = VARIANTS.get(family, (family, {}))
        model, config, sizes = FAMILIES[base]
        built = getattr(transformers, model)(getattr(transformers, config)(**sizes | changes | options)).eval()
    return randomized(built, seed)


@torch.no_grad()
def randomized(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model with new weights, large enough that each matters: matrices of deviation 1 / sqrt(width), vectors moved."""
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        draw = torch.randn(p.shape, generator=generator)
        p.copy_(draw / p.shape[-1] ** 0.5 if p.dim() > 1 else p + 0.3 * draw)
    return model


def inputs(family: str) -> dict[str, Tensor]:
    """Arguments for a family's call: two sequences of ids, pixels, samples or spectra."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, VOCABULARY, (2, 6), generator=generator)
    model = FAMILIES[VARIANTS.get(family, (family, {}))[0]][0]
    if family in _INPUTS:
        found = {name: torch.randn(shape, generator=generator) for name, shape in _INPUTS[family].items()}
    else:
        found = {"input_ids": ids}
    return found | ({"decoder_input_ids": ids} if model.endswith(("ForConditionalGeneration", "MTModel")) else {})


def tiny_models(families: Iterable[str], seed: int = 0) -> dict[str, nn.Module]:
    """:func:`tiny_model` of each family; {} where the library is missing."""
    try:
        return {family: tiny_model(family, seed) for family in families}
    except ModuleNotFoundError as missing:
        if missing.name != "transformers":
            raise
        return {}
