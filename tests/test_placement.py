"""Placements: every wiring against numbers worked out by hand, and what distinguishes them."""

import math

import numpy as np
import pytest
import torch
from draw import normal
from torch import nn

from normlab import functional, placement
from normlab.norms import LayerNorm, RMSNorm, make_norm
from normlab.placement import Placement, Residual
from normlab.transformer import Block, Transformer, TransformerConfig

X = torch.tensor([1.0, 2, 3, 4], dtype=torch.float64)
IDENTITY_PATH = ("pre", "peri", "output", "parallel", "none")  # F = 0 returns x


def score(v):
    """Standard score, biased variance."""
    v = np.asarray(v, dtype=float)
    return (v - v.mean()) / v.std()


def residual(kind, sublayer, norm=LayerNorm, seed=3, **options):
    """A Residual over 4 features in float64 with random gains and shifts: 1 and 0 hide mistakes."""
    norms = [norm(4, eps=1e-15).double() for _ in range(2)]
    for n, s in zip(norms, (seed, seed + 1)):
        with torch.no_grad():
            for p in n.parameters():
                p.copy_(normal(4, seed=s + 10 * (p is n.weight)))
    return Residual(sublayer, norms[0], kind, output_norm=norms[1], **options)


class Square(nn.Module):
    def forward(self, x, **_):
        return x**2


class Zero(nn.Module):
    def forward(self, x, **_):
        return torch.zeros_like(x)


# --- the lines, by hand ----------------------------------------------------------------------------------------------


def test_lines_with_a_bare_layernorm():
    """x = [1, 2, 3, 4], F(v) = v^2: x + F(x) has mean 10, variance 46; the standard scores of x are z."""
    N = lambda v: functional.layer_norm(v, eps=0.0)
    z = torch.tensor([-3.0, -1, 1, 3], dtype=torch.float64) / 5**0.5
    squares = torch.tensor([1.0, 4, 9, 16], dtype=torch.float64)  # mean 7.5, variance 32.25
    expected = {
        "post": (X + squares - 10) / 46**0.5,
        "pre": X + torch.tensor([1.8, 0.2, 0.2, 1.8]),
        "peri": X + torch.tensor([1.0, -1, -1, 1]),
        "output": X + (squares - 7.5) / 32.25**0.5,
        "hybrid": z + z**2,
        "none": X + squares,
    }
    got = {
        "post": placement.post(X, torch.square, N),
        "pre": placement.pre(X, torch.square, N),
        "peri": placement.peri(X, torch.square, N, N),
        "output": placement.output(X, torch.square, N),
        "hybrid": placement.hybrid(X, torch.square, N),
        "none": placement.none(X, torch.square),
    }
    torch.testing.assert_close(got, expected)
    printed = {
        "post": [-1.1795, -0.5898, 0.2949, 1.4744],
        "pre": [2.8, 2.2, 3.2, 5.8],
        "output": [-0.1446, 1.3837, 3.2641, 5.4968],
        "peri": [2, 1, 2, 5],
    }
    for name, values in printed.items():
        assert got[name].tolist() == pytest.approx(values, abs=5e-5)


def test_deepnorm_turns_up_the_stream_and_not_the_branch():
    x, g = torch.tensor([1.0, 1, -1, -1]), torch.tensor([1.0, -1, 1, -1])
    alpha, beta = placement.deepnorm_single(8)
    assert (alpha, beta) == pytest.approx((2, 0.35355), abs=5e-6)
    y = placement.deepnorm(x, lambda _: g, lambda v: functional.layer_norm(v, eps=0.0), alpha)
    assert y.tolist() == pytest.approx([1.3416, 0.4472, -0.4472, -1.3416], abs=5e-5)


