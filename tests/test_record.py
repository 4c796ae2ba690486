"""Recorded results: resumable, written run by run, in parallel where wanted."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import permutations
from statistics import fmean

import joblib
import pytest
import torch
from draw import normal

from normlab import data, files, record, training


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


def test_a_complete_record_stays_as_it_is(tmp_path, monkeypatch):
    make(tmp_path, recipe(square))
    before = (tmp_path / "squares.json").read_bytes()
    monkeypatch.setattr(os, "open", no_space)  # nothing has to be written, so no place is needed
    monkeypatch.setattr(os, "fsync", no_space)
    make(tmp_path, recipe(square))
    assert (tmp_path / "squares.json").read_bytes() == before


# --- no run is lost --------------------------------------------------------------------------------------------------


def test_runs_that_are_not_in_the_recipe_are_kept_and_said(tmp_path):
    made, lines = make(tmp_path, recipe(square, seeds=6))
    fewer, lines = make(tmp_path, recipe(square, seeds=2))
    assert fewer == made
    assert lines == [
        "squares: 2 of 2 runs are there already",
        "squares: kept behind them: 4 with settings that are not in the recipe",
    ]


@pytest.mark.parametrize("order", list(permutations([3, 7, 1])))
def test_runs_stand_in_the_order_of_the_recipe_and_the_others_behind_it(tmp_path, order):
    made, _ = make(tmp_path, recipe(square, seeds=8))
    settings = [{"seed": seed} for seed in order]
    again, _ = make(tmp_path, record.Recipe("squares", "renewed", settings, square))
    assert [r["setting"]["seed"] for r in again["runs"]] == [*order, *(s for s in range(8) if s not in order)]
    assert again["description"] == "renewed"
    assert sorted(again["runs"], key=lambda run: run["setting"]["seed"]) == made["runs"]  # results and provenance


def test_what_others_wrote_into_a_record_is_kept(tmp_path):
    """Further keys, of the record and of a run; a setting that stands twice; settings of another experiment."""
    runs = [
        {"setting": {"width": 3}, "result": {}, "remark": "ours"},
        {"setting": {"seed": 1}, "result": {"square": 1}, "provenance": {"torch": "1.0"}},
        {"setting": {"seed": 1}, "result": {"square": 1.5}},
    ]
    (tmp_path / "squares.json").write_text(json.dumps({"name": "squares", "source": "here", "runs": runs}))
    made, _ = make(tmp_path, recipe(square, seeds=2))
    assert made["source"] == "here"
    assert made["runs"][1:] == [runs[1], runs[2], runs[0]] and made["runs"][0]["setting"] == {"seed": 0}


NO_RECORD = {
    "nothing": b"",
    "cut off": b'{"name": "squares", "runs": [\n{"setting":{"seed":0},"resu',
    "text": b"seed,square\n0,0\n",
    "not text": bytes(range(256)),
    "a list": b"[1, 2]",
    "a number": b"3",
    "no runs": b'{"name": "squares"}',
    "runs that are none": b'{"runs": [1]}',
    "no result": b'{"runs": [{"setting": {"seed": 0}}]}',
    "too deep": b"[" * 100_000,
}


@pytest.mark.parametrize("content", NO_RECORD.values(), ids=NO_RECORD.keys())
def test_a_file_that_is_no_record_is_never_overwritten(tmp_path, monkeypatch, capsys, content):
    path = tmp_path / "squares.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{path} is not a record: ") as error:
        make(tmp_path, recipe(never))
    assert type(error.value) is ValueError
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match=f"^{path} is not a record: "):
        record.load("squares")
    monkeypatch.setattr(record, "recipes", lambda: {"squares": recipe(never)})
    assert record.main(["squares"]) == 2 and record.main([]) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith(f"normlab record: {path} is not a record: ") and shown.err.count("\n") == 1
    assert "squares (4 runs, not readable)" in shown.out
    assert path.read_bytes() == content and list(tmp_path.iterdir()) == [path]


def test_a_file_that_breaks_while_the_runs_go_on_is_not_overwritten(tmp_path):
    path = tmp_path / "squares.json"

    def run(seed):
        if seed == 2:
            path.write_text("broken")
        return square(seed)

    with pytest.raises(record.NotRecordedError, match=f"{path}: .* is not a record: .*; 2 finished runs") as error:
        make(tmp_path, recipe(run))
    assert path.read_text() == "broken"
    assert [r["setting"]["seed"] for r in error.value.runs] == [2, 3]


# --- several processes -----------------------------------------------------------------------------------------------

MANY = """
import sys, time
from pathlib import Path
from normlab import record

