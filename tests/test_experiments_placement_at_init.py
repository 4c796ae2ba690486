"""Chapter 5 before training: measurements against closed forms, torch and hand-made stacks."""

import json

import pytest
import torch
from draw import normal

from normlab import device, probes, record
from normlab.experiments import small_models
from normlab.experiments.placement import at_init as init
from normlab.placement import Placement
from normlab.training import losses


def small(placement, seed=3, layers=3, **options):
    return init.randomize_norms(init.stack(layers, seed, 16, placement=placement, **options))


# --- wiring -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["rmsnorm", "layernorm"])
def test_post_with_closed_branches_is_a_chain_of_its_norms(norm):
    model, x = init.close_branches(small("post", norm=norm)), normal(2, 5, 16)
    y = x
    for block in model.blocks:
        for residual in block.residuals:
            y = residual.norm(y)
    torch.testing.assert_close(init.run(model, x), y)
    assert probes.relative_size(y - x, x) > 0.1


def test_peri_with_closed_branches_adds_the_biases():
    model, x = init.close_branches(small("peri")), normal(2, 5, 16)
    biases = sum(residual.output_norm.bias for block in model.blocks for residual in block.residuals)
    torch.testing.assert_close(init.run(model, x), x + biases)


def test_run_is_the_model_between_embedding_and_final_norm():
    model, (ids, _) = small("pre"), small_models.passages(2)
    torch.testing.assert_close(model.head(model.final_norm(init.run(model, model.embed(ids)))), model(ids))


def test_randomize_norms_leaves_matrices_alone_and_norms_not():
    before, after = init.stack(2, 0, 16, placement="pre"), init.randomize_norms(init.stack(2, 0, 16, placement="pre"))
    for (name, p), q in zip(before.named_parameters(), after.parameters()):
        assert torch.equal(p, q) == (p.dim() == 2), name
        if p.dim() == 1:
            assert (p - q).abs().max() <= 0.5


def test_pullback_is_the_transposed_jacobian():
    model, x, g = small("post", layers=1), normal(1, 2, 16), normal(1, 2, 16, seed=1)
    jacobian = torch.autograd.functional.jacobian(lambda v: init.run(model, v), x).reshape(32, 32)
    torch.testing.assert_close(init.pullback(model, x, g).flatten(), jacobian.T @ g.flatten())


def test_pullback_past_the_sublayers():
    model, x, g = small("pre"), normal(2, 5, 16), normal(2, 5, 16, seed=1)
    assert torch.equal(init.pullback(model, x, g, detach=True), g)
    assert not torch.allclose(init.pullback(model, x, g), g, rtol=0.1)  # the hooks are gone again
    post = small("post", layers=1)
    first, second = post.blocks[0].residuals
    a = (x + first.sublayer(x)).detach().requires_grad_()
    b = (first.norm(a) + second.sublayer(first.norm(a))).detach().requires_grad_()
    back = torch.autograd.grad(second.norm(b), b, g)[0]
    torch.testing.assert_close(init.pullback(post, x, g, detach=True), torch.autograd.grad(first.norm(a), a, back)[0])


@pytest.mark.parametrize("v, alpha", [(0.0, 1.0), (0.5, 1.0), (1.0, 2.0)])
def test_arriving_is_one_factor_per_norm(v, alpha):
    factor = alpha / (alpha**2 + v) ** 0.5
    assert init.arriving(v, alpha, norms=8) == pytest.approx(factor**8, rel=0.02)


def test_a_norm_behind_an_uncorrelated_increment_divides_by_its_spread():
    # the factor 1/√(1 + v) of Post-Norm, with an increment exactly uncorrelated with the stream
    v, x, r = 0.7, normal(1, 1, 4096), normal(1, 1, 4096, seed=1)
    x = (x - x.mean()) / x.std(correction=0)
    r = r - r.mean() - (r * x).mean() * x
    r = r * (v**0.5 / r.std(correction=0))
    y, g = (x + r).requires_grad_(), normal(1, 1, 4096, seed=2)
    back = torch.autograd.grad(torch.nn.functional.layer_norm(y, (4096,), eps=0.0), y, g)[0]
    assert (back.norm() / g.norm()).item() == pytest.approx((1 + v) ** -0.5, rel=2e-3)


# --- one model --------------------------------------------------------------------------------------------------------


def test_gradients_against_backward():
    model, (ids, targets) = small("post"), small_models.passages(2)
    found = init.gradients(model, ids, targets)
    losses.next_token_loss(model, ids, targets).backward()
    for layer, block in enumerate(model.blocks):
        attention, mlp = (residual.sublayer for residual in block.residuals)
        assert found["down"][layer] == pytest.approx(mlp.down.weight.grad.norm().item())
        assert found["query"][layer] == pytest.approx(attention.query.weight.grad.norm().item())


