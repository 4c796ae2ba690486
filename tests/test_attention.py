"""Attention against loops over the formula, and against what its parts promise."""

import math

import pytest
import torch
from draw import normal
from torch import nn
from wrong_masks import WRONG_MASKS

from normlab.attention import QKNorm, Rotary, SelfAttention, visibility
from normlab.norms import make_norm

WIDTH = 12


def attention(heads=4, seed=1, **options):
    """In float64 with random weights, biases and gains."""
    built = SelfAttention(WIDTH, heads, **options).double()
    with torch.no_grad():
        for i, p in enumerate(built.parameters()):
            p.copy_(normal(*p.shape, seed=seed + i) * (0.5 if p.dim() > 1 else 1))
    return built


# --- the formula, by loops -------------------------------------------------------------------------------------------


def turned(v, position, rotary):
    """Rotation of one head v [head_dim] as a product of complex numbers, pair by pair."""
    if rotary is None:
        return v
    half = rotary.features // 2
    v = v.clone()
    for i in range(half):
        z = complex(v[i], v[i + half]) * complex(
            math.cos(position / rotary.base ** (2 * i / rotary.features)),
            math.sin(position / rotary.base ** (2 * i / rotary.features)),
        )
        v[i], v[i + half] = z.real, z.imag
    return v


def by_loops(a, x, mask=None, positions=None, window=None):
    """One sequence x [T, d], position by position and head by head; right where a position sees anything."""
    T, d = len(x), a.head_dim
    positions = range(T) if positions is None else positions
    out = torch.zeros(T, a.heads * d, dtype=x.dtype)

    def place(projection, norm, t, head):
        whole = projection(x[t])
        if a.qk_norm is QKNorm.JOINT:
            assert not a.norm_after_rotary
            return turned(norm(whole)[head * d : (head + 1) * d], positions[t], a.rotary)
        own = whole[head * d : (head + 1) * d]
        if a.norm_after_rotary:
            return norm(turned(own, positions[t], a.rotary))
        return turned(norm(own), positions[t], a.rotary)

    for t in range(T):
        seen = [s for s in range(T) if mask is None or mask[s]]
        seen = [s for s in seen if s <= t or not a.causal]
        seen = [s for s in seen if window is None or abs(s - t) < window]
        if not seen:
            continue
        for h in range(a.heads):
            shared = h * a.kv_heads // a.heads
            q = place(a.query, a.query_norm, t, h)
            scores = torch.stack([q @ place(a.key, a.key_norm, s, shared) for s in seen])
            scores = scores * (d**-0.5 if a.scale is None else a.scale)
            if a.softcap is not None:
                scores = a.softcap * torch.tanh(scores / a.softcap)
            values = [a.value(x[s])[shared * d : (shared + 1) * d] for s in seen]
            if not isinstance(a.value_norm, nn.Identity):
                values = [a.value_norm(v) for v in values]
            out[t, h * d : (h + 1) * d] = scores.softmax(0) @ torch.stack(values)
    return a.out(out)