def run(seed):
    time.sleep(0.003)
    return {"square": seed**2, "by": sys.argv[2]}

settings = [{"seed": seed} for seed in range(int(sys.argv[3]), 40)]
record.provenance()  # loads torch
Path(sys.argv[1], sys.argv[2]).write_text("ready")
while not Path(sys.argv[1], "go").exists():
    time.sleep(0.01)
record.make(record.Recipe("squares", "", settings, run), Path(sys.argv[1]), log=lambda line: None)
"""


def test_processes_that_write_the_same_record(tmp_path):
    """Three at once, two with the same 40 runs, one with the last 20 of them: all there, none twice."""
    processes = [
        subprocess.Popen([sys.executable, "-c", MANY, tmp_path, by, first], stderr=subprocess.PIPE)
        for by, first in (("a", "0"), ("b", "0"), ("c", "20"))
    ]
    while any(process.poll() is None for process in processes) and len(list(tmp_path.iterdir())) < 3:
        time.sleep(0.01)
    (tmp_path / "go").write_text("")
    for process in processes:
        problem = process.communicate(timeout=120)[1]
        assert process.returncode == 0, problem.decode()
    assert sorted(seeds_in(tmp_path)) == list(range(40))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c", "go", "squares.json"]


def test_threads_that_write_the_same_record(tmp_path):
    """Each with settings of its own, some shared: the first run of a setting is kept, and the log says so."""
    logs = [[] for _ in range(4)]

    def work(i):
        settings = [{"seed": seed} for seed in range(i, i + 8)]
        record.make(record.Recipe("squares", "", settings, square), tmp_path, log=logs[i].append)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = json.loads((tmp_path / "squares.json").read_text())
    assert sorted(r["setting"]["seed"] for r in made["runs"]) == list(range(11))
    assert all(log[-1].startswith("[8/8]") for log in logs)


def test_a_run_that_another_process_recorded_meanwhile_is_kept(tmp_path):
    def run(seed):
        if seed == 1:
            other = record.Recipe("squares", "", [{"seed": 1}, {"seed": 9}], lambda seed: {"by": "other"})
            record.make(other, tmp_path)
        return square(seed)

    made, lines = make(tmp_path, recipe(run, seeds=3))
    assert record.results(made, seed=1) == [{"by": "other"}] and seeds_in(tmp_path) == [0, 1, 2, 9]
    assert "the run that another process has recorded meanwhile is kept" in lines[1]
    assert "meanwhile" not in lines[0] + lines[2]


KILLED = """
import os, sys
from pathlib import Path
from normlab import record

names = iter(range(100))
def kill(*_):
    if next(names) == int(sys.argv[3]):
        os.kill(os.getpid(), 9)
    return original(*_)

