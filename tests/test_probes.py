"""Probes against direct computation."""

import math

import pytest
import torch
from draw import normal

from normlab import probes
from normlab.experiments import drunkards_walk as walk
from normlab.transformer import Transformer, TransformerConfig


def model(**options):
    settings = {"vocab_size": 9, "context": 12, "layers": 4, "width": 20, "heads": 2, "norm": "layernorm", **options}
    return Transformer(TransformerConfig(**settings), seed=3).double()


IDS = torch.randint(9, (3, 12), generator=torch.Generator().manual_seed(0))


def test_the_three_quantities_of_every_sublayer():
    net = model()
    records = probes.readings(net, IDS)
    assert [(r.layer, r.kind) for r in records] == [(l, k) for l in (1, 2, 3, 4) for k in ("attention", "mlp")]
    x = net.embed(IDS)
    for r, residual in zip(records, (s for b in net.blocks for s in b.residuals)):
        assert torch.equal(r.stream, x)
        assert torch.equal(r.sublayer_input, residual.norm(x))
        assert torch.equal(r.increment, residual.sublayer(r.sublayer_input))
        x = x + r.increment
        assert torch.equal(r.stream_after, x)
    assert torch.equal(net.head(net.final_norm(x)), net(IDS))  # hooks are gone, the model still runs


def test_moments_against_numpy():
    import numpy as np

    x, y = normal(4, 6, 11, seed=0, mean=2.0), normal(4, 6, 11, seed=1, mean=-1.0)
    pairs = [np.cov(a, b, bias=True) for a, b in zip(x.view(-1, 11).numpy(), y.view(-1, 11).numpy())]
    assert probes.variance(x) == pytest.approx(np.mean([p[0, 0] for p in pairs]))
    assert probes.covariance(x, y) == pytest.approx(np.mean([p[0, 1] for p in pairs]))
    assert probes.size(x) == pytest.approx(np.sqrt(np.mean(x.numpy() ** 2)))
    assert probes.correlation(x, 3 * x + 7) == pytest.approx(1)
    assert probes.correlation(x, torch.ones_like(x)) == 0


def test_the_variance_identity_holds_to_rounding():
    account = probes.variance_account(probes.readings(model(), IDS))
    assert max(s.error for s in account) < 1e-14
    for earlier, later in zip(account, account[1:]):
        assert earlier.after == later.before
    growth = account[-1].after - account[0].before
    increments = sum(s.increment for s in account) / growth
    assert probes.covariance_share(account) == pytest.approx(1 - increments)


def test_a_post_norm_stream_has_no_variance_account():
    with pytest.raises(ValueError, match=r"block 1 \(attention\)"):
        probes.variance_account(probes.readings(model(placement="post"), IDS))


def test_skipped_sublayers_hand_the_stream_through():
    net = model()
    whole = net(IDS)
    with probes.skipped([r for b in net.blocks for r in b.residuals]):
        torch.testing.assert_close(net(IDS), net.head(net.final_norm(net.embed(IDS))))
    assert torch.equal(net(IDS), whole)


@pytest.mark.parametrize("placement", ["peri", "output", "parallel", "none"])
def test_the_stream_grows_by_the_increment(placement):
    net = model(placement=placement, output_scale="inverse_sqrt_layer" if placement != "none" else "none")
    records = probes.readings(net, IDS)
    for r, residual in zip(records, (s for b in net.blocks for s in b.residuals)):
        torch.testing.assert_close(r.stream + r.increment, r.stream_after)
        output = residual.sublayer(r.sublayer_input)
        if residual.output_norm is not None:
            output = residual.norm_scale * residual.output_norm(output)
        assert torch.equal(r.increment, output)
    assert max(s.error for s in probes.variance_account(records)) < 1e-13
    if placement == "parallel":
        assert torch.equal(records[0].sublayer_input, records[1].sublayer_input)


def test_a_hybrid_mlp_adds_to_its_own_input():
    attention, mlp = probes.readings(model(placement="hybrid"), IDS)[:2]
    torch.testing.assert_close(attention.stream + attention.increment, mlp.stream)
    torch.testing.assert_close(mlp.sublayer_input + mlp.increment, mlp.stream_after)


