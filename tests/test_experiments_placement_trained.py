"""Chapter 5, training: what counts as failed, what a stream's description says, which models the names stand for."""

import math

import pytest
import torch
from some import third

from normlab import record, training
from normlab.config import Init
from normlab.experiments import small_models
from normlab.experiments.placement import trained as trained
from normlab.norms import NormKind
from normlab.placement import Placement


def result(validation):
    return {"first": 4.0, "last": 3.0, "validation": validation}


def test_a_model_that_knows_only_the_frequencies_of_characters_has_failed():
    entropy = small_models.character_entropy()
    assert trained.failed(result(entropy + 0.01)) and trained.failed(result(None))
    assert trained.failed(result(entropy - trained.PLATEAU / 2))
    assert not trained.failed(result(entropy - 2 * trained.PLATEAU))


def test_cells_group_by_depth_rate_and_warmup():
    def run(seed, layers, validation):
        setting = {"layers": layers, "lr": 1e-3, "warmup": 0, "seed": seed}
        return {"setting": setting, "result": result(validation)}

    runs = [run(0, 2, 2.1), run(1, 2, 3.2), run(2, 2, None), run(0, 3, 2.7)]
    cells = trained.cells({"runs": runs})
    assert cells == {
        (2, 1e-3, 0): trained.Cell(runs=3, failed=2, median=3.2, low=2.1, high=math.inf),
        (3, 1e-3, 0): trained.Cell(runs=1, failed=0, median=2.7, low=2.7, high=2.7),
    }


def test_spike_is_the_largest_rise_above_the_lowest_mean():
    assert trained.spike([5.0, 4.0, 3.0, 2.0], window=1) == 0
    assert trained.spike([5.0, 2.0, 3.5, 1.0, 2.0], window=1) == 1.5
    assert trained.spike([4.0, 2.0, 2.0, 6.0], window=2) == pytest.approx(2.0)  # means 3, 2, 4
    with pytest.raises(ValueError, match="5 steps .* got 2"):
        trained.spike([3.0, 2.0])


@pytest.mark.parametrize("name", trained.ROADS)
def test_a_road_trains_and_is_described(name):
    model, described = trained.train_road(name, seed=1, layers=4, width=24, steps=3)
    after = described["after"]
    assert [len(after[k]) for k in ("stream", "share", "change", "cosine", "skip")] == [9, 8, 4, 4, 4]
    assert all(math.isfinite(x) for x in (after["validation"], *after["stream"], *after["skip"]))
    assert described["before"]["validation"] != after["validation"]
    assert model.config.layers == 4 and len(model.blocks) == 4


def test_the_names_stand_for_the_models_of_the_papers():
    mixed = trained.road("Mix-LN", 0).config
    assert mixed.placements == (Placement.POST,) * 3 + (Placement.PRE,) * 9 and mixed.final_norm
    assert trained.road("DyT", 0).config.norm is NormKind.DYT
    deep = trained.stack("DeepNorm", 8, 0)
    assert deep.config.init is Init.DEEPNORM and not deep.config.final_norm
    assert deep.blocks[0].residuals[0].alpha == pytest.approx(2.0)  # (2 · 8)^(1/4)
    bare = trained.stack("T-Fixup-like", 2, 0)
    assert not any("norm" in name for name, _ in bare.named_parameters())
    small = trained.stack("Post-LN, N(0, 0.02)", 2, 0)
    assert small.blocks[0].residuals[1].sublayer.up.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert trained.stack("Pre-LN", 2, 0).config.final_norm
    assert not trained.stack("Pre-LN without final norm", 2, 0).config.final_norm


@pytest.mark.parametrize("name", trained.GRIDDED)
def test_initial_weights_are_those_of_the_authors(name):
    """Standard deviation of reading and writing matrices, from the papers' formulas."""
    layers, width = 8, 64
    model = trained.gridded(name, 0, layers, width)
    mlp = model.blocks[-1].residuals[1].sublayer
    xavier = math.sqrt(2 / (width + 4 * width))
    expected = {
        "Xavier": (xavier, xavier),
        "DeepNorm": (xavier * (8 * layers) ** -0.25,) * 2,
        "normal": (1 / math.sqrt(2.5 * width),) * 2,
        "Megatron": (1 / math.sqrt(2.5 * width), 1 / math.sqrt(2.5 * width) / math.sqrt(2 * layers)),
    }[name.split(", ")[-1]]
    assert (mlp.up.weight.std().item(), mlp.down.weight.std().item()) == pytest.approx(expected, rel=0.03)
    assert trained.normal_std(1000) == pytest.approx(0.02)


