"""The whole Transformer: causality, padding, placements per block, initial weights, options of real models, errors."""

import copy
import dataclasses
import itertools
import pickle

import pytest
import torch
from draw import normal, randomize
from some import third
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from wrong_masks import WRONG_MASKS

from normlab import probes
from normlab.norms import LayerNorm, NormKind, RMSNorm
from normlab.placement import Placement, deepnorm_single
from normlab.training import next_token_loss
from normlab.transformer import Activation, Init, MLPKind, Transformer, TransformerConfig

PLACEMENTS = [p.value for p in Placement]
ROPE = {"positions": "rope", "rope_base": 100.0}
MIXED = ("post", "pre", "output")
MODELS = {
    **{kind: {"placement": kind} for kind in PLACEMENTS},
    "parallel, two norms": {"placement": "parallel", "parallel_shared_norm": False},
    "mixed": {"placement": MIXED},
    "rope": {**ROPE, "head_dim": 6, "rope_fraction": 0.7},
    "qk-norm": {**ROPE, "qk_norm": "per_head"},
    "qk-norm, joint": {**ROPE, "qk_norm": "joint", "kv_heads": 1},
    "windows and caps": {**ROPE, "windows": (2, None, 3), "rope_local_base": 7.0, "attention_softcap": 5.0},
    "no positions": {"positions": "none"},
    "gated, biases": {"mlp": "gated", "activation": "silu", "attention_bias": True, "mlp_bias": True},
    "embedding": {"embedding_norm": True, "embedding_multiplier": 3.0, "tied_head": True, "logit_softcap": 2.0},
    "head": {"head_transform": True, "head_bias": True, "segments": 2, "activation": "gelu_tanh"},
    "scaled norms": {"output_scale": "inverse_sqrt_layer"},
}


def config(**options):
    return TransformerConfig(**{"vocab_size": 11, "context": 16, "layers": 3, "width": 24, "heads": 3, **options})


def small(**options):
    return Transformer(config(**options), seed=5)


def ids(*shape, seed=0, vocab=11):
    return torch.randint(vocab, shape, generator=torch.Generator().manual_seed(seed))


def stream(model, tokens, **context):
    """The stream after each block."""
    x, after = model.embed(tokens), []
    for block in model.blocks:
        x = block(x, **context)
        after.append(x)
    return after


# --- causality and padding -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_the_future_does_not_leak(name, norm):
    model = randomize(small(norm=norm, **MODELS[name])).double()
    a = ids(2, 10)
    b = a.clone()
    b[:, 7:] = (b[:, 7:] + 1) % 11
    assert torch.equal(model(a)[:, :7], model(b)[:, :7])
    assert not torch.allclose(model(a)[:, 7:], model(b)[:, 7:])


