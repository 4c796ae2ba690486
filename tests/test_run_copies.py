"""The copies with other interpreters: what is compared, and what is said; with a faked run, since each takes minutes."""

import os
import subprocess
import sys

import nbformat
import pytest
import run_copies
from nbclient.exceptions import CellTimeoutError

V4 = nbformat.v4
LATE = CellTimeoutError.error_from_timeout_and_cell("late", 300, V4.new_code_cell("1\n2"))


def cell(*outputs, tags=()):
    return V4.new_code_cell("…", outputs=list(outputs), metadata={"tags": list(tags)})


def printed(text):
    return V4.new_output("stream", name="stdout", text=text)


def drawn(numbers):
    svg = f'<?xml version="1.0"?>\n<svg><path d="{numbers}"/></svg>\n'
    return V4.new_output("display_data", {"image/svg+xml": svg, "text/plain": "a line"})


@pytest.fixture
def trial(tmp_path, monkeypatch):
    """Runs a copy whose runs show the given cells, one list a run; the last is what is committed."""

    def run(*runs, committed, peak=0.5):
        nbformat.write(V4.new_notebook(cells=committed), tmp_path / "a.ipynb")
        stored = run_copies.committed(tmp_path / "a.ipynb")
        left = iter(runs)
        monkeypatch.setattr(run_copies, "run_once", lambda *_: ([run_copies.shown(c) for c in next(left)], peak))
        return run_copies.try_copy(tmp_path / "copy.ipynb", stored, len(runs))

    return run


def test_two_equal_runs_are_well(trial):
    same = [cell(printed("a\n"), printed("b\n")), cell(drawn("1 2"))]
    result = trial(same, [cell(printed("a\nb\n")), cell(drawn("1 2"))], committed=same)  # where a stream is cut is chance
    assert result.problems == [] and result.differs == 0 and len(result.seconds) == 2


def test_runs_that_differ_are_named(trial):
    one, other = [cell(printed("1")), cell(printed("2"))], [cell(printed("1")), cell(printed("3"))]
    assert trial(one, other, committed=one).problems == ["code cell 2 differs from run to run"]
    varying = [[cell(printed(text), tags=["nbval-ignore-output"])] for text in "12"]
    assert trial(*varying, committed=varying[0]).problems == []


def test_pictures_are_compared_between_runs_and_not_with_those_of_another_machine(trial):
    one, other = [cell(drawn("1 2"))], [cell(drawn("1 3"))]
    assert trial(one, other, committed=one).problems == ["code cell 1 differs from run to run"]
    assert trial(one, one, committed=other).differs == 0
    assert trial(one, one, committed=[cell(printed("1 2"))]).differs == 1
    two = [cell(drawn("1 2"), printed("between"), drawn("3"))]
    assert trial(two, two, committed=[cell(drawn("1 2"), printed("other"), drawn("3"))]).differs == 1


def test_memory_above_the_limit(trial):
    one = [cell(printed("1"))]
    assert trial(one, committed=one, peak=12.5).problems == ["took 12.5 GB, more than 12"]


@pytest.mark.parametrize(
    "error, said",
    [
        (RuntimeError("many lines\nValueError: no"), "ValueError: no"),
        (AssertionError(), "AssertionError"),
        (LATE, "A cell timed out while it was being executed, after 300 seconds."),
    ],
)
def test_a_cell_that_raises_ends_the_copy(tmp_path, monkeypatch, error, said):
    def fail(*_):
        raise error

    monkeypatch.setattr(run_copies, "run_once", fail)
    assert run_copies.try_copy(tmp_path / "a", [], 2).problems == [said]


def test_ctrl_c_ends_all_of_them(tmp_path, monkeypatch):
    """nbclient takes the signal and ends the kernel, which must not pass for the fault of one copy."""

    def stop(*_):
        raise InterruptedError("its kernel was stopped before the last cell")

    monkeypatch.setattr(run_copies, "run_once", stop)
    with pytest.raises(InterruptedError, match="01_a: its kernel was stopped"):
        run_copies.try_copy(tmp_path / "01_a.ipynb", [], 2)


