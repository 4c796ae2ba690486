"""Run the standalone copies of the notebooks with other interpreters, twice, each in an empty folder.

    python tools/run_copies.py [--versions pins|newest|oldest] [--once] [--copies NAME …] PYTHON …

For each interpreter that is found, an environment in .venvs gets the libraries that pyproject.toml names for notebooks,
and a kernel; an interpreter that is missing is said and left out. Two runs must print and draw the same, and with the
pinned versions what is committed. What cells marked as varying print is not compared. PYTHON may be a path; one to the
interpreter of a ready virtual environment is taken as it is.
"""

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import whole
from execute import ENVIRONMENT, joined_streams, notebooks, run_cells
from standalone import write_copies

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ROOT / ".venvs"
CONSTRAINTS = {"pins": "constraints.txt", "newest": None, "oldest": "constraints-oldest.txt"}
LIMIT_GB = 12
PATIENCE = 3600  # seconds to wait for another run that installs the same
# What a copy may find out about the place where it runs, and how much memory it took there.
ASK = "import sys, torch; print('.'.join(map(str, sys.version_info[:3])), torch.__version__)"
PEAK = """
import resource, sys
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9)
"""


@dataclass
class Result:
    """What came of one copy with one interpreter."""

    seconds: list[float] = field(default_factory=list)
    peak_gb: float = 0.0
    problems: list[str] = field(default_factory=list)
    differs: int = 0  # cells whose outputs are not those that are committed


def missing(python: str) -> str | None:
    """Why ``python`` does not run here; None if it does."""
    found = shutil.which(python)
    if found is None:
        return "not found here"
    tried = subprocess.run([found, "-c", ""], capture_output=True, text=True)
    if tried.returncode == 0:
        return None
    return (tried.stderr.strip().splitlines() or [f"ended with {tried.returncode}"])[0]  # pyenv says which are chosen


def environment(python: str, versions: str, index: str | None = None) -> Path:
    """The interpreter of an environment with the libraries and not the package.

    Raises:
        RuntimeError: it is too old, or the libraries cannot be installed; with pip's last lines.
    """
    found = shutil.which(python)
    if (Path(found).parent.parent / "pyvenv.cfg").exists():
        return Path(found)
    ask = "import sys; print('.'.join(map(str, sys.version_info[:3])))"
    version = subprocess.run([found, "-c", ask], check=True, capture_output=True, text=True).stdout.strip()
    if tuple(map(int, version.split(".")[:2])) < (3, 11):
        raise RuntimeError(f"Python {version} is too old: 3.11 or newer is needed")
    folder = ENVIRONMENTS / f"{version}-{versions}"
    inside = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    ready, wanted = folder / ".ready", "\n".join([*libraries(), _pins(versions)])
    ENVIRONMENTS.mkdir(exist_ok=True)
    with whole.lock(folder, PATIENCE):
        if not ready.exists() or ready.read_text("utf-8") != wanted:  # or other pins, another day
            print(f"{python}: installing into {folder.relative_to(ROOT)} (once; some minutes)", flush=True)
            _call([found, "-m", "venv", "--clear", folder])
            for command in install_commands(inside, versions, index):
                _call(command)
            ready.write_text(wanted, "utf-8")
    return inside


def libraries() -> list[str]:
    """What a copy needs, and the kernel that runs it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["notebooks"], "ipykernel>=6.29"]


def _pins(versions: str) -> str:
    """What decides the versions: the pins, or the day."""
    return (ROOT / CONSTRAINTS[versions]).read_text("utf-8") if CONSTRAINTS[versions] else datetime.date.today().isoformat()


def install_commands(python: Path, versions: str, index: str | None) -> list[list]:
    """How pip brings the libraries: torch from ``index`` if that answers, then the rest."""
    pins = ["-c", ROOT / CONSTRAINTS[versions]] if CONSTRAINTS[versions] else []
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-user", *pins]
    if versions == "oldest":
        pip.append("--only-binary=:all:")  # newer Pythons have no wheels of them: say so, instead of compiling for hours
    cpu = [[*pip, "torch", "--no-deps", "--index-url", index]] if index and _answers(index) else []
    return [*cpu, [*pip, *libraries()]]


def _answers(address: str) -> bool:
    from urllib.request import urlopen

    try:
        urlopen(f"{address}/torch/", timeout=5).close()
    except OSError:
        return False
    return True


def _call(command: list) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError("\n".join([f"{command[0]} failed:", *(done.stdout + done.stderr).splitlines()[-5:]]))


def bare_variables(python: Path, folder: Path) -> dict[str, str]:
    """The variables for a kernel of ``python`` named "bare", described in ``folder``: none leads to the repository."""
    kernel = folder / "kernels" / "bare"
    kernel.mkdir(parents=True, exist_ok=True)
    command = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": command, "display_name": "bare", "language": "python"}))
    drop = ("PYTHONPATH", "VIRTUAL_ENV", "NORMLAB_DEVICE", "NORMLAB_LARGER")
    own = {name: value for name, value in os.environ.items() if name not in drop}
    committed = ENVIRONMENT | {"OMP_NUM_THREADS": "1"}  # as tools/execute.py ran them …
    committed.pop("NORMLAB_STRICT_SHOW")  # … but other versions may come close to a rounding border
    return own | committed | {"JUPYTER_PATH": str(folder)}


def run_once(copy: Path, folder: Path) -> tuple[list, float]:
    """The outputs of all code cells of a copy, run in the empty ``folder`` by the kernel "bare", and its peak in GB."""
    notebook = nbformat.read(copy, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(PEAK))
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    run_cells(notebook, folder, kernel="bare")
    *cells, last = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [shown(cell) for cell in cells], float(last.outputs[0].text)


def shown(cell) -> list:
    """What of a cell's outputs is compared: nothing if they are marked as varying."""
    if "nbval-ignore-output" in cell.metadata.get("tags", []):
        return []
    outputs = joined_streams([dict(output) for output in cell.outputs])
    return [
        {"error": output["ename"]} if output["output_type"] == "error" else output.get("data", output.get("text"))
        for output in outputs
    ]


