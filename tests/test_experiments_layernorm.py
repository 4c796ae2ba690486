"""Chapter 3's experiments against closed forms, torch and other ways to the same number."""

import math
from statistics import fmean

import pytest
import torch

from normlab import functional, record
from normlab.experiments import layernorm as ln


def test_token_of_the_figure():
    y = torch.nn.functional.layer_norm(ln.TOKEN, (12,), ln.GAIN, ln.BIAS)
    assert torch.allclose(functional.layer_norm(ln.TOKEN, ln.GAIN, ln.BIAS), y, atol=1e-14)


def test_tokens_have_the_mean_and_spread_they_claim():
    x, mean, spread = ln.tokens_with_offsets(50)
    assert torch.allclose(x.mean(-1, keepdim=True), mean) and torch.allclose(x.std(-1, correction=0, keepdim=True), spread)


def test_restoration_by_hand():
    """A gain alone, two tokens: per feature the projection of (x1, x2) on the scores (a, b)."""
    x, _, _ = ln.tokens_with_offsets(2, width=8)
    a, b = functional.layer_norm(x, eps=0.0)
    lost = (x[0] * b - x[1] * a).square() / (a.square() + b.square())  # squared distance to the line through (a, b)
    expected = (lost.sum() / x.square().sum()).sqrt().item()
    assert ln.best_restoration(x, bias=False) == pytest.approx(expected, rel=1e-9)
    assert ln.best_restoration(x) < 1e-12


def test_restoration_of_tokens_with_equal_statistics_is_complete():
    x = 3 + 2 * functional.layer_norm(ln.normal(20, 16), eps=0.0)
    assert ln.best_restoration(x) < 1e-12 < 0.1 < ln.best_restoration(x, bias=False)


def test_many_tokens_lose_what_was_predicted():
    many = ln.best_restoration(ln.tokens_with_offsets(20_000, width=8, seed=5)[0])
    assert many == pytest.approx(ln.predicted_restoration(), rel=0.01)


def test_used_statistics_are_those_that_made_the_output():
    x = ln.normal(2, 3, 16, seed=1)
    mean, spread = ln.normal(2, 3, 1, seed=2), ln.normal(2, 3, 1, seed=3).exp()
    found = ln.used_statistics(x, (x - mean) / spread)
    torch.testing.assert_close(found, (mean[..., 0], spread[..., 0]))
    with pytest.raises(ValueError, match="one spread"):
        ln.used_statistics(x, x.square())


def test_final_norm_of_gpt2_is_torchs_and_leaves_the_random_numbers_alone():
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    norm = ln.gpt2_final_norm(12)
    after = torch.rand(3)
    torch.manual_seed(0)
    assert torch.equal(after, torch.rand(3))
    assert type(norm) is torch.nn.LayerNorm and norm.normalized_shape == (12,)


def test_affine_map_is_read_off():
    matrix, constant = ln.normal(3, 5, seed=1), ln.normal(3, seed=2)
    torch.testing.assert_close(ln.linear_map(lambda x: matrix @ x + constant, 5), (matrix, constant))


@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_one_step_is_pythagoras(factor):
    length, tangent = ln.one_step(factor, length=3.0, gradient=2.0, lr=0.25)
    start, step = 3 * factor, 0.5 / factor
    assert length == pytest.approx(math.hypot(start, step)) and tangent == pytest.approx(step / start)


def test_summaries_of_the_turns_by_hand():
    def run(decay, plain, **more):
        setting = {"optimizer": "SGD", "lr": 0.5, "decay": decay}
        return {"setting": setting, "result": {"0.5": {"plain": plain, **more}}}

    plain = {"turn": 2.0, "lean": 0.1, "shorter": 7}
    made = {"runs": [run(1.0, plain, **{"loss × 100": {"turn": 2.2}}), run(0.0, plain)]}
    unit = ln.predicted_turn("SGD", 0.5, 0.5, 1.0)
    assert ln.turn_quotients(made) == {("SGD", 0.5): pytest.approx([2 / unit, 2.2 / unit])}
    assert ln.effect_of_loss_scale(made) == pytest.approx([0.1])
    assert ln.measured_leans(made) == {("SGD", 0.5): [(0.1, 2.0, 7)]}