def test_what_the_grid_keeps_of_a_run():
    kept = trained.train_gridded("HybridNorm, Megatron", 3e-3, seed=1, layers=4, width=24, steps=3)
    model = trained.gridded("HybridNorm, Megatron", 1, 4, 24)
    small_models.train(model, 3, 3e-3, 1)
    described = trained.describe(model)
    assert kept["validation"] == pytest.approx(described["validation"], abs=1e-5)
    assert kept["skip"] == pytest.approx([described["skip"][0], described["skip"][-1]], abs=1e-5)
    assert kept["growth"] == pytest.approx(described["stream"][-1] / described["stream"][0], rel=1e-4)


def test_a_gridded_run_that_blows_up_has_no_loss():
    assert trained.train_gridded("DyT, Xavier", 1e30, seed=0, layers=4, width=24, steps=5) == {"validation": None}


def test_description_of_silent_blocks():
    """Blocks that write nothing move nothing, and skipping them costs nothing."""
    model = trained.road("Pre-LN", 3, layers=3, width=24)
    with torch.no_grad():
        for block in model.blocks:
            attention, mlp = (residual.sublayer for residual in block.residuals)
            attention.out.weight.zero_()
            mlp.down.weight.zero_()
    described = trained.describe(model)
    assert described["change"] == [0, 0, 0] and described["skip"] == [0, 0, 0] and described["share"] == [0] * 6
    assert described["cosine"] == pytest.approx([1, 1, 1])
    assert len(set(described["stream"])) == 1


def test_skipping_a_block_is_a_model_without_it():
    model = trained.road("Pre-LN without final norm", 4, layers=3, width=24)
    skip = trained.describe(model)["skip"]
    ids, targets = small_models.passages(2 * small_models.BATCH)
    model = model.double()

    def loss():
        with torch.no_grad():
            return torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten()).item()

    whole, blocks = loss(), list(model.blocks)
    for k in range(3):
        model.blocks = torch.nn.ModuleList(blocks[:k] + blocks[k + 1 :])
        assert skip[k] == pytest.approx(loss() - whole, abs=1e-9)


def test_what_a_record_keeps_of_a_run():
    losses, kept = trained.train_stack("Pre-LN", layers=2, lr=1e-3, warmup=0, seed=5, steps=30)
    assert len(losses) == 30 and kept["first"] == losses[0]
    assert kept["last"] == pytest.approx(sum(losses[10:]) / 20)
    model = trained.stack("Pre-LN", 2, 5)
    inputs, targets = training_batch(seed=5)
    assert training.next_token_loss(model, inputs, targets).item() == pytest.approx(losses[0], abs=1e-5)


def training_batch(seed):
    from normlab import data

    return data.windows(data.corpus().train, small_models.BATCH, small_models.TOKENS, torch.Generator().manual_seed(1000 + seed))


def test_a_run_that_blows_up_is_a_failure_and_not_an_error():
    losses, kept = trained.train_stack("T-Fixup-like", layers=2, lr=1e6, warmup=0, seed=0, steps=60)
    assert trained.failed(kept)
    assert losses[0] == kept["first"] < 10


@pytest.mark.parametrize("name", third(recipe.name for recipe in trained.RECORDS))
def test_larger_settings_run(name):
    """The first one of each record, at its width and with few steps and blocks."""
    (recipe,) = [recipe for recipe in trained.RECORDS if recipe.name == name]
    setting = recipe.larger[0] | {"steps": 5, "layers": 2}
    if "warmup" in setting:
        setting["warmup"] = 1
    assert set(recipe.run(**setting)) == set(record.load(recipe.name)["runs"][0]["result"])


def test_records_hold_five_seeds_of_every_cell():
    for recipe in trained.RECORDS:
        settings = record.load(recipe.name)["runs"]
        groups = {}
        for run in settings:
            key = tuple(sorted((k, str(v)) for k, v in run["setting"].items() if k != "seed"))
            groups.setdefault(key, set()).add(run["setting"]["seed"])
        assert all(seeds == set(range(5)) for seeds in groups.values()), recipe.name
