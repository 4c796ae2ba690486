"""False alarms of ``normlab.doctor``: healthy tiny models, fresh and trained, each with the optimizer that trains it.

Every finding is listed and explained: in ALARMS those that are false, at most 2 % of the models; in TRUE those of fresh
published models that have what is said.
"""

import warnings
from functools import cache, partial

import pytest
import torch
from some import some
from tiny_models import dbrx_or_skip

import normlab
from normlab import optimizers
from normlab.experiments import small_models, tiny_transformers

ROWS, TOKENS = 4, 24

# --- fresh models of the course ---------------------------------------------------------------------------------------

PLACEMENTS = ("pre", "post", "peri", "output", "deepnorm", "parallel", "hybrid")
KINDS = {
    "LayerNorm": {"norm": "layernorm"},
    "RMSNorm": {"norm": "rmsnorm"},
    "RMSNorm 1 + w": {"norm": "rmsnorm", "convention": "gemma"},
}
DRAWS = {"Xavier": {}, "GPT-2": {"init": "gpt2"}, "RoPE": {"positions": "rope"}}
EXTRAS = {
    "scaled GPT-2 draw": {"init": "gpt2-scaled", "layers": 4},
    "24 blocks": {"layers": 24},
    "width 128": {"width": 128},
    "tied head": {"tied_head": True},
    "tied head, multiplied embeddings": {"tied_head": True, "embedding_multiplier": 32**0.5},
    "QK-norm per head": {"qk_norm": "per_head", "positions": "rope"},
    "joint QK-norm": {"qk_norm": "joint", "positions": "rope"},
    "gated MLP, grouped heads": {"mlp": "gated", "kv_heads": 2, "positions": "rope"},
    "norm on the embeddings": {"embedding_norm": True},
    "norm on the embeddings, parallel": {"embedding_norm": True, "placement": "parallel"},
    "norm on the embeddings, Peri": {"embedding_norm": True, "placement": "peri"},
    "LayerNorm Scaling": {"output_scale": "inverse_sqrt_layer", "layers": 4},
    "ScaleNorm": {"norm": "scalenorm"},
    "DyT": {"norm": "dyt"},
    "no norm, T-Fixup": {"placement": "none", "init": "tfixup", "final_norm": False, "layers": 4},
    "encoder": {"causal": False, "placement": "post"},
    "windows": {"windows": (8, None), "positions": "rope"},
    "soft-caps": {"attention_softcap": 50.0, "logit_softcap": 30.0},
    "no positions": {"positions": "none"},
    "large eps": {"eps": 1e-3},
}


def ours(dtype=torch.float32, seed=0, **options):
    model = small_models.model(seed, **({"layers": 2, "width": 32, "norm": "rmsnorm"} | options))
    return model.to(dtype).eval()


# --- fresh models of transformers -------------------------------------------------------------------------------------

SIZES = {
    "2 x 32": {},
    "4 x 64": {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 128},
}
GPT2_SIZES = {"vocab_size": 1000, "n_embd": 64, "n_layer": 4}
OWN_SIZES = {  # families whose configuration has other names
    "GPT-2": GPT2_SIZES,
    "OPT": {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 4, "ffn_dim": 128, "word_embed_proj_dim": 64},
    "T5": {"vocab_size": 1000, "d_model": 64, "d_ff": 128, "num_layers": 4},
    "Mamba": {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 4},
    "MiniMax-01": SIZES["4 x 64"] | {"layer_types": ["full_attention"] * 4},
}
IN_TWO_SIZES = (
    *("BERT", "BitNet", "Cohere", "EXAONE 4", "GLM-4", "GPT-2", "GPT-NeoX", "Gemma", "Gemma 2", "Gemma 3", "Granite"),
    *("Llama", "Mamba", "MiniMax-01", "Mistral", "Nemotron", "OLMo", "OLMo 2", "OPT", "Phi-3", "Qwen 2", "Qwen 3"),
    *("StableLM", "T5", "gpt-oss", "nanochat"),
)


def theirs(family, size="2 x 32", dtype=torch.float32, **options):
    """A family as its library draws it, in contrast to ``tiny_transformers.tiny_model``."""
    pytest.importorskip("transformers")
    import transformers

    model, config, sizes = tiny_transformers.FAMILIES[family][:3]
    if not hasattr(transformers, model):
        pytest.skip(f"this version of transformers has no {model}")
    changes = options | (OWN_SIZES.get(family, SIZES[size]) if size != "2 x 32" else {})
    with torch.random.fork_rng(), warnings.catch_warnings(action="ignore"):
        torch.manual_seed(0)
        built = getattr(transformers, model)(getattr(transformers, config)(**sizes | changes))
    return built.to(dtype).eval()


# --- trained models ---------------------------------------------------------------------------------------------------

TRAINED_OURS = {
    "Pre-RMS": {"layers": 4},
    "Peri, 1 + w, QK-norm, RoPE": {
        **{"placement": "peri", "convention": "gemma", "qk_norm": "per_head", "positions": "rope"}
    },
    "Pre-LN": {"norm": "layernorm"},
    "Post-LN": {"norm": "layernorm", "placement": "post"},
}
TRAINED_FAMILIES = ("GPT-2", "Llama", "Qwen 3", "Gemma 2", "OLMo 2", "GPT-NeoX")