@pytest.mark.parametrize("versions, status", [("pins", False), ("newest", True)])
def test_other_outputs_are_a_fault_with_the_pinned_versions_only(capsys, tmp_path, versions, status):
    result = run_copies.Result([1.0, 2.0], 0.4, [], differs=3)
    assert run_copies._tell(tmp_path / "01_a.ipynb", result, versions) is status
    assert ("3 cells not as committed" in capsys.readouterr().out) is status


def test_a_missing_interpreter_is_said_and_no_fault(capsys):
    assert run_copies.try_interpreter("python3.99", "pins", {}, 2)
    assert capsys.readouterr().out == "python3.99: left out: not found here\n"


@pytest.mark.skipif(os.name == "nt", reason="a shell script")
def test_an_interpreter_that_does_not_run_says_why(tmp_path, capsys):
    """As pyenv's python3.13 does where another version is chosen."""
    shim = tmp_path / "python3.99"
    shim.write_text("#!/bin/sh\necho 'pyenv: python3.99: command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    assert run_copies.try_interpreter(str(shim), "pins", {}, 2)
    assert capsys.readouterr().out == f"{shim}: left out: pyenv: python3.99: command not found\n"


def test_an_environment_is_built_once_and_anew_for_other_pins(tmp_path, monkeypatch):
    calls = []
    python = getattr(sys, "_base_executable", sys.executable)
    monkeypatch.setattr(run_copies, "ROOT", tmp_path)
    monkeypatch.setattr(run_copies, "ENVIRONMENTS", tmp_path / ".venvs")
    monkeypatch.setattr(run_copies, "_call", lambda command: calls.append(command) or command[-1].mkdir(exist_ok=True))
    monkeypatch.setattr(run_copies, "install_commands", lambda *_: [])
    monkeypatch.setattr(run_copies, "libraries", lambda: ["torch>=2.6"])
    for pins, builds in (("torch==2.6\n", 1), ("torch==2.6\n", 1), ("torch==2.7\n", 2)):
        (tmp_path / "constraints.txt").write_text(pins)
        inside = run_copies.environment(python, "pins")
        assert len(calls) == builds and calls[-1][:2] == [python, "-m"] and inside.is_relative_to(calls[-1][-1])


def test_an_interpreter_with_the_package_proves_nothing(capsys):
    if sys.prefix == sys.base_prefix:
        pytest.skip("needs make")  # a virtual environment, as make sets it up
    assert not run_copies.try_interpreter(sys.executable, "pins", {}, 2)
    assert "has the package normlab" in capsys.readouterr().out


def test_nothing_leads_to_the_repository(tmp_path, monkeypatch):
    for name in ("PYTHONPATH", "VIRTUAL_ENV", "NORMLAB_LARGER"):
        monkeypatch.setenv(name, "1")
    variables = run_copies.bare_variables(sys.executable, tmp_path)
    assert not {"PYTHONPATH", "VIRTUAL_ENV", "NORMLAB_STRICT_SHOW"} & set(variables)
    assert variables["OMP_NUM_THREADS"] == "1" and variables["NORMLAB_LARGER"] == "0"
    assert os.environ["PYTHONPATH"] == "1"


@pytest.mark.parametrize("versions, pins", [("pins", "constraints.txt"), ("oldest", "constraints-oldest.txt"), ("newest", None)])
def test_only_the_named_libraries_are_installed(tmp_path, versions, pins):
    (command,) = run_copies.install_commands(tmp_path / "python", versions, None)
    names = {text.split(">=")[0] for text in command if ">=" in str(text)}
    wanted = {"torch", "numpy", "tqdm", "matplotlib", "scikit-learn", "scipy", "joblib", "transformers", "ipykernel"}
    assert names == wanted
    assert ("-c" in command) == bool(pins) and all(str(run_copies.ROOT / pins) in map(str, command) for _ in range(bool(pins)))


def test_an_index_that_does_not_answer_is_not_asked(tmp_path, monkeypatch):
    for answers in (True, False):
        monkeypatch.setattr(run_copies, "_answers", lambda address: answers)
        commands = run_copies.install_commands(tmp_path / "python", "pins", "https://example.org")
        assert len(commands) == 1 + answers
        assert all("https://example.org" in map(str, command) for command in commands[:-1])


def test_an_unknown_copy_is_refused():
    command = [sys.executable, run_copies.ROOT / "tools" / "run_copies.py", "python3", "--copies", "99_none"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "no such notebook: 99_none.ipynb; there are 01_" in done.stderr
