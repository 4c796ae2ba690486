"""Recorded results: training runs over several seeds, kept as small JSON files with their provenance.

``normlab record`` lists the records, ``normlab record NAME`` makes one, with ``--jobs 2`` two runs at a time, with
``--dask ADDRESS`` on the workers of a Dask cluster. It is resumable: every finished run is written at once, and a run whose settings are already in the file is not repeated. No
run is ever deleted. To drop one, delete its line in the file.
"""

import argparse
import importlib
import json
import math
import os
import pkgutil
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from normlab import files

FOLDER = Path(__file__).with_name("records")
SCHEDULER_SECONDS = 10  # for a Dask scheduler to answer


@dataclass(frozen=True)
class Recipe:
    """How a record is made: ``run(**setting)`` returns JSON-ready results for every setting in ``settings``.

    ``larger`` are settings of the same experiment at a size for a GPU or a cluster, empty if there are none.
    """

    name: str
    description: str
    settings: list[dict]
    run: Callable[..., dict]
    larger: list[dict] = field(default_factory=list)

    def at_larger_size(self) -> "Recipe":
        """The recipe with its larger settings; its record is called NAME_larger.

        Raises:
            ValueError: it has none.
        """
        if not self.larger:
            raise ValueError(f"record {self.name!r} has no larger settings")
        return Recipe(f"{self.name}_larger", self.description, self.larger, partial(_on_fastest, self.run))


def _on_fastest(run: Callable[..., dict], **setting: Any) -> dict:
    """A run at a larger size, wherever it takes place: on the GPU, if there is one."""
    from normlab import device

    with device.larger_settings():
        return run(**setting)


def load(name: str) -> dict:
    """The record ``name``: {"name", "description", "provenance", "runs": [{"setting", "result", ...}]}.

    Raises:
        FileNotFoundError: no such record; names those that exist.
        ValueError: the file is not a record; names it.
    """
    path = FOLDER / f"{name}.json"
    if not os.path.exists(path):
        known = ", ".join(sorted(p.stem for p in FOLDER.glob("*.json"))) or "none"
        raise FileNotFoundError(f"no record {name!r}; existing records: {known}")
    return _read(path)


def results(record: dict, **setting) -> list[dict]:
    """The results of all runs whose setting agrees with the given entries, in the order of the file.

    Raises:
        ValueError: no run agrees.
    """
    found = [r["result"] for r in record["runs"] if all(r["setting"].get(k) == v for k, v in setting.items())]
    if not found:
        raise ValueError(f"record {record['name']!r} has no run with {setting}")
    return found


def paired_interval(first: Sequence[float], second: Sequence[float], comparisons: int = 1) -> tuple[float, float]:
    """Mean of the paired differences second - first, and half the width of its 95 % t-interval.

    The half width is t s / sqrt(n), with s the standard deviation of the n differences and t the quantile of Student's
    distribution with n - 1 degrees of freedom that leaves 2.5 % above it.

    Args:
        comparisons: how many such intervals are read together. Each then leaves 5 % / ``comparisons`` outside
            (Bonferroni), so that all of them together cover their means with at least 95 %, dependent or not.

    Raises:
        ValueError: fewer than 2 pairs, not as many numbers in one as in the other, or one that is not finite.
    """
    from scipy.stats import t

    if len(first) != len(second):
        raise ValueError(f"pairs are needed, got {len(first)} and {len(second)} numbers")
    if len(first) < 2:
        raise ValueError(f"at least 2 pairs are needed, got {len(first)}")
    if comparisons < 1:
        raise ValueError(f"comparisons must be at least 1, got {comparisons}")
    differences = [float(b) - float(a) for a, b in zip(first, second)]
    if not all(map(math.isfinite, differences)):
        raise ValueError(f"the numbers must be finite, got the differences {differences}")
    n = len(differences)
    quantile = float(t.isf(0.025 / comparisons, n - 1))
    return fmean(differences), quantile * stdev(differences) / math.sqrt(n)


def grid(**axes: Iterable) -> list[dict]:
    """All combinations of the values of some settings; the last one changes fastest.

    ``grid(norm=["layernorm", "rmsnorm"], seed=range(5))`` has ten settings.
    """
    return [dict(zip(axes, values)) for values in product(*axes.values())]


class NotRecordedError(files.NotWrittenError):
    """Runs are finished that could not be written; ``runs`` holds them, as they would stand in the file."""

    runs: list[dict]