OPTIONS = {
    "plain": {},
    "grouped heads": {"kv_heads": 2},
    "one key head": {"kv_heads": 1},
    "wide heads": {"head_dim": 8},
    "biases": {"bias": True},
    "encoder": {"causal": False},
    "rotary": {"rotary": Rotary(2, 50.0), "head_dim": 4},
    "rotary, every feature": {"rotary": Rotary(4, 50.0), "head_dim": 4},
    "norm per head": {"qk_norm": "per_head"},
    "norm per head, then rotary": {"qk_norm": "per_head", "rotary": Rotary(4, 50.0), "head_dim": 4},
    "rotary, then norm": {"qk_norm": "per_head", "rotary": Rotary(4, 50.0), "head_dim": 4, "norm_after_rotary": True},
    "joint norm": {"qk_norm": "joint", "kv_heads": 2, "rotary": Rotary(2, 50.0)},
    "values normed too": {"qk_norm": "per_head", "value_norm": True},
    "scale": {"scale": 256**-0.5},
    "soft-cap": {"softcap": 0.7, "kv_heads": 2},
    "window": {"window": 2},
    "window, encoder": {"window": 2, "causal": False},
    "window, soft-cap": {"window": 3, "softcap": 2.0},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_attention_by_the_formula(name):
    options = dict(OPTIONS[name])
    if "rotary" in options and "head_dim" not in options:
        options["head_dim"] = 2
    a = attention(**options)
    x = normal(3, 6, WIDTH)
    masks = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    with torch.no_grad():
        y = a(x, masks)
        for b in range(3):
            expected = by_loops(a, x[b], masks[b], window=options.get("window"))
            real = masks[b].bool()
            torch.testing.assert_close(y[b][real], expected[real], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(a(x[:1]), y[:1], rtol=1e-10, atol=1e-12)


def test_per_head_and_joint_norms_by_hand():
    """q = (3, 4 | 6, 8), two heads of two: per head both give (.8485, 1.1314), jointly the ratio 1 : 2 survives."""
    q = torch.tensor([[[3.0, 4, 6, 8]]], dtype=torch.float64)
    for kind, expected in (
        ("per_head", [0.8485, 1.1314, 0.8485, 1.1314]),
        ("joint", [0.5367, 0.7155, 1.0733, 1.4311]),
    ):
        a = SelfAttention(4, 2, qk_norm=kind, make_norm=lambda n: make_norm("rmsnorm", n, eps=0.0)).double()
        nn.init.eye_(a.query.weight)
        with torch.no_grad():
            queries = a.heads_of(q)[0]
        assert queries.flatten().tolist() == pytest.approx(expected, abs=5e-5)


def test_sizes_of_projections_and_norms():
    """Qwen3 in small: width 64, 4 query heads and 2 key heads of 32. OLMo 2 in small: gains of 64 and 32."""
    a = SelfAttention(64, 4, kv_heads=2, head_dim=32, qk_norm="per_head")
    shapes = {name: tuple(p.shape) for name, p in a.named_parameters()}
    assert shapes == {
        "query.weight": (128, 64),
        "key.weight": (64, 64),
        "value.weight": (64, 64),
        "out.weight": (64, 128),
        "query_norm.weight": (32,),
        "key_norm.weight": (32,),
    }
    joint = SelfAttention(64, 4, kv_heads=2, qk_norm="joint")
    assert joint.query_norm.weight.shape == (64,) and joint.key_norm.weight.shape == (32,)


def test_the_query_scale_is_not_tied_to_the_head_size():
    """Gemma 2 in small: heads of 16, scores times 256^(-1/2) = 0.0625 and not 0.25."""
    x = normal(1, 5, WIDTH)
    plain, scaled = attention(head_dim=16), attention(head_dim=16, scale=256**-0.5)
    torch.testing.assert_close(scaled.logits(x), plain.logits(x) * 0.0625 / 0.25)


def test_logits_are_what_the_softmax_sees():
    a = attention(kv_heads=2, qk_norm="per_head", softcap=3.0, rotary=Rotary(2), head_dim=4)
    x = normal(2, 5, WIDTH)
    logits = a.logits(x)
    assert logits.shape == (2, 4, 5, 5)
    weights = logits.masked_fill(~visibility(5), -torch.inf).softmax(-1)
    torch.testing.assert_close(a.out((weights @ a.heads_of(x)[2]).transpose(1, 2).flatten(2)), a(x))


def test_shared_heads_equal_repeated_ones():
    shared, full = attention(kv_heads=2), attention()
    repeat = lambda w: w.view(2, 3, WIDTH).repeat_interleave(2, 0).reshape(12, WIDTH)
    full.load_state_dict(
        {k: repeat(v) if k.split(".")[0] in ("key", "value") else v for k, v in shared.state_dict().items()}
    )
    x = normal(2, 7, WIDTH)
    torch.testing.assert_close(shared(x), full(x))


# --- masks -----------------------------------------------------------------------------------------------------------


def test_visibility_of_a_small_text():
    rows = lambda **options: visibility(4, **options)[0, 0].int().tolist()
    assert rows() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert rows(window=2) == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    assert rows(causal=False) == [[1] * 4] * 4
    assert rows(causal=False, window=2) == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    masked = visibility(3, attention_mask=torch.tensor([[0, 1, 1], [1, 1, 0]]))
    assert masked.shape == (2, 1, 3, 3)
    assert masked[:, 0].int().tolist() == [[[0, 0, 0], [0, 1, 0], [0, 1, 1]], [[1, 0, 0], [1, 1, 0], [1, 1, 0]]]


def test_a_window_of_one_sees_itself_and_a_wide_one_sees_all():
    x = normal(2, 6, WIDTH)
    one = attention(window=1)
    torch.testing.assert_close(one(x), one.out(one.value(x)))
    assert torch.equal(attention(window=6)(x), attention()(x))
    torch.testing.assert_close(attention(window=99)(x, torch.ones(2, 6)), attention()(x))
    torch.testing.assert_close(attention(window=5)(x)[:, :5], attention()(x)[:, :5])
    assert not torch.allclose(attention(window=5)(x)[:, 5], attention()(x)[:, 5])


def test_the_future_is_hidden_unless_asked_for():
    x = normal(1, 6, WIDTH)
    changed = x.clone()
    changed[:, 4:] += 1
    assert torch.equal(attention()(x)[:, :4], attention()(changed)[:, :4])
    encoder = attention(causal=False)
    assert not torch.allclose(encoder(x)[:, 0], encoder(changed)[:, 0])
    order = torch.tensor([3, 0, 5, 1, 4, 2])  # without positions an encoder does not know the order
    torch.testing.assert_close(encoder(x[:, order]), encoder(x)[:, order])


@pytest.mark.parametrize("options", [{}, {"causal": False}, {"softcap": 2.0}, {"window": 3}, {"qk_norm": "joint"}])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_neither_outputs_nor_gradients(options, side):
    a = attention(**options, rotary=Rotary(2), head_dim=4)
    real, weight = normal(1, 5, WIDTH), normal(1, 5, WIDTH, seed=9)

    def run(pads, content):
        x = real.clone().requires_grad_()
        junk = torch.full((1, pads, WIDTH), content, dtype=x.dtype)
        parts = [junk, x] if side == "left" else [x, junk]
        mask = torch.cat([torch.ones(1, 5) if p is x else torch.zeros(1, pads) for p in parts], 1)
        a.zero_grad()
        y = a(torch.cat(parts, 1), mask)[mask.bool()].view(1, 5, -1)
        (y * weight).sum().backward()
        return [y, x.grad, *(p.grad.clone() for p in a.parameters())]

    alone = run(0, 0.0)
    for pads, content in ((1, 0.0), (4, 7.0), (30, -1e3)):
        torch.testing.assert_close(run(pads, content), alone, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", OPTIONS)
def test_not_even_nan_in_the_padding(name, side, bad):
    """Outputs and gradients of real tokens and of the weights are those without padding; padded places get none."""
    options = {"head_dim": 2, **OPTIONS[name]} if "rotary" in OPTIONS[name] else OPTIONS[name]
    a, real, weight = attention(**options), normal(1, 5, WIDTH), normal(1, 5, WIDTH, seed=9)

    def run(pads):
        mask = torch.tensor([[0] * pads + [1] * 5 if side == "left" else [1] * 5 + [0] * pads]).bool()
        x = torch.full((1, 5 + pads, WIDTH), bad, dtype=real.dtype)
        x[mask] = real[0]
        x.requires_grad_()
        a.zero_grad()
        y = a(x, mask, (mask.cumsum(1) - 1).clamp(min=0))
        assert y.isfinite().all()
        (y[mask] * weight[0]).sum().backward()
        assert torch.equal(x.grad[~mask], torch.zeros(pads, WIDTH, dtype=real.dtype))
        return [y[mask], x.grad[mask], *(p.grad.clone() for p in a.parameters())]

    torch.testing.assert_close(run(3), run(0), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("eps", [0.0, 1e-6])
@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_a_norm_without_eps_takes_what_stands_at_padded_places(kind, eps):
    a = attention(qk_norm="per_head", make_norm=lambda n: make_norm(kind, n, eps=eps))
    x, mask = torch.full((2, 5, WIDTH), math.nan, dtype=torch.float64), torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]])
    x[mask.bool()] = normal(7, WIDTH)
    y = a(x.requires_grad_(), mask)
    assert y.isfinite().all()
    y[mask.bool()].square().sum().backward()
    assert x.grad.isfinite().all() and all(p.grad.isfinite().all() for p in a.parameters())


@pytest.mark.parametrize("name", WRONG_MASKS)
def test_a_mask_that_is_none_is_refused(name):
    mask, error, words = WRONG_MASKS[name]
    a, x = attention(), normal(2, 5, WIDTH)
    for call in (a, a.heads_of, a.logits, attention(softcap=1.0), attention(window=2), attention(causal=False)):
        with pytest.raises(error, match=f"attention_mask must .*{words}"):
            call(x, mask)
    if name != "one for all sequences":  # visibility does not know how many there are
        with pytest.raises(error, match=f"attention_mask must .*{words}"):
            visibility(5, attention_mask=mask)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float64])