original = getattr(os, sys.argv[2])
setattr(os, sys.argv[2], kill)
settings = [{"seed": seed} for seed in range(4)]
record.make(record.Recipe("squares", "", settings, lambda seed: {"square": seed**2}), Path(sys.argv[1]))
"""


@pytest.mark.skipif(os.name != "posix", reason="kills as POSIX does")
@pytest.mark.parametrize("place, call, kept", [("replace", 2, 2), ("fsync", 4, 3), ("fsync", 0, None)])
def test_a_process_killed_while_it_writes(tmp_path, place, call, kept):
    """In front of the third replacement; on writing the fourth run (the first call tries the place); on trying it."""
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path, place, str(call)], capture_output=True)
    assert done.returncode == -9, done.stderr
    path = tmp_path / "squares.json"
    assert not path.exists() if kept is None else seeds_in(tmp_path) == list(range(kept))
    before = [] if kept is None else json.loads(path.read_text())["runs"]
    made, _ = make(tmp_path, recipe(square))
    assert seeds_in(tmp_path) == [0, 1, 2, 3] and made["runs"][: len(before)] == before


# --- a place that cannot be written ----------------------------------------------------------------------------------


def never(seed):
    raise AssertionError("a run was started")


def no_space(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_place_that_cannot_be_written_is_refused_before_the_first_run(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(files.NotWrittenError, match=f"^cannot write {tmp_path}/file/squares.json: .*not a folder"):
        make(tmp_path / "file", recipe(never))
    (tmp_path / "folder" / "squares.json").mkdir(parents=True)
    with pytest.raises(ValueError, match="folder/squares.json is not a record: Is a directory"):
        make(tmp_path / "folder", recipe(never))
    monkeypatch.setattr(os, "fsync", no_space)
    monkeypatch.setattr(record, "FOLDER", tmp_path / "new")
    monkeypatch.setattr(record, "recipes", lambda: {"squares": recipe(never)})
    assert record.main(["squares"]) == 2
    words = f"normlab record: cannot write {tmp_path}/new/squares.json: No space left on device\n"
    assert capsys.readouterr().err == words


def full_for_calls(*calls):
    """An ``os.fsync`` that finds the disk full at these calls; call 0 tries the place, call 1 writes the first run."""
    count, fsync = iter(range(1000)), os.fsync
    return lambda descriptor: no_space() if next(count) in calls else fsync(descriptor)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_disk_that_is_full_for_a_while_costs_no_run(tmp_path, monkeypatch, n_jobs):
    monkeypatch.setattr(os, "fsync", full_for_calls(1, 3))
    with joblib.parallel_config(backend="threading"):
        made, lines = make(tmp_path, recipe(square), n_jobs=n_jobs)
    assert seeds_in(tmp_path) == [0, 1, 2, 3] and record.results(made) == [{"square": s**2} for s in range(4)]
    unwritten = ["not written yet (cannot write" in line for line in lines]
    assert unwritten == [True, False, True, False] and lines[-1].startswith("[4/4]")


def test_a_disk_that_stays_full_hands_back_what_is_finished(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "fsync", full_for_calls(*range(3, 100)))
    words = r"cannot write .*squares.json: No space left on device; 2 finished runs are not in the file"
    with pytest.raises(record.NotRecordedError, match=f"{words}$") as error:
        make(tmp_path, recipe(square))
    assert seeds_in(tmp_path) == [0, 1]
    assert [(r["setting"], r["result"]) for r in error.value.runs] == [({"seed": s}, square(s)) for s in (2, 3)]
    assert "torch" in error.value.runs[0]["provenance"]

    monkeypatch.setattr(os, "fsync", full_for_calls(*range(10**3)))
    monkeypatch.setattr(files, "check_writable", lambda path: None)
    with pytest.raises(record.NotRecordedError, match="1 finished runs .*; 1 of 4 runs failed: .'seed': 3.$"):
        make(tmp_path, recipe(lambda seed: {} if seed == 2 else 1 / 0))
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    monkeypatch.setattr(record, "recipes", lambda: {"squares": recipe(square)})
    capsys.readouterr()
    assert record.main(["squares"]) == 1
    shown = capsys.readouterr()
    assert [json.loads(line)["result"] for line in shown.out.splitlines()[-2:]] == [{"square": 4}, {"square": 9}]
    assert shown.err.startswith("normlab record: cannot write") and shown.err.count("\n") == 1


def test_a_result_that_json_cannot_hold_costs_no_other(tmp_path):
    run = lambda seed: {"square": torch.ones(1) if seed == 1 else seed**2}
    with pytest.raises(RuntimeError, match=r"1 of 4 runs failed: \{'seed': 1\}\n(.|\n)*Tensor is not JSON"):
        make(tmp_path, recipe(run))
    assert seeds_in(tmp_path) == [0, 2, 3]


def test_a_setting_that_the_recipe_names_twice_is_run_once(tmp_path):
    calls = []
    make(tmp_path, record.Recipe("squares", "", [{"seed": 1}, {"seed": 1}], lambda seed: calls.append(seed) or {}))
    assert calls == [1] and seeds_in(tmp_path) == [1]


# --- settings and progress -------------------------------------------------------------------------------------------


def test_settings_that_json_changes_are_recognized(tmp_path):
    calls = []
    pairs = record.Recipe("pairs", "", record.grid(pair=[(1, 2), (3, 4)]), lambda pair: calls.append(pair) or {})
    make(tmp_path, pairs)
    made, _ = make(tmp_path, pairs)
    assert calls == [(1, 2), (3, 4)] and [r["setting"]["pair"] for r in made["runs"]] == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    "seconds, remaining, jobs, words",
    [
        ([], 3, 1, ""),
        ([2.0], 0, 1, ""),
        ([0.001], 3, 1, "; about 1 s left"),
        ([2.0, 4.0], 5, 1, "; about 15 s left"),
        ([2.0, 4.0], 5, 2, "; about 9 s left"),
        ([20.0], 5, 1, "; about 1.7 min left"),
        ([100.0], 9, 16, "; about 1.7 min left"),
        ([600.0], 60, 2, "; about 5 h left"),
    ],
)
def test_the_time_left(seconds, remaining, jobs, words):
    finished = [{"provenance": {"seconds": s}} for s in seconds]
    assert record._time_left(finished, remaining, jobs) == words


def test_each_line_but_the_last_says_how_long_it_will_take(tmp_path):
    _, lines = make(tmp_path, recipe(square))
    assert [line.endswith("; about 1 s left") for line in lines] == [True, True, True, False]


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


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["squares", "--jobs", "0"], "0 jobs make nothing: give 1 or more runs at once, or -1 for"),
        (["squares", "--jobs", "2", "--dask", "tcp://127.0.0.1:8786"], "give --jobs or --dask, not both"),
        (["squares", "--missing"], "give names or --missing, not both"),
        (["squares", "cubes"], "unknown record 'cubes'; known records: squares"),
    ],
)
def test_bad_command_lines_get_one_line(tmp_path, capsys, monkeypatch, arguments, words):
    monkeypatch.setattr(record, "recipes", lambda: {"squares": recipe(never)})
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    assert record.main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"normlab record: {words}") and not list(tmp_path.iterdir())


def test_a_failing_record_costs_no_other_record(tmp_path, capsys, monkeypatch):
    """1 for a run that failed; the next record is made all the same. The list says what is missing."""
    cubes = record.Recipe("cubes", "for the test", [{"seed": 2}], lambda seed: {"cube": seed**3})
    monkeypatch.setattr(record, "recipes", lambda: {"squares": recipe(square_or_fail), "cubes": cubes})
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    assert record.main(["--missing"]) == 1
    assert "1 of 4 runs failed: {'seed': 1}" in capsys.readouterr().err
    assert record.results(record.load("cubes")) == [{"cube": 8}]
    assert record.main([]) == 0
    assert "squares (4 runs, 1 missing)" in capsys.readouterr().out


def test_help_says_how(capsys):
    with pytest.raises(SystemExit) as stop:
        record.main(["--help"])
    told = capsys.readouterr().out
    assert stop.value.code == 0
    for words in ("normlab record --missing --jobs 2", "No run is ever deleted", "--larger", str(record.FOLDER)):
        assert words in " ".join(told.split())


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


# --- intervals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 5, 8, 10, 13, 200])
@pytest.mark.parametrize("comparisons", [1, 3, 11])
def test_paired_interval_is_that_of_scipys_paired_t_test(n, comparisons):
    from scipy.stats import ttest_rel

    generator = torch.Generator().manual_seed(n)
    first, second = torch.randn(2, n, generator=generator, dtype=torch.float64).tolist()
    low, high = ttest_rel(second, first).confidence_interval(1 - 0.05 / comparisons)
    center, half = record.paired_interval(first, second, comparisons)
    assert (center - half, center + half) == pytest.approx((low, high), rel=1e-9)


def test_paired_interval_by_hand():
    """With 1 and 2 degrees of freedom Student's quantile has a closed form."""
    for comparisons in (1, 5):
        p = 1 - 0.025 / comparisons
        _, half = record.paired_interval([0.0, 0.0], [1.0, 3.0], comparisons)
        assert half == pytest.approx(math.tan(math.pi * (p - 0.5)) * 1.0, rel=1e-9)
        center, half = record.paired_interval([1.0, 1.0, 1.0], [2.0, 4.0, 3.0], comparisons)
        quantile = (2 * p - 1) / math.sqrt(2 * p * (1 - p))
        assert center == 2 and half == pytest.approx(quantile * 1.0 / math.sqrt(3), rel=1e-9)
    assert record.paired_interval([1.0, 2.0], [1.5, 2.5]) == (0.5, 0.0)


