"""Models of transformers against ours: tiny, with random weights, in which nothing that could hide a mistake is 0 or 1.

The oracle is the eager implementation in transformers. Differences are taken at real tokens only, as a share of the
largest logit. transformers is imported inside, so that collecting the other tests stays fast.
"""

import subprocess
import sys

import pytest
import torch
from draw import normal
from torch import nn

from normlab import families
from normlab.norms import LayerNorm, RMSNorm, make_norm
from normlab.placement import Placement
from normlab.transformer import Transformer, TransformerConfig

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


EPS = {  # the others call it rms_norm_eps
    "GPT2LMHeadModel": "layer_norm_epsilon",
    "BertForMaskedLM": "layer_norm_eps",
    "GPTNeoXForCausalLM": "layer_norm_eps",
}


def default_eps(family):
    import transformers

    return getattr(getattr(transformers, CONFIGS[family][0])(), EPS.get(family, "rms_norm_eps"))


def is_norm(module):
    return isinstance(module, LayerNorm | RMSNorm)


def count(model):
    return sum(p.numel() for p in model.parameters())


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


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_tiny_activations(family):
    """With the ε of the family's default configuration, and vectors so small that it decides."""
    eps = default_eps(family)
    options = {"tie_word_embeddings": False, EPS.get(family, "rms_norm_eps"): eps}
    if family == "Olmo2ForCausalLM":
        options["attention_bias"] = False  # would outweigh tiny vectors before they meet a norm
    theirs = original(family, **options)
    with torch.no_grad():
        for module in theirs.modules():
            if isinstance(module, nn.Embedding):
                module.weight *= eps**0.5
    ours = families.from_transformers(theirs)
    assert difference(theirs, ours) <= 1e-5
    for norm in ours.modules():
        if is_norm(norm):
            norm.eps = 1.5 * eps
    assert difference(theirs, ours) > 1e-3


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in EXACT])
def test_logits_far_from_the_start(family):
    """The angles of published models are float32: exact ones would miss by 1e-4 here."""
    theirs = original(family, max_position_embeddings=5000)
    ids, mask, positions = batch("none")
    with torch.no_grad():
        expected = theirs(input_ids=ids, position_ids=positions + 4000).logits
        assert share(families.from_transformers(theirs)(ids, mask, positions + 4000), expected) <= 1e-5


def test_segments_of_bert():
    theirs = original("BertForMaskedLM", torch.float64)
    ids, mask, positions = batch("none")
    segments = torch.arange(2 * T).view(2, T) % 3
    with torch.no_grad():
        expected = theirs(input_ids=ids, token_type_ids=segments).logits
        assert share(families.from_transformers(theirs)(ids, mask, positions, segments), expected) <= 1e-10


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_tied_tensors_count_once(family, tied):
    theirs = original(family, tie_word_embeddings=tied)
    ours = families.from_transformers(theirs)
    assert ours.config.tied_head is tied
    assert (ours.head.weight is ours.token_embedding.weight) is ours.config.tied_head
    unread = VOCAB if family == "BertForMaskedLM" and not ours.config.tied_head else 0  # the second bias of the head
    assert count(ours) == count(theirs) - unread
    assert difference(theirs, ours) <= 1e-5


