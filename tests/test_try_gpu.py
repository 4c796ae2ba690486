"""`make test-gpu` where there is no GPU, and with a faked one."""

import json
import types

import nbformat
import pytest
import torch
import try_gpu

from normlab import device

CARD = {"card": "Tesla T4", "capability": [7, 5], "memory_gb": 15.8, "half_type": "float16", "torch": "2.13.0", "cuda": "13.0"}


@pytest.fixture
def nothing_runs(monkeypatch):
    def refuse(*_):
        raise AssertionError("something was run")

    monkeypatch.setattr(try_gpu, "run_command", refuse)
    monkeypatch.setattr(try_gpu, "run_notebook", refuse)


@pytest.mark.parametrize(
    "cuda, listed, said",
    [
        (None, False, "is a build for the CPU. Nothing was run."),
        ("13.0", False, "torch finds no GPU. Nothing was run."),
        ("13.0", True, "torch lists K80, but cannot compute on it: no kernel image is available. Nothing was run."),
    ],
)
def test_without_a_gpu_it_says_so(monkeypatch, capsys, nothing_runs, cuda, listed, said):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: listed)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "K80")
    monkeypatch.setattr(device, "why_not", lambda where: "no kernel image is available")
    assert try_gpu.main() == 2
    assert capsys.readouterr().out.strip().endswith(said)


def test_the_card_is_described(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (15e9, 15.84e9))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch, "__version__", "2.13.0")
    monkeypatch.setattr(device, "why_not", lambda where: None)
    monkeypatch.setattr(device, "supports_autocast", lambda where, dtype: dtype is torch.float16)
    assert try_gpu.card() == (CARD, "")


@pytest.mark.parametrize("problem, status", [(None, 0), ("a cell raised", 1)])
def test_with_a_gpu_all_is_run_and_recorded(monkeypatch, capsys, tmp_path, problem, status):
    commands, seen = [], {}

    def command(*arguments):
        commands.append((arguments[0], try_gpu.os.environ.get("NORMLAB_DEVICE")))
        return {"seconds": 1, "problem": None, "lines": []}

    def notebook(path):
        seen[path.stem] = try_gpu.os.environ.get("NORMLAB_DEVICE")
        return {"seconds": 2, "peak_gb": 0.3, "problem": problem if path.stem == "02_b" else None}

    monkeypatch.setattr(try_gpu, "card", lambda: (CARD, ""))
    monkeypatch.setattr(try_gpu, "run_command", command)
    monkeypatch.setattr(try_gpu, "run_notebook", notebook)
    monkeypatch.setattr(try_gpu, "notebooks", lambda root: [root / "01_a.ipynb", root / "02_b.ipynb"])
    monkeypatch.setattr(try_gpu, "ROOT", tmp_path)
    monkeypatch.setattr(try_gpu, "REPORT", tmp_path / "_build" / "gpu.json")
    monkeypatch.setattr(try_gpu.os, "environ", {})
    assert try_gpu.main() == status
    assert commands == [("pytest", None), ("pytest", None), ("normlab", "cuda")]
    assert seen == {"01_a": "cuda", "02_b": "cuda"}
    report = json.loads((tmp_path / "_build" / "gpu.json").read_text())
    assert report["gpu"] == CARD and set(report["results"]) >= {"01_a.ipynb", "02_b.ipynb", "make bench"}
    printed = capsys.readouterr().out
    assert printed.startswith("card Tesla T4, capability [7, 5]") and "01_a.ipynb: ok, 2 s, 0.3 GB on the GPU" in printed
    assert (f"02_b.ipynb: {problem}" in printed) == bool(problem)


def run(monkeypatch, tmp_path, code, peak):
    """The result of a notebook of one cell, whose kernel is this process."""

    def cells(notebook, folder):
        *own, last = notebook.cells
        for cell in own:
            exec(cell.source, {})
        last.outputs = [types.SimpleNamespace(text=f"{peak}\n")]

    monkeypatch.setattr(try_gpu, "run_cells", cells)
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)]), tmp_path / "a.ipynb")
    return try_gpu.run_notebook(tmp_path / "a.ipynb")


@pytest.mark.parametrize(
    "code, peak, kept, problem",
    [
        ("1", 11.9, 11.9, None),
        ("1", 12.4, 12.4, "took 12.4 GB, more than 12"),
        ("raise ValueError('first line\\nno such kernel')", 1.0, None, "no such kernel"),
    ],
)
def test_memory_and_errors_of_a_notebook(monkeypatch, tmp_path, code, peak, kept, problem):
    result = run(monkeypatch, tmp_path, code, peak)
    assert (result["peak_gb"], result["problem"]) == (kept, problem)


def test_a_command_that_fails_is_a_problem():
    good, bad = try_gpu.run_command("json.tool", "--help"), try_gpu.run_command("json.tool", "no such file")
    assert good["problem"] is None and "usage" in "\n".join(good["lines"])
    assert bad["problem"] == f"status {2 if 'usage' in bad['lines'][0] else 1}"