def test_wirings_with_random_gains():
    """The modules against numpy: N has gain g and shift b, O has gain h and shift c."""
    x = X.numpy()
    r = residual("peri", Square())
    (b, g), (c, h) = ((n.bias.detach().numpy(), n.weight.detach().numpy()) for n in (r.norm, r.output_norm))
    normed = g * score(x) + b
    expected = {
        "post": g * score(x + x**2) + b,
        "pre": x + normed**2,
        "peri": x + h * score(normed**2) + c,
        "output": x + h * score(x**2) + c,
        "deepnorm": g * score(3 * x + x**2) + b,
        "parallel": x + normed**2,
        "hybrid": normed**2 + normed,
        "none": x + x**2,
    }
    assert set(expected) == {p.value for p in Placement}
    for kind, values in expected.items():
        y = residual(kind, Square(), alpha=3.0)(X)
        np.testing.assert_allclose(y.detach().numpy(), values, rtol=1e-12, err_msg=kind)


def test_parallel_reads_the_block_input_and_adds_to_the_stream():
    normed = torch.tensor([0.5, 0, -1, 2], dtype=torch.float64)
    assert torch.equal(residual("parallel", Square())(X, normed=normed), X + normed**2)


@pytest.mark.parametrize(
    "options, second, expected",
    [
        ({"placement": "pre"}, None, [1.7816, 0.3088, 2.7636, 9.1460]),
        ({"placement": "parallel"}, None, [0.1167, 1.3056, 4.0944, 8.4833]),
        ({"placement": "parallel", "parallel_shared_norm": False}, 1, [0.1167, 0.4112, 4.0944, 11.1665]),
        ({"placement": "parallel", "parallel_shared_norm": False}, 0, [0.1167, 1.9056, 4.0944, 13.8832]),
    ],
    ids=["sequential", "one norm", "second norm on the mlp", "names crossed"],
)
def test_blocks_one_after_the_other_or_side_by_side(options, second, expected):
    """attention(v) = v^2, mlp(v) = 2 v. Linear stubs would make all variants agree."""
    config = TransformerConfig(vocab_size=2, context=1, layers=1, width=4, norm="layernorm", **options)
    block = Block(config).double()
    block.residuals[0].sublayer = Square()
    block.residuals[1].sublayer = nn.Sequential()
    block.residuals[1].sublayer.forward = lambda v, **_: 2 * v
    if second is not None:
        with torch.no_grad():
            block.residuals[second].norm.weight.copy_(torch.tensor([1.0, 2, 1, 2]))
    assert block(X[None, None])[0, 0].tolist() == pytest.approx(expected, abs=5e-5)


def test_a_shared_parallel_norm_is_one_module_called_once():
    config = TransformerConfig(vocab_size=2, context=1, layers=1, width=4, placement="parallel")
    block = Block(config)
    first, second = block.residuals
    assert second.norm is None and sum("norm" in name for name in block.state_dict()) == 1
    calls = []
    first.norm.register_forward_hook(lambda *_: calls.append(1))
    block(normal(1, 1, 4, dtype=torch.float32))
    assert len(calls) == 1


# --- what sets them apart --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [p.value for p in Placement])
def test_which_wirings_return_the_stream_when_the_sublayer_is_zero(kind):
    x = normal(2, 3, 4)
    y = residual(kind, Zero(), norm=RMSNorm)(x)
    assert torch.equal(y, x) is (kind in IDENTITY_PATH)
    # A LayerNorm on the output still adds its shift.
    shifted = residual(kind, Zero(), norm=LayerNorm)
    shift = shifted.output_norm.bias if kind in ("peri", "output") else torch.zeros(4)
    assert torch.equal(shifted(x), x + shift) is (kind in IDENTITY_PATH)


@pytest.mark.parametrize("kind", [p.value for p in Placement])
def test_the_identity_path(kind):
    """With zero branches the Jacobian of a wiring is the identity exactly where no norm stands on the stream."""
    jacobian = torch.autograd.functional.jacobian(residual(kind, Zero(), norm=RMSNorm), X)
    assert torch.equal(jacobian, torch.eye(4, dtype=torch.float64)) is (kind in IDENTITY_PATH)