def test_an_encoder_sees_the_future():
    model = randomize(small(causal=False)).double()
    a, b = ids(1, 10), ids(1, 10)
    b[:, 9] = (b[:, 9] + 1) % 11
    assert (model(a) - model(b))[0, 0].abs().max() > 1e-3


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_padding_on_either_side_changes_nothing_at_real_tokens(name, causal):
    model = randomize(small(causal=causal, **MODELS[name])).double()
    real = ids(1, 6)
    plain = model(real)
    for pads, content in ((1, 0), (4, 9), (10, 3)):
        junk = torch.full((1, pads), content)
        ones, zeros = torch.ones(1, 6), torch.zeros(1, pads)
        right = model(torch.cat([real, junk], 1), torch.cat([ones, zeros], 1))
        torch.testing.assert_close(right[:, :6], plain, rtol=1e-9, atol=1e-11)
        positions = torch.cat([torch.zeros(pads, dtype=torch.long), torch.arange(6)])
        positions = None if name == "no positions" else positions
        left = model(torch.cat([junk, real], 1), torch.cat([zeros, ones], 1), positions)
        torch.testing.assert_close(left[:, pads:], plain, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("placement, qk_norm", [(p, "joint") for p in PLACEMENTS] + [("pre", "per_head")])
def test_padding_stays_out_of_statistics_that_cross_tokens(placement, qk_norm):
    """BatchNorm everywhere that a norm can stand, in training mode."""
    options = {"qk_norm": qk_norm, "embedding_norm": True, "head_transform": True, "final_norm": True}
    model = randomize(small(norm="batchnorm", placement=placement, **options)).double().train()
    real, junk = ids(2, 6), torch.full((2, 4), 9)
    plain = copy.deepcopy(model)
    mask = torch.cat([torch.ones(2, 6), torch.zeros(2, 4)], 1)
    torch.testing.assert_close(model(torch.cat([real, junk], 1), mask)[:, :6], plain(real))
    for ours, theirs in zip(model.buffers(), plain.buffers()):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", MODELS)
def test_a_sequence_of_padding_alone_leaves_gradients_finite(name):
    model = randomize(small(**MODELS[name]))
    mask = torch.ones(3, 8)
    mask[0], mask[1, :3] = 0, 0
    logits = model(ids(3, 8), mask)
    assert logits.isfinite().all()
    logits.square().mean().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", MODELS)
def test_not_even_nan_in_the_embedding_of_padding(name, bad):
    """Logits of real tokens and all gradients are those with an ordinary embedding there; the row itself gets none."""
    options = {"norm": "layernorm", "embedding_norm": True, **MODELS[name], "tied_head": False}
    tokens, mask = ids(2, 8, vocab=10), torch.ones(2, 8)
    mask[0, :3] = mask[1, 6:] = 0
    tokens[mask == 0] = 10

    def run(content):
        model = randomize(small(**options)).double()
        with torch.no_grad():
            model.token_embedding.weight[10] = content
        logits = model(tokens, mask)
        assert logits.isfinite().all()
        F.cross_entropy(logits[mask.bool()], tokens[mask.bool()]).backward()
        assert not model.token_embedding.weight.grad[10].any()
        return [logits[mask.bool()], *(p.grad for p in model.parameters() if p.grad is not None)]

    for ours, expected in zip(run(bad), run(0.7), strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("norm", NormKind)
@pytest.mark.parametrize("placement", Placement)
def test_what_stands_at_padded_places_of_a_block_does_not_reach_real_tokens(placement, norm):
    """Nor, while it is finite, any gradient; NaN is kept out by the embedding of the model."""
    options = {"layers": 1, "placement": placement, "norm": norm}
    block = randomize(small(**options)).double().blocks[0]
    x, mask = normal(2, 6, block.residuals[0].sublayer.query.in_features), torch.ones(2, 6, dtype=torch.bool)
    mask[0, :2] = mask[1, 4:] = False

    def run(content):
        block.zero_grad()
        y = block.eval()(torch.where(mask[..., None], x, content), mask)[mask]
        y.square().sum().backward()
        return y, *(p.grad for p in block.parameters() if p.grad is not None)

    expected = run(normal(2, 6, x.shape[-1], seed=1))
    for ours, theirs in zip(run(normal(2, 6, x.shape[-1], seed=2)), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)
    for bad in (torch.nan, torch.inf):
        torch.testing.assert_close(run(torch.tensor(bad).double())[0], expected[0], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.long, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("norm", third(NormKind))
def test_a_mask_of_any_dtype_without_values(norm, dtype):
    """On the meta device and as a fake tensor a mask has a shape and no values to look at."""
    for place in (torch.device("meta"), FakeTensorMode()):
        with place:
            model = Transformer(TransformerConfig(vocab_size=11, context=8, layers=1, width=8, norm=norm), seed=None)
            tokens, mask = torch.zeros(2, 5, dtype=torch.long), torch.ones(2, 5, dtype=dtype)
            assert model(tokens, mask).shape == (2, 5, 11)
            assert next_token_loss(model, tokens, tokens, mask).shape == ()
            with pytest.raises(ValueError, match="attention_mask must have shape"):
                model(tokens, mask[:, :4])


# --- knob two in a stack ---------------------------------------------------------------------------------------------


def test_every_block_is_pre_norm_by_the_formula():
    model = randomize(small()).double()
    x = model.embed(ids(2, 7))
    y = x
    for residual in model.blocks[0].residuals:
        y = y + residual.sublayer(residual.norm(y))
    torch.testing.assert_close(model.blocks[0](x), y)


def test_blocks_by_the_formula():
    """All norms with random gains; A, M: attention and MLP; N, O: norms before and behind, of either."""
    for kind in ("peri", "output", "deepnorm", "parallel"):
        model = randomize(small(placement=kind, norm="layernorm", parallel_shared_norm=False)).double()
        a, m = model.blocks[1].residuals
        x = model.embed(ids(2, 7))
        if kind == "peri":
            h = x + a.output_norm(a.sublayer(a.norm(x)))
            y = h + m.output_norm(m.sublayer(m.norm(h)))
        elif kind == "output":
            h = x + a.output_norm(a.sublayer(x))
            y = h + m.output_norm(m.sublayer(h))
        elif kind == "deepnorm":
            h = a.norm(6**0.25 * x + a.sublayer(x))
            y = m.norm(6**0.25 * h + m.sublayer(h))
        else:
            y = x + a.sublayer(a.norm(x)) + m.sublayer(m.norm(x))
        torch.testing.assert_close(model.blocks[1](x), y, msg=kind)


def test_hybrid_norms_queries_keys_and_values():
    """Attention reads the bare stream; its Q, K and V are normed. The MLP skips from behind its norm."""
    model = randomize(small(placement="hybrid")).double()
    a, m = model.blocks[0].residuals
    x = model.embed(ids(2, 7))
    heads = lambda p, n: F.rms_norm(p(x).unflatten(-1, (3, 8)), (8,), n.weight, 1e-6).transpose(1, 2)
    s = a.sublayer
    q, k, v = heads(s.query, s.query_norm), heads(s.key, s.key_norm), heads(s.value, s.value_norm)
    scores = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(~torch.ones(7, 7).tril().bool(), -torch.inf)
    h = x + s.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
    normed = F.rms_norm(h, (24,), m.norm.weight, 1e-6)
    torch.testing.assert_close(model.blocks[0](x), m.sublayer(normed) + normed)
    joint = small(placement="hybrid", qk_norm="joint").blocks[0].residuals[0].sublayer
    assert joint.value_norm.weight.shape == (24,)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_stream_passes_zero_branches_untouched_where_no_norm_stands_on_it(placement):
    model = randomize(small(placement=placement)).double()
    for block in model.blocks:
        for residual in block.residuals:
            writer = residual.sublayer.out if hasattr(residual.sublayer, "out") else residual.sublayer.down
            nn.init.zeros_(writer.weight)
    x = model.embed(ids(2, 5))
    untouched = torch.equal(stream(model, ids(2, 5))[-1], x)
    assert untouched is (placement not in ("post", "deepnorm", "hybrid"))


def test_a_placement_per_block():
    """Mix-LN: Post-Norm first, Pre-Norm after. The last block decides about the final norm."""
    mix = ("post", "post", "pre")
    model = randomize(small(placement=mix)).double()
    assert [block.placement.value for block in model.blocks] == list(mix)
    assert [b.residuals[0].placement.value for b in model.blocks] == list(mix)
    uniform = {kind: randomize(small(placement=kind)).double() for kind in ("post", "pre")}
    tokens = ids(2, 7)
    x = model.embed(tokens)
    for i, kind in enumerate(mix):
        expected = uniform[kind].blocks[i](x)
        x = model.blocks[i](x)
        torch.testing.assert_close(x, expected, rtol=1e-12, atol=1e-12)
    assert config(placement=mix).final_norm and not config(placement=mix[::-1]).final_norm
    assert config(placement=("pre",) * 3) != config(placement="pre")
    assert config(placement=["pre", "post", "pre"]).placement == (Placement.PRE, Placement.POST, Placement.PRE)


def test_layernorm_scaling_divides_what_sublayers_read_by_the_root_of_their_block():
    """At initialization the stream then grows by 1/l per block: variance 1 + H_L instead of 1 + L."""
    settings = {"norm": "layernorm", "layers": 16, "width": 96, "sublayers": ("mlp",), "activation": "relu"}
    records = probes.readings(small(output_scale="inverse_sqrt_layer", **settings), ids(4, 16))
    for r in records:
        assert probes.size(r.sublayer_input) == pytest.approx(r.layer**-0.5, rel=1e-3)
    plain, scaled = (
        probes.variance(probes.readings(small(output_scale=s, **settings), ids(4, 16))[-1].stream_after)
        for s in ("none", "inverse_sqrt_layer")
    )
    start = probes.variance(records[0].stream)
    harmonic = sum(1 / l for l in range(1, 17))
    assert (scaled - start) / (plain - start) == pytest.approx(harmonic / 16, rel=0.25)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_hooks_see_stream_input_and_increment(placement):
    """What probes.record relies on, for every wiring."""
    model = randomize(small(placement=placement)).double()
    records = probes.readings(model, ids(2, 5))
    assert torch.equal(records[0].stream, model.embed(ids(2, 5)))
    for r, following in itertools.pairwise(records):
        assert torch.equal(r.stream_after, following.stream)
    for r in records:
        if placement in ("pre", "parallel", "none") or (placement == "hybrid" and r.kind == "attention"):
            assert torch.equal(r.stream + r.increment, r.stream_after)
        if placement == "hybrid" and r.kind == "mlp":
            assert torch.equal(r.sublayer_input + r.increment, r.stream_after)
        if placement in ("output", "none"):
            assert torch.equal(r.sublayer_input, r.stream)
    if placement == "parallel":
        attention, mlp = records[:2]
        assert torch.equal(attention.sublayer_input, mlp.sublayer_input)


# --- initial weights -------------------------------------------------------------------------------------------------


def stds(**options):
    """Measured, not read from the code path: a rule that matches parameter names can silently match none."""
    model = small(layers=6, width=128, heads=4, vocab_size=500, mlp="gated", mlp_width=512, **options)
    attention, mlp = (r.sublayer for r in model.blocks[-1].residuals)
    matrices = {
        **{name: getattr(attention, name) for name in ("query", "key", "value", "out")},
        **{name: getattr(mlp, name) for name in ("gate", "up", "down")},
        "tokens": model.token_embedding,
        "head": model.head,
    }
    return {name: matrix.weight.std().item() for name, matrix in matrices.items()}


SQUARE, WIDE, HEAD = (2 / 256) ** 0.5, (2 / 640) ** 0.5, (2 / 628) ** 0.5
XAVIER = {
    **dict.fromkeys(("query", "key", "value", "out"), SQUARE),
    **dict.fromkeys(("gate", "up", "down"), WIDE),
    "tokens": 0.5**0.5,
    "head": HEAD,
}
BRANCH = ("value", "out", "gate", "up", "down")


@pytest.mark.parametrize(
    "init, expected",
    [
        ("gpt2", dict.fromkeys(XAVIER, 0.02)),
        ("gpt2-scaled", dict.fromkeys(XAVIER, 0.02) | dict.fromkeys(("out", "down"), 0.0057735)),
        ("xavier", XAVIER),
        ("deepnorm", XAVIER | {name: XAVIER[name] * 48**-0.25 for name in BRANCH}),
        ("tfixup", XAVIER | {name: XAVIER[name] * 54**-0.25 for name in (*BRANCH, "tokens")}),
    ],
)
def test_initial_standard_deviations(init, expected):
    assert stds(init=init) == pytest.approx(expected, rel=0.03)


def test_the_embedding_starts_with_variance_one_whatever_it_sums():
    for options in ({}, {"segments": 2}, ROPE):
        # One row of the segment table is all that enters, hence the width.
        settings = {"width": 1024, "layers": 1, "head_dim": 2, "mlp_width": 1, "vocab_size": 500}
        x = small(**settings, **options).embed(ids(4, 16, vocab=500))
        assert x.var().item() == pytest.approx(1, rel=0.1)


def test_a_tied_head_is_drawn_once_and_gives_unit_logits():
    model = small(width=128, heads=4, vocab_size=500, tied_head=True)
    assert model.head.weight is model.token_embedding.weight
    assert model.head.weight.std().item() == pytest.approx(128**-0.5, rel=0.03)
    assert model(ids(4, 16, vocab=500)).std().item() == pytest.approx(1, rel=0.15)
    assert len(list(model.parameters())) == len(list(small(width=128, heads=4, vocab_size=500).parameters())) - 1


def test_biases_start_at_zero_whatever_torch_draws():
    torch.manual_seed(3)
    model = small(attention_bias=True, mlp_bias=True, head_bias=True, head_transform=True, norm="rmsnorm")
    biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
    assert len(biases) == 3 * (4 + 2) + 2 and not any(b.any() for b in biases)


def test_a_seed_means_the_same_weights():
    assert torch.equal(small().head.weight, small().head.weight)
    assert not torch.equal(Transformer(config(), 1).head.weight, Transformer(config(), 2).head.weight)
    # The draws that the recorded results started from: first and last matrix, and one in the middle.
    model = small()
    for weight, values in (
        (model.token_embedding.weight, [0.5823529, -0.5247635, -0.4203237]),
        (model.blocks[1].residuals[0].sublayer.out.weight, [-0.1716594, -0.2771938, 0.2302826]),
        (model.head.weight, [0.1368342, -0.1954426, -0.2199404]),
    ):
        assert weight[0, :3].tolist() == pytest.approx(values, abs=1e-6)


def test_deepnorm_keeps_the_update_of_a_fresh_model_small():
    """What alpha and beta are for: Adam's first step moves the logits of a deep stack less than in plain Post-Norm."""

    def moved(**options):
        model = small(layers=24, width=32, heads=2, norm="layernorm", **options).double()
        tokens, optimizer = ids(8, 16), torch.optim.Adam(model.parameters(), lr=1e-3)
        before = model(tokens)
        F.cross_entropy(before.flatten(0, 1), ids(8, 16, seed=1).flatten()).backward()
        optimizer.step()
        return (model(tokens) - before).square().mean().sqrt().item()

    assert moved(placement="deepnorm", init="deepnorm") < 0.6 * moved(placement="post")


# --- options of real models ------------------------------------------------------------------------------------------


def test_gated_mlp_by_the_formula():
    model = randomize(small(mlp="gated", activation="silu", mlp_bias=True)).double()
    mlp = model.blocks[0].residuals[1].sublayer
    x = normal(2, 3, 24)
    gate = x @ mlp.gate.weight.T + mlp.gate.bias
    expected = (gate * gate.sigmoid() * (x @ mlp.up.weight.T + mlp.up.bias)) @ mlp.down.weight.T + mlp.down.bias
    torch.testing.assert_close(mlp(x), expected)
    assert mlp.up.weight.shape == (64, 24)  # 8/3 of the width: as many parameters as the plain one
    assert small(mlp=MLPKind.PLAIN).blocks[0].residuals[1].sublayer.up.weight.shape == (96, 24)


def test_tanh_approximation_of_gelu():
    x = torch.linspace(-3, 3, 13)
    act = small(activation=Activation.GELU_TANH).blocks[0].residuals[1].sublayer.activation
    torch.testing.assert_close(act(x), 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))))


