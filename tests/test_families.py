"""Models of transformers against ours: tiny, with random weights, in which nothing that could hide a mistake is 0 or 1.

The oracle is the eager implementation in transformers. Differences are taken at real tokens only, as a share of the
largest logit. transformers is imported inside, so that collecting the other tests stays fast.
"""

import pytest
import torch
from torch import nn

from normlab import families

T, VOCAB = 12, 61
SIZES = {"vocab_size": VOCAB, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "pad_token_id": 0}
GATED = SIZES | {"intermediate_size": 40, "max_position_embeddings": 64, "rms_norm_eps": 0.03}
GROUPED = GATED | {"num_key_value_heads": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 300.0}}
WIDE_HEADS = GROUPED | {"head_dim": 16}  # 4 heads of 16 in a stream of 48

# Everything that a family can set is set, to values under which a wrong reading shows (tested below).
CONFIGS = {
    "GPT2LMHeadModel": (
        "GPT2Config",
        {
            **{"vocab_size": VOCAB, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_inner": 40, "n_positions": 64},
            **{"layer_norm_epsilon": 0.03, "bos_token_id": 1, "eos_token_id": 2},
        },
    ),
    "BertForMaskedLM": (
        "BertConfig",
        SIZES | {"intermediate_size": 40, "max_position_embeddings": 64, "layer_norm_eps": 0.03, "type_vocab_size": 3},
    ),
    "LlamaForCausalLM": ("LlamaConfig", WIDE_HEADS | {"attention_bias": True, "mlp_bias": True}),
    "MistralForCausalLM": ("MistralConfig", WIDE_HEADS | {"sliding_window": 3}),
    "Qwen3ForCausalLM": (
        "Qwen3Config",
        WIDE_HEADS | {"attention_bias": True, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 2},
    ),
    "Gemma2ForCausalLM": (
        "Gemma2Config",
        WIDE_HEADS
        | {"sliding_window": 3, "query_pre_attn_scalar": 40, "attn_logit_softcapping": 1.5}
        | {"final_logit_softcapping": 3.0},
    ),
    "Gemma3ForCausalLM": (
        "Gemma3TextConfig",
        WIDE_HEADS
        | {"sliding_window": 3, "query_pre_attn_scalar": 40, "final_logit_softcapping": 3.0}
        | {
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
                "full_attention": {"rope_type": "default", "rope_theta": 300.0},
            },
        },
    ),
    "Olmo2ForCausalLM": ("Olmo2Config", GROUPED | {"attention_bias": True}),
    "GPTNeoXForCausalLM": (
        "GPTNeoXConfig",
        SIZES
        | {"intermediate_size": 40, "max_position_embeddings": 64, "layer_norm_eps": 0.03}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.5}},
    ),
}
FAMILIES = list(CONFIGS)
EXACT = ("GPT2LMHeadModel", "BertForMaskedLM")  # these compute in float64 throughout when they are in float64


def original(family, dtype=torch.float32, seed=0, **options):
    """A tiny model of transformers in eval mode with eager attention."""
    import transformers

    name, settings = CONFIGS[family]
    config = getattr(transformers, name)(**settings | options, attn_implementation="eager")
    return randomize(getattr(transformers, family)(config).to(dtype).eval(), seed)


@torch.no_grad()
def randomize(model, seed):
    """Matrices that make scores of about 1, embeddings well below 1, gains and biases moved by up to 0.5."""
    g = torch.Generator().manual_seed(seed)
    embeddings = {m.weight for m in model.modules() if isinstance(m, nn.Embedding)}
    for p in model.parameters():
        draw = torch.randn(p.shape, generator=g, dtype=torch.float64)
        if p in embeddings:
            p.copy_(0.3 * draw)
        elif p.dim() == 2:
            p.copy_(draw / min(p.shape) ** 0.5)
        else:
            p.add_(torch.rand(p.shape, generator=g, dtype=torch.float64) - 0.5)
    return model


def batch(side, seed=0):
    """Ids [2, T], mask and position ids; with padding, the second sequence has only 7 real tokens, the rest is junk."""
    ids = torch.randint(1, VOCAB, (2, T), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones(2, T, dtype=torch.long)
    if side == "right":
        mask[1, 7:] = 0
    elif side == "left":
        mask[1, :-7] = 0
    return ids, mask, (mask.cumsum(1) - 1).clamp(min=0)


@torch.no_grad()
def expected_logits(theirs, side, **inputs):
    """Their logits of the batch, with padding as the original sees it.

    A float64 model whose softmax is float32 turns its own mask (-1.8e308) into -infinity. Rows of padding that see
    nothing are then NaN, and NaN times a weight of 0 spoils real tokens. There the original runs without padding.
    """
    ids, mask, positions = batch(side)
    double = next(theirs.parameters()).dtype is torch.float64
    if side == "none" or not double or type(theirs).__name__ in EXACT:
        return theirs(input_ids=ids, attention_mask=mask, position_ids=positions, **inputs).logits
    logits = torch.zeros(2, T, VOCAB, dtype=torch.float64)
    for row, real in enumerate(mask.bool()):
        logits[row, real] = theirs(input_ids=ids[row, real][None]).logits[0]
    return logits


@torch.no_grad()
def difference(theirs, ours, side="none"):
    """Largest difference of logits at real tokens, as a share of the largest logit."""
    ids, mask, positions = batch(side)
    expected, logits = expected_logits(theirs, side), ours(ids, mask, positions)
    assert logits.dtype == expected.dtype and logits.shape == expected.shape
    return share(logits, expected, mask)


def share(logits, expected, mask=None):
    real = slice(None) if mask is None else mask.bool()
    return ((logits - expected).abs()[real].max() / expected.abs()[real].max()).item()


# --- parity --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits(family, dtype, side):
    bound = 1e-10 if dtype is torch.float64 and family in EXACT else 1e-5
    theirs = original(family, dtype)
    assert difference(theirs, families.from_transformers(theirs), side) <= bound