def test_hybrid_attention_has_an_identity_path_and_its_mlp_has_none():
    config = TransformerConfig(vocab_size=2, context=3, layers=1, width=4, placement="hybrid")
    attention, mlp = Block(config).double().residuals
    attention.sublayer, mlp.sublayer = Zero(), Zero()
    x = normal(1, 3, 4)
    assert torch.equal(attention(x), x)
    torch.testing.assert_close(mlp(x), nn.functional.rms_norm(x, (4,), eps=1e-6))


@pytest.mark.parametrize("kind", [p.value for p in Placement])
def test_a_final_norm_exactly_if_the_stream_leaves_unnormalized(kind):
    """Measured on the stream of a fresh model: is every vector of size 1?"""
    settings = {"vocab_size": 50, "context": 8, "layers": 3, "width": 16, "placement": kind}
    model = Transformer(TransformerConfig(final_norm=False, **settings), seed=2).double()
    ids = torch.arange(40).view(5, 8)
    x = model.embed(ids)
    for block in model.blocks:
        x = block(x)
    sizes = x.square().mean(-1).sqrt()
    normalized = torch.allclose(sizes, torch.ones_like(sizes), atol=1e-4)
    assert placement.leaves_stream_normalized(kind) is normalized
    assert TransformerConfig(**settings).final_norm is not normalized


def test_norm_scale_multiplies_every_norm():
    z = score(X.numpy())
    for kind, scaled in (
        ("pre", X.numpy() + (0.5 * z) ** 2),
        ("peri", X.numpy() + 0.5 * score((0.5 * z) ** 2)),
        ("output", X.numpy() + 0.5 * score(X.numpy() ** 2)),
    ):
        norms = [LayerNorm(4, eps=0.0).double() for _ in range(2)]
        r = Residual(Square(), norms[0], kind, output_norm=norms[1], norm_scale=0.5)
        np.testing.assert_allclose(r(X).detach().numpy(), scaled, rtol=1e-12, err_msg=kind)


def test_missing_norms_are_named():
    for kind, options, words in (
        ("pre", {"norm": None}, "pre needs norm"),
        ("post", {"norm": None}, "post needs norm"),
        ("peri", {"norm": RMSNorm(4)}, "peri needs output_norm"),
        ("output", {"norm": RMSNorm(4)}, "output needs output_norm"),
        ("sandwich", {"norm": RMSNorm(4)}, "sandwich"),
    ):
        with pytest.raises(ValueError, match=words):
            Residual(Square(), placement=kind, **options)
    assert Residual(Square(), None, "none")(X).tolist() == [2, 6, 12, 20]


# --- constants -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers, alpha, beta", [(12, 2.213, 0.319), (100, 3.761, 0.188), (8, 2, 8**-0.5)])
def test_deepnorm_of_a_single_stack(layers, alpha, beta):
    a, b = placement.deepnorm_single(layers)
    assert (a, b) == pytest.approx((alpha, beta), abs=5e-4)
    assert a * b == pytest.approx(0.5**0.5)


def test_deepnorm_of_encoder_and_decoder():
    """N = M = 16: (N^4 M)^(1/16) = 2^(5/4). And M alone sets the decoder."""
    (ea, eb), (da, db) = placement.deepnorm_encoder_decoder(16, 16)
    assert (ea, eb) == pytest.approx((0.81 * 2**1.25, 0.87 / 2**1.25))
    assert (da, db) == pytest.approx((48**0.25, 192**-0.25))
    assert placement.deepnorm_encoder_decoder(3, 27)[1] == pytest.approx((3, 324**-0.25))
    assert placement.deepnorm_encoder_decoder(3, 27)[0][0] == pytest.approx(0.81 * 3 ** (7 / 16))