@pytest.mark.parametrize("eps", [0.0, 1e-5, 0.1])
def test_jacobian_is_the_one_of_torch_and_has_the_predicted_spectrum(eps):
    x = ln.normal(9, seed=3)
    torchs = torch.autograd.functional.jacobian(lambda v: torch.nn.functional.layer_norm(v, (9,), eps=eps), x)
    assert torch.allclose(ln.jacobian(x, eps), torchs, atol=1e-13)
    assert torch.allclose(ln.closed_form_jacobian(x, eps), torchs, atol=1e-13)
    variance = x.var(correction=0)
    r = (variance + eps).rsqrt()
    expected = torch.stack([r] * 7 + [r * eps / (variance + eps), 0 * r])
    assert torch.allclose(torch.linalg.svdvals(torchs), expected, atol=1e-13)


def test_gradient_is_autograd_of_torch():
    at = ln.Upstream(eps=1e-3, seed=4)
    W = at.W.clone().requires_grad_()
    (at.c * torch.nn.functional.layer_norm((W @ at.h).T, (32,), eps=1e-3)).sum().backward()
    assert torch.allclose(at.gradient(at.W), W.grad, atol=1e-12)


def test_tilt_is_a_right_angle_at_eps_0_only():
    assert abs(ln.tilt(1e-3, seed=3, eps=0.0)) < 1e-12
    assert abs(ln.tilt(1e-3, seed=1)) > 0.02


def test_single_matrices_change_the_logits_except_behind_a_norm_of_their_output():
    changes = ln.changes_one_by_one("peri", 3.0, eps=0.0)
    free = {name for name, change in changes.items() if change < 1e-12}
    assert free == {f"blocks.{b}.residuals.{r}.sublayer.{w}.weight" for b in range(4) for r, w in ((0, "value"), (0, "out"), (1, "down"))}
    stack = ln.walk.fresh_stack(4, 0)
    assert changes.keys() == {name for name, weight in stack.named_parameters() if weight.dim() > 1}


@pytest.mark.parametrize("alpha", [1e-3, 0.1, 10.0])
def test_gradient_factor(alpha):
    assert ln.gradient_factor(alpha, 0.0) == pytest.approx(1 / alpha, rel=1e-11)
    assert ln.gradient_factor(alpha, 1e-2) < (1 + 1e-3) / alpha


def test_sgd_step_follows_pythagoras_and_decay_shrinks_first():
    sgd = ln.train_behind_norm(ln.RULES[0], steps=30)
    assert max(abs(c) for c in sgd.lean) < 1e-12 and sorted(sgd.length) == sgd.length
    for before, after, turn in zip(sgd.length, sgd.length[1:], sgd.turn):
        assert math.cos(turn) == pytest.approx(before / after, rel=1e-10)  # a right triangle
    lr, decay = 0.1, 0.04
    step = ln.train_behind_norm(ln.RULES[1], steps=1)
    squared = (step.length[0] * (1 - lr * decay)) ** 2 + (sgd.length[1] ** 2 - sgd.length[0] ** 2)
    assert step.length[1] ** 2 == pytest.approx(squared, rel=1e-10)


def test_balance_of_decay_for_another_rate():
    rule = ln.Rule("SGD + decay", torch.optim.SGD, {"lr": 0.2, "weight_decay": 0.05})
    turns = ln.train_behind_norm(rule, steps=600, seed=1).turn[-200:]
    assert sum(turns) / len(turns) == pytest.approx((2 * 0.2 * 0.05) ** 0.5, rel=0.05)