def test_a_mask_may_have_any_dtype(dtype):
    mask, x = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]]), normal(2, 5, WIDTH)
    assert torch.equal(attention()(x, mask.to(dtype)), attention()(x, mask.bool()))
    assert torch.equal(visibility(5, attention_mask=mask.to(dtype)), visibility(5, attention_mask=mask.bool()))


def test_masks_work_where_their_values_cannot_be_read():
    a, x, mask = attention(softcap=2.0), normal(3, 5, WIDTH), torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 0], [1] * 5])
    torch.testing.assert_close(torch.func.vmap(lambda x, m: a(x[None], m[None])[0])(x, mask), a(x, mask))
    assert a.to("meta")(x.to("meta"), mask.to("meta")).shape == x.shape


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, {"causal": False}, {"window": 2}, {"bias": True}])
def test_a_row_that_sees_nothing_is_zero_with_finite_gradients(options, training):
    a = attention(**options).train(training)
    x = normal(3, 4, WIDTH).requires_grad_()
    mask = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]])
    y = a(x, mask)
    assert torch.equal(y[1], torch.zeros_like(y[1]))
    if a.causal:
        assert torch.equal(y[0, :2], torch.zeros_like(y[0, :2]))
    assert y[0, 2:].abs().min() > 0 and y[2].abs().min() > 0
    y.square().sum().backward()
    assert x.grad.isfinite().all() and all(p.grad.isfinite().all() for p in a.parameters())
    assert torch.equal(x.grad[1], torch.zeros_like(x.grad[1]))