def test_tfixup_exponent_and_published_constants():
    assert placement.tfixup_gain(9) == pytest.approx(1 / 3)  # decoder: 9 * 9 = 3^4
    assert placement.tfixup_gain(16) / placement.tfixup_gain(1) == pytest.approx(0.5)
    assert placement.tfixup_gain(6, 0.67**-4) == pytest.approx(0.67 * 6**-0.25)  # encoder


def test_constants_need_layers():
    for call in (placement.deepnorm_single, placement.tfixup_gain):
        with pytest.raises(ValueError, match="layers must be at least 1, got 0"):
            call(0)
    with pytest.raises(ValueError, match="decoder_layers must be at least 1, got 0"):
        placement.deepnorm_encoder_decoder(6, 0)
    with pytest.raises(ValueError, match="constant must be above 0"):
        placement.tfixup_gain(6, 0.0)


# --- known traps -----------------------------------------------------------------------------------------------------


def test_torch_adds_a_final_norm_to_post_and_none_to_pre():
    """nn.Transformer ends a Post-Norm stack in a second norm; TransformerEncoder(norm_first=True) ends in none."""
    defaults = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    assert sum(p.numel() for p in defaults.encoder.norm.parameters()) == 16
    layer = nn.TransformerEncoderLayer(8, 2, 16, norm_first=True, dropout=0.0, batch_first=True)
    assert nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).norm is None


def test_a_second_norm_changes_nothing_until_gains_train():
    x = normal(5, 16)
    once = make_norm("layernorm", 16).double()
    torch.testing.assert_close(functional.layer_norm(once(x)), once(x), atol=1e-4, rtol=0)
    with torch.no_grad():
        once.weight.copy_(1 + normal(16, seed=1))
    assert not torch.allclose(functional.layer_norm(once(x)), once(x), atol=0.1)


def test_at_initialization_the_variance_grows_linearly():
    """h <- h + LN(h) W with W ~ N(0, 1/d): 1 + l after l steps; with W / sqrt(L) it ends at 2."""
    d, tokens, steps = 1024, 256, 24
    g = torch.Generator().manual_seed(0)
    h = torch.randn(tokens, d, generator=g)
    scaled, variances = h, []
    for _ in range(steps):
        W = torch.randn(d, d, generator=g) / d**0.5
        h = placement.pre(h, lambda v: v @ W, functional.layer_norm)
        scaled = placement.pre(scaled, lambda v: v @ W / steps**0.5, functional.layer_norm)
        variances.append(h.var(-1, correction=0).mean().item())
    assert variances[3::4] == pytest.approx([5, 9, 13, 17, 21, 25], rel=0.02)
    assert scaled.var(-1, correction=0).mean().item() == pytest.approx(2, rel=0.02)


def test_last_gradient_does_not_fall_with_depth_for_post_and_does_for_pre():
    """ReLU MLPs only, d = 64, Xavier, geometric mean over 4 seeds: pre about 1/sqrt(L), post not at all."""

    def last_gradient(kind, layers):
        settings = {"width": 64, "norm": "layernorm", "activation": "relu", "sublayers": ("mlp",)}
        config = TransformerConfig(vocab_size=32, context=16, layers=layers, placement=kind, **settings)
        norms = []
        for seed in range(4):
            model = Transformer(config, seed)
            ids = torch.randint(32, (2, 8, 16), generator=torch.Generator().manual_seed(seed))
            nn.functional.cross_entropy(model(ids[0]).flatten(0, 1), ids[1].flatten()).backward()
            norms.append(model.blocks[-1].residuals[-1].sublayer.down.weight.grad.norm().item())
        return math.prod(norms) ** (1 / len(norms))

    post, pre = ([last_gradient(kind, layers) for layers in (2, 8, 32)] for kind in ("post", "pre"))
    assert post[1] > 0.9 * post[0] and post[2] > 0.9 * post[1]
    assert pre[1] < 0.85 * pre[0] and 0.4 < pre[2] / pre[1] < 0.75