def test_how_far_a_block_moves_the_stream():
    net = model()
    mask = torch.ones_like(IDS)
    mask[0, 5:] = 0
    x = net.embed(IDS)
    for block, step, at_real in zip(
        net.blocks,
        probes.block_steps(probes.readings(net, IDS)),
        probes.block_steps(probes.readings(net, IDS, mask), mask),
        strict=True,
    ):
        y = block(x)
        change = (y - x).norm(dim=-1) / x.norm(dim=-1)
        cosine = (x * y).sum(-1) / x.norm(dim=-1) / y.norm(dim=-1)
        assert step.change == pytest.approx(change.mean().item())
        assert step.cosine == pytest.approx(cosine.mean().item())
        assert at_real.change == pytest.approx(change[mask.bool()].mean().item())  # real tokens never see later padding
        assert at_real.cosine == pytest.approx(cosine[mask.bool()].mean().item())
        x = y


def test_relative_size():
    x, r = torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.tensor([[0.0, 1.0], [6.0, 8.0]])
    assert probes.relative_size(r, x) == pytest.approx((1 / 5 + 10 / 2) / 2)
    assert probes.relative_size(r, x, torch.tensor([0, 1])) == pytest.approx(5)


# --- chapter 1 experiments against closed forms ------------------------------------------------------------------------


def test_mean_distance_of_the_coin_walk():
    from itertools import product

    assert walk.exact_mean_distance(6) == pytest.approx(sum(abs(sum(t)) for t in product((-1, 1), repeat=6)) / 2**6)
    w = walk.coin_walk(walkers=20_000)
    assert w.rms[-1].item() == pytest.approx(10, rel=0.03)
    assert w.mean[-1].item() == pytest.approx(walk.exact_mean_distance(100), rel=0.03)


@pytest.mark.parametrize("rule", walk.RULES, ids=lambda r: r.name)
def test_synthetic_streams_follow_their_prediction(rule):
    sizes, _ = walk.synthetic_stream(rule, 30, seed=11)
    assert sizes[-1].item() == pytest.approx(rule.mean_square(30) ** 0.5, rel=0.03)


def test_rules_differ_enough_to_be_told_apart():
    ratios = sorted((r.mean_square(80) / r.mean_square(12)) ** 0.5 for r in walk.RULES)
    assert all(b / a > 1.05 for a, b in zip(ratios, ratios[1:]))


@pytest.mark.parametrize("optimizer, absolute, relative", [("sgd", 0.1, 0.01), ("adam", 1.0, 0.1)])
def test_update_sizes_when_the_weights_are_ten_times_larger(optimizer, absolute, relative):
    a1, r1 = walk.first_update(1.0, optimizer)
    a10, r10 = walk.first_update(10.0, optimizer)
    assert a10 / a1 == pytest.approx(absolute) and r10 / r1 == pytest.approx(relative)


def test_token_cosine_by_pairs():
    x = normal(2, 5, 7)
    pairs = [
        torch.cosine_similarity(x[b, i], x[b, j], dim=0)
        for b in range(2)
        for i in range(5)
        for j in range(5)
        if i != j
    ]
    assert probes.token_cosine(x) == pytest.approx(sum(pairs).item() / len(pairs))


def test_if_independent_by_hand():
    assert walk.if_independent({"variance": [2.0, 9.0], "increment": [3.0, 13.0]}) == pytest.approx(3)


def test_gradients_of_what_writes_halve_when_the_stream_doubles():
    factors = walk.gradients_when_the_stream_doubles(seed=3)
    assert list(factors.values()) == pytest.approx([0.5, 0.5, 1, 1], rel=1e-6)


def test_token_cosine_of_known_tokens():
    assert probes.token_cosine(torch.ones(2, 4, 3)) == pytest.approx(1)
    assert probes.token_cosine(torch.eye(4, dtype=torch.float64)[None]) == pytest.approx(0, abs=1e-12)
    x = torch.tensor([[[1.0, 0.0], [0.0, 5.0], [2.0, 2.0]]], dtype=torch.float64)
    assert probes.token_cosine(x) == pytest.approx(2 * math.sqrt(0.5) / 3)
