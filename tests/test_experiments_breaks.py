"""The planted faults of chapter 11: each has the fault that its name says, and its control has not."""

import math

import pytest
import torch
from torch.nn import functional as F

from normlab import optimizers
from normlab.experiments import breaks
from normlab.norms import RMSNorm
from normlab.record import load, results

# Faults that need no long training, and on which side of a border the reading lies.
CHEAP = {
    "ε above the signal": (0.5, 1),
    "final norm forgotten": (0.05, 1),
    "norm over tokens": (0.01, 1),
    "norm twice": (7.5, 1),
    "weights too large": (60, 1),
    "decay on gains": (0.5, 1),
    "mask inverted": (1e-3, -1),
}


@pytest.mark.parametrize("fault", CHEAP)
def test_the_reading_tells_a_fault_from_its_control_before_training(fault):
    border, side = CHEAP[fault]
    faulty, healthy = (breaks.READINGS[fault](breaks.planted(fault, f, steps=0)) for f in (True, False))
    assert side * (faulty - border) > 0 > side * (healthy - border)


@pytest.mark.parametrize("fault", breaks.FAULTS)
def test_fault_and_control_have_the_same_batch_and_sizes(fault):
    cases = [breaks.FAULTS[fault](f, **({} if fault == "ε outside the root" else {"steps": 1})) for f in (True, False)]
    batches = [c.batch if isinstance(c.batch, dict) else {"ids": c.batch} for c in cases]
    assert batches[0].keys() == batches[1].keys()
    assert all(torch.equal(batches[0][name], batches[1][name]) for name in batches[0])
    shapes = [{p.shape for p in case.model.parameters() if p.dim() > 1} for case in cases]
    assert shapes[0] == shapes[1]


def test_an_unknown_fault_is_named():
    with pytest.raises(ValueError, match="norm thrice"):
        breaks.planted("norm thrice")


def test_every_fault_has_a_finding_or_is_known_to_be_out_of_sight():
    assert breaks.FAULTS.keys() - breaks.FINDINGS.keys() == {
        *breaks.ONLY_IN_THE_LOOP,
        *breaks.ONLY_AGAINST_THE_ORIGINAL,
    }
    assert breaks.QUICK.keys() | breaks.READINGS.keys() | breaks.FINDINGS.keys() <= breaks.FAULTS.keys()


def test_a_trained_model_is_a_copy():
    first = breaks.trained(0, steps=1).model
    with torch.no_grad():
        first.head.weight.zero_()
    assert breaks.trained(0, steps=1).model.head.weight.any()


def test_the_optimizer_has_its_peak_rate_after_training():
    model = breaks.fresh(0)
    optimizer = torch.optim.AdamW(model.parameters(), 0.02)
    seen = []
    curve = breaks.train(model, 3, 0, optimizer, each_step=lambda step: seen.append(optimizer.param_groups[0]["lr"]))
    assert optimizer.param_groups[0]["lr"] == 0.02 and len(curve) == 3
    assert seen == [optimizers.learning_rate(step, 3, 0.02, floor=0.0) for step in range(3)]


def test_lines_padded_on_the_left_are_the_same_lines():
    inputs, targets, mask = breaks.lines("val", 8, 32)(torch.Generator().manual_seed(1))
    left = breaks.padded_left(inputs, targets, mask)
    for before, after in zip((inputs, targets), left):
        for row in range(8):
            assert torch.equal(before[row][mask[row]], after[row][left[2][row]])
    assert (left[2].long().diff(dim=1) >= 0).all() and not mask.all()


def test_attention_with_an_inverted_mask_reads_padding_alone():
    model = breaks.planted("mask inverted", steps=0).model
    attention = model.blocks[0].residuals[0].sublayer
    x, mask = torch.randn(2, 5, 32), torch.tensor([[0, 0, 1, 1, 1]] * 2).bool()
    y = attention(x, attention_mask=mask)
    other = x.clone()
    other[:, 2:4] = torch.randn(2, 2, 32)  # real tokens before the last
    assert torch.equal(attention(other, attention_mask=mask)[:, -1], y[:, -1])
    other[:, 0] += 1.0
    assert not torch.allclose(attention(other, attention_mask=mask)[:, -1], y[:, -1])


def test_the_mean_over_tokens_is_that_of_one_long_batch():
    model = breaks.fresh(3, positions="rope")
    (parts,) = breaks.micro_batches(torch.Generator().manual_seed(2))
    rows = [F.cross_entropy(model(i, m)[m], t[m], reduction="none") for i, t, m in parts]
    assert breaks.mean_over_tokens(model, parts).item() == pytest.approx(torch.cat(rows).mean().item(), rel=1e-5)
    assert breaks.mean_of_means(model, parts).item() == pytest.approx(
        torch.stack([row.mean() for row in rows]).mean().item(), rel=1e-5
    )


@pytest.mark.parametrize("beta2", [0.999, 0.95])
def test_steps_after_a_jump_follow_the_closed_form(beta2):
    """m = 1 − 0.9ᵗ, v = 1 − β₂ᵗ, with the calm before it worth a thousandth (and its square)."""
    found = breaks.steps_after_a_jump(beta2, before=20_000 if beta2 == 0.999 else 1000)
    for t, length in enumerate(found, start=1):
        m = 0.9**t * 1e-3 + 1 - 0.9**t
        v = beta2**t * 1e-6 + 1 - beta2**t
        assert length == pytest.approx(m / math.sqrt(v), rel=1e-6)


def test_a_norm_in_float16_gives_zeros_where_its_squares_overflow():
    model = breaks.planted("squares in float16", steps=1).model
    norm = model.blocks[0].residuals[0].norm
    x = torch.full((1, 1, 32), 10.0)
    x[..., 0] = 300.0
    assert not norm(x).any()
    assert RMSNorm(32)(x).any()


def test_the_record_has_five_seeds_of_each_fault():
    record = load("when_training_breaks")
    for fault in breaks.FAULTS:
        runs = results(record, fault=fault)
        assert len(runs) == 5
        losses = [run["loss"]["healthy"] for run in runs]
        assert all(loss is not None and loss < math.log(65) + 1 for loss in losses)


def test_the_report_of_a_healthy_model_and_of_one_that_ends_at_nan():
    pytest.importorskip("transformers")
    healthy = breaks.planted("ε outside the root", faulty=False)
    assert breaks.debug_report(healthy) == "nothing"
    assert breaks.debug_report(breaks.planted("ε outside the root")).startswith("weight has nans: token_embedding")


@pytest.mark.parametrize("kind", [NotImplementedError, RuntimeError])
def test_a_report_that_cannot_be_made_says_so(kind, monkeypatch):
    """torch has no absolute value of a Boolean mask; in 2.6 this is a RuntimeError, in 2.13 a NotImplementedError."""
    debug_utils = pytest.importorskip("transformers.debug_utils")
    said = "\"abs_cpu\" not implemented for 'Bool'"

    def fail(*_):
        raise kind(said)

    monkeypatch.setattr(debug_utils, "get_abs_min_max", fail)
    assert breaks.debug_report(breaks.planted("ε outside the root", faulty=False)) == f"cannot run: {said}"
    said = "another fault"
    with pytest.raises(kind, match=said):
        breaks.debug_report(breaks.planted("ε outside the root", faulty=False))


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_a_healthy_norm_of_either_kind_is_its_formula(norm):
    model = breaks.fresh(0, norm=norm)
    for module in model.modules():
        if getattr(module, "bias", None) is not None and hasattr(module, "eps"):
            torch.nn.init.normal_(module.bias)
    assert breaks.error_of_norms(breaks.examined(model)) < 1e-6
