"""Recorded results: training runs over several seeds, kept as small JSON files with their provenance.

``python -m normlab.record`` lists the records, ``python -m normlab.record NAME`` makes one. It is resumable: every
finished run is written at once, and a run whose settings are already in the file is not repeated.
"""

import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

FOLDER = Path(__file__).with_name("records")


@dataclass(frozen=True)
class Recipe:
    """How a record is made: ``run(**setting)`` returns JSON-ready results for every setting in ``settings``."""

    name: str
    description: str
    settings: list[dict]
    run: Callable[..., dict]


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


def make(recipe: Recipe, folder: Path = FOLDER, log: Callable[[str], None] = print) -> Path:
    """Run what is missing of a recipe and write it to ``folder``; returns the file."""
    path = folder / f"{recipe.name}.json"
    done = json.loads(path.read_text("utf-8"))["runs"] if path.exists() else []
    runs = []
    for i, setting in enumerate(recipe.settings, start=1):
        label = f"[{i}/{len(recipe.settings)}] {recipe.name} {setting}"
        earlier = next((r for r in done if r["setting"] == setting), None)
        if earlier:
            log(f"{label}: already there")
            runs.append(earlier)
        else:
            log(label)
            runs.append({"setting": setting, "result": recipe.run(**setting), "provenance": provenance()})
        left = [r for r in done if r not in runs and r["setting"] in recipe.settings]
        _write(path, {"name": recipe.name, "description": recipe.description, "runs": runs + left})
    return path


def provenance() -> dict:
    """Where and when a run was made: versions, class of machine, date. No names of machines or people."""
    import torch

    return {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def _write(path: Path, content: dict) -> None:
    # Through a temporary file: an interrupted write must not cost the runs that are already there.
    # One run a line: small, and a new run is one line of difference.
    head, runs = {k: v for k, v in content.items() if k != "runs"}, content["runs"]
    lines = ",\n".join(json.dumps(run, separators=(",", ":")) for run in runs)
    text = json.dumps(head)[:-1] + ', "runs": [\n' + lines + "\n]}\n"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, "utf-8")
    os.replace(temporary, path)


def recipes() -> dict[str, Recipe]:
    """All recipes of the course, by name."""
    from normlab.experiments import drunkards_walk

    return {r.name: r for r in drunkards_walk.RECORDS}


def main(arguments: list[str]) -> int:
    """Command line: no argument lists the records, a name makes one, ``--missing`` makes all that are not complete."""
    known = recipes()
    if not arguments:
        for name, recipe in known.items():
            state = "there" if (FOLDER / f"{name}.json").exists() else "missing"
            print(f"{name} ({len(recipe.settings)} runs, {state}): {recipe.description}")
        return 0
    names = list(known) if arguments == ["--missing"] else arguments
    unknown = [n for n in names if n not in known]
    if unknown:
        print(f"unknown record {unknown[0]!r}; known records: {', '.join(known)}", file=sys.stderr)
        return 2
    for name in names:
        print(f"written: {make(known[name])}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