@pytest.mark.parametrize("name", ["Pre", "DeepNorm"])
def test_profile_by_hand(name):
    model, (ids, targets) = init.stack(2, 1, 16, **init.STACKS[name]), small_models.passages(2)
    x, found = model.embed(ids).detach(), init.profile(model, ids, targets)
    with torch.no_grad():
        for layer, block in enumerate(model.blocks):
            attention, mlp = block.residuals
            middle = attention(x)
            alpha = 4**0.25 if name == "DeepNorm" else 1
            r = mlp.sublayer(mlp.norm(middle) if name == "Pre" else middle)
            end = block(x)
            share = (r.norm(dim=-1) / (alpha * middle).norm(dim=-1)).mean().item()
            assert found["share"][layer] == pytest.approx(share)
            assert found["stream"][layer] == pytest.approx(end.square().mean().sqrt().item())
            assert found["cosine"][layer] == pytest.approx(torch.cosine_similarity(x, end, -1).mean().item())
            x = end


def test_at_init_against_the_model_itself():
    result, (ids, targets) = init.at_init("Pre, no final norm", 3, 2, 16), small_models.passages(8)
    model = init.stack(3, 2, 16, placement="pre", final_norm=False)
    logits = model(ids)
    chosen = logits.log_softmax(-1).gather(-1, targets[..., None])
    assert result["loss"] == pytest.approx(-chosen.mean().item())
    assert result["logits"] == pytest.approx(logits.var(correction=0).sqrt().item())


def test_output_norm_cancels_the_scale_of_its_branch():
    # backward exactly 1/scale, forward nothing, once ε is out of the way
    model, (ids, targets) = init.stack(2, 0, 16, placement="peri", eps=1e-14), small_models.passages(2)
    before = init.profile(model, ids, targets)
    with torch.no_grad():
        for block in model.blocks:
            for residual in block.residuals:
                init.writer(residual.sublayer).weight.mul_(0.25)
    after = init.profile(model, ids, targets)
    assert after["stream"] == pytest.approx(before["stream"], rel=1e-9)
    assert after["down"] == pytest.approx([4 * g for g in before["down"]], rel=1e-9)


# --- over seeds --------------------------------------------------------------------------------------------------------


def test_slopes_of_power_laws():
    assert init.slope((1, 3, 9), [2 * d**-0.5 for d in (1, 3, 9)]) == pytest.approx(-0.5)
    assert init.slope((2, 4, 8, 16), [99.0, *(d**0.7 for d in (4, 8, 16))][1:]) == pytest.approx(0.7)
    runs = [{"down": [c * d**p for d in init.DEPTHS]} for c, p in ((1, -0.4), (5, -0.6))]
    assert init.slopes(runs, "down") == pytest.approx((-0.5, 0.02**0.5))
    bent = [{"down": [1, 1, *(d**-0.5 for d in init.DEPTHS[2:])]} for _ in range(2)]
    assert init.slopes(bent, "down", start=2) == pytest.approx((-0.5, 0))
    layers = torch.arange(1, 8, dtype=torch.float64)
    assert init.layer_slopes(torch.stack([layers**0.1, 3 * layers**0.3])) == pytest.approx((0.2, 0.02**0.5))


def test_typical_is_geometric_but_for_cosines():
    runs = [{"down": [1.0, 2.0], "alike": [0.0, 1.0]}, {"down": [4.0, 2.0], "alike": [0.5, 1.0]}]
    assert init.typical(runs, "down") == pytest.approx([2, 2])
    assert init.typical(runs, "alike") == pytest.approx([0.25, 1])


def test_record_is_complete_and_strict_json():
    text = (record.FOLDER / "placement_at_init.json").read_text("utf-8")
    kept = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in the record"))
    assert [run["setting"] for run in kept["runs"]] == json.loads(json.dumps(init.RECORDS[0].settings))
    assert len(text) < 60_000


def test_record_agrees_with_a_run():
    kept = record.results(record.load("placement_at_init"), name="Peri", seed=1)[0]
    with device.single_thread():
        fresh = init.at_init("Peri", 8, 1)
    assert {k: v[2] for k, v in kept.items()} == pytest.approx(fresh, rel=1e-4)


def test_every_stack_exists():
    assert {init.stack(2, **options).config.placement for options in init.STACKS.values()} >= {
        Placement.POST,
        Placement.PRE,
        Placement.PERI,
        Placement.DEEPNORM,
        Placement.OUTPUT,
        Placement.NONE,
    }


def test_the_stream_alone():
    """With the branches closed to the gradient, every block of Pre-LN sees the same gradient of the stream; its own
    weights still learn from it, and no value changes."""
    model = init.stack(3, seed=4, placement=Placement.PRE, final_norm=False)
    ids, targets = small_models.passages(2)
    seen = {}
    for k, block in enumerate(model.blocks):
        block.register_full_backward_hook(lambda _, g_in, g_out, k=k: seen.__setitem__(k, (g_in[0], g_out[0])))
    x = model.embed(ids).requires_grad_()
    before = init.run(model, x)
    with init.stream_only(model):
        after = init.run(model, x)
        assert torch.equal(before, after)
        after.square().sum().backward()
    for g_in, g_out in seen.values():
        assert torch.equal(g_in, 2 * after) and torch.equal(g_out, 2 * after)
    assert all(b.residuals[1].sublayer.down.weight.grad.abs().sum() > 0 for b in model.blocks)
    whole = torch.autograd.grad(init.run(model, x).square().sum(), x)[0]
    assert not torch.allclose(whole, 2 * after)