def random_walk(optimizer, momentum, lr, decay, steps=2500, size=1000):
    """Turn per step and lean of a vector that is pushed by random unit vectors at a right angle to it, as torch's SGD
    (gradient 1/length, decay in the gradient) or AdamW (steps of a fixed length) would have it, written out."""
    generator = torch.Generator().manual_seed(3)
    w, buffer = torch.randn(size, generator=generator, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
    w *= 3 / w.norm()
    turns, leans = [], []
    for step in range(steps):
        fresh = torch.randn(size, generator=generator, dtype=torch.float64)
        fresh -= w * (fresh @ w) / (w @ w)
        fresh /= fresh.norm()
        if optimizer == "SGD":
            buffer = momentum * buffer + fresh / w.norm() + decay * w
            after = w - lr * buffer
        else:
            buffer = momentum * buffer + (1 - momentum) * fresh
            after = (1 - lr * decay) * w - lr * buffer
        if step >= steps // 2:
            turns.append(math.acos(w @ after / (w.norm() * after.norm())))
            leans.append(-(buffer @ w) / (buffer.norm() * w.norm()))
        w = after
    return sum(turns) / len(turns), (sum(leans) / len(leans)).item()


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("momentum", ln.MOMENTA)
def test_predicted_turn_is_that_of_a_random_walk(optimizer, momentum):
    assert random_walk(optimizer, momentum, 0.1, 0.02)[0] == pytest.approx(
        ln.predicted_turn(optimizer, momentum, 0.1, 0.02), rel=0.02
    )


@pytest.mark.parametrize("momentum", ln.MOMENTA)
def test_lean_of_a_random_walk_is_turn_times_momentum(momentum):
    turn, lean = random_walk("AdamW", momentum, 0.1, 0.02)
    assert lean == pytest.approx(turn * momentum / (1 - momentum), rel=0.05, abs=1e-3)


def test_rules_with_momentum_are_torchs():
    for optimizer, kind in (("SGD", torch.optim.SGD), ("AdamW", torch.optim.AdamW)):
        rule = ln.momentum_rule(optimizer, 0.5, 0.1, 0.02)
        group = rule.optimizer([torch.zeros(1, requires_grad=True)], **rule.options).param_groups[0]
        assert rule.optimizer is kind and (group["lr"], group["weight_decay"]) == (0.1, 0.02)
        assert group["momentum" if optimizer == "SGD" else "betas"] == (0.5 if optimizer == "SGD" else (0.5, 0.999))


def test_loss_scale_scales_the_first_step_of_sgd_and_not_that_of_adam():
    for rule, factor in ((ln.RULES[0], 7), (ln.RULES[2], 1)):
        first, second = (ln.train_behind_norm(rule, steps=1, loss_scale=scale) for scale in (1.0, 7.0))
        assert second.loss[0] == pytest.approx(7 * first.loss[0])
        assert math.tan(second.turn[0]) == pytest.approx(factor * math.tan(first.turn[0]), rel=1e-6)


def test_turns_are_those_of_the_course():
    short = ln.turns("SGD", 0.1, 0.0, steps=8, seed=1, variants=False)
    course = ln.train_behind_norm(ln.RULES[0], steps=8, seed=1)
    assert short["0"]["plain"]["turn"] == pytest.approx(sum(course.turn[-2:]) / 2)
    assert set(short) == {"0", "0.5", "0.9"} and short["0"]["plain"]["shorter"] == 0
    assert set(ln.turns("AdamW", 0.1, 0.1, steps=4, seed=1, variants=True)["0.9"]) == set(ln.VARIANTS)


def test_angle():
    a = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    for angle in (1e-9, 0.5, 3.0):
        b = torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=torch.float64)
        assert ln._angle(a, 7 * b) == pytest.approx(angle, rel=1e-6)