# --- rotary positions ------------------------------------------------------------------------------------------------


def test_rotation_keeps_norms_and_leaves_the_rest():
    rotary, x = Rotary(6), normal(2, 5, 3, 10)
    y = rotary(x, torch.tensor([0, 1, 7, 500, 3]))
    torch.testing.assert_close(y.norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(y[..., 6:], x[..., 6:])
    torch.testing.assert_close(y[:, 0], x[:, 0])  # position 0 does not turn
    assert not torch.allclose(y[:, 1], x[:, 1])


def test_scores_depend_on_distances_only():
    rotary = Rotary(8)
    q, k = normal(1, 1, 1, 8, seed=1), normal(1, 1, 1, 8, seed=2)
    score = lambda m, n: (rotary(q, torch.tensor([m])) * rotary(k, torch.tensor([n]))).sum()
    torch.testing.assert_close(score(103, 100), score(3, 0))
    assert abs(score(4, 0) - score(3, 0)) > 1e-3
    a = attention(rotary=Rotary(2), head_dim=4)
    x = normal(2, 6, WIDTH)
    later = torch.stack([torch.arange(6) + 40, torch.arange(6) + 7])
    torch.testing.assert_close(a(x, position_ids=later), a(x))
    assert not torch.allclose(a(x, position_ids=2 * torch.arange(6)), a(x))


def test_the_base_sets_the_slowest_turn():
    """The pair i turns by base^(-2 i / n) per token: with n = 4 by 1 and by 1 / sqrt(base)."""
    x = torch.zeros(1, 1, 1, 4, dtype=torch.float64)
    x[..., 0], x[..., 1] = 1, 1
    for base in (10_000.0, 1e6):
        y = Rotary(4, base)(x, torch.tensor([3])).flatten()
        expected = [math.cos(3), math.cos(3 / base**0.5), math.sin(3), math.sin(3 / base**0.5)]
        assert y.tolist() == pytest.approx(expected)


def test_half_types_turn_as_exactly_as_they_can():
    x = normal(1, 4, 2, 8)
    positions = torch.tensor([0, 5, 1000, 8000])
    for dtype, tolerance in ((torch.bfloat16, 2**-7), (torch.float16, 2**-10), (torch.float32, 1e-5)):
        y = Rotary(8)(x.to(dtype), positions)
        assert y.dtype is dtype
        exact = Rotary(8)(x.to(dtype).double(), positions)
        assert ((y.double() - exact).abs() <= tolerance * exact.abs().clamp(min=1e-2)).all()


@pytest.mark.parametrize("kind", ["per_head", "joint"])
def test_a_bare_norm_commutes_with_the_rotation_and_gains_do_not(kind):
    x, options = normal(1, 5, WIDTH), {"qk_norm": kind, "rotary": Rotary(4), "head_dim": 4, "kv_heads": 2}
    before, after = attention(**options), attention(**options, norm_after_rotary=True)
    assert not torch.allclose(before(x), after(x), rtol=1e-3)
    for a in (before, after):
        nn.init.ones_(a.query_norm.weight), nn.init.ones_(a.key_norm.weight)
    torch.testing.assert_close(before(x), after(x))


# --- QK-norm and soft-caps -------------------------------------------------------------------------------------------


def test_qk_norm_bounds_the_logits_by_its_gains():
    """|logit| <= sqrt(head_dim) * max gain of q * max gain of k, however large the stream."""
    a = attention(head_dim=16, qk_norm="per_head", rotary=Rotary(16), norm_after_rotary=True)
    bound = 16**0.5 * a.query_norm.weight.abs().max() * a.key_norm.weight.abs().max()
    for scale in (1e-2, 1.0, 1e6):
        assert a.logits(scale * normal(2, 20, WIDTH)).abs().max() <= bound
    assert attention(head_dim=16).logits(1e3 * normal(2, 20, WIDTH)).abs().max() > 100 * bound


def test_self_logit_at_unit_gains_is_the_bound():
    """A query that equals its key: d / sqrt(d) = 8 at d = 64, for every size of the stream."""
    a = SelfAttention(64, 1, qk_norm="per_head").double()
    a.key.load_state_dict(a.query.state_dict())
    logits = a.logits(100 * normal(1, 5, 64))
    assert logits.diagonal(dim1=-2, dim2=-1).flatten().tolist() == pytest.approx([8] * 5, rel=1e-6)
    assert logits.abs().max() <= 8


def test_unit_scale_saturates_the_softmax_in_spite_of_qk_norm():
    """d = 256, 128 tokens: logits of std 16 leave 0.4 bit of entropy, 1/sqrt(d) gives std 1 and 6.3 of 7 bits."""
    x, entropy = normal(4, 128, 256), {}
    for scale in (1.0, None):
        a = SelfAttention(256, 1, qk_norm="per_head", scale=scale).double()
        for i, p in enumerate((a.query.weight, a.key.weight)):
            nn.init.normal_(p, generator=torch.Generator().manual_seed(i))
        with torch.no_grad():
            logits = a.logits(x)
        p = logits.softmax(-1)
        entropy[scale] = -(p * p.clamp(min=1e-300).log2()).sum(-1).mean().item()
        assert logits.std().item() == pytest.approx(16 if scale else 1, rel=0.05)
    assert entropy[1.0] < 0.7 and 6.1 < entropy[None] < 6.5


def test_a_soft_cap_bounds_logits_and_a_huge_one_does_nothing():
    x = 50 * normal(2, 9, WIDTH)
    assert attention(softcap=3.0).logits(x).abs().max() <= 3
    for options in ({}, {"kv_heads": 2, "window": 4}, {"causal": False}):
        for mask in (None, torch.tensor([[0] * 4 + [1] * 5, [1] * 6 + [0] * 3])):
            ours, plain = attention(softcap=1e9, **options)(x, mask), attention(**options)(x, mask)
            torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-9)