def make(
    recipe: Recipe,
    folder: Path | None = None,
    log: Callable[[str], None] = print,
    n_jobs: int | None = None,
    cluster: Any = None,
) -> Path:
    """Run what is missing of a recipe and write it to ``folder``; returns the file.

    The runs go through joblib, or to the workers of a Dask cluster, and each one is written as soon as it is finished.
    On other clusters (Ray), register their backend and call this inside ``joblib.parallel_config(backend=...)``.

    Runs that are in the file stay there, also those whose settings are not in the recipe: they stand after the
    others. Several processes may make the same record: nothing is lost, and of two runs with the same settings the
    one that was written first is kept.

    Args:
        folder: None for the package's own; made if it is missing.
        log: receives a line a run, with an estimate of the time left.
        n_jobs: how many runs at once, -1 for as many as there are cores; None for what ``parallel_config`` says,
            or else one.
        cluster: a client of Dask (see :func:`dask_client`), on whose workers everything runs, and not here. They
            need this package. Runs of a worker that dies are given to another one.

    Raises:
        ValueError: the file is there and not a record (it is left as it is), or ``n_jobs`` is 0.
        NotWrittenError: an OSError; there is no room or no right to write the file. Noticed before the first run.
        NotRecordedError: a NotWrittenError; some finished runs could not be written. A failed write is tried again
            after every further run; the error holds the runs.
        RuntimeError: some runs failed; the others are in the file. Names the settings, and shows the first traceback.
    """
    import joblib

    if n_jobs == 0:
        raise ValueError("0 jobs make nothing: give 1 or more runs at once, or -1 for as many as there are cores")
    path, settings = (folder or FOLDER) / f"{recipe.name}.json", json.loads(json.dumps(recipe.settings))
    recorded = _prepare(path, recipe, settings, log)
    missing = [i for i, setting in enumerate(settings) if not _has(recorded, setting) and setting not in settings[:i]]
    finished, failures, problem = [], [], None
    tasks = [(recipe.run, i, recipe.settings[i]) for i in missing]
    if cluster:
        jobs, outcomes = max(1, sum(cluster.nthreads().values())), _on_cluster(tasks, cluster)
    else:
        jobs, outcomes = max(1, joblib.effective_n_jobs(n_jobs)), _as_they_finish(tasks, n_jobs)
    for i, run, failure in outcomes:
        if failure:
            failures.append((settings[i], failure))
            outcome = f"failed: {failure.splitlines()[-1]}"
        else:
            finished.append(run)
            outcome = f"{run['provenance']['seconds']} s"
        try:
            if finished:
                recorded, problem = _add(path, recipe, settings, finished), None
        except (files.NotWrittenError, ValueError) as error:
            problem = error
            outcome += f", not written yet ({problem})"
        else:
            if run and not any(kept is run for kept in recorded):
                outcome += ", the run that another process has recorded meanwhile is kept"
        done = sum(_has(recorded + finished, setting) for setting in settings)
        left = _time_left(finished, len(missing) - len(finished) - len(failures), jobs)
        log(f"[{done}/{len(settings)}] {recipe.name} {settings[i]}: {outcome}{left}")

    if problem:
        unwritten = [run for run in finished if not _has(recorded, run["setting"])]
        reason = f"{getattr(problem, 'strerror', problem)}; {len(unwritten)} finished runs are not in the file"
        also = f"; {_named(failures, settings)}" if failures else ""
        incomplete = NotRecordedError(None, reason + also, str(path))
        incomplete.runs = unwritten
        raise incomplete
    if failures:
        raise RuntimeError(f"{_named(failures, settings)}\n{failures[0][1]}")
    return path


def _named(failures: list[tuple[dict, str]], settings: list[dict]) -> str:
    return f"{len(failures)} of {len(settings)} runs failed: {', '.join(str(setting) for setting, _ in failures)}"


def _prepare(path: Path, recipe: Recipe, settings: list[dict], log: Callable[[str], None]) -> list[dict]:
    """The runs that are there, brought into the recipe's order, under its description; tries the place if need be."""
    recorded, before, after = _merged(path, recipe, settings, [])
    there = sum(_has(recorded, setting) for setting in settings)
    if there < len(settings) or before != after:
        files.check_writable(path)
    if recorded:
        log(f"{recipe.name}: {there} of {len(settings)} runs are there already")
        if before != after:
            _add(path, recipe, settings, [])
    others = sum(run["setting"] not in settings for run in recorded)
    if others:
        log(f"{recipe.name}: kept behind them: {others} with settings that are not in the recipe")
    return recorded


def _has(runs: list[dict], setting: dict) -> bool:
    return any(run["setting"] == setting for run in runs)


def _time_left(finished: list[dict], remaining: int, jobs: int) -> str:
    """An estimate for the runs that remain, from the mean time of those that are finished."""
    if not finished or not remaining:
        return ""
    seconds = fmean(run["provenance"]["seconds"] for run in finished) * math.ceil(remaining / jobs)
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"; about {seconds / size:.2g} {unit} left"
    return f"; about {math.ceil(seconds)} s left"