@pytest.mark.parametrize("width, in_bfloat16", [(48, 6.9375), (2304, 48.0), (3072, 55.5), (3584, 59.75), (4608, 68.0)])
def test_the_embedding_multiplier_has_the_dtype_of_the_stream(width, in_bfloat16):
    settings = {"width": width, "heads": 1, "layers": 1, "mlp_width": 1, "head_dim": 2, "positions": "none"}
    model = small(embedding_multiplier=width**0.5, **settings)
    for dtype, factor in ((torch.float32, width**0.5), (torch.bfloat16, in_bfloat16)):
        weight = model.to(dtype).token_embedding.weight
        exact = (weight.double() * factor).to(dtype)
        torch.testing.assert_close(model.embed(torch.arange(11)[None])[0], exact, rtol=1e-6, atol=0)


def test_embedding_norm_stands_on_the_sum():
    model = randomize(small(embedding_norm=True, segments=2, norm="layernorm")).double()
    tokens, kinds = ids(2, 5), ids(2, 5, vocab=2)
    total = model.token_embedding(tokens) + model.position_embedding.weight[:5] + model.segment_embedding(kinds)
    norm = model.embedding_norm
    expected = F.layer_norm(total, (24,), norm.weight, norm.bias, 1e-5)
    torch.testing.assert_close(model.embed(tokens, segment_ids=kinds), expected)
    torch.testing.assert_close(model.embed(tokens), model.embed(tokens, segment_ids=torch.zeros_like(tokens)))
    assert isinstance(small().embedding_norm, nn.Identity)


