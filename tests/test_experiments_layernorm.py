"""Chapter 3's experiments against closed forms, torch and other ways to the same number."""

import math

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


def test_angle():
    a = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    for angle in (1e-9, 0.5, 3.0):
        b = torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=torch.float64)
        assert ln._angle(a, 7 * b) == pytest.approx(angle, rel=1e-6)


def test_only_the_whole_stream_is_free_under_pre_norm():
    exact = {w: ln.change_of_logits("pre", 3.0, w, eps=0.0) for w in ("one writer", "one reader", "whole stream")}
    assert exact["whole stream"] < 1e-12 and min(exact["one writer"], exact["one reader"]) > 0.1
    assert ln.change_of_logits("peri", 3.0, "one writer", eps=0.0) < 1e-12


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