@pytest.mark.parametrize(
    "family, options",
    [
        ("GPT2LMHeadModel", {"scale_attn_weights": False, "activation_function": "relu", "n_inner": None}),
        ("BertForMaskedLM", {"hidden_act": "gelu_new"}),
        ("LlamaForCausalLM", {"attention_bias": False, "mlp_bias": False, "head_dim": None}),
        ("MistralForCausalLM", {"sliding_window": None, "num_key_value_heads": 4}),
        ("Qwen3ForCausalLM", {"use_sliding_window": False, "num_key_value_heads": 1}),
        ("Gemma2ForCausalLM", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
        ("Gemma3ForCausalLM", {"layer_types": ["full_attention"] * 3, "final_logit_softcapping": None}),
        ("Olmo2ForCausalLM", {"attention_bias": False, "num_key_value_heads": None}),
        ("GPTNeoXForCausalLM", {"use_parallel_residual": False}),
        ("GPTNeoXForCausalLM", {"attention_bias": False, "hidden_act": "gelu_new"}),
    ],
)
def test_other_options_of_the_families(family, options):
    theirs = original(family, **options)
    assert difference(theirs, families.from_transformers(theirs)) <= 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients(family):
    """The gradient at the token embedding went through everything else."""
    theirs = original(family)
    ours = families.from_transformers(theirs)
    ids, mask, positions = batch("right")
    weights = normal(2, T, VOCAB, seed=1, dtype=torch.float32) * mask[..., None]
    (theirs(input_ids=ids, attention_mask=mask, position_ids=positions).logits * weights).sum().backward()
    (ours(ids, mask, positions) * weights).sum().backward()
    assert share(ours.token_embedding.weight.grad, theirs.get_input_embeddings().weight.grad) <= 1e-5


def padding_rows(model):
    """Module -> the row that it keeps as it is."""
    tables = {name: m for name, m in model.named_modules() if isinstance(m, nn.Embedding)}
    return {name: table.padding_idx for name, table in tables.items() if table.padding_idx is not None}


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_row_of_the_padding_token_gets_the_gradient_of_the_original(family, tied):
    """None from the embedding where the original has a padding_idx, whatever the mask; some from a tied head."""
    theirs = original(family, tie_word_embeddings=tied)
    ours = families.from_transformers(theirs)
    own = padding_rows(theirs)
    assert len(own) == (0 if family in ("GPT2LMHeadModel", "GPTNeoXForCausalLM") else 1)
    assert padding_rows(ours) == dict.fromkeys(["token_embedding"] * len(own), 0)
    ids, _, positions = batch("none")
    ids[:, 5:8] = 0
    for inputs in ({}, {"attention_mask": (ids != 0).long()}):
        for model, arguments in ((theirs, {"input_ids": ids}), (ours, {"ids": ids})):
            model.zero_grad()
            logits = model(**arguments, **inputs, position_ids=positions)
            logits = getattr(logits, "logits", logits)
            logits[ids != 0].square().sum().backward()
        gradient, expected = ours.token_embedding.weight.grad, theirs.get_input_embeddings().weight.grad
        assert share(gradient, expected) <= 1e-5
        if own and not tied:
            assert not gradient[0].any()
        elif not own and not inputs:
            assert gradient[0].abs().max() > 1e-3 * gradient.abs().max()


# --- the harness would notice --------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_and_every_eps_shows_in_the_logits(family):
    theirs = original(family)
    ours = families.from_transformers(theirs)
    for name, p in ours.named_parameters():
        if name.endswith("key.bias") and ours.config.positions != "rope":
            continue  # adds the same to all scores of a row: no softmax can see it
        before = p.detach().clone()
        with torch.no_grad():
            p.copy_(1.1 * p.roll(1, 0))
        assert difference(theirs, ours) > 1e-3, name
        with torch.no_grad():
            p.copy_(before)
    for name, norm in ours.named_modules():
        if is_norm(norm):
            norm.eps *= 1.5
            assert difference(theirs, ours) > 1e-4, name
            norm.eps /= 1.5
    assert difference(theirs, ours) <= 1e-5


@pytest.mark.parametrize(
    "family, options",
    [
        ("MistralForCausalLM", {"sliding_window": 4}),
        ("Qwen3ForCausalLM", {"max_window_layers": 1}),
        ("Gemma2ForCausalLM", {"sliding_window": 4}),
        ("Gemma2ForCausalLM", {"query_pre_attn_scalar": 16}),
        ("Gemma2ForCausalLM", {"attn_logit_softcapping": None}),
        ("Gemma2ForCausalLM", {"final_logit_softcapping": None}),
        ("Gemma3ForCausalLM", {"layer_types": ["sliding_attention"] * 3}),
        ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    ],
)
def test_every_option_shows_in_the_logits(family, options):
    ours = families.from_transformers(original(family))
    assert difference(original(family, **options), ours) > 1e-3


# --- the two knobs -------------------------------------------------------------------------------------------------

KNOBS = {
    "GPT2LMHeadModel": ("layernorm", "pre", "torch"),
    "BertForMaskedLM": ("layernorm", "post", "torch"),
    "LlamaForCausalLM": ("rmsnorm", "pre", "llama"),
    "MistralForCausalLM": ("rmsnorm", "pre", "llama"),
    "Qwen3ForCausalLM": ("rmsnorm", "pre", "llama"),
    "Gemma2ForCausalLM": ("rmsnorm", "peri", "gemma"),
    "Gemma3ForCausalLM": ("rmsnorm", "peri", "gemma"),
    "Olmo2ForCausalLM": ("rmsnorm", "output", "olmo2"),
    "GPTNeoXForCausalLM": ("layernorm", "parallel", "torch"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_two_enum_values_wire_the_norms(family):
    theirs = original(family)
    config = families.from_transformers(theirs).config
    assert (config.norm, config.placement, config.convention) == KNOBS[family]
    assert config.final_norm is (config.placement is not Placement.POST)


@pytest.mark.parametrize("family", FAMILIES)
def test_single_norms_in_bfloat16_are_the_same_to_the_last_bit(family):
    theirs = original(family, torch.bfloat16)
    ours = families.from_transformers(theirs)
    originals = [m for m in theirs.modules() if "Norm" in type(m).__name__]
    norms = [m for m in ours.modules() if is_norm(m)]
    assert len(norms) == len(originals) > 6
    g = torch.Generator().manual_seed(0)
    for norm in norms:
        twin = next(m for m in originals if torch.equal(m.weight, norm.weight))
        x = torch.randn(500, norm.weight.numel(), generator=g) * torch.logspace(-3, 3, 500)[:, None]
        assert torch.equal(norm(x.bfloat16()), twin(x.bfloat16()))


# --- what is left alone, what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_the_original_is_left_as_it_is(family):
    theirs = original(family).train()
    before = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    settings = theirs.config.to_dict()
    state = torch.get_rng_state()
    ours = families.from_transformers(theirs)
    assert torch.equal(torch.get_rng_state(), state)
    assert theirs.training and not any(m.training for m in ours.modules())
    with torch.no_grad():
        for p in ours.parameters():
            p.zero_()
    assert theirs.config.to_dict() == settings
    assert all(torch.equal(tensor, before[name]) for name, tensor in theirs.state_dict().items())
    assert all(p.requires_grad and p.is_contiguous() for p in ours.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_dtype_and_device_are_kept(family):
    theirs = original(family, torch.float16)
    norms = {name for name, p in theirs.named_parameters() if p.dim() == 1}
    for name in norms:  # as some checkpoints do
        p = theirs.get_parameter(name)
        p.data = p.data.float()
    assert {p.dtype for p in families.from_transformers(theirs).parameters() if p.dim() == 1} == {torch.float32}
    assert {p.dtype for p in families.from_transformers(theirs).parameters() if p.dim() == 2} == {torch.float16}
    elsewhere = families.from_transformers(theirs.to("meta"))
    assert {p.device.type for p in elsewhere.parameters()} == {"meta"}


def test_other_classes_are_named_with_the_known_ones():
    with pytest.raises(ValueError, match="class Linear; known classes: GPT2LMHeadModel, .*, GPTNeoXForCausalLM"):
        families.from_transformers(nn.Linear(2, 2))
    assert list(families.FAMILIES) == FAMILIES


def test_transformers_4_is_named():
    theirs = original("LlamaForCausalLM")
    del theirs.config.rope_parameters
    with pytest.raises(ValueError, match="transformers 4; 5 or newer is needed"):
        families.from_transformers(theirs)


@pytest.mark.parametrize("family", ["Qwen3ForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM"])
def test_a_layer_type_that_ours_lacks_is_named(family):
    theirs = original(family)
    theirs.config.layer_types = ["full_attention", "chunked_attention", "full_attention"]
    with pytest.raises(ValueError, match="unknown layer type 'chunked_attention'; known: full_attention, sliding_att"):
        families.from_transformers(theirs)


@pytest.mark.parametrize(
    "family, rope, words",
    [
        ("LlamaForCausalLM", {"rope_type": "default"}, "must have a rope_theta, got {'rope_type': 'default'}"),
        ("GPTNeoXForCausalLM", {"rope_theta": 1e4}, "rope_type must be 'default', got None"),
        ("Gemma3ForCausalLM", {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}, "got None"),
    ],
)
def test_a_rotation_that_is_not_described_is_named(family, rope, words):
    theirs = original(family)
    theirs.config.rope_parameters = rope
    with pytest.raises(ValueError, match=words):
        families.from_transformers(theirs)


def test_transformers_is_not_imported():
    code = "import normlab.families, sys; print('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_key_is_consumed_and_none_left(family):
    theirs = original(family)
    theirs.extra = nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError, match=rf"{family}.*missing: \[\]; left over: \['extra'\]"):
        families.from_transformers(theirs)
    theirs = original(family)
    module, name = next((m, n) for n, m in theirs.named_modules() if "Norm" in type(m).__name__)
    module.weight = None
    with pytest.raises(ValueError, match=rf"{family}.*missing: \['{name}.weight'\]; left over: \[\]"):
        families.from_transformers(theirs)


@pytest.mark.parametrize(
    "family, options, words",
    [
        ("GPT2LMHeadModel", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx .* got True"),
        ("GPT2LMHeadModel", {"add_cross_attention": True}, "add_cross_attention"),
        ("GPT2LMHeadModel", {"activation_function": "mish"}, "'mish'; known: gelu, "),
        ("BertForMaskedLM", {"is_decoder": True}, "is_decoder"),
        ("Gemma3ForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        (
            "LlamaForCausalLM",
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 300.0}},
            "rope_type must be 'default', got 'linear'",
        ),
    ],
)
def test_options_that_ours_lacks_are_refused(family, options, words):
    with pytest.raises(ValueError, match=words):
        families.from_transformers(original(family, **options))


# --- known traps of such conversions -------------------------------------------------------------------------------


def test_gain_stored_as_offset_and_the_order_of_casts():
    """x has root mean square 3. Adding 1 in bfloat16 would round 8.96875 to 9; the two orders of casts differ."""
    x = torch.tensor([3.0, 1, 1, 5]).bfloat16()
    for convention, w, expected in (
        ("gemma", 7.96875, [8.9375, 2.984375, 2.984375, 14.9375]),
        ("gemma", 0.0, [1.0, 0.333984375, 0.333984375, 1.6640625]),
        ("llama", 1.015625, [1.015625, 0.33984375, 0.33984375, 1.6875]),
        ("olmo2", 1.015625, [1.015625, 0.337890625, 0.337890625, 1.6953125]),
    ):
        norm = make_norm("rmsnorm", 4, eps=1e-6, convention=convention).bfloat16()
        nn.init.constant_(norm.weight, w)
        assert norm(x).tolist() == expected


@pytest.mark.parametrize("width, rounded", [(48, 6.9375), (2304, 48), (3072, 55.5), (3584, 59.75), (4608, 68)])
def test_the_embedding_multiplier_is_rounded_to_the_dtype(width, rounded):
    small = {"layers": 1, "head_dim": 2, "mlp_width": 1, "positions": "none"}
    model = Transformer(TransformerConfig(2, 2, width=width, embedding_multiplier=width**0.5, **small))
    nn.init.ones_(model.token_embedding.weight)
    ids = torch.zeros(1, 1, dtype=torch.long)
    assert model.embed(ids).unique().item() == pytest.approx(width**0.5, rel=1e-7)
    assert model.bfloat16().embed(ids).unique().item() == rounded


def test_sizes_of_heads_and_their_norms():
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    qwen3 = families.from_transformers(original("Qwen3ForCausalLM", **sizes, head_dim=32))
    attention = qwen3.blocks[0].residuals[0].sublayer
    assert [p.weight.shape for p in (attention.query, attention.key, attention.out)] == [(128, 64), (64, 64), (64, 128)]
    assert attention.query_norm.weight.shape == (32,)
    olmo2 = families.from_transformers(original("Olmo2ForCausalLM", **sizes))
    attention = olmo2.blocks[0].residuals[0].sublayer
    assert (attention.query_norm.weight.shape, attention.key_norm.weight.shape) == ((64,), (32,))
    options = {"head_dim": 16, "query_pre_attn_scalar": 256}
    assert families.from_transformers(original("Gemma2ForCausalLM", **sizes, **options)).config.query_scale == 0.0625


@pytest.mark.parametrize(
    "family, names",
    [
        ("LlamaForCausalLM", ("input", None, "post_attention", None)),
        ("Qwen3ForCausalLM", ("input", None, "post_attention", None)),
        ("Gemma2ForCausalLM", ("input", "post_attention", "pre_feedforward", "post_feedforward")),
        ("Olmo2ForCausalLM", (None, "post_attention", None, "post_feedforward")),
    ],
)
def test_post_attention_layernorm_means_two_things(family, names):
    """Before the MLP in Llama, behind attention in Gemma 2 and OLMo 2."""
    theirs = original(family)
    layer = theirs.model.layers[1]
    for i, name in enumerate(names):
        if name:
            nn.init.constant_(getattr(layer, f"{name}_layernorm").weight, i + 2.0)
    attention, mlp = families.from_transformers(theirs).blocks[1].residuals
    for i, norm in enumerate((attention.norm, attention.output_norm, mlp.norm, mlp.output_norm)):
        if names[i]:
            assert norm.weight.eq(i + 2.0).all()
        else:
            assert norm is None
    assert difference(theirs, families.from_transformers(theirs)) <= 1e-5


@pytest.mark.parametrize("eps, value", [(1e-5, 0.3015), (1e-6, 0.7071), (1e-8, 0.9950)])
@pytest.mark.parametrize("family", FAMILIES)
def test_eps_comes_from_the_configuration(family, eps, value):
    ours = families.from_transformers(original(family, **{EPS.get(family, "rms_norm_eps"): eps}))
    norms = [m for m in ours.modules() if is_norm(m)]
    assert {norm.eps for norm in norms} == {eps}
    norm = norms[0]
    fresh = make_norm(ours.config.norm, norm.width, convention=ours.config.convention)
    norm.load_state_dict(fresh.state_dict())
    x = torch.full((norm.width,), 1e-3)
    x[::2] *= -1  # mean 0, so that LayerNorm and RMSNorm agree
    assert norm(x)[1].item() == pytest.approx(value, abs=5e-5)


def test_default_eps():
    known = {"Llama": 1e-6, "Gemma2": 1e-6, "Qwen3": 1e-6, "Olmo2": 1e-5, "GPT2": 1e-5, "Bert": 1e-12}
    for family in FAMILIES:
        for name, eps in known.items():
            if family.startswith(name):
                assert default_eps(family) == eps


def test_crossed_norms_of_the_parallel_block_show():
    theirs = original("GPTNeoXForCausalLM")
    ours = families.from_transformers(theirs)
    assert ours.config.placement is Placement.PARALLEL
    for block in ours.blocks:
        attention, mlp = block.residuals
        attention.norm, mlp.norm = mlp.norm, attention.norm
    assert difference(theirs, ours) > 0.01
    sequential = families.from_transformers(original("GPTNeoXForCausalLM", use_parallel_residual=False))
    assert sequential.config.placement is Placement.PRE
    assert difference(theirs, sequential) > 0.01


@pytest.mark.parametrize("family", FAMILIES)
def test_left_padding_needs_position_ids_only_where_positions_are_learned(family):
    ours = families.from_transformers(original(family))
    ids = torch.tensor([[5, 6, 7, 8]])
    padded, mask = torch.tensor([[0, 0, 5, 6, 7, 8]]), torch.tensor([[0, 0, 1, 1, 1, 1]])
    with torch.no_grad():
        plain = ours(ids)
        without = share(ours(padded, mask)[:, 2:], plain)
        given = share(ours(padded, mask, (mask.cumsum(1) - 1).clamp(min=0))[:, 2:], plain)
        right = share(ours(padded.roll(-2, 1), mask.roll(-2, 1))[:, :4], plain)
    assert given < 2e-6 and right < 2e-6
    assert without > 0.1 if ours.config.positions == "learned" else without < 2e-6


@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-10), (torch.float32, 1e-5), (torch.bfloat16, 3 * 2**-7)])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_of_four_and_four_batches_of_one(family, dtype, bound):
    """… agree up to rounding: in bfloat16, a few units in the last place of the largest logit."""
    ours = families.from_transformers(original(family, dtype))
    ids = torch.randint(1, VOCAB, (4, T), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        assert share(torch.cat([ours(row[None]) for row in ids]), ours(ids)) <= bound


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_in_bfloat16(family):
    """Rounded at other places than the original: a few units in the last place. Weights drawn in float32 give both."""
    theirs = original(family, torch.bfloat16)
    for name, buffer in original(family).named_buffers():
        theirs.get_buffer(name).data = buffer  # .to(bfloat16) has rounded RoPE's frequencies, as no checkpoint does
    assert difference(theirs, families.from_transformers(theirs)) <= 4 * 2**-7
