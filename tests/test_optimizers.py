"""Learning-rate schedules, and which parameters decay: in our models and in those of transformers."""

import math

import pytest
import torch
from torch import nn

from normlab import optimizers, training
from normlab.experiments.tiny_transformers import tiny_model
from normlab.norms import make_norm

# --- schedules -------------------------------------------------------------------------------------------------------


def test_schedule_corner_values():
    rate = lambda step, **kw: training.learning_rate(step, 100, 2.0, **kw)
    assert rate(0) == rate(99) == 2.0
    assert [rate(s, warmup=4) for s in range(5)] == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert rate(0, floor=0.1) == 2.0
    assert rate(99, warmup=10, floor=0.1) == pytest.approx(0.2)
    assert rate(10, warmup=10, floor=0.1) == pytest.approx(2.0)
    middle = training.learning_rate(60, 111, 2.0, warmup=10, floor=0.0)
    assert middle == pytest.approx(1.0)


def test_named_schedules():
    rate = lambda step, **kw: training.learning_rate(step, 111, 2.0, warmup=10, **kw)
    assert [rate(s, schedule="linear") for s in (4, 10, 35, 60, 110)] == pytest.approx([1.0, 2.0, 1.5, 1.0, 0.0])
    assert rate(60, schedule="linear", floor=0.5) == pytest.approx(1.5)
    assert rate(110, schedule="linear", floor=0.5) == pytest.approx(1.0)
    assert rate(37, schedule="cosine") == rate(37, floor=0.0)
    assert rate(37, schedule="constant") == rate(110, schedule=training.Schedule.CONSTANT) == 2.0
    with pytest.raises(ValueError, match="constant schedule has no floor, got floor=0.1"):
        rate(0, schedule="constant", floor=0.1)
    with pytest.raises(ValueError, match="'square'"):
        rate(0, schedule="square")


@pytest.mark.parametrize("schedule", list(training.Schedule))
@pytest.mark.parametrize("warmup", [0, 3, 10])
def test_no_schedule_goes_on_behind_its_last_step(schedule, warmup):
    """The straight line would be at -1.22 of the peak at step 20 of 10, the cosine would rise again."""
    rate = lambda step: training.learning_rate(step, 10, 1.0, warmup, schedule=schedule)
    assert all(0 <= rate(step) <= 1 for step in range(10))
    for step in (10, 20):
        with pytest.raises(ValueError, match=rf"step must be below steps=10 \(it counts from 0\), got {step}"):
            rate(step)
    with pytest.raises(ValueError, match="step must be at least 0, got -1"):
        rate(-1)


@pytest.mark.parametrize(
    "arguments, error, words",
    [
        ({"steps": 0}, ValueError, "steps must be at least 1, got 0"),
        ({"step": 0.5}, TypeError, "step must be an integer, got 0.5"),
        ({"warmup": -1}, ValueError, "warmup must be at least 0, got -1"),
        ({"warmup": 2.0}, TypeError, "warmup must be an integer, got 2.0"),
        ({"peak": math.inf}, ValueError, "peak must be finite, got inf"),
        ({"peak": -1.0}, ValueError, "peak must not be negative, got -1.0"),
        ({"floor": math.nan}, ValueError, "floor must be finite, got nan"),
        ({"floor": -0.1}, ValueError, "floor must not be negative, got -0.1"),
    ],
)
def test_bad_settings_of_a_schedule_are_named(arguments, error, words):
    with pytest.raises(error, match=words):
        training.learning_rate(**{"step": 0, "steps": 10, "peak": 1.0, **arguments})


# --- gains in half precision -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype, value, threshold",
    [
        (torch.bfloat16, 1.0, 2**-9),  # the next number below 1 is 2^-8 away
        (torch.bfloat16, 1.5, 2**-8),  # between 1 and 2 neighbors are 2^-7 apart
        (torch.float16, 1.0, 2**-12),
        (torch.float16, -3.0, 2**-10),
    ],
)
@pytest.mark.parametrize("gradient", [1.0, -1.0])
def test_adamw_moves_a_gain_exactly_where_immovable_says(dtype, value, threshold, gradient):
    for lr, stuck in ((0.98 * threshold, True), (2.1 * threshold, False)):
        norm = make_norm("rmsnorm", 3).to(dtype)
        nn.init.constant_(norm.weight, value)
        assert optimizers.immovable(norm, lr) == (["weight"] if stuck else [])
        optimizer = optimizers.make_optimizer(optimizers.OptimizerKind.ADAMW, norm, lr, 0.1, (0.9, 0.95))
        for _ in range(20):
            norm.weight.grad = torch.full_like(norm.weight, gradient)
            optimizer.step()
        assert (norm.weight == value).all() == stuck