def test_head_with_transform_bias_and_cap():
    model = randomize(small(head_transform=True, head_bias=True, norm="layernorm")).double()
    tokens = ids(2, 5)
    x = model.final_norm(stream(model, tokens)[-1])
    t = model.head_transform
    x = F.layer_norm(F.gelu(t.linear(x)), (24,), t.norm.weight, t.norm.bias, 1e-5)
    torch.testing.assert_close(model(tokens), x @ model.head.weight.T + model.head.bias)
    plain, capped = small().double(), small(logit_softcap=0.3).double()
    torch.testing.assert_close(capped(tokens), 0.3 * torch.tanh(plain(tokens) / 0.3))


def test_windows_and_rope_bases_per_block():
    model = small(**ROPE, windows=(2, None, 4), rope_local_base=7.0)
    attentions = [block.residuals[0].sublayer for block in model.blocks]
    assert [a.window for a in attentions] == [2, None, 4]
    assert [a.rotary.base for a in attentions] == [7.0, 100.0, 7.0]
    assert [a.rotary.base for a in (b.residuals[0].sublayer for b in small(**ROPE, windows=(2, None, 4)).blocks)] == [
        100.0
    ] * 3


def test_options_reach_the_attention():
    options = {"kv_heads": 1, "head_dim": 10, "qk_norm": "per_head", "qk_norm_after_rope": True, "query_scale": 0.3}
    model = small(**ROPE, rope_fraction=0.4, attention_softcap=9.0, eps=0.25, norm="layernorm", **options)
    a = model.blocks[2].residuals[0].sublayer
    assert (a.kv_heads, a.head_dim, a.norm_after_rotary, a.scale, a.softcap) == (1, 10, True, 0.3, 9.0)
    assert a.rotary.features == 4 and isinstance(a.query_norm, LayerNorm) and a.key_norm.eps == 0.25
    assert model.position_embedding is None and model.final_norm.eps == 0.25