def _on_cluster(tasks: list, client: Any) -> Iterator:
    """What :func:`_attempt` returns for these arguments on Dask's workers, in the order in which they finish.

    Not through joblib's backend for Dask: with one worker that has one thread it would run everything here.
    """
    from dask.distributed import as_completed

    numbers = {client.submit(_attempt, *task, pure=False): task[1] for task in tasks}
    for future in as_completed(numbers):
        try:
            yield future.result()
        except Exception:  # the run itself has not failed: too many workers died under it
            yield numbers[future], None, traceback.format_exc()


def _as_they_finish(tasks: list, n_jobs: int | None) -> Iterator:
    """What :func:`_attempt` returns for these arguments, in any order and each one by itself."""
    import joblib

    tasks = [joblib.delayed(_attempt)(*task) for task in tasks]
    try:
        pool = joblib.Parallel(n_jobs=n_jobs, batch_size=1, return_as="generator_unordered")
    except ValueError:
        # A backend that hands over only when all is done (multiprocessing, Ray): give it little at a time.
        pool, size = joblib.Parallel(n_jobs=n_jobs), joblib.effective_n_jobs(n_jobs)
        for i in range(0, len(tasks), size):
            yield from pool(tasks[i : i + size])
    else:
        yield from pool(tasks)


def dask_client(address: str) -> Any:
    """A client of the Dask scheduler at ``address``, such as ``tcp://127.0.0.1:8786``; use it in a ``with`` block.

    Raises:
        ImportError: Dask is not installed; says how.
        ConnectionError: nobody answers there within SCHEDULER_SECONDS, or there is no worker.
    """
    try:
        from dask.distributed import Client
    except ImportError:
        raise ImportError("Dask is not installed: pip install distributed") from None
    try:
        client = Client(address, timeout=SCHEDULER_SECONDS)
    except (OSError, ValueError) as problem:  # the time is over, or this is no address
        raise ConnectionError(f"no Dask scheduler answers at {address!r} ({_short(problem)})") from None
    if not client.nthreads():
        client.close()
        raise ConnectionError(f"the Dask scheduler at {address!r} has no workers: start some with dask worker")
    return client


def _short(problem: Exception) -> str:
    return (str(problem) or type(problem).__name__).splitlines()[0]


def _attempt(run: Callable[..., dict], i: int, setting: dict) -> tuple[int, dict | None, str]:
    """One run, in the process that joblib chose: its number, what is to be written, or the traceback."""
    from normlab.training import interrupt

    start = time.perf_counter()
    try:
        with interrupt.strict():
            result = run(**setting)
        seconds = float(f"{time.perf_counter() - start:.3g}")
        done = {"setting": setting, "result": result, "provenance": provenance() | {"seconds": seconds}}
        return i, json.loads(json.dumps(done)), ""  # what JSON cannot hold is a failure of this run
    except Exception:
        return i, None, traceback.format_exc()