def test_only_the_whole_stream_is_free_under_pre_norm():
    exact = {w: ln.change_of_logits("pre", 3.0, w, eps=0.0) for w in ("one writer", "one reader", "whole stream")}
    assert exact["whole stream"] < 1e-12 and min(exact["one writer"], exact["one reader"]) > 0.1
    assert max(ln.change_of_logits("peri", 3.0, w, eps=0.0) for w in ("one writer", "values")) < 1e-12
    assert ln.change_of_logits("pre", 3.0, "whole stream", eps=0.0, tied_head=True) > 1  # the head is scaled as well


def test_under_pre_norm_no_matrix_alone_is_free():
    model = ln.walk.fresh_stack(2, 0, eps=0.0)
    ids = ln.walk.reading(64, 4)[0]
    with torch.no_grad():
        before = model(ids)
        for name, weight in model.named_parameters():
            if weight.ndim == 2:
                weight.mul_(3)
                assert (model(ids) - before).norm() > 0.05 * before.norm(), name
                weight.div_(3)


class DecoupledSGD(torch.optim.SGD):
    """SGD with momentum whose decay does not go through the momentum."""

    def __init__(self, params, lr, momentum, decay):
        super().__init__(params, lr=lr, momentum=momentum)
        self.kept = 1 - lr * decay

    def step(self, closure=None):
        W = self.param_groups[0]["params"][0]
        shrinkage = (1 - self.kept) * W.detach()
        super().step(closure)
        W.data.sub_(shrinkage)


def test_the_way_of_the_decay_sets_the_turn_of_sgd_with_momentum():
    lr, decay, momentum = 0.2, 0.05, 0.9
    inside = ln.Rule("inside", torch.optim.SGD, {"lr": lr, "momentum": momentum, "weight_decay": decay})
    outside = ln.Rule("outside", DecoupledSGD, {"lr": lr, "momentum": momentum, "decay": decay})
    turns = [fmean(ln.train_behind_norm(rule, steps=1200).turn[-400:]) for rule in (inside, outside)]
    balance = (2 * lr * decay) ** 0.5
    assert abs(turns[0] / balance * (1 + momentum) ** 0.5 - 1) < 0.03
    assert abs(turns[1] / balance * ((1 + momentum) / (1 - momentum)) ** 0.5 - 1) < 0.03


def test_what_writes_to_the_stream_is_embeddings_and_output_matrices():
    model = ln.walk.fresh_stack(3, 0)
    writers = {id(w) for w in ln.stream_writers(model)}
    others = {name for name, p in model.named_parameters() if id(p) not in writers}
    assert len(writers) == 2 + 2 * 3
    reading = ("query", "key", "value", "up")
    assert all("norm" in n or n.startswith("head") or n.split(".")[-2] in reading for n in others)


def test_right_angle_is_the_joint_vectors_alone():
    for seed in (7, 8):
        angles = ln.right_angles(seed, layers=2)
        assert abs(angles["joint"]) < 1e-15 and angles["largest"] > 1e-4
        assert 1e-12 < abs(ln.right_angles(seed, eps=1e-3, layers=2)["joint"]) < 1e-4


def test_worth_of_gains_of_hand_made_models():
    model = ln.train_with_gains("gain and bias", seed=0, layers=1, width=8, steps=20, lr=1e-2)
    before = [p.clone() for p in model.parameters()]
    with torch.no_grad():
        for norm in ln.norms_of(model):
            norm.weight.fill_(3.0)
            norm.bias.zero_()
    equal = ln.worth_of_gains(model, count=2)
    assert abs(equal["mean"]) < 1e-12 and equal["shuffled"] == equal["no bias"] == 0 and abs(equal["one"]) > 1e-3
    assert all(p.shape == b.shape for p, b in zip(model.parameters(), before))
    with torch.no_grad():
        for norm in ln.norms_of(model):
            norm.weight[0] = -3.0
    uneven = ln.worth_of_gains(model, count=2)
    assert all(abs(uneven[key]) > 1e-3 for key in ("mean", "one", "shuffled")) and uneven["no bias"] == 0
    assert all(norm.weight[0] == -3 for norm in ln.norms_of(model))


