"""Run on a GPU what a processor cannot show: the CUDA tests, all notebooks, the timings. `make test-gpu`.

The report in _build/gpu.json begins with the card. Without a GPU that torch can compute on, this says so, tries nothing
and ends with status 2.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
import whole
from execute import ENVIRONMENT, notebooks, run_cells

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "_build" / "gpu.json"
LIMIT_GB = 12
CUDA_TESTS = ["tests/test_fast.py", "tests/test_device.py", "tests/test_training.py", "-k", "cuda or device or precision"]
PEAK = "import torch; print(torch.cuda.max_memory_allocated() / 1e9)"


def card() -> tuple[dict | None, str]:
    """The GPU that torch computes on, and ""; or None, and why there is none."""
    import torch

    from normlab import device

    if not torch.cuda.is_available():
        build = torch.version.cuda or torch.version.hip
        return None, "torch finds no GPU" if build else f"torch {torch.__version__} is a build for the CPU"
    if problem := device.why_not(torch.device("cuda")):
        return None, f"torch lists {torch.cuda.get_device_name()}, but cannot compute on it: {problem}"
    half = device.half_type(torch.device("cuda"))
    return {
        "card": torch.cuda.get_device_name(),
        "capability": list(torch.cuda.get_device_capability()),
        "memory_gb": round(torch.cuda.mem_get_info()[1] / 1e9, 1),
        "half_type": str(half).removeprefix("torch."),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }, ""


def run_notebook(path: Path) -> dict:
    """Run a notebook on the GPU: seconds, the most memory that tensors took there, and what went wrong."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(PEAK))
    start, peak, problem = time.perf_counter(), None, None
    with tempfile.TemporaryDirectory() as folder:
        try:
            run_cells(notebook, Path(folder))
            peak = round(float(notebook.cells[-1].outputs[0].text), 3)
        except Exception as error:  # a cell raised, or the kernel died
            problem = (str(error).strip() or type(error).__name__).splitlines()[-1]
    if peak is not None and peak > LIMIT_GB:
        problem = f"took {peak} GB, more than {LIMIT_GB}"
    return {"seconds": round(time.perf_counter() - start), "peak_gb": peak, "problem": problem}


def run_command(*arguments: str) -> dict:
    """Run a module of Python; its time, its last lines, and what went wrong."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True)
    lines = (done.stdout + done.stderr).splitlines()
    problem = f"status {done.returncode}" if done.returncode else None
    return {"seconds": round(time.perf_counter() - start), "problem": problem, "lines": lines[-60:]}


def main() -> int:
    found, why = card()
    if found is None:
        print(f"No GPU to try anything on: {why}. Nothing was run.")
        return 2
    print(", ".join(f"{name} {value}" for name, value in found.items()), flush=True)
    results = {
        "the CUDA tests": run_command("pytest", "-q", "-n0", "-rs", *CUDA_TESTS),
        "the notebooks as they are compared": run_command("pytest", "-q", "-n0", "notebooks"),  # on the CPU
    }
    plain = {name: ENVIRONMENT[name] for name in ("PYTHONHASHSEED", "TQDM_DISABLE")}
    os.environ.update(plain | {"NORMLAB_DEVICE": "cuda"})  # other digits than those of a CPU are expected
    for path in notebooks(ROOT):
        results[path.name] = run_notebook(path)
    results["make bench"] = run_command("normlab", "bench")
    REPORT.parent.mkdir(exist_ok=True)
    whole.write_text(REPORT, json.dumps({"gpu": found, "results": results}, indent=1) + "\n")
    for name, result in results.items():
        memory = f", {result['peak_gb']} GB on the GPU" if result.get("peak_gb") is not None else ""
        print(f"{name}: {result['problem'] or 'ok'}, {result['seconds']} s{memory}")
    print(f"written: {REPORT.relative_to(ROOT)}")
    return int(any(result["problem"] for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
