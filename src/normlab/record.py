"""Recorded results: training runs over several seeds, kept as small JSON files with their provenance.

``normlab record`` lists the records, ``normlab record NAME`` makes one, with ``--jobs 2`` two runs
at a time. It is resumable: every finished run is written at once, and a run whose settings are already in the file is
not repeated.
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
from dataclasses import dataclass, field
from datetime import date
from itertools import product
from pathlib import Path
from statistics import fmean, stdev

FOLDER = Path(__file__).with_name("records")


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
        return Recipe(f"{self.name}_larger", self.description, self.larger, self.run)


def load(name: str) -> dict:
    """The record ``name``: {"name", "description", "provenance", "runs": [{"setting", "result", ...}]}.

    Raises:
        FileNotFoundError: no such record; names those that exist.
    """
    path = FOLDER / f"{name}.json"
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in FOLDER.glob("*.json"))) or "none"
        raise FileNotFoundError(f"no record {name!r}; existing records: {known}")
    return json.loads(path.read_text("utf-8"))


def results(record: dict, **setting) -> list[dict]:
    """The results of all runs whose setting agrees with the given entries, in the order of the file.

    Raises:
        ValueError: no run agrees.
    """
    found = [r["result"] for r in record["runs"] if all(r["setting"].get(k) == v for k, v in setting.items())]
    if not found:
        raise ValueError(f"record {record['name']!r} has no run with {setting}")
    return found


T_QUANTILES = {4: 2.7764, 7: 2.3646, 9: 2.2622}  # Student's t, 97.5 %, by degrees of freedom


def paired_interval(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Mean of the paired differences second - first, and half the width of its 95 % t-interval (5, 8 or 10 pairs)."""
    differences = [b - a for a, b in zip(first, second, strict=True)]
    n = len(differences)
    if n - 1 not in T_QUANTILES:
        raise ValueError(f"5, 8 or 10 pairs are needed, got {n}")
    return fmean(differences), T_QUANTILES[n - 1] * stdev(differences) / math.sqrt(n)


def grid(**axes: Iterable) -> list[dict]:
    """All combinations of the values of some settings; the last one changes fastest.

    ``grid(norm=["layernorm", "rmsnorm"], seed=range(5))`` has ten settings.
    """
    return [dict(zip(axes, values)) for values in product(*axes.values())]


def make(
    recipe: Recipe, folder: Path | None = None, log: Callable[[str], None] = print, n_jobs: int | None = None
) -> Path:
    """Run what is missing of a recipe and write it to ``folder``; returns the file.

    The runs go through joblib, and each one is written as soon as it is finished. In a cluster (Dask, Ray), register
    its backend and call this inside ``joblib.parallel_config(backend=...)``.

    Args:
        folder: None for the package's own.
        log: receives a line a run.
        n_jobs: how many runs at once, -1 for as many as there are cores; None for what ``parallel_config`` says,
            or else one.

    Raises:
        RuntimeError: some runs failed; the others are in the file. Names the settings, and shows the first traceback.
    """
    import joblib

    path, settings = (folder or FOLDER) / f"{recipe.name}.json", json.loads(json.dumps(recipe.settings))
    written = json.loads(path.read_text("utf-8"))["runs"] if path.exists() else []
    runs = [next((r for r in written if r["setting"] == setting), None) for setting in settings]
    failures = []

    def report(i: int, what: str) -> None:
        finished = sum(run is not None for run in runs)
        log(f"[{finished}/{len(runs)}] {recipe.name} {settings[i]}: {what}")

    missing = [i for i, run in enumerate(runs) if run is None]
    if written:
        log(f"{recipe.name}: {len(runs) - len(missing)} of {len(runs)} runs are there already")
        _write(path, recipe, runs)
    tasks = [joblib.delayed(_attempt)(recipe.run, i, recipe.settings[i]) for i in missing]
    for i, run, problem in _as_they_finish(tasks, n_jobs):
        if problem:
            failures.append((i, problem))
            report(i, f"failed: {problem.splitlines()[-1]}")
        else:
            runs[i] = run
            _write(path, recipe, runs)
            report(i, f"{run['provenance']['seconds']} s")
    if failures:
        failed = ", ".join(str(settings[i]) for i, _ in failures)
        raise RuntimeError(f"{len(failures)} of {len(runs)} runs failed: {failed}\n{failures[0][1]}")
    return path