def provenance() -> dict:
    """Where and when a run was made: versions, class of machine, date. No names of machines or people."""
    import torch

    import normlab

    return {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "normlab": normlab.__version__,
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def _read(path: Path) -> dict:
    """A record as it stands in its file; a ValueError that names the file if it is none."""
    try:
        there = json.loads(path.read_text("utf-8"))
        for run in there["runs"]:
            run["setting"], run["result"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
        reason = f"it has no {problem}" if isinstance(problem, KeyError) else getattr(problem, "strerror", problem)
        raise ValueError(f"{path} is not a record: {reason}. It is left as it is; mend it or move it away") from None
    return there


def _add(path: Path, recipe: Recipe, settings: list[dict], runs: list[dict]) -> list[dict]:
    """Add runs to the file, but none whose setting it has; returns all that it holds then.

    Read, added to and written under a lock, so that what other processes have added stays.
    """
    with files.lock(path):
        merged, before, after = _merged(path, recipe, settings, runs)
        if before != after:
            files.write(path, after)
    return merged


def _merged(path: Path, recipe: Recipe, settings: list[dict], runs: list[dict]) -> tuple[list[dict], bytes, bytes]:
    """The runs in the file and those among ``runs`` that it lacks, in the recipe's order; its content before and after.

    Runs that are not in the recipe come last, in the order that they have.
    """
    there, before = (_read(path), path.read_bytes()) if os.path.exists(path) else ({"runs": []}, b"")
    merged = list(there["runs"])
    for run in runs:
        if not _has(merged, run["setting"]):
            merged.append(run)
    merged.sort(key=lambda run: settings.index(run["setting"]) if run["setting"] in settings else len(settings))
    head = there | {"name": recipe.name, "description": recipe.description}
    return merged, before, _as_text(head | {"runs": merged}).encode()


def _as_text(record: dict) -> str:
    """One run a line: small, and a new run is one line of difference."""
    head = json.dumps({key: value for key, value in record.items() if key != "runs"})
    lines = ",\n".join(json.dumps(run, separators=(",", ":")) for run in record["runs"])
    return head[:-1] + ', "runs": [\n' + lines + "\n]}\n"


def recipes() -> dict[str, Recipe]:
    """All recipes of the course, by name: the ``RECORDS`` of every module in ``normlab.experiments``."""
    from normlab import experiments

    modules = (
        importlib.import_module(info.name)
        for info in pkgutil.walk_packages(experiments.__path__, f"{experiments.__name__}.")
        if not info.name.endswith(("drawing", "drawings"))
    )
    return {recipe.name: recipe for module in modules for recipe in getattr(module, "RECORDS", ())}


def main(arguments: list[str]) -> int:
    """The command line: 0 if all went well, 1 if a run failed, 2 if a record or a place is not to be had.

    130 after Ctrl+C.
    """
    known = recipes()
    parser = argparse.ArgumentParser(
        prog="normlab record",
        description="List the recorded results of the course, or make them. Every finished run is written\n"
        "at once: a record that was interrupted goes on where it stood. No run is ever deleted.",
        epilog="examples:\n"
        "  normlab record                       list all records, and what is missing of them\n"
        "  normlab record trained_streams       make one\n"
        "  normlab record --missing --jobs 2    make all that are not complete, two runs at once\n"
        "  normlab record warmup_post --dask tcp://127.0.0.1:8786    … on the workers of a Dask cluster\n"
        f"\nThe files lie in {FOLDER}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="records to make; none lists them all")
    parser.add_argument("--missing", action="store_true", help="make all that are not complete")
    parser.add_argument(
        "--larger", action="store_true", help="the same experiment at a size for a GPU, written to NAME_larger.json"
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="runs at once (1); -1 for as many as there are cores")
    parser.add_argument("--dask", metavar="ADDRESS", help="run on the workers of the Dask scheduler at this address")
    options = parser.parse_args(arguments)
    if options.missing and options.names:
        return _complain("give names or --missing, not both")
    if options.dask and options.jobs is not None:
        return _complain("give --jobs or --dask, not both: a cluster runs as much at once as its workers can")
    names = list(known) if options.missing else options.names
    unknown = [n for n in names if n not in known]
    if unknown:
        return _complain(f"unknown record {unknown[0]!r}; known records: {', '.join(known)}")
    chosen = [known[name] for name in names]
    if options.larger:
        small = [recipe.name for recipe in chosen if not recipe.larger]
        if small:
            return _complain(f"record {small[0]!r} has no larger settings")
        chosen = [recipe.at_larger_size() for recipe in chosen]
    if not names:
        for recipe in known.values():
            print(f"{recipe.name} ({len(recipe.settings)} runs, {_state(recipe)}): {recipe.description}")
    try:
        with dask_client(options.dask) if options.dask and chosen else nullcontext() as client:
            return max((_make_and_tell(recipe, options.jobs, client) for recipe in chosen), default=0)
    except (ConnectionError, ImportError) as problem:
        return _complain(problem)
    except KeyboardInterrupt:
        return _complain("stopped; every finished run is written, and the same command goes on from there", status=130)


def _make_and_tell(recipe: Recipe, n_jobs: int | None, cluster: Any) -> int:
    try:
        written = make(recipe, log=_say, n_jobs=n_jobs, cluster=cluster)
        _say(f"written: {written}")
        return 0
    except RuntimeError as problem:  # some runs failed
        return _complain(problem, status=1)
    except NotRecordedError as problem:
        for run in problem.runs:
            print(json.dumps(run, separators=(",", ":")))
        return _complain(f"{problem}. They are printed above, a run a line", status=1)
    except (files.NotWrittenError, ValueError) as problem:
        return _complain(problem)


def _say(line: str) -> None:
    if os.environ.get("RANK", "0") == "0":  # under torchrun all processes make the same runs together
        print(line, flush=True)


def _complain(problem: object, status: int = 2) -> int:
    print(f"normlab record: {problem}", file=sys.stderr)
    return status


def _state(recipe: Recipe) -> str:
    """What is there of a record, in a word or two."""
    path = FOLDER / f"{recipe.name}.json"
    if not os.path.exists(path):
        return "missing"
    try:
        runs = _read(path)["runs"]
    except ValueError:
        return "not readable"
    missing = sum(not _has(runs, setting) for setting in json.loads(json.dumps(recipe.settings)))
    return f"{missing} missing" if missing else "there"
