"""The roads after Pre and Post against closed forms, hand counts, autograd and the published code."""

import math

import pytest
import torch
from draw import normal

from normlab.attention import Rotary, SelfAttention
from normlab.experiments import roads_after as roads
from normlab.experiments import small_models
from normlab.inspection import observe


def test_a_parameter_without_gradient_is_named():
    assert roads.without_gradient(small_models.model(0, layers=2, width=32, placement="peri")) == []
    dead = small_models.model(0, layers=2, width=32)
    torch.nn.init.zeros_(dead.blocks[0].residuals[1].sublayer.down.weight)  # no gradient reaches up
    up = "blocks.0.residuals.1."
    assert roads.without_gradient(dead) == [f"{up}sublayer.up.weight", f"{up}norm.weight", f"{up}norm.bias"]
    broken = small_models.model(0, layers=2, width=32)
    with torch.no_grad():
        broken.head.weight[0, 0] = math.nan
    with pytest.raises(FloatingPointError, match="the loss is nan"):
        roads.without_gradient(broken)


def test_softmax_does_not_see_what_is_added_to_all_keys():
    """q·(k + b) adds q·b to all logits of a query; rotated keys get another sum at every position."""
    for positions, names in (("learned", [f"blocks.{i}.residuals.0.sublayer.key_norm.bias" for i in range(2)]), ("rope", [])):
        model = small_models.model(0, layers=2, width=32, qk_norm="per_head", positions=positions)
        assert roads.without_gradient(model) == names


def test_frozen_logits_changes_no_output_and_stops_two_gradients():
    model = roads.output_stack(3, seed=1)
    ids = small_models.passages(2)[0]
    before = model(ids)
    with roads.frozen_logits(model):
        inside = model(ids)
    assert torch.equal(before, inside)
    first = model.blocks[0].residuals[0].sublayer
    inside.square().mean().backward()
    assert first.query.weight.grad is None and first.key.weight.grad is None
    assert first.value.weight.grad.abs().max() > 0
    model(ids).square().mean().backward()  # the hooks are gone
    assert first.query.weight.grad.abs().max() > 0


def test_gradients_against_the_general_observer():
    model = roads.output_stack(2, seed=3, qk_norm="joint")
    first, streams = roads.gradients(model, 2)
    ids, targets = small_models.passages(2)
    total = next(g for g in observe.gradients(model, ids, targets) if (g.layer, g.kind) == (1, "attention")).norm
    assert 0 < first < total and len(streams) == 2
    # The second: by hand, from the stream in front of the last block.
    x = model.blocks[0](model.embed(ids)).detach().requires_grad_()
    logits = model.head(model.final_norm(model.blocks[1](x)))
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    assert streams[1] == pytest.approx(torch.autograd.grad(loss, x)[0].square().mean().sqrt().item(), rel=1e-9)


def test_gradients_explode_without_qk_norm_only():
    depth = {qk: roads.gradients(roads.output_stack(32, 0, qk), 2)[0] for qk in ("none", "joint")}
    assert depth["none"] > 10 * depth["joint"]


def test_focus_against_the_general_observer():
    model = roads.output_stack(3, seed=2, qk_norm="per_head")
    expected = observe.attention(model, small_models.passages(3)[0])
    found = roads.focus(model, 3)
    assert [f.layer for f in found] == [e.layer for e in expected]
    for ours, theirs in zip(found, expected):
        assert torch.allclose(ours.logits, theirs.logits, atol=1e-9)


def test_explosion_of_every_kind_and_its_record():
    runs = {kind: roads.explosion(kind, 9, seed=1) for kind in roads.KINDS}
    plain, cut, normed, small = runs.values()
    assert cut["first"] < plain["first"] and cut["logit"] == plain["logit"] and cut["entropy"] == plain["entropy"]
    assert small["logit"][1] < normed["logit"][1] < plain["logit"][1]
    assert len(plain["stream"]) == 3 and plain["stream"][1:] == [roads.gradients(roads.output_stack(9, 1))[1][8]] * 2
    for kind, run in runs.items():
        recorded = roads._explosions(kind, 2, 2)
        assert set(recorded) == set(run) and len(recorded["first"]) == 2


@pytest.mark.parametrize("scale", [0.37, 4.2])
def test_slope_with_qk_norm_is_homogeneous(scale):
    for qk in ("joint", "per_head"):
        assert roads.slope(qk, scale) * scale == pytest.approx(roads.slope(qk, 1.0), rel=1e-9)
    assert abs(roads.slope("none", scale) * scale / roads.slope("none", 1.0) - 1) > 0.1


@pytest.mark.parametrize("qk_norm", ["per_head", "joint"])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("seed", range(3))
def test_bound_holds_for_any_weights(qk_norm, kv_heads, seed):
    attention = roads.attention(qk_norm, seed, gains=0.5, scale=10.0 ** (3 * seed), kv_heads=kv_heads)
    largest = attention.logits(normal(2, 9, 32, seed=seed)).abs().max().item()
    assert 0.05 * roads.logit_bound(attention) < largest <= roads.logit_bound(attention)


@pytest.mark.parametrize("qk_norm, factor", [("per_head", 1), ("joint", 4)])
def test_bound_is_reached(qk_norm, factor):
    attention = roads.attention(qk_norm, scale=1e4)
    with torch.no_grad():
        attention.key.weight.copy_(attention.query.weight)
        attention.query.weight[8:] = 0  # everything in one head
        attention.key.weight[8:] = 0
    x = normal(1, 1, 32)
    assert attention.logits(x)[0, 0, 0, 0].item() == pytest.approx(factor * math.sqrt(8), rel=1e-9)
    assert roads.logit_bound(attention) == pytest.approx(factor * math.sqrt(8))


def test_no_bound_without_norm():
    with pytest.raises(ValueError, match="no bound"):
        roads.logit_bound(SelfAttention(32, 4))


def test_gains_that_are_equal_in_each_pair_commute_with_rope():
    orders = [roads.attention("per_head", gains=0.5, rotary=Rotary(8), norm_after_rotary=after) for after in (0, 1)]
    x = normal(2, 5, 32)
    assert (orders[0].logits(x) - orders[1].logits(x)).abs().max() > 0.1
    for attention in orders:
        with torch.no_grad():
            for norm in (attention.query_norm, attention.key_norm):
                norm.weight[4:] = norm.weight[:4]
    assert (orders[0].logits(x) - orders[1].logits(x)).abs().max() < 1e-12