def test_norm_conventions_reach_every_norm():
    model = small(convention="gemma", qk_norm="per_head", placement="peri", embedding_norm=True)
    norms = [m for m in model.modules() if isinstance(m, RMSNorm)]
    assert len(norms) == 3 * (4 + 2) + 2
    assert all(n.convention.value == "gemma" and not n.weight.any() for n in norms)


def test_position_ids_choose_rows_of_the_table():
    model = small().double()
    tokens = ids(2, 5)
    shifted = model.embed(tokens, torch.arange(5) + 3)
    table = model.position_embedding.weight
    torch.testing.assert_close(shifted - model.embed(tokens), (table[3:8] - table[:5]).expand(2, 5, 24))
    each = torch.stack([torch.arange(5), torch.arange(5) + 3])
    torch.testing.assert_close(model(tokens, position_ids=each)[1], model(tokens, position_ids=torch.arange(5) + 3)[1])


def test_it_compiles_in_one_graph():
    model = randomize(small(placement=("hybrid", "parallel", "deepnorm"), **MODELS["windows and caps"]))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    tokens, mask = ids(2, 6), torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    for given in (mask, mask.bool(), mask.float()):
        torch.testing.assert_close(compiled(tokens, given), model(tokens, given))


@pytest.mark.parametrize("strict", [True, False])
def test_it_exports_with_a_mask(strict):
    model = randomize(small(placement=("hybrid", "parallel", "deepnorm"), **MODELS["windows and caps"]))
    tokens, mask = ids(2, 6), torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    exported = torch.export.export(model, (tokens, mask), strict=strict).module()
    other = mask.flip(0, 1)
    torch.testing.assert_close(exported(tokens, other), model(tokens, other))


