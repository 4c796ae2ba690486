"""Recorded results: resumable, written run by run, in parallel where wanted."""

import json
import math
import signal

import joblib
import pytest
import torch
from draw import normal

from normlab import data, record, training


def square(seed):
    return {"square": seed**2}


def square_or_fail(seed):
    if seed == 1:
        raise FloatingPointError("the loss became nan")
    return {"square": seed**2}


def recipe(run, seeds=4):
    return record.Recipe("squares", "for the test", [{"seed": s} for s in range(seeds)], run)


def make(tmp_path, *arguments, **options):
    lines = []
    path = record.make(*arguments, tmp_path, log=lines.append, **options)
    return json.loads(path.read_text()), lines


def seeds_in(tmp_path):
    return [r["setting"]["seed"] for r in json.loads((tmp_path / "squares.json").read_text())["runs"]]


def test_a_record_resumes_and_loses_nothing(tmp_path):
    calls = []

    def run(seed):
        if seed == 2 and len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(seed)
        return {"square": seed**2}

    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, recipe(run))
    assert seeds_in(tmp_path) == [0, 1]
    calls.append("resumed")
    made, lines = make(tmp_path, recipe(run))
    assert calls == [0, 1, "resumed", 2, 3]
    assert "2 of 4" in lines[0] and lines[1].startswith("[3/4] squares {'seed': 2}")
    assert record.results(made, seed=3) == [{"square": 9}]
    assert {"date", "torch", "python", "normlab", "cpu_capability", "seconds"} <= set(made["runs"][0]["provenance"])
    with pytest.raises(ValueError, match="seed.*7"):
        record.results(made, seed=7)


def test_a_complete_record_stays_as_it_is_and_follows_its_recipe(tmp_path):
    make(tmp_path, recipe(square))
    before = (tmp_path / "squares.json").read_bytes()
    make(tmp_path, recipe(square))
    assert (tmp_path / "squares.json").read_bytes() == before
    make(tmp_path, recipe(square, seeds=2))
    assert seeds_in(tmp_path) == [0, 1]


def test_settings_that_json_changes_are_recognized(tmp_path):
    calls = []
    pairs = record.Recipe("pairs", "", record.grid(pair=[(1, 2), (3, 4)]), lambda pair: calls.append(pair) or {})
    make(tmp_path, pairs)
    make(tmp_path, pairs)
    assert calls == [(1, 2), (3, 4)]


def test_grid():
    assert record.grid(norm=["a", "b"], seed=range(2)) == [
        {"norm": "a", "seed": 0},
        {"norm": "a", "seed": 1},
        {"norm": "b", "seed": 0},
        {"norm": "b", "seed": 1},
    ]


@pytest.mark.parametrize("backend", ["loky", "threading", "multiprocessing"])
def test_runs_in_parallel_by_a_context_manager(tmp_path, backend):
    """What a cluster needs, whether or not its backend hands over single results (multiprocessing and Ray do not)."""
    with joblib.parallel_config(backend=backend, n_jobs=2):
        made, lines = make(tmp_path, recipe(square))
    assert [r["setting"]["seed"] for r in made["runs"]] == [0, 1, 2, 3]
    assert [r["result"]["square"] for r in made["runs"]] == [0, 1, 4, 9]
    assert [line.split()[0] for line in lines] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_a_failing_run_costs_no_other(tmp_path, n_jobs):
    with pytest.raises(RuntimeError, match=r"1 of 4 runs failed: \{'seed': 1\}\n(.|\n)*FloatingPointError: the loss"):
        make(tmp_path, recipe(square_or_fail), n_jobs=n_jobs)
    assert seeds_in(tmp_path) == [0, 2, 3]


def test_a_half_trained_model_is_no_result(tmp_path):
    """Ctrl-C ends a training run early and well; in a record it has to end everything."""

    def run(seed):
        def press(step, history):
            if step == 2:
                signal.raise_signal(signal.SIGINT)

        model, batches = torch.nn.Linear(3, 3), data.rows(normal(9, 3, dtype=torch.float32), torch.arange(9) % 3, 4)
        training.train(model, batches, 5, 1e-3, seed, each_step=press)
        return {"trained": True}

    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, recipe(run))
    assert not (tmp_path / "squares.json").exists()


def test_committed_records_are_complete():
    for name, known in record.recipes().items():
        runs = record.load(name)["runs"]
        assert [r["setting"] for r in runs] == known.settings, f"make record NAME={name}"


def test_unknown_records_are_named(capsys):
    with pytest.raises(FileNotFoundError, match="trained_streams"):
        record.load("nothing")
    assert record.main(["nothing"]) == 2
    assert "trained_streams" in capsys.readouterr().err


def test_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(record, "recipes", lambda: {"squares": recipe(square)})
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    assert record.main([]) == 0
    assert "squares (4 runs, missing)" in capsys.readouterr().out
    assert record.main(["--missing", "--jobs", "1"]) == 0
    assert "written" in capsys.readouterr().out and seeds_in(tmp_path) == [0, 1, 2, 3]
    record.main([])
    assert "squares (4 runs, there)" in capsys.readouterr().out


def test_the_same_command_runs_larger(tmp_path, capsys, monkeypatch):
    small, large = recipe(square), record.Recipe("squares", "for the test", [{"seed": 1}], square, [{"seed": 100}])
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    monkeypatch.setattr(record, "recipes", lambda: {"squares": large})
    assert record.main(["squares", "--larger"]) == 0
    assert record.results(record.load("squares_larger")) == [{"square": 10_000}]
    assert not (tmp_path / "squares.json").exists()
    monkeypatch.setattr(record, "recipes", lambda: {"squares": small})
    assert record.main(["squares", "--larger"]) == 2
    assert "'squares' has no larger settings" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no larger settings"):
        small.at_larger_size()


def test_larger_settings_name_all_that_the_small_ones_name():
    for known in record.recipes().values():
        if known.larger:
            assert set(known.larger[0]) >= set(known.settings[0]), known.name


def test_t_quantiles():
    from scipy.stats import t

    for freedom, value in record.T_QUANTILES.items():
        assert value == pytest.approx(t.ppf(0.975, freedom), abs=1e-4)


def test_paired_interval_by_hand():
    center, half = record.paired_interval([0.0] * 5, [1.0, 2.0, 3.0, 4.0, 5.0])
    assert center == 3 and half == pytest.approx(2.7764 * math.sqrt(2.5) / math.sqrt(5))
    with pytest.raises(ValueError, match="got 2"):
        record.paired_interval([1.0, 2.0], [1.0, 2.0])
