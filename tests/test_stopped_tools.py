"""What tools write is there whole or not at all, also where they are stopped; a place that takes no file gets a sentence."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import alone
import audit
import deck
import execute
import matrix
import nbformat
import offline
import pytest
import run_copies
import sheet
import standalone
import whole

from normlab import files, record

ROOT = Path(__file__).resolve().parent.parent
# What opens a file for writing, other than through `whole`.
OPENS = re.compile(r"(?<!whole)\.write_(?:text|bytes)\(|\bopen\([^)]*[\"']w")
posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


def notebook(path: Path, *sources: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = [nbformat.v4.new_code_cell(source, id=f"c{i}") for i, source in enumerate(sources)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def site(folder: Path) -> Path:
    folder.mkdir()
    (folder / "index.html").write_text("<p>here</p>")
    return folder


# --- whole or not at all --------------------------------------------------------------------------

WRITERS = {
    "deck": lambda folder: deck.write(ROOT, folder / "out" / "deck.apkg"),
    "sheet": lambda folder: sheet.write(ROOT, folder / "out" / "sheet.pdf"),
    "offline": lambda folder: offline.write(site(folder / "site"), folder / "out" / "offline.zip"),
    "copies": lambda folder: standalone.write_text(folder / "out" / "copy.ipynb", "{}"),
    "notebooks": lambda folder: execute.execute(notebook(folder / "out" / "a.ipynb", "1"), run=False),
}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("name", WRITERS)
def test_a_disk_that_takes_no_file_is_told_and_leaves_what_was_there(name, number, tmp_path, monkeypatch, capsys):
    """In a sentence of the command, at the moment at which the content is to be written."""
    written, before = files._write_through, {}

    def refuse(path, content):
        if content == b"tried before the work\n":
            return written(path, content)
        before.update({path: path.read_bytes() for path in (tmp_path / "out").glob("*") if path.is_file()})
        written(path, content[:1])  # a part of it arrives
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files, "_write_through", refuse)
    monkeypatch.setattr(sys, "argv", [f"tools/{name}.py"])
    with pytest.raises(SystemExit, match=f"^{name}: cannot write .*: {os.strerror(number)}$"), whole.told():
        WRITERS[name](tmp_path)
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_a_place_is_tried_before_the_work(tmp_path, monkeypatch):
    """A deck, a sheet or a run of a notebook that cannot be stored is not made."""
    for module, work in ((sheet, "render"), (deck.questions, "read_questions"), (execute, "run_cells")):
        monkeypatch.setattr(module, work, lambda *_: pytest.fail("it was made"))
    path = notebook(tmp_path / "a.ipynb", "1")

    def refuse(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(files, "_write_through", refuse)
    for work in (lambda: sheet.write(ROOT, tmp_path / "s"), lambda: deck.write(ROOT, tmp_path / "d"), lambda: execute.execute(path)):
        with pytest.raises(OSError, match="Read-only file system"):
            work()


def test_no_tool_and_no_part_of_the_package_writes_a_file_that_can_be_half():
    """Others write into a folder that is thrown away, or into the site, which a stopped build writes anew."""
    allowed = {"whole.py", "sheet.py", "build_wheel.py", "files.py", "setup_cell.py", "run_copies.py"}
    found = []
    for path in [*(ROOT / "tools").glob("*.py"), *(ROOT / "src").rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        if path.name not in allowed:
            found += [f"{path.name}: {line.strip()}" for line in text.splitlines() if OPENS.search(line)]
    assert found == []


def test_an_edit_during_a_run_is_kept(tmp_path, monkeypatch):
    path = notebook(tmp_path / "a.ipynb", "1")

    def run(cells, folder):
        cells.cells[0].source = "2"
        path.write_text(path.read_text().replace('"1"', '"3"'))

    monkeypatch.setattr(execute, "run_cells", run)
    with pytest.raises(OSError, match="a.ipynb was edited while it ran, and is left as it is"):
        execute.execute(path)
    assert nbformat.read(path, as_version=4).cells[0].source == "3"


# --- stopped --------------------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_of_a_notebook_that_is_stopped_leaves_it_and_no_kernel(how, tmp_path):
    source = "import os, time\nfrom pathlib import Path\nPath('kernel').write_text(str(os.getpid()))\ntime.sleep(60)"
    path = notebook(tmp_path / "a.ipynb", source)
    before = path.read_bytes()
    command = [sys.executable, str(ROOT / "tools" / "execute.py"), str(path)]
    run = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until(lambda: (tmp_path / "kernel").exists() and (tmp_path / "kernel").read_text())
    run.send_signal(how)
    said = run.communicate(timeout=60)[1]
    assert run.returncode and path.read_bytes() == before and {p.name for p in tmp_path.iterdir()} == {"a.ipynb", "kernel"}
    if how != signal.SIGKILL:
        assert said.splitlines()[-1] == "execute: a.ipynb is as it was: its kernel was stopped before the last cell"
    until(lambda: not alive(int((tmp_path / "kernel").read_text())))


def until(what, seconds: float = 60):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.02)


def alive(process: int) -> bool:
    import psutil

    return psutil.pid_exists(process) and psutil.Process(process).status() != psutil.STATUS_ZOMBIE


def test_ctrl_c_ends_a_tool_with_a_sentence(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tools/deck.py"])
    with pytest.raises(SystemExit) as ended, whole.told():
        raise KeyboardInterrupt
    assert ended.value.code == 130 and capsys.readouterr().err.startswith("deck: stopped; no file is half-written")


def test_ctrl_c_ends_a_record_with_a_sentence(tmp_path, monkeypatch, capsys):
    def stop(seed):
        if seed == 1:
            raise KeyboardInterrupt
        return {"seed": seed}

    monkeypatch.setattr(record, "FOLDER", tmp_path)
    monkeypatch.setattr(record, "recipes", lambda: {"r": record.Recipe("r", "", record.grid(seed=range(3)), stop)})
    assert record.main(["r"]) == 130
    assert "every finished run is written, and the same command goes on from there" in capsys.readouterr().err
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    assert [run["result"] for run in record.load("r")["runs"]] == [{"seed": 0}]


# --- alone ----------------------------------------------------------------------------------------


def test_two_set_ups_do_not_run_at_the_same_time(tmp_path):
    """Each notes when it begins and ends."""
    log, place = tmp_path / "log", tmp_path / "set-up"
    note = f"import time; f = open({str(log)!r}, 'a'); f.write('b'); f.flush(); time.sleep(0.3); f.write('e'); f.flush()"
    command = [sys.executable, str(ROOT / "tools" / "alone.py"), str(place), sys.executable, "-c", note]
    both = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    assert log.read_text() == "bebe" and list(tmp_path.iterdir()) == [log]


def test_the_status_of_the_command_is_handed_on(tmp_path):
    assert alone.main(tmp_path / "set-up", [sys.executable, "-c", "raise SystemExit(7)"]) == 7


def test_every_installation_of_the_makefile_is_alone():
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n\t", "")
    lines = [line for line in text.splitlines() if line.startswith("\t") and ("$(PIP) " in line or "-m venv" in line)]
    assert len(lines) == 4 and all("$(ALONE) " in line for line in lines)


# --- the matrix -----------------------------------------------------------------------------------


def test_the_matrix_has_six_parts_and_tests_in_two():
    found = matrix.parts([])
    assert len({part.name for part in found}) == 6
    assert {(p.variables["OMP_NUM_THREADS"], p.variables["ATEN_CPU_CAPABILITY"]) for p in found} == {
        (threads, name) for threads in "12" for name in ("default", "avx2", None)
    }
    with_tests = [part.name for part in found if any("tests" in command for command in part.commands)]
    assert with_tests == ["1 thread, default", "2 threads, native"]
    every = [path.relative_to(ROOT).as_posix() for path in execute.notebooks(ROOT)]
    for part in found:
        runs = [[word for word in command if word.endswith(".ipynb")] for command in part.commands if "tests" not in command]
        assert runs[0] == every and len(runs) == matrix.REPETITIONS
        assert all({Path(name).stem for name in run} == set(matrix.EVER_DIFFERED) for run in runs[1:])


def test_no_instruction_set_is_given_code_that_was_compiled_for_another():
    kept = {(p.variables["ATEN_CPU_CAPABILITY"], p.variables["TORCHINDUCTOR_CACHE_DIR"]) for p in matrix.parts([])}
    assert len(kept) == len({place for _, place in kept}) == len(matrix.SETS)


def test_what_the_matrix_leaves_out_exists():
    assert [name for name in matrix.NOT_NUMERIC if not (ROOT / name).exists()] == []
    assert set(matrix.EVER_DIFFERED) <= {path.stem for path in execute.notebooks(ROOT)}


def test_the_matrix_takes_names():
    (command,) = {tuple(c) for part in matrix.parts(["drills/week_1"]) for c in part.commands}
    assert command == (*matrix.PYTEST, "notebooks/drills/week_1.ipynb")
    with pytest.raises(ValueError, match="there is no notebook 'nobody'; there are 01_drunkards_walk, "):
        matrix.parts(["nobody"])


def test_the_matrix_asks_for_other_versions_where_the_makefile_can_run_them(tmp_path, monkeypatch):
    monkeypatch.setattr(matrix, "ROOT", tmp_path)
    (tmp_path / "Makefile").write_text("test:\n")
    assert matrix.other_versions([]) == []
    (tmp_path / "Makefile").write_text("test-copies: x\n")
    assert [part.name for part in matrix.other_versions([])] == ["other Pythons", "newest libraries", "oldest libraries"]
    (command,) = matrix.other_versions(["drills/week_1", "04_rmsnorm"])[1].commands
    assert command[-1] == "COPIES=--versions newest --once --copies week_1 04_rmsnorm"


SAY = "import os; print(os.environ['OMP_NUM_THREADS'], os.environ.get('ATEN_CPU_CAPABILITY')); print('{}'); raise SystemExit({})"


def test_a_part_that_fails_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(matrix, "ASK", "print('ASKED')")
    monkeypatch.setattr(matrix, "OUT", tmp_path)
    monkeypatch.setattr(matrix, "other_versions", lambda names: [])
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    good, dead = (sys.executable, "-c", SAY.format("3 passed in 1s", 0)), (sys.executable, "-c", SAY.format("no memory", 3))
    bad = (sys.executable, "-c", SAY.format(r"FAILED notebooks/a.ipynb::Cell 3\n1 failed, 2 passed in 1s", 1))
    chosen = matrix.parts(["04_rmsnorm"])[:4]
    for part, commands in zip(chosen, ([bad, good], [good], [good], [dead, good])):
        part.commands = commands
    monkeypatch.setattr(matrix, "parts", lambda names: chosen)
    assert matrix.main(["04_rmsnorm"]) == 1
    told = (tmp_path / "table.txt").read_text().splitlines()
    assert [line.split()[:6] for line in told[1:5]] == [
        ["1", "thread,", "default", "ASKED", "5", "1"], ["1", "thread,", "avx2", "ASKED", "3", "0"],
        ["1", "thread,", "native", "ASKED", "3", "0"], ["2", "threads,", "default", "ASKED", "3", "1"],
    ]  # fmt: skip
    assert told[5] == "FAILED 1 thread, default: notebooks/a.ipynb::Cell" and "ended with 3" in told[6] and len(told) == 7
    assert told == capsys.readouterr().out.splitlines()[-7:]
    assert (tmp_path / "1-thread-native.txt").read_text().startswith("1 None\n")
    chosen[0].commands, chosen[3].commands = [good], [good]
    for part in chosen:
        part.failed = []
    assert matrix.main(["04_rmsnorm"]) == 0


def test_the_matrix_counts_copies_and_says_which_pythons_were_left_out(tmp_path, capsys):
    for differs, problems in ((0, []), (2, []), (0, ["stopped"])):
        run_copies._tell(Path("04_rmsnorm"), run_copies.Result([20.0, 21.0], 1.0, problems, differs), "oldest")
    said = capsys.readouterr().out + "python3.9: left out: there is none\n"
    part = matrix.Part("other Pythons", [(sys.executable, "-c", f"print({said!r}); raise SystemExit(1)")])
    matrix.run(part, tmp_path)
    assert (part.passed, part.left_out, len(part.failed)) == (2, ["python3.9"], 1)
    assert (tmp_path / "other-pythons.txt").exists()
    assert matrix.table([part]).splitlines()[-2] == "left out of other Pythons: python3.9"


# --- the audit ------------------------------------------------------------------------------------

CLEAN = {"name": "a", "version": "1", "vulns": []}
FAULTY = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}, {"id": "PYSEC-2", "fix_versions": []}]}
UNKNOWN = {"name": "c", "skip_reason": "Dependency not found on PyPI"}


@pytest.mark.parametrize(
    ("pins", "status", "said"),
    [
        ([CLEAN], 0, ["1 pins were looked up, no fault is known"]),
        ([CLEAN, UNKNOWN], 0, ["not known to the list: c", "1 pins were looked up, no fault is known"]),
        (
            [CLEAN, FAULTY], 1,
            ["b 2: PYSEC-1, mended in 3", "b 2: PYSEC-2, mended in no version yet", "2 pins were looked up, faults are known"],
        ),
        ([UNKNOWN], 2, ["the list of faults did not answer for any of 1 pins: nothing is known"]),
        (None, 2, ["the list of faults did not answer for any of 0 pins: nothing is known"]),
    ],
)  # fmt: skip
def test_what_the_list_does_not_know_is_no_good_news(pins, status, said):
    assert audit.verdict("" if pins is None else json.dumps({"dependencies": pins})) == (status, said)
