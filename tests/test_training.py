"""Schedules, parameter groups, the loop, the data it reads, and the records it leaves."""

import json
import math

import pytest
import torch
from torch import nn

from normlab import data, device, record, training
from normlab.norms import make_norm
from normlab.transformer import Transformer, TransformerConfig


def tiny(seed=0, **options):
    settings = {"vocab_size": 5, "context": 8, "layers": 1, "width": 16, "heads": 2, "norm": "layernorm", **options}
    return Transformer(TransformerConfig(**settings), seed)


def counting(batch=4, length=8):
    """Batches of a text that counts 0 1 2 3 4 0 1 ...: a model that works learns it."""
    return data.sampler(torch.arange(400) % 5, batch, length)


# --- schedule and groups ---------------------------------------------------------------------------------------------


def test_schedule_corner_values():
    rate = lambda step, **kw: training.learning_rate(step, 100, 2.0, **kw)
    assert rate(0) == rate(99) == 2.0
    assert [rate(s, warmup=4) for s in range(5)] == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert rate(0, floor=0.1) == 2.0
    assert rate(99, warmup=10, floor=0.1) == pytest.approx(0.2)
    assert rate(10, warmup=10, floor=0.1) == pytest.approx(2.0)
    middle = training.learning_rate(60, 111, 2.0, warmup=10, floor=0.0)
    assert middle == pytest.approx(1.0)


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_no_vector_decays_whatever_it_is_called(kind):
    model = nn.ModuleDict({"t_rms": make_norm(kind, 4), "ln_1": nn.LayerNorm(4), "proj": nn.Linear(4, 3)})
    decayed, spared = training.parameter_groups(model, 0.1)
    assert decayed["weight_decay"] == 0.1 and spared["weight_decay"] == 0
    assert [tuple(p.shape) for p in decayed["params"]] == [(3, 4)]
    assert len(decayed["params"]) + len(spared["params"]) == len(list(model.parameters()))


# --- loop ------------------------------------------------------------------------------------------------------------


def test_a_model_learns_to_count():
    model = tiny()
    history = training.train(model, counting(), 80, lr=1e-2, seed=0, warmup=5, floor=0.0, clip=1.0, weight_decay=0.1)
    assert history.loss[0] > 1.0
    assert training.validation_loss(model, counting()) < 0.1
    assert len(history.loss) == len(history.lr) == 80


def test_same_seed_same_run_and_each_seed_matters():
    def run(weights, batches):
        with device.single_thread():
            return training.train(tiny(weights), counting(), 5, lr=1e-3, seed=batches).loss

    assert run(1, 2) == run(1, 2)
    assert run(1, 2) != run(1, 3)
    assert run(1, 2) != run(4, 2)


def test_one_step_equals_torch_adamw():
    model, twin = tiny(), tiny()
    training.train(model, counting(), 1, lr=1e-2, seed=7)
    inputs, targets = counting()(torch.Generator().manual_seed(7))
    optimizer = torch.optim.AdamW(twin.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0)
    nn.functional.cross_entropy(twin(inputs).transpose(1, 2), targets).backward()
    optimizer.step()
    for ours, theirs in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(ours, theirs)


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_step():
    model = tiny()
    calls = iter(range(100))

    def batches(generator):
        if next(calls) == 3:
            with torch.no_grad():
                model.head.weight[0, 0] = float("nan")
        return counting()(generator)

    with pytest.raises(FloatingPointError, match="nan at step 3"):
        training.train(model, batches, 10, lr=1e-3, seed=0)


@pytest.mark.parametrize("bad, words", [({"steps": 0}, "steps .* 0"), ({"lr": 0.0}, "lr .* 0.0"), ({"lr": math.nan}, "lr .* nan")])
def test_bad_settings_are_named(bad, words):
    with pytest.raises(ValueError, match=words):
        training.train(tiny(), counting(), **{"steps": 1, "lr": 1e-3, "seed": 0, **bad})


def test_thread_count_is_restored():
    before = torch.get_num_threads()
    with pytest.raises(KeyError), device.single_thread():
        assert torch.get_num_threads() == 1
        raise KeyError
    assert torch.get_num_threads() == before


def test_device_can_be_chosen(monkeypatch):
    monkeypatch.setenv("NORMLAB_DEVICE", "cpu")
    assert device.pick() == torch.device("cpu")


# --- data ------------------------------------------------------------------------------------------------------------


def test_every_play_is_the_one_that_was_shipped():
    text = data.load_text(list(data.PLAYS))
    assert len(text) > 1_000_000 and text.isascii() and "To be, or not to be" in text
    assert "gutenberg" not in text.lower()


def test_corpus_round_trip():
    corpus = data.corpus(["hamlet"])
    text = data.load_text(["hamlet"])
    assert corpus.decode(torch.cat([corpus.train, corpus.val])) == text
    assert len(corpus.val) == pytest.approx(len(text) / 10, abs=1)


def test_windows_and_their_successors():
    ids = torch.arange(50)
    inputs, targets = data.windows(ids, 64, 7, torch.Generator().manual_seed(0))
    assert torch.equal(targets, inputs + 1)
    assert inputs.min() == 0 and targets.max() == 49  # first and last token are reached
    with pytest.raises(ValueError, match="7 tokens has no window of 7"):
        data.windows(ids[:7], 1, 7, torch.Generator())


def test_unknown_plays_are_named():
    with pytest.raises(ValueError, match="'hamlets'.*hamlet, macbeth"):
        data.load_text(["hamlets"])


# --- records ---------------------------------------------------------------------------------------------------------


def test_a_record_resumes_and_loses_nothing(tmp_path):
    calls = []

    def run(seed):
        if seed == 2 and len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(seed)
        return {"square": seed**2}

    recipe = record.Recipe("squares", "for the test", [{"seed": s} for s in range(4)], run)
    with pytest.raises(KeyboardInterrupt):
        record.make(recipe, tmp_path, log=lambda _: None)
    assert [r["setting"]["seed"] for r in json.loads((tmp_path / "squares.json").read_text())["runs"]] == [0, 1]
    calls.append("resumed")
    made = json.loads(record.make(recipe, tmp_path, log=lambda _: None).read_text())
    assert calls == [0, 1, "resumed", 2, 3]
    assert record.results(made, seed=3) == [{"square": 9}]
    assert {"date", "torch", "python", "cpu_capability"} <= set(made["runs"][0]["provenance"])
    with pytest.raises(ValueError, match="seed.*7"):
        record.results(made, seed=7)


def test_committed_records_are_complete():
    for name, recipe in record.recipes().items():
        runs = record.load(name)["runs"]
        assert [r["setting"] for r in runs] == recipe.settings, f"make record NAME={name}"


def test_unknown_records_are_named(capsys):
    with pytest.raises(FileNotFoundError, match="trained_streams"):
        record.load("nothing")
    assert record.main(["nothing"]) == 2
    assert "trained_streams" in capsys.readouterr().err