@cache
def trained(name):
    vocabulary = {"vocab_size": 65}
    build = partial(theirs, name, **vocabulary) if name in TRAINED_FAMILIES else partial(ours, **TRAINED_OURS[name])
    model = build().train()
    small_models.train(model, 100, 3e-3, 0)
    return model.eval()


# --- all of them ------------------------------------------------------------------------------------------------------

HEALTHY = {
    **{
        f"ours, {placement}, {kind}, {draw}": partial(ours, placement=placement, **KINDS[kind], **DRAWS[draw])
        for placement in PLACEMENTS
        for kind in KINDS
        for draw in DRAWS
    },
    **{f"ours, {name}": partial(ours, **options) for name, options in EXTRAS.items()},
    **{
        f"ours, {placement}, bfloat16": partial(ours, torch.bfloat16, placement=placement, convention="llama")
        for placement in ("pre", "peri")
    },
    **{f"{family}, 2 x 32": partial(theirs, family) for family in tiny_transformers.FAMILIES},
    **{f"{family}, 4 x 64": partial(theirs, family, "4 x 64") for family in IN_TWO_SIZES},
    **{f"{family}, bfloat16": partial(theirs, family, dtype=torch.bfloat16) for family in ("Llama", "Gemma 3", "OLMo")},
    **{f"trained {name}": partial(trained, name) for name in (*TRAINED_OURS, *TRAINED_FAMILIES)},
}

ALARMS = {
    # Its norm adds 1 to the stored weight, which the library starts at 1: a gain of 2, just as gains that were stored
    # as w and read as 1 + w have.
    "Nemotron, 2 x 32": ("gain-convention",),
    "Nemotron, 4 x 64": ("gain-convention",),
}
TRUE = {
    # A GroupNorm over the samples, in front of the blocks.
    "HuBERT, 2 x 32": ("norm-across-tokens",),
    "wav2vec2, 2 x 32": ("norm-across-tokens",),
    # As the library draws them, with its default scales of embedding and logits: 15 to 20 nats above equal chances.
    "MiniCPM3, 2 x 32": ("loss-above-uniform",),
    "mT5, 2 x 32": ("loss-above-uniform",),
    # Its embeddings start at 1e-4 at most, before a norm with eps 1e-5.
    "RWKV, 2 x 32": ("eps-too-large",),
}


def batch(model, family):
    if family in tiny_transformers.FAMILIES and model.main_input_name != "input_ids":
        return tiny_transformers.inputs(family)
    ids = small_models.passages(ROWS, TOKENS)[0]
    rows = [m.num_embeddings for m in model.modules() if isinstance(m, torch.nn.Embedding) and m.num_embeddings > 32]
    ids = ids % min([*rows, tiny_transformers.VOCABULARY]) if min(rows) < 65 else ids
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return {"input_ids": ids, "decoder_input_ids": ids.flip(1)}
    return ids


def test_the_population_is_large_and_alarms_are_rare():
    assert len(HEALTHY) >= 100
    assert sum(name.startswith("trained") for name in HEALTHY) >= 9
    assert {*ALARMS, *TRUE} <= set(HEALTHY)
    assert len(ALARMS) / len(HEALTHY) <= 0.02


@pytest.mark.parametrize("name", some(HEALTHY, [*list(HEALTHY)[::3], *ALARMS, *TRUE]))
def test_nothing_is_found_on_a_healthy_model_but_what_is_explained(name):
    if name.startswith("DBRX"):
        dbrx_or_skip()
    model = HEALTHY[name]()
    lr = 1e-2 if next(model.parameters()).dtype == torch.bfloat16 else 3e-3  # smaller steps are lost in bfloat16
    optimizer = torch.optim.AdamW(optimizers.parameter_groups(model, 0.1), lr=lr)
    found = normlab.doctor(model, batch(model, name.split(",")[0]), optimizer=optimizer)
    assert found.ids == (ALARMS | TRUE).get(name, ()), str(found)


@pytest.mark.parametrize("family", ["RoBERTa", "XLM-R", "MPNet"])
@pytest.mark.parametrize("ids_hold_padding", [False, True])
def test_positions_counted_from_the_ids_are_no_leak_and_a_mask_that_is_not_looked_at_is_one(family, ids_hold_padding):
    """These number the tokens whose id is not that of padding, whatever the mask says."""
    model = theirs(family)
    ids = torch.randint(3, tiny_transformers.VOCABULARY, (3, 12), generator=torch.Generator().manual_seed(1))
    if ids_hold_padding:
        ids[0, -4:], ids[1, :3] = model.config.pad_token_id, model.config.pad_token_id
    found = normlab.doctor(model, ids)
    assert found.ids == () and "influence of padding" not in str(found), str(found)

    plain = type(model).forward

    def forward(self, input_ids=None, attention_mask=None, **options):
        return plain(self, input_ids, **options)

    model.__class__ = type("Deaf", (type(model),), {"forward": forward})
    assert normlab.doctor(model, ids).ids == ("padding-leaks",)