def without_pictures(outputs: list) -> list:
    """The outputs with every SVG as one word: the last digits of its coordinates are those of a machine."""
    return json.loads(re.sub(r"(<\?xml.*?)?<svg.*?</svg>(\\n)*", "SVG", json.dumps(outputs)))


def committed(notebook: Path) -> list[list]:
    """What the code cells of a notebook show as it is committed."""
    return [shown(cell) for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "code"]


def try_copy(copy: Path, stored: list[list], runs: int) -> Result:
    """Run a copy so many times in folders of its own, and compare the runs, and the first with what is stored.

    Raises:
        InterruptedError: its kernel was stopped, by Ctrl+C or for want of memory.
    """
    result, outputs = Result(), []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            try:
                cells, peak = run_once(copy, Path(folder))
            except InterruptedError as problem:
                raise InterruptedError(f"{copy.stem}: {problem}") from None
            except Exception as problem:  # a cell raised
                lines = (str(problem).strip() or type(problem).__name__).splitlines()
                result.problems.append(lines[0 if isinstance(problem, TimeoutError) else -1])  # it ends with the cell
                return result
            result.seconds.append(time.perf_counter() - start)
            result.peak_gb = max(result.peak_gb, peak)
            outputs.append(cells)
    for number, cells in enumerate(zip(*outputs), start=1):
        if any(cell != cells[0] for cell in cells):
            result.problems.append(f"code cell {number} differs from run to run")
    if result.peak_gb > LIMIT_GB:
        result.problems.append(f"took {result.peak_gb:.1f} GB, more than {LIMIT_GB}")
    result.differs = sum(without_pictures(a) != without_pictures(b) for a, b in zip(outputs[0], stored, strict=True))
    return result


def try_interpreter(python: str, versions: str, copies: dict[Path, list], runs: int, index: str | None = None) -> bool:
    """Run the copies (copy -> what is committed) with one interpreter and print a table; False if one fails."""
    if problem := missing(python):
        print(f"{python}: left out: {problem}", flush=True)
        return True
    try:
        inside = environment(python, versions, index)
    except RuntimeError as problem:
        print(f"{python}: {problem}", flush=True)
        return False
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as kernels:
        try:
            variables = bare_variables(inside, Path(kernels))
            os.environ.clear()
            os.environ.update(variables)
            if subprocess.run([inside, "-c", "import normlab"], capture_output=True, cwd=kernels).returncode == 0:
                print(f"{python}: has the package normlab, so that its copies prove nothing", flush=True)
                return False
            told = subprocess.run([inside, "-c", ASK], capture_output=True, text=True, cwd=kernels)
            if told.returncode:
                print(f"{python}: torch cannot be imported: {told.stderr.strip().splitlines()[-1]}", flush=True)
                return False
            print(f"{python}: Python and torch {told.stdout.strip()} ({versions})", flush=True)
            good = [_tell(copy, try_copy(copy, stored, runs), versions) for copy, stored in copies.items()]
            return all(good)
        finally:
            os.environ.clear()
            os.environ.update(before)


def _tell(copy: Path, result: Result, versions: str) -> bool:
    """Print a line on a copy; whether all is well."""
    problems = list(result.problems)
    if versions == "pins" and result.differs:
        problems.append(f"{result.differs} cells show something else than what is committed")
    times = " and ".join(f"{seconds:.0f}" for seconds in result.seconds) or "–"
    other = f", {result.differs} cells not as committed" if result.differs and not problems else ""
    verdict = "; ".join(problems) or "ok"
    print(f"  {copy.stem:28} {times:>11} s  {result.peak_gb:4.1f} GB  {verdict}{other}", flush=True)
    return not problems


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="+", metavar="PYTHON")
    parser.add_argument("--versions", choices=CONSTRAINTS, default="pins", help="of the libraries (pins)")
    parser.add_argument("--torch-index", metavar="ADDRESS", help="where torch's CPU build is, if it answers")
    parser.add_argument("--once", action="store_true", help="run each copy once, not twice")
    parser.add_argument("--copies", nargs="+", metavar="NAME", help="such as 04_rmsnorm (all)")
    options = parser.parse_args(arguments)
    sources = {path.name: path for path in notebooks(ROOT)}
    unknown = {f"{name}.ipynb" for name in options.copies or []} - set(sources)
    if unknown:
        parser.error(f"no such notebook: {min(unknown)}; there are {', '.join(sources)}")
    with tempfile.TemporaryDirectory() as folder:
        written = write_copies(ROOT, Path(folder))
        chosen = [copy for copy in written if not options.copies or copy.stem in options.copies]
        copies = {copy: committed(sources[copy.name]) for copy in chosen}  # now: the repository may change meanwhile
        runs = 1 if options.once else 2
        good = [try_interpreter(python, options.versions, copies, runs, options.torch_index) for python in options.pythons]
    return 0 if all(good) else 1


if __name__ == "__main__":
    with whole.told():
        sys.exit(main(sys.argv[1:]))