# --- config and errors -----------------------------------------------------------------------------------------------


def test_config_is_frozen_and_strict():
    with pytest.raises(dataclasses.FrozenInstanceError):
        config().width = 3
    for bad, words in (
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"heads": 5}, "width=24, heads=5"),
        ({"kv_heads": 2}, "heads=3, kv_heads=2"),
        ({"kv_heads": 0}, "kv_heads must be at least 1, got 0"),
        ({"head_dim": 0}, "head_dim must be at least 1, got 0"),
        ({"norm": "batch"}, "batch"),
        ({"norm": "layernorm", "convention": "gemma"}, "gemma"),
        ({"placement": "middle"}, "middle"),
        ({"placement": ("pre", "post")}, r"placement must have one entry per block \(3\), got 2"),
        ({"placement": ("pre", "post", "mid")}, "mid"),
        ({"windows": (4,)}, r"windows must have one entry per block \(3\), got 1"),
        ({"windows": 4}, "windows must have one entry per block"),
        ({"windows": (4, 0, None)}, r"windows\[1\] must be at least 1, got 0"),
        ({"rope_local_base": 5.0, **ROPE}, "windows is None"),
        ({**ROPE, "rope_fraction": 0.0}, "rope_fraction must be finite and above 0, got 0"),
        ({**ROPE, "rope_fraction": 1.5}, "rope_fraction must be at most 1, got 1.5"),
        ({**ROPE, "rope_fraction": 0.4}, "rotary features must be even and at least 2, got 3"),
        ({**ROPE, "rope_base": -1.0}, "rope_base must be finite and above 0, got -1"),
        ({"attention_softcap": 0.0}, "attention_softcap must be finite and above 0, got 0"),
        ({"logit_softcap": -2.0}, "logit_softcap must be finite and above 0, got -2"),
        ({"eps": -1e-5}, "eps must be finite and not negative, got -1e-05"),
        ({"mlp_width": 0}, "mlp_width must be at least 1, got 0"),
        ({"segments": -1}, "segments must be at least 0, got -1"),
        ({"output_scale": "inverse_sqrt_layer", "placement": "post"}, "pre, peri, output, parallel, got post"),
        ({"output_scale": "half"}, "half"),
        ({"qk_norm": "heads"}, "heads"),
        ({"positions": "sine"}, "sine"),
        ({"mlp": "moe"}, "moe"),
        ({"init": "zero"}, "zero"),
        ({"sublayers": ("conv",)}, "conv"),
        ({"sublayers": ()}, "sublayers"),
    ):
        with pytest.raises(ValueError, match=words):
            small(**bad)


