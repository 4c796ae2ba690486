"""Which models the census takes, by a rule that can be run, and how they are built small, with random weights.

The rule: every model type that the library lists for causal, masked or sequence-to-sequence language modeling, unless
its configuration holds those of other models (most of these have a part for images or sound). Its configuration is
the library's default, with small sizes.
"""

import re
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normlab.experiments import tiny_transformers

VERSION = "5.24.0"  # of transformers: the recorded census is of this one

# What the library lists in that version; the check of the record compares.
TYPES = """
afmoe albert apertus apertus1p5_text arcee aria_text audioflamingo3 axk1 axk2 bailing_hybrid bamba bart beam bert
bert-generation big_bird bigbird_pegasus biogpt bitnet blenderbot blenderbot-small bloom blt camembert codegen cohere
cohere2 cohere2_moe cohere_compass_text convbert cpmant ctrl cwm data2vec-text dbrx deberta deberta-v2 deepseek_v2
deepseek_v3 deepseek_v32 deepseek_v4 diffllama distilbert doge dory dots1 dots3_note dots3_note_text electra emu3
encoder-decoder ernie ernie4_5 ernie4_5_moe esm esmc eurobert exaone exaone4 exaone_moe falcon falcon_h1 falcon_mamba
flaubert flex_olmo flint fnet fsmt funnel fuyu gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text gemma4
gemma4_assistant gemma4_text gemma4_unified gemma4_unified_assistant gemma4_unified_text git glm glm4 glm4_moe
glm4_moe_lite glm_moe_dsa glmasr got_ocr2 gpt-sw3 gpt2 gpt_bigcode gpt_neo gpt_neox gpt_neox_japanese gpt_oss gptj
granite granite_speech granite_speech_plus granite_swa granitemoe granitemoe_swa granitemoehybrid granitemoeshared gte
helium hrm_text hunyuan_v1_dense hunyuan_v1_moe hy_v3 hy_v4 hyperclovax ibert inkling2_loop_text inkling2_text
inkling_text internlm3 iquestcoder jais2 jamba jetmoe jina_embeddings_v3 kimi_linear kolibri1 laguna lara_mini
layoutlm led lfm2 lfm2_moe lfm3 llama llama4 llama4_text longcat_flash longformer longt5 luke m2m_100 mamba mamba2
marian mbart megatron-bert mellum mimo_v2_flash minicpm3 minimax minimax_m2 minimax_m3_vl_text ministral ministral3
mistral mixtral mllama mobilebert modernbert modernbert-decoder modernvbert moshi moss_transcribe_diarize mpnet mpt
mra mt5 musicflamingo musicgen musicgen_melody mvp nanochat nemo_speechlm nemotron nemotron_h neomme nllb-moe
nomic_bert nystromformer olmo olmo2 olmo3 olmo_hybrid olmoe omniasr openai-gpt opt pegasus pegasus_x perceiver
persimmon phi phi3 phi4_multimodal phimoe plbart prophetnet qwen2 qwen2_audio qwen2_moe qwen3 qwen3_5 qwen3_5_moe
qwen3_5_moe_text qwen3_5_text qwen3_asr qwen3_moe qwen3_next qwen4_exp qwen4_exp_text recurrent_gemma reformer rembert
roberta roberta-prelayernorm roc_bert roformer rwkv sarvam_mla sarvam_moe seamless_m4t seamless_m4t_v2 seed_oss
smollm3 solar_open squeezebert stablelm starcoder2 switch_transformers t5 t5gemma t5gemma2 tapas trocr ultrabert
ultravbert umt5 vaultgemma vibevoice_asr voxtral voxtral_realtime whisper xglm xlm xlm-roberta xlm-roberta-xl xlnet
xlstm xmod yoso youtu zamba zamba2 zaya
""".split()

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers")
_SMALL = {"vocab_size": tiny_transformers.VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SMALL |= {"decoder_start_token_id": 1, "sliding_window": 8, "max_position_embeddings": 64, "n_positions": 64}
_SMALL |= dict.fromkeys(("unpadded_vocab_size", "entity_vocab_size", "pronunciation_vocab_size", "shape_vocab_size"), 40)
_SMALL |= dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embedding_size"), 32)
_SMALL |= dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim"), 48)
_SMALL |= dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4)
_SMALL |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
_SMALL |= dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4)
_SMALL |= {"num_experts_per_tok": 2, "moe_k": 2, "num_shared_experts": 1, "n_shared_experts": 1, "n_group": 1}
_SMALL |= {"moe_intermediate_size": 24, "shared_expert_intermediate_size": 24, "topk_group": 1}
_SMALL |= {"first_k_dense_replace": 1, "word_embed_proj_dim": 32}
_SMALL |= {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
_SMALL |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
_EXTRA: dict[str, dict[str, Any]] = {  # sizes that only one type has
    "deepseek_v4": {"hc_sinkhorn_iters": 2},
    "esmc": {"num_key_value_heads": 4, "head_dim": 8},
    "hunyuan_v1_moe": {"num_experts": 1, "head_dim": 16},
    "qwen4_exp_text": {"ngram_vocab_size_base": 97, "split_ngram_parts": 1, "indexer_n_heads": 2, "indexer_kv_heads": 1}
    | {"indexer_head_dim": 8, "indexer_budget": 8, "indexer_compress_ratio": 2, "hc_lowrank": 8, "ple_embed_dim": 8},
    "zaya": {"num_experts_per_tok": 1},
}
LARGEST = 3_000_000  # parameters; what is larger was not made small


@dataclass(frozen=True)
class Candidate:
    """A model type of the library: the class that the census would build, and what it is.

    ``role`` is "decoder", "encoder" or "encoder-decoder". ``composite``: its configuration holds those of models.
    """

    model_type: str
    model: str
    role: str
    composite: bool


def listed() -> dict[str, tuple[str, str]]:
    """All model types of the library for causal, masked and sequence-to-sequence language modeling: class and role."""
    from transformers.models.auto import modeling_auto as auto

    causal, masked = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    pairs = auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    by_role = ((causal, "decoder"), (masked, "encoder"), (pairs, "encoder-decoder"))
    found = {name: (model, role) for models, role in by_role for name, model in models.items()}
    return dict(sorted(found.items()))


def candidate(model_type: str) -> Candidate:
    """What the census would build of a model type. A KeyError if the library does not list it."""
    with warnings.catch_warnings(action="ignore"):
        model, role = listed()[model_type]
    return Candidate(model_type, model, role, _is_composite(model_type))


def _is_composite(model_type: str) -> bool:
    """True if the configuration holds configurations that have layers of their own."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING, AutoConfig

    parts = (CONFIG_MAPPING[model_type].sub_configs or {}).values()
    return any(part is AutoConfig or any(hasattr(part(), name) for name in _LAYERS) for part in parts)


def sizes(candidate: Candidate) -> dict[str, Any]:
    """Small sizes for the configuration; of a mixed stack one layer of each kind, at least two layers."""
    config = _config_class(candidate)
    default, found = config(), {}
    for name, value in _SMALL.items():
        try:
            found |= {name: value} if getattr(default, name, None) is not None else {}
        except Exception:  # the library refuses what differs from layer to layer
            continue
    if hasattr(default, "kv_lora_rank"):  # keys and values from one latent vector: as many of each as of queries
        found = {name: value for name, value in found.items() if name not in ("head_dim", "num_key_value_heads")}
        found["num_key_value_heads"] = found["num_attention_heads"]
    kinds = list(dict.fromkeys(getattr(default, "layer_types", None) or ()))
    layers = max(2, len(kinds))
    found |= {"layer_types": (kinds * 2)[:layers]} if kinds else {}
    return found | {name: layers for name in _LAYERS if hasattr(default, name)} | _EXTRA.get(candidate.model_type, {})


def _config_class(candidate: Candidate) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[candidate.model_type]


def config(candidate: Candidate) -> Any:
    """The default configuration with small sizes, less those that the library computes by itself."""
    options = sizes(candidate)
    while True:
        try:
            found = _config_class(candidate)(**options)
            if getattr(found, "attn_logit_softcapping", None):
                found._attn_implementation = "eager"  # torch's kernel has no cap: transformers 5.14 runs it all the same
            return found
        except (AttributeError, KeyError) as problem:
            computed = re.search(r"'(\w+)'", str(problem))
            if computed is None or computed[1] not in options:
                raise
            del options[computed[1]]


def inputs(model: Any) -> dict[str, Tensor]:
    """Two sequences of ids, none of which means padding; for an encoder-decoder both sides."""
    ids = torch.tensor([[3, 9, 4, 12, 7, 31], [5, 8, 30, 6, 11, 4]])
    return {"input_ids": ids} | ({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})


def build(candidate: Candidate, seed: int = 0) -> nn.Module:
    """The model in eval mode: default configuration, small sizes, random weights, gains that are not 1.

    Where the general sizes do not fit, those of :mod:`normlab.experiments.tiny_transformers` are taken.

    Raises:
        ValueError: neither fits, or the model stays large.
    """
    try:
        with torch.random.fork_rng(), warnings.catch_warnings(action="ignore"):
            import transformers

            transformers.logging.set_verbosity_error()
            torch.manual_seed(seed)
            cls, small = getattr(transformers, candidate.model), config(candidate)
            with torch.device("meta"):
                size = sum(p.numel() for p in cls(small).parameters())
            if size > LARGEST:
                raise ValueError(f"it keeps {size:,} parameters")
            model = tiny_transformers.randomized(cls(small).eval(), seed)
            model(**inputs(model))
    except ModuleNotFoundError:
        raise
    except Exception as problem:  # whatever a library raises for sizes that do not go together
        family = _by_hand().get(candidate.model)
        if family is None:
            raise ValueError(f"{candidate.model_type} does not build small: {problem}") from problem
        return tiny_transformers.tiny_model(family, seed)
    return model


def _by_hand() -> dict[str, str]:
    """The families with sizes of their own, by the class of their model."""
    return {model: family for family, (model, _, _) in tiny_transformers.FAMILIES.items()}
