"""Norm modules, placements, attention, Transformer: right wiring, right values, clear errors."""

import dataclasses

import pytest
import torch
from torch import nn

from normlab import functional
from normlab.attention import CausalSelfAttention
from normlab.norms import LayerNorm, NormKind, RMSNorm, make_norm
from normlab.placement import Placement, Residual, post, pre
from normlab.transformer import Init, Transformer, TransformerConfig


def small(**options):
    settings = {"vocab_size": 11, "context": 16, "layers": 3, "width": 24, "heads": 3, **options}
    return Transformer(TransformerConfig(**settings), seed=5)


def ids(*shape, seed=0, vocab=11):
    return torch.randint(vocab, shape, generator=torch.Generator().manual_seed(seed))


def randomize(model, seed=1):
    """Gains of 1 and shifts of 0 hide mistakes."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:
                p.add_(0.3 * torch.randn(p.shape, generator=g))
    return model


# --- norms ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, theirs", [("layernorm", nn.LayerNorm), ("rmsnorm", nn.RMSNorm)])
def test_modules_exchange_weights_with_torch(kind, theirs):
    ours, theirs = randomize(make_norm(kind, 10, eps=1e-3)), theirs(10, eps=1e-3)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(4, 10, generator=torch.Generator().manual_seed(0)) + 2
    torch.testing.assert_close(ours(x), theirs(x))


def test_default_eps():
    assert make_norm("layernorm", 4).eps == 1e-5
    assert make_norm(NormKind.RMSNORM, 4).eps == 1e-6
    assert make_norm("rmsnorm", 4, eps=0.5).eps == 0.5


def test_unknown_kinds_are_named_with_the_known_ones():
    with pytest.raises(ValueError, match="'layer'.*layernorm, rmsnorm, batchnorm, groupnorm, powernorm, scalenorm, dyt, identity"):
        make_norm("layer", 4)
    with pytest.raises(ValueError, match="width"):
        make_norm("layernorm", 0)


# --- placement -----------------------------------------------------------------------------------------------------


def test_wirings_by_hand():
    """x = [1, 2, 3, 4], F(v) = v^2, LayerNorm: values computed on paper."""
    x = torch.tensor([1.0, 2, 3, 4], dtype=torch.float64)
    norm = lambda v: functional.layer_norm(v, eps=0.0)
    total = torch.tensor([2.0, 6, 12, 20], dtype=torch.float64)  # x + x^2: mean 10, variance 46
    torch.testing.assert_close(post(x, torch.square, norm), (total - 10) / 46**0.5)
    z = torch.tensor([-3.0, -1, 1, 3], dtype=torch.float64) / 5**0.5
    torch.testing.assert_close(pre(x, torch.square, norm), x + z**2)


def test_only_pre_returns_the_stream_when_the_sublayer_is_zero():
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    zero = nn.Linear(8, 8, bias=False)
    nn.init.zeros_(zero.weight)
    assert torch.equal(Residual(zero, LayerNorm(8), "pre")(x), x)
    assert not torch.allclose(Residual(zero, LayerNorm(8), "post")(x), x, atol=0.1)


@pytest.mark.parametrize("placement, final", [("pre", True), ("post", False)])
def test_a_final_norm_exactly_if_the_stream_is_not_normalized(placement, final):
    model = small(placement=placement)
    assert isinstance(model.final_norm, RMSNorm) is final
    assert isinstance(small(placement=placement, final_norm=not final).final_norm, RMSNorm) is not final


# --- attention -----------------------------------------------------------------------------------------------------


def test_attention_by_the_formula():
    g = torch.Generator().manual_seed(3)
    attention = CausalSelfAttention(6, 2).double()
    x = torch.randn(2, 5, 6, generator=g, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    with torch.no_grad():
        y = attention(x, mask)
        for b in range(2):
            for t in range(5):
                seen = [s for s in range(t + 1) if mask[b, s]]
                mixed = torch.zeros(6, dtype=torch.float64)
                for h in (slice(0, 3), slice(3, 6)):
                    q = attention.query(x[b, t])[h]
                    if seen:
                        scores = torch.stack([q @ attention.key(x[b, s])[h] for s in seen]) / 3**0.5
                        values = torch.stack([attention.value(x[b, s])[h] for s in seen])
                        mixed[h] = scores.softmax(0) @ values
                torch.testing.assert_close(y[b, t], attention.out(mixed))


def test_a_row_that_sees_nothing_is_zero_with_finite_gradients():
    attention = CausalSelfAttention(6, 2)
    x = torch.randn(1, 4, 6, requires_grad=True)
    y = attention(x, torch.tensor([[0, 0, 1, 1]]))
    assert torch.equal(y[0, :2], torch.zeros(2, 6))
    y.sum().backward()
    assert x.grad.isfinite().all() and all(p.grad.isfinite().all() for p in attention.parameters())


def test_heads_must_divide_width():
    with pytest.raises(ValueError, match="width=6, heads=4"):
        CausalSelfAttention(6, 4)


# --- transformer ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", list(Placement))
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_the_future_does_not_leak(placement, norm):
    model = randomize(small(placement=placement, norm=norm)).double()
    a = ids(2, 10)
    b = a.clone()
    b[:, 7:] = (b[:, 7:] + 1) % 11
    assert torch.equal(model(a)[:, :7], model(b)[:, :7])
    assert not torch.allclose(model(a)[:, 7:], model(b)[:, 7:])


@pytest.mark.parametrize("placement", list(Placement))
def test_padding_on_either_side_changes_nothing_at_real_tokens(placement):
    model = randomize(small(placement=placement)).double()
    real = ids(1, 6)
    plain = model(real)
    junk = torch.full((1, 4), 9)
    ones, zeros = torch.ones(1, 6), torch.zeros(1, 4)
    right = model(torch.cat([real, junk], 1), torch.cat([ones, zeros], 1))
    torch.testing.assert_close(right[:, :6], plain)
    positions = torch.cat([torch.zeros(4, dtype=torch.long), torch.arange(6)])
    left = model(torch.cat([junk, real], 1), torch.cat([zeros, ones], 1), positions)
    torch.testing.assert_close(left[:, 4:], plain)


def test_every_block_is_pre_norm_by_the_formula():
    model = randomize(small()).double()
    x = model.embed(ids(2, 7))
    y = x
    for residual in model.blocks[0].residuals:
        y = y + residual.sublayer(residual.norm(y))
    torch.testing.assert_close(model.blocks[0](x), y)


def test_initial_standard_deviations():
    """Measured, not read from the code path: a rule that matches parameter names can silently match none."""
    layers = 6
    for init, inner, writer in (
        (Init.GPT2, 0.02, 0.02),
        (Init.GPT2_SCALED, 0.02, 0.02 / (2 * layers) ** 0.5),
        (Init.XAVIER, 1 / 128**0.5, 1 / 128**0.5),
    ):
        model = small(layers=layers, width=128, heads=4, vocab_size=500, init=init)
        attention, mlp = (r.sublayer for r in model.blocks[-1].residuals)
        assert attention.query.weight.std().item() == pytest.approx(inner, rel=0.03)
        assert attention.out.weight.std().item() == pytest.approx(writer, rel=0.03)
        expected = writer if init is not Init.XAVIER else (2 / 640) ** 0.5
        assert mlp.down.weight.std().item() == pytest.approx(expected, rel=0.03)
    stream = small(width=128, heads=4, vocab_size=500, init=Init.XAVIER).embed(ids(4, 16, vocab=500))
    assert stream.var().item() == pytest.approx(1, rel=0.1)


def test_a_seed_means_the_same_weights():
    assert torch.equal(small().head.weight, small().head.weight)
    config = small().config
    assert not torch.equal(Transformer(config, 1).head.weight, Transformer(config, 2).head.weight)


def test_config_is_frozen_and_strict():
    config = small().config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.width = 3
    for bad, words in (
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"heads": 5}, "width=24, heads=5"),
        ({"norm": "batch"}, "batch"),
        ({"placement": "middle"}, "middle"),
        ({"sublayers": ("conv",)}, "conv"),
        ({"sublayers": ()}, "sublayers"),
    ):
        with pytest.raises(ValueError, match=words):
            small(**bad)


def test_bad_calls_are_named():
    model = small()
    with pytest.raises(ValueError, match="17 tokens is longer than the context of 16"):
        model(ids(1, 17))
    with pytest.raises(ValueError, match=r"\[B, T\], got \(5,\)"):
        model(ids(5))
    with pytest.raises(ValueError, match=r"attention_mask .*\(2, 5\).*\(2, 4\)"):
        model(ids(2, 5), torch.ones(2, 4))