NUMBERS = ("attention_softcap", "logit_softcap", "query_scale", "embedding_multiplier", "rope_base", "rope_fraction")
SIZES = ("vocab_size", "context", "layers", "width", "heads", "kv_heads", "head_dim", "mlp_width", "segments")


@pytest.mark.parametrize("name", [*NUMBERS, "rope_local_base", "eps"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_numbers_of_a_config_are_finite(name, bad):
    with pytest.raises(ValueError, match=f"{name} must be finite.*, got {bad}"):
        config(**{"positions": "rope", "windows": (4, None, 4), name: bad})
    with pytest.raises(TypeError, match=f"{name} must be a number, got 'many'"):
        config(**{"positions": "rope", "windows": (4, None, 4), name: "many"})


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("bad", [2.0, float("nan"), float("inf"), "3", True])
def test_sizes_of_a_config_are_integers(name, bad):
    with pytest.raises(TypeError, match=f"{name} must be an integer, got {bad!r}"):
        config(**{name: bad})
    with pytest.raises(TypeError, match=r"windows\[2\] must be an integer, got 2.0"):
        config(windows=(4, None, 2.0))


def test_replace_decides_anew_what_was_left_to_a_rule():
    pre = config()
    assert (pre.final_norm, pre.mlp_width, pre.kv_heads, pre.head_dim) == (True, 96, 3, 8)
    other = pre.replace(placement="post", width=32, heads=4)
    assert (other.final_norm, other.mlp_width, other.kv_heads, other.head_dim) == (False, 128, 4, 8)
    assert other.replace(placement="pre", width=24, heads=3) == pre
    given = config(final_norm=True, mlp_width=7).replace(placement="post", width=48)
    assert given.final_norm and given.mlp_width == 7
    for copied in (copy.deepcopy(pre), pickle.loads(pickle.dumps(pre))):
        assert copied == pre and hash(copied) == hash(pre) and copied.replace(placement="post").final_norm is False


def test_strings_and_enums_mean_the_same():
    assert config(norm="layernorm", placement="peri", init="deepnorm") == config(
        norm=NormKind.LAYERNORM, placement=Placement.PERI, init=Init.DEEPNORM
    )


@pytest.mark.parametrize("sublayers", [("mlp",), ("attention",), ("mlp", "attention"), ("mlp", "mlp")])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_any_order_of_sublayers(placement, sublayers):
    model = small(placement=placement, sublayers=sublayers)
    assert model(ids(1, 4)).shape == (1, 4, 11)
    assert all(len(block.residuals) == len(sublayers) for block in model.blocks)


def test_alpha_follows_the_number_of_blocks():
    assert small(placement="deepnorm").blocks[0].residuals[0].alpha == deepnorm_single(3)[0]


def test_bad_calls_are_named():
    model = small()
    with pytest.raises(ValueError, match="17 tokens is longer than the context of 16"):
        model(ids(1, 17))
    with pytest.raises(ValueError, match=r"\[B, T\], got \(5,\)"):
        model(ids(5))
    with pytest.raises(ValueError, match=r"attention_mask .*\(2, 5\).*\(2, 4\)"):
        model(ids(2, 5), torch.ones(2, 4))
    with pytest.raises(ValueError, match=r"segment_ids .*\(2, 5\).*\(5,\)"):
        small(segments=2)(ids(2, 5), segment_ids=torch.zeros(5))
    with pytest.raises(ValueError, match=r"position_ids must have shape \(2, 5\) or \(5,\), got \(4,\)"):
        model(ids(2, 5), position_ids=torch.arange(4))
    for call, words in (
        (lambda: model(ids(2, 5).tolist()), "ids must be a torch.Tensor, got list"),
        (lambda: model(ids(2, 5), position_ids=[0, 1, 2, 3, 4]), "position_ids must be a torch.Tensor, got list"),
        (lambda: model(ids(2, 5), segment_ids=[0] * 5), "segment_ids must be a torch.Tensor, got list"),
    ):
        with pytest.raises(TypeError, match=words):
            call()


@pytest.mark.parametrize("name", WRONG_MASKS)
@pytest.mark.parametrize("options", [{}, {"sublayers": ("mlp",)}, {"norm": "batchnorm"}])
def test_a_mask_that_is_none_is_refused(options, name):
    mask, error, words = WRONG_MASKS[name]
    model = small(**options)
    for call in (lambda: model(ids(2, 5), mask), lambda: model.embed(ids(2, 5), attention_mask=mask)):
        with pytest.raises(error, match=f"attention_mask must .*{words}"):
            call()


def test_an_argument_that_a_model_has_no_use_for_is_refused():
    """Otherwise a sentence pair without segments, or a shifted sequence without positions, would pass for one with."""
    with pytest.raises(ValueError, match="segment_ids were given to a model without segments"):
        small()(ids(2, 5), segment_ids=torch.zeros_like(ids(2, 5)))
    with pytest.raises(ValueError, match="position_ids were given to a model without positions"):
        small(positions="none")(ids(2, 5), position_ids=torch.arange(5))
    with pytest.raises(ValueError, match="without positions .*'rope', config.sublayers=\\('mlp',\\)"):
        small(**ROPE, sublayers=("mlp",))(ids(2, 5), position_ids=torch.arange(5))