def test_intervals_of_a_family_cover_together():
    """20 comparisons with one baseline, no true difference: all 20 intervals hold 0 in 95 % of the families."""
    generator = torch.Generator().manual_seed(0)
    together, single = [], []
    for _ in range(200):
        first, *others = torch.randn(21, 5, generator=generator, dtype=torch.float64).tolist()
        for found, comparisons in ((together, 20), (single, 1)):
            intervals = [record.paired_interval(first, other, comparisons) for other in others]
            found.append(all(abs(center) < half for center, half in intervals))
    assert fmean(together) > 0.9 > 0.75 > fmean(single)


@pytest.mark.parametrize(
    "first, second, comparisons, words",
    [
        ([], [], 1, "at least 2 pairs are needed, got 0"),
        ([1.0], [2.0], 1, "at least 2 pairs are needed, got 1"),
        ([1.0, 2.0], [1.0, 2.0, 3.0], 1, "got 2 and 3 numbers"),
        ([1.0, 2.0], [1.0, math.nan], 1, "must be finite.*nan"),
        ([1.0, math.inf], [1.0, math.inf], 1, "must be finite.*nan"),
        ([1.0, 2.0], [1.0, 2.0], 0, "comparisons must be at least 1, got 0"),
    ],
)
def test_what_has_no_interval_is_refused(first, second, comparisons, words):
    with pytest.raises(ValueError, match=words):
        record.paired_interval(first, second, comparisons)