def test_the_explicit_path_in_half_types_stays_close():
    a, x = attention(softcap=20.0), normal(2, 9, WIDTH)
    exact = a(x)
    for dtype, tolerance in ((torch.bfloat16, 0.05), (torch.float16, 0.01)):
        got = a.to(dtype)(x.to(dtype))
        assert got.dtype is dtype
        assert (got.double() - exact).norm() < tolerance * exact.norm()
        a = attention(softcap=20.0)


# --- errors ----------------------------------------------------------------------------------------------------------


def test_bad_arguments_are_named():
    for options, words in (
        ({"heads": 5}, "width=12, heads=5"),
        ({"kv_heads": 3}, "heads=4, kv_heads=3"),
        ({"kv_heads": 0}, "kv_heads=0"),
        ({"heads": 0}, "heads must be at least 1, got 0"),
        ({"head_dim": 0}, "head_dim must be at least 1, got 0"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"softcap": -1.0}, "softcap must be finite and above 0, got -1.0"),
        ({"softcap": 0.0}, "softcap must be finite and above 0, got 0.0"),
        ({"softcap": math.inf}, "softcap must be finite and above 0, got inf"),
        ({"softcap": math.nan}, "softcap must be finite and above 0, got nan"),
        ({"scale": math.inf}, "scale must be finite, got inf"),
        ({"scale": math.nan}, "scale must be finite, got nan"),
        ({"rotary": Rotary(4)}, "must not exceed head_dim=3, got 4"),
        ({"qk_norm": "both"}, "both"),
    ):
        with pytest.raises(ValueError, match=words):
            SelfAttention(WIDTH, **{"heads": 4, **options})
    for features in (0, 3, -2):
        with pytest.raises(ValueError, match=f"even and at least 2, got {features}"):
            Rotary(features)
    for base in (0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=f"rotary base must be finite and above 0, got {base}"):
            Rotary(2, base)
    for options, words in (
        ({"heads": 4.0}, "heads must be an integer, got 4.0"),
        ({"window": 2.5}, "window must be an integer, got 2.5"),
        ({"softcap": "50"}, "softcap must be a number, got '50'"),
        ({"scale": torch.ones(())}, "scale must be a number, got a Tensor"),
    ):
        with pytest.raises(TypeError, match=words):
            SelfAttention(WIDTH, **{"heads": 4, **options})


def test_a_sequence_without_a_batch_axis_is_refused():
    """With one head, [T, d] would otherwise give something of shape [T, 1, d]."""
    for shape in ((5, WIDTH), (1, 2, 5, WIDTH)):
        with pytest.raises(ValueError, match=rf"x must have shape \[B, T, d\], got \({shape[0]}, "):
            attention(heads=1)(normal(*shape))