def test_detached_norm_is_layer_norm_forward():
    x = ln.normal(5, 16)
    for cut in ln.CUTS.values():
        torch.testing.assert_close(ln.DetachedNorm(cut)(x), torch.nn.functional.layer_norm(x, (16,)))


def test_detached_norm_backward_is_that_of_the_theorem():
    """Xu et al. 2019: which part of the backward pass goes with which statistic."""
    x, g = ln.normal(5, 16).requires_grad_(), ln.normal(5, 16, seed=1)
    rate = (x.detach().var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
    found = {name: torch.autograd.grad(ln.DetachedNorm(cut)(x), x, g)[0] for name, cut in ln.CUTS.items()}
    torchs = torch.autograd.grad(torch.nn.functional.layer_norm(x, (16,)), x, g)[0]
    torch.testing.assert_close(found["nothing"], torchs)
    torch.testing.assert_close(found["both"], rate * g)
    torch.testing.assert_close(found["the spread"], rate * (g - g.mean(-1, keepdim=True)))
    torch.testing.assert_close(found["the mean"].mean(-1, keepdim=True), rate * g.mean(-1, keepdim=True))


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_nothing_cut_trains_as_the_norm_without_parameters_and_something_cut_does_not(placement):
    options = {"layers": 1, "width": 8, "steps": 5}
    model = ln.small_models.model(3, layers=1, width=8, placement=placement, convention="bare")
    ln.small_models.train(model, 5, 1e-2, 3)
    plain = ln.small_models.validation_loss(model.cpu(), count=32)
    losses = {cut: ln.train_detached(placement, cut, 1e-2, 3, **options)["loss"] for cut in ln.CUTS}
    assert losses["nothing"] == pytest.approx(plain, abs=1e-5)
    assert all(abs(loss - plain) > 1e-5 for cut, loss in losses.items() if cut != "nothing")


def test_norms_without_parameters_learn_none_and_are_described():
    bare = ln.train_with_gains("none", seed=0, layers=1, width=8, steps=2)
    assert bare.final_norm.weight is None and set(ln.learned(bare)) == {"validation_loss"}
    fresh = ln.learned(ln.train_with_gains("gain and bias", seed=0, layers=1, width=8, steps=1, lr=1e-9))
    assert fresh["mean"] == pytest.approx([1, 1, 1]) and fresh["bias"] == pytest.approx([0, 0, 0], abs=1e-8)


def test_eps_are_read_from_annotated_fields(tmp_path):
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "configuration_toy.py").write_text(
        "class ToyConfig:\n    rms_norm_eps: float = 1e-6\n    layer_norm_epsilon: float | None = 1e-5\n"
        "    batch_norm_eps: float = 1e-3\n    hidden: int = 4\n    layer_norm_eps: float = 1e-05\n"
    )
    pytest.importorskip("transformers")
    assert ln.eps_in_configs(tmp_path)["counts"] == {"1e-05": 2, "1e-06": 1}
    assert ln.default_eps("toy", tmp_path) == [1e-6, 1e-5, 1e-5]


def test_record_of_eps_is_that_of_its_version():
    transformers = pytest.importorskip("transformers")
    stored = record.load("eps_in_configs")["runs"][0]["result"]
    if transformers.__version__ != stored["transformers"]:
        pytest.skip(f"the record is of transformers {stored['transformers']}")
    assert ln.eps_in_configs() == stored


@pytest.mark.parametrize("recipe", ln.RECORDS, ids=lambda recipe: recipe.name)
def test_records_are_complete(recipe):
    settings = [run["setting"] for run in record.load(recipe.name)["runs"]]
    assert settings == recipe.settings