def test_only_what_no_step_can_move_is_immovable():
    norms = {"rms": make_norm("rmsnorm", 4), "gemma": make_norm("rmsnorm", 4, convention="gemma")}
    norms |= {"layer": make_norm("layernorm", 4), "heads": HeadwiseRMSNorm(), "frozen": nn.RMSNorm(4)}
    model = nn.ModuleDict({**norms, "proj": nn.Linear(4, 4), "table": nn.Embedding(3, 4)})
    model["frozen"].requires_grad_(False)
    nn.init.ones_(model["table"].weight)  # decays: that moves it
    assert optimizers.immovable(model, 1e-12) == []  # of half types only
    model.bfloat16()
    with torch.no_grad():
        model["proj"].bias.fill_(0.01)
    assert optimizers.immovable(model, 6e-4) == ["rms.weight", "layer.weight", "heads.weight"]
    with torch.no_grad():
        model["rms"].weight[2] = 0.0  # one entry that moves is enough
    assert optimizers.immovable(model, 6e-4) == ["layer.weight", "heads.weight"]


# --- parameter groups ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_no_vector_decays_whatever_it_is_called(kind):
    model = nn.ModuleDict({"t_rms": make_norm(kind, 4), "ln_1": nn.LayerNorm(4), "proj": nn.Linear(4, 3)})
    decayed, spared = training.parameter_groups(model, 0.1)
    assert decayed["weight_decay"] == 0.1 and spared["weight_decay"] == 0
    assert [tuple(p.shape) for p in decayed["params"]] == [(3, 4)]
    assert len(decayed["params"]) + len(spared["params"]) == len(list(model.parameters()))


class HeadwiseRMSNorm(nn.Module):
    """A gain per head and feature: a matrix, as in Cohere's QK-norm."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 4))


def test_a_gain_that_is_a_matrix_does_not_decay():
    model = nn.ModuleDict({"q": HeadwiseRMSNorm(), "image": nn.LayerNorm((3, 5)), "proj": nn.Linear(4, 3)})
    decayed = training.parameter_groups(model, 0.1)[0]["params"]
    assert [tuple(p.shape) for p in decayed] == [(3, 4)]


@pytest.mark.parametrize(
    "module, yes",
    [(nn.BatchNorm1d(2), 1), (nn.GroupNorm(1, 2), 1), (nn.InstanceNorm2d(2), 1), (nn.Linear(2, 2), 0)],
)
def test_norms_are_known_by_their_class(module, yes):
    assert optimizers.is_norm(module) == bool(yes)


def test_tied_and_frozen_parameters():
    model = nn.ModuleDict({"embedding": nn.Embedding(7, 4), "head": nn.Linear(4, 7), "frozen": nn.Linear(2, 2)})
    model["head"].weight = model["embedding"].weight
    model["frozen"].requires_grad_(False)
    decayed, spared = (group["params"] for group in training.parameter_groups(model, 0.1))
    assert [tuple(p.shape) for p in decayed] == [(7, 4)]
    assert [tuple(p.shape) for p in spared] == [(7,)]


# --- real models -----------------------------------------------------------------------------------------------------


def tiny(family, layers):
    pytest.importorskip("transformers")
    return tiny_model(family, **{"n_layer" if family == "GPT-2" else "num_hidden_layers": layers})


@pytest.mark.parametrize(
    "family, layers, missed", [("Llama", 3, 7), ("GPT-2", 6, 13), ("OLMo 2", 1, 5), ("Qwen 3", 1, 5), ("Gemma 2", 2, 9)]
)
def test_no_norm_of_a_real_model_decays(family, layers, missed):
    """The usual list of names misses some in every family; dimension and class miss none."""
    model = tiny(family, layers)
    names = {id(p): name for name, p in model.named_parameters()}
    vectors = {id(p) for p in model.parameters() if p.dim() < 2}
    by_name = [i for i in vectors if not any(pattern in names[i] for pattern in ("bias", "LayerNorm.weight"))]
    assert len(by_name) == missed
    decayed, spared = ({id(p) for p in group["params"]} for group in training.parameter_groups(model, 0.1))
    assert not decayed & vectors and decayed | spared == set(names)
    norms = [m for m in model.modules() if optimizers.is_norm(m)]
    assert len(norms) == missed  # these families have a gain in each, and no other vector without "bias" in its name
    assert {id(p) for m in norms for p in m.parameters()} <= spared


def test_a_training_step_leaves_unused_gains_alone():
    """Gemma's gain is 1 + w, Llama's is w: decay would move either, the first towards 1, the second towards 0."""
    for family in ("Gemma 2", "Llama"):
        model = tiny(family, 1)
        gains = [m.weight for m in model.modules() if optimizers.is_norm(m)]
        for gain in gains:
            nn.init.constant_(gain, 0.5)
        optimizer = torch.optim.AdamW(training.parameter_groups(model, 0.9), lr=0.1)
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        assert all((gain == 0.5).all() for gain in gains)


def test_a_model_of_transformers_trains():
    batches = lambda generator: (torch.arange(8)[None], torch.arange(1, 9)[None])
    model = tiny("Llama", 1)
    history = training.train(model, batches, 30, lr=1e-2, seed=0)
    assert history.loss[-1] < 0.5 * history.loss[0]
