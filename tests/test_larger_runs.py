"""The larger runs of the chapters: counted as they are, off unless asked, and within 12 GB."""

import dataclasses
import functools

import pytest
import torch

from normlab import device, record
from normlab.experiments import drunkards_walk, larger_runs, small_models
from normlab.experiments.placement import trained
from normlab.training import next_token_loss


@pytest.fixture(autouse=True)
def off(monkeypatch):
    monkeypatch.delenv("NORMLAB_DEVICE", raising=False)
    monkeypatch.delenv("NORMLAB_LARGER", raising=False)


def kept_for_backward(model, tokens):
    """Bytes of what autograd keeps of one forward pass, weights aside."""
    sizes = {}
    held = []  # so that no address is used twice

    def note(tensor):
        held.append(tensor)
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        next_token_loss(model, *small_models.passages(tokens=tokens))
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    return sum(size for address, size in sizes.items() if address not in weights)


@pytest.mark.parametrize("layers, width, tokens", [(4, 32, 32), (8, 64, 32), (4, 64, 128)])
def test_memory_is_what_autograd_keeps(layers, width, tokens):
    model = small_models.model(0, layers=layers, width=width, context=tokens)
    counted = larger_runs.cost(model, 1, tokens=tokens)
    assert counted.parameters == sum(p.numel() for p in model.parameters())
    counted_bytes = counted.memory_gb * 1e9 - 16 * counted.parameters
    assert counted_bytes == pytest.approx(kept_for_backward(model, tokens), rel=0.15)


def test_operations_are_what_torch_counts():
    """Torch counts the products of matrices and attention; embeddings and norms are small here."""
    from torch.utils.flop_counter import FlopCounterMode

    model = small_models.model(0, layers=4, width=128)
    with FlopCounterMode(display=False) as counter:
        next_token_loss(model, *small_models.passages()).backward()
    assert larger_runs.cost(model, 1).operations == pytest.approx(counter.get_total_flops(), rel=0.1)
    assert larger_runs.cost(model, 7).operations == pytest.approx(7 * larger_runs.cost(model, 1).operations)


OFFERED = [
    ("placement_streams", trained.RECORDS, trained.road),
    ("trained_streams", drunkards_walk.RECORDS, drunkards_walk.small_model),
]


@pytest.mark.parametrize("name, recipes, build", OFFERED, ids=[name for name, *_ in OFFERED])
def test_off_it_says_what_it_would_take_and_runs_nothing(monkeypatch, capsys, name, recipes, build):
    (recipe,) = [recipe for recipe in recipes if recipe.name == name]
    setting = recipe.larger[0]
    assert set(recipe.settings[0]) <= set(setting)

    def refuse(*_, **__):
        raise AssertionError("it was run")

    offered = [dataclasses.replace(recipe, run=refuse)]
    monkeypatch.setattr(larger_runs, "seconds_per_step", lambda model, place: 1.0)
    assert larger_runs.offer(name, offered, build) is None
    said = capsys.readouterr().out
    assert said.startswith(f"Larger: {setting['layers']} blocks of width {setting['width']}, {setting['steps']:,} steps; ")
    assert "million parameters" in said and said.endswith("Off; NORMLAB_LARGER=1 turns it on.\n")
    with pytest.raises(AssertionError, match="it was run"), device.larger_settings():
        larger_runs.offer(name, offered, build)


def test_on_it_says_how_long_it_will_take_then_runs(monkeypatch, capsys):
    def run(**setting):
        print("running")
        return {"at": device.pick().type, **setting}

    recipe = record.Recipe("tiny", "…", [{"steps": 1}], run, larger=[{"layers": 2, "width": 16, "steps": 90}])
    monkeypatch.setattr(larger_runs, "seconds_per_step", lambda model, place: 2.0)
    monkeypatch.setenv("NORMLAB_LARGER", "1")
    monkeypatch.setenv("NORMLAB_DEVICE", "cpu")
    build = lambda layers, width: small_models.model(0, layers=layers, width=width)
    assert larger_runs.offer("tiny", [recipe], build) == {"at": "cpu", "layers": 2, "width": 16, "steps": 90}
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Larger, on cpu: 2 blocks of width 16, 90 steps; ")
    assert lines[1:] == ["About 3.0 minutes, from 3 steps timed here; interrupt the kernel to stop.", "running"]


def test_a_run_that_does_not_fit_is_refused(monkeypatch):
    recipe = record.Recipe("tiny", "…", [{}], lambda **_: {}, larger=[{"steps": 9, "layers": 2, "width": 32}])
    monkeypatch.setenv("NORMLAB_LARGER", "1")
    monkeypatch.setattr(device, "fastest", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda place: (1e6, 2e9))
    with pytest.raises(ValueError, match=r"the larger run needs about 0\.0 GB, cuda has 0\.0 GB free"):
        larger_runs.offer("tiny", [recipe], lambda layers, width: small_models.model(0, layers=layers, width=width))


def test_timing_leaves_the_model_as_it_is():
    model = small_models.model(0, layers=1, width=16)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert 0 < larger_runs.seconds_per_step(model, torch.device("cpu")) < 60
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_unknown_or_without_larger_settings():
    with pytest.raises(ValueError, match="no recipe 'none' among those given"):
        larger_runs.offer("none", trained.RECORDS, trained.road)
    with pytest.raises(ValueError, match="'final_quality_none' has no larger settings"):
        larger_runs.offer("final_quality_none", [record.Recipe("final_quality_none", "", [{}], dict)], trained.road)


def test_every_block_adds_as_much():
    one, two, five = (larger_runs.cost(small_models.model(0, layers=n, width=32), 10) for n in (1, 2, 5))
    counted = one.with_blocks(5, two)
    assert counted.parameters == five.parameters
    assert (counted.operations, counted.memory_gb) == pytest.approx((five.operations, five.memory_gb))


def test_larger_settings_fit_into_12_gb():
    """Those that say how wide and how long; the others train nothing."""
    tried = 0
    for recipe in record.recipes().values():
        for setting in recipe.larger:
            if {"width", "steps"} <= set(setting):
                tried += 1
                one, two = (_cost(layers, setting["width"]) for layers in (1, 2))
                assert one.with_blocks(setting.get("layers", 3), two).memory_gb < larger_runs.LIMIT_GB, recipe.name
    assert tried > 50


@functools.cache
def _cost(layers, width):
    return larger_runs.cost(small_models.model(0, layers=layers, width=width), 1)