def _as_they_finish(tasks: list, n_jobs: int | None) -> Iterator:
    """The results of joblib tasks, in any order and each one by itself."""
    import joblib

    try:
        pool = joblib.Parallel(n_jobs=n_jobs, batch_size=1, return_as="generator_unordered")
    except ValueError:
        # A backend that hands over only when all is done (multiprocessing, Ray): give it little at a time.
        pool, size = joblib.Parallel(n_jobs=n_jobs), joblib.effective_n_jobs(n_jobs)
        for i in range(0, len(tasks), size):
            yield from pool(tasks[i : i + size])
    else:
        yield from pool(tasks)


def _attempt(run: Callable[..., dict], i: int, setting: dict) -> tuple[int, dict | None, str]:
    """One run, in the process that joblib chose: its number, what is to be written, or the traceback."""
    from normlab.training import interrupt

    start = time.perf_counter()
    try:
        with interrupt.strict():
            result = run(**setting)
    except Exception:
        return i, None, traceback.format_exc()
    seconds = float(f"{time.perf_counter() - start:.3g}")
    return i, {"setting": setting, "result": result, "provenance": provenance() | {"seconds": seconds}}, ""


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


def _write(path: Path, recipe: Recipe, runs: list[dict | None]) -> None:
    # Through a temporary file: an interrupted write must not cost the runs that are already there.
    # One run a line: small, and a new run is one line of difference.
    head = json.dumps({"name": recipe.name, "description": recipe.description})
    lines = ",\n".join(json.dumps(run, separators=(",", ":")) for run in runs if run is not None)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(head[:-1] + ', "runs": [\n' + lines + "\n]}\n", "utf-8")
    os.replace(temporary, path)


def recipes() -> dict[str, Recipe]:
    """All recipes of the course, by name: the ``RECORDS`` of every module in ``normlab.experiments``."""
    from normlab import experiments

    modules = (
        importlib.import_module(info.name)
        for info in pkgutil.walk_packages(experiments.__path__, f"{experiments.__name__}.")
        if not info.name.endswith("drawings")
    )
    return {recipe.name: recipe for module in modules for recipe in getattr(module, "RECORDS", ())}


def main(arguments: list[str]) -> int:
    """The command line: 0 if all went well, 2 if a record is unknown."""
    known = recipes()
    parser = argparse.ArgumentParser(prog="normlab record", description="List or make recorded results.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="records to make; none lists them all")
    parser.add_argument("--missing", action="store_true", help="make all that are not complete")
    parser.add_argument(
        "--larger", action="store_true", help="the same experiment at a size for a GPU, written to NAME_larger.json"
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="runs at once (1); -1 for as many as there are cores")
    options = parser.parse_args(arguments)
    names = list(known) if options.missing else options.names
    unknown = [n for n in names if n not in known]
    if unknown:
        print(f"unknown record {unknown[0]!r}; known records: {', '.join(known)}", file=sys.stderr)
        return 2
    chosen = [known[name] for name in names]
    if options.larger:
        small = [recipe.name for recipe in chosen if not recipe.larger]
        if small:
            print(f"record {small[0]!r} has no larger settings", file=sys.stderr)
            return 2
        chosen = [recipe.at_larger_size() for recipe in chosen]
    for recipe in chosen:
        print(f"written: {make(recipe, n_jobs=options.jobs)}")
    if not names:
        for name, recipe in known.items():
            state = "there" if (FOLDER / f"{name}.json").exists() else "missing"
            print(f"{name} ({len(recipe.settings)} runs, {state}): {recipe.description}")
    return 0
