"""The notebooks with one and two threads on three instruction sets, and what can be had of other versions: `make test-matrix`.

    python tools/matrix.py [NAME …]      (notebooks, as 01_drunkards_walk or drills/week_1; all without names)

Every part is a run of its own, whose output lies in _build/matrix: an output that differs from the committed one fails
it. One-thread parts run two at a time. The package's own tests run in two of the six. A part that fails does not stop
the others. The exit status is 1 if one failed.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import whole
from execute import notebooks

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "_build" / "matrix"
SETS = ("default", "avx2", "native")  # of ATEN_CPU_CAPABILITY; native: whatever the processor has
WITH_TESTS = {(1, "default"), (2, "native")}  # the two that are farthest apart
# Their numbers once depended on the threads or the instruction set, before they were printed with fewer digits.
EVER_DIFFERED = ("01_drunkards_walk", "04_rmsnorm", "05_placement")
REPETITIONS = 3
# What a run on another instruction set can change: the numbers, not the texts and the site.
NOT_NUMERIC = (
    "tests/site", "tests/test_packaging.py", "tests/test_standalone.py", "tests/test_notebooks_clean.py",
    "tests/test_prose_numbers.py", "tests/test_claims_file.py", "tests/test_guard.py", "tests/test_house.py",
    "tests/test_contributing.py", "tests/test_quick.py", "tests/test_workflows.py", "tests/test_types.py",
)  # fmt: skip
COPIES = "test-copies"  # the Makefile's target that runs the standalone copies with other interpreters and versions
# Two threads on cores that others use as well wait for each other: a cell that takes 30 s alone took 5 minutes.
PYTEST = (sys.executable, "-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", "--nbval-cell-timeout=1500")
ASK = "import torch; print(torch.backends.cpu.get_cpu_capability())"


@dataclass
class Part:
    """Commands that run one after the other in one environment, and what came of them."""

    name: str
    commands: list[tuple[str, ...]]
    variables: dict[str, str | None] = field(default_factory=dict)  # None takes one out of the environment
    ran_as: str = ""
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # Pythons that are not there
    minutes: float = 0.0


def parts(names: list[str]) -> list[Part]:
    """The six; with names, only these notebooks. Raises ValueError for an unknown name."""
    known = {path.relative_to(ROOT / "notebooks").with_suffix("").as_posix(): path for path in notebooks(ROOT)}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"there is no notebook {unknown[0]!r}; there are {', '.join(known)}")
    chosen = [known[name].relative_to(ROOT).as_posix() for name in names or known]
    again = [name for name in chosen if Path(name).stem in EVER_DIFFERED]
    found = []
    for threads in (1, 2):
        for name in SETS:
            commands = [(*PYTEST, *chosen)]
            if again:
                commands += (REPETITIONS - 1) * [(*PYTEST, *again)]
            if (threads, name) in WITH_TESTS and not names:
                commands.append((*PYTEST, "tests", *(f"--ignore={path}" for path in NOT_NUMERIC)))
            variables = {"OMP_NUM_THREADS": str(threads), "ATEN_CPU_CAPABILITY": None if name == "native" else name}
            # What torch.compile keeps does not tell instruction sets apart: one would be given another's code.
            variables["TORCHINDUCTOR_CACHE_DIR"] = str(OUT / "compiled" / name)
            found.append(Part(f"{threads} thread{'s' * (threads > 1)}, {name}", commands, variables))
    return found


def other_versions(names: list[str]) -> list[Part]:
    """One run of the copies with every other Python that is there, and with the newest and the oldest libraries."""
    if not re.search(rf"^{COPIES}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE):
        return []
    only = f" --copies {' '.join(Path(name).name for name in names)}" if names else ""
    this = f"PYTHONS=python3.{sys.version_info.minor}"
    make = ("make", "--no-print-directory", COPIES)
    return [
        Part("other Pythons", [(*make, f"COPIES=--once{only}")]),
        Part("newest libraries", [(*make, this, f"COPIES=--versions newest --once{only}")]),
        Part("oldest libraries", [(*make, this, f"COPIES=--versions oldest --once{only}")]),
    ]


def run(part: Part, out: Path) -> Part:
    """Run the part's commands, all of them, and note what came of them."""
    environment = {k: v for k, v in (os.environ | part.variables).items() if v is not None}
    ask = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True)
    part.ran_as = ask.stdout.strip() if part.variables else "in its output"
    start, said = time.monotonic(), ""
    for command in part.commands:
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said += done.stdout
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
        part.failed += failed or ([f"{' '.join(command[:6])} ended with {done.returncode}"] if done.returncode else [])
        part.passed += sum(map(int, re.findall(r"^(?:.* )?(\d+) passed", done.stdout, re.MULTILINE)))
        part.passed += len(re.findall(r"^  \S+ .* GB  ok(?:,|$)", done.stdout, re.MULTILINE))  # copies
        part.left_out += re.findall(r"^(\S+): left out", done.stdout, re.MULTILINE)
    part.minutes = (time.monotonic() - start) / 60
    whole.write_text(out / f"{re.sub(r'[^a-z0-9]+', '-', part.name.lower())}.txt", said)
    print(f"{part.name}: {'failed' if part.failed else 'passed'}", flush=True)
    return part


def run_all(chosen: list[Part], out: Path) -> list[Part]:
    """One-thread parts two at a time where there are two processors, then the others one by one."""
    single = [part for part in chosen if part.variables.get("OMP_NUM_THREADS") == "1"]
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        list(pool.map(lambda part: run(part, out), single))
    for part in chosen:
        if part not in single:
            run(part, out)
    return chosen


def table(done: Iterable[Part]) -> str:
    """What came of the parts, and below it what failed."""
    done = list(done)
    rows = [("part", "torch ran", "passed", "failed", "minutes")]
    rows += [(p.name, p.ran_as, str(p.passed), str(len(p.failed)), f"{p.minutes:.1f}") for p in done]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    lines += [f"left out of {part.name}: {', '.join(part.left_out)}" for part in done if part.left_out]
    return "\n".join(lines + [f"FAILED {part.name}: {what}" for part in done for what in part.failed])


def main(names: list[str]) -> int:
    with whole.told():
        try:
            chosen = parts(names) + other_versions(names)
        except ValueError as problem:
            sys.exit(f"matrix: {problem}")
        whole.check_writable(OUT / "table.txt")
        done = run_all(chosen, OUT)
        print(table(done))
        whole.write_text(OUT / "table.txt", table(done) + "\n")
        return int(any(part.failed for part in done))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
