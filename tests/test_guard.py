"""The guards of guard.py and whole_run.py stop what they are for, and spread.py keeps files together: tiny projects."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import spread

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = "[pytest]\ntestpaths = tests notebooks\naddopts = --nbval --nbval-current-env --nbval-cell-timeout=2\n"
# Swallows the interrupt at the time limit, as training does, and then shows what it should.
SWALLOW = "import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    pass\nprint(1)"
ENDLESS = "import time\nwhile True:\n    try:\n        time.sleep(0.5)\n        print(1)\n    except KeyboardInterrupt:\n        pass"


def cell(source, shows=None, *tags):
    outputs = [nbformat.v4.new_output("stream", name="stdout", text=f"{shows}\n")] if shows is not None else []
    return nbformat.v4.new_code_cell(source, execution_count=1, outputs=outputs, metadata={"tags": list(tags)})


def write(folder, files):
    """Files by name: the text of a module, or the cells of a notebook."""
    for name, content in {"pytest.ini": SETTINGS, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        else:
            nbformat.write(nbformat.v4.new_notebook(cells=content), path)


def run(folder, *arguments):
    """pytest with the three plugins in a folder: its exit status, the outcome of each test, and all that it said."""
    plugins = [part for name in ("guard", "whole_run", "spread", "no:hypothesispytest") for part in ("-p", name)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-p", "no:cacheprovider", "-rA", "--color=no", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), str(ROOT / "tests" / "light")])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    outcomes = re.findall(r"^(PASSED|FAILED|ERROR|XFAIL|XPASS) (\S+::(?:Cell \d+|\w+))", done.stdout, re.MULTILINE)
    return done.returncode, {nodeid: outcome for outcome, nodeid in outcomes}, done.stdout + done.stderr


# --- notebook cells -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """The outcomes of notebooks with faulty cells, and of the sound cells around them."""
    folder = tmp_path_factory.mktemp("cells")
    raising = cell("1 / 0", None, "raises-exception", "nbval-ignore-output")
    silent = cell("1 / 1", None, "raises-exception", "nbval-ignore-output")
    commented = cell("# NBVAL_RAISES_EXCEPTION\n# NBVAL_IGNORE_OUTPUT\n1 / 1")
    notebooks = {
        "swallowed": [cell("print(0)", 0), cell(SWALLOW, 1), cell("print(2)", 2), cell("print(3)", "another")],
        "excused": [cell(SWALLOW.replace("    pass", "    raise"), None, *raising.metadata.tags), cell("print(2)", 2)],
        "endless": [cell(ENDLESS, 1), cell("print(2)", 2)],
        "raising": [raising, silent, commented, cell("print(3)", 3)],
    }
    write(folder, {f"notebooks/{name}.ipynb": content for name, content in notebooks.items()})
    (folder / "conftest.py").write_text("import guard\n\nguard.GRACE_SECONDS = 1\n")
    status, outcomes, said = run(folder)
    assert status == 1, said
    return outcomes, said


@pytest.mark.parametrize(
    ("notebook", "wanted"),
    [
        ("swallowed", ["PASSED", "FAILED", "ERROR", "ERROR"]),
        ("excused", ["FAILED", "ERROR"]),
        ("endless", ["FAILED", "ERROR"]),
        ("raising", ["PASSED", "FAILED", "FAILED", "PASSED"]),
    ],
)
def test_no_cell_passes_by_mistake(cells, notebook, wanted):
    outcomes, said = cells
    assert [outcomes[f"notebooks/{notebook}.ipynb::Cell {n}"] for n in range(len(wanted))] == wanted, said


def test_the_failure_says_what_happened(cells):
    _, said = cells
    assert "Cell 1: The cell exceeded its limit of 2 seconds" in said
    assert "an earlier cell of this notebook exceeded its time limit" in said
    assert "marked as raising an exception, and raised none" in said


# --- whole runs -----------------------------------------------------------------------------------------------------

BUSY = cell("print(sum(range(10**7)))", 49999995000000)
# A project in which all but one module and one cell is left out in some way.
LEFT_OUT = {
    "tests/test_sound.py": "def test_sound():\n    pass\n\ndef test_forgotten():\n    pass\n",
    "tests/test_module.py": "import pytest\n\npytest.skip('not today', allow_module_level=True)\n",
    "tests/test_empty.py": "",
    "tests/test_skip.py": "import pytest\n\ndef test_skip():\n    pytest.importorskip('no_such_library')\n",
    "tests/test_xfail.py": "import pytest\n\n@pytest.mark.xfail(reason='later')\ndef test_xfail():\n    assert False\n",
    "notebooks/ignored.ipynb": [cell("print(1)", 1)],
    "notebooks/prose.ipynb": [],
    "notebooks/cells.ipynb": [BUSY, cell("print(2)", 2), cell("print(3)", 3, "nbval-skip")],
    "conftest.py": """
import whole_run

whole_run.CPU_SECONDS = 0.001

def pytest_ignore_collect(collection_path):
    return collection_path.name == "ignored.ipynb" or None

def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if item.name != "Cell 1"]

def pytest_runtest_protocol(item):
    return item.name == "test_forgotten" or None
""",
}
COMPLAINTS = [
    "tests/test_module.py was skipped: Skipped: not today",
    "tests/test_module.py: 0 tests collected, not 1",
    "tests/test_empty.py: 0 tests collected, not 1",
    "tests/test_skip.py::test_skip was skipped: Skipped: could not import 'no_such_library'",
    "tests/test_xfail.py::test_xfail was expected to fail: later",
    "tests/test_sound.py::test_forgotten has no result",
    "notebooks/ignored.ipynb: 0 tests collected, not 1",
    "notebooks/prose.ipynb: 0 tests collected, not 1",
    "notebooks/cells.ipynb: 2 tests collected, not 3",
    "notebooks/cells.ipynb::Cell 2 was skipped: Skipped",
    "the notebooks took more than twice 0.001 s of one core",
]
SOUND = {"tests/test_sound.py": "def test_sound():\n    pass\n", "notebooks/sound.ipynb": [BUSY]}


@pytest.fixture(scope="module")
def left_out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("left_out")
    write(folder, LEFT_OUT)
    return folder


def complaints(said):
    """What a run says at its end about not being whole."""
    found = re.search(r"^=+ this was not a whole run =+\n(.*?)^=", said, re.MULTILINE | re.DOTALL)
    return found[1].splitlines() if found else []


def test_a_part_may_leave_something_out(left_out):
    status, _, said = run(left_out)
    assert status == 0 and complaints(said) == [], said


@pytest.mark.parametrize("workers", [[], ["-n1"]], ids=["one process", "a worker"])
def test_a_whole_run_may_not(left_out, workers):
    status, _, said = run(left_out, "--whole", *workers)
    assert status == 1, said
    missing = [start for start in COMPLAINTS if not any(line.startswith(start) for line in complaints(said))]
    assert missing == [] and len(complaints(said)) == len(COMPLAINTS), said


@pytest.mark.parametrize("workers", [[], ["-n1"]], ids=["one process", "a worker"])
def test_of_what_is_alike_one_runs_or_all(tmp_path, workers):
    alike = "import pytest\n\ndef test_one():\n    pass\n\n@pytest.mark.every\ndef test_another():\n    pass\n"
    write(tmp_path, SOUND | {"tests/test_sound.py": alike, "tests/test_c.py": "import pytest\npytestmark = pytest.mark.every\n"})
    for options, ran in (([], {"test_one"}), (["--all"], {"test_one", "test_another"})):
        status, outcomes, said = run(tmp_path, "--whole", *options, *workers)
        assert {nodeid.partition("::")[2] for nodeid in outcomes if "test_sound" in nodeid} == ran
        assert (status, complaints(said)) == ((1, ["tests/test_c.py: 0 tests collected, not 1"]) if options else (0, [])), said


def test_a_whole_run_without_notebooks_fails(tmp_path):
    write(tmp_path, {"tests/test_sound.py": SOUND["tests/test_sound.py"]})
    status, _, said = run(tmp_path, "--whole")
    assert status == 1 and complaints(said) == ["no notebook cell was collected"], said


def test_a_worker_may_not_die_even_without_a_test(tmp_path):
    dies = """
import os

def pytest_sessionfinish(session):
    if getattr(session.config, "workerinput", {}).get("workerid") == "gw0":
        os._exit(1)
"""
    write(tmp_path, SOUND | {"conftest.py": dies})
    status, _, said = run(tmp_path, "--whole", "-n1")
    assert status == 1 and re.fullmatch("worker gw0 died: .*", "".join(complaints(said))), said


def test_a_machine_may_lack_something(tmp_path):
    skips = "import pytest\n\n@pytest.mark.skipif(True, reason='needs CUDA')\ndef test_b():\n    assert False\n"
    write(tmp_path, SOUND | {"tests/test_b.py": skips})
    status, _, said = run(tmp_path, "--whole", "-n1")
    assert status == 0, said
    assert re.search(r"^notebooks: \d+ of 360 s of one core \(notebooks/sound.ipynb \d+\)$", said, re.MULTILINE)


# --- Ctrl-C ---------------------------------------------------------------------------------------------------------

CTRL_C = """
import signal, subprocess, sys

def test_here():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

def test_in_a_child():
    ask = "import signal; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    assert subprocess.run([sys.executable, "-c", ask]).returncode == 0
"""


@pytest.mark.parametrize("workers", [[], ["-n1"]], ids=["one process", "a worker"])
def test_ctrl_c_works_in_the_background_too(tmp_path, workers):
    """A script's background job is started with Ctrl-C ignored, and hands that on to what it starts."""
    write(tmp_path, {"tests/test_c.py": CTRL_C})
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        status, _, said = run(tmp_path, *workers)
    finally:
        signal.signal(signal.SIGINT, usual)
    assert status == 0, said


# --- spreading ------------------------------------------------------------------------------------------------------


def test_files_stay_together_and_notebooks_come_first(tmp_path):
    module = "import pytest\n\n@pytest.mark.parametrize('n', range(9))\ndef test_{}(n):\n    pass\n"
    together = {f"tests/test_{name}.py": module.format(name) for name in "abc"}
    together |= dict.fromkeys(["tests/test_fast.py", "tests/test_transformer.py"], module.format("compiled"))
    together |= {f"notebooks/{n}.ipynb": [cell(f"x = {i}\nprint(x)", i) for i in range(n)] for n in (3, 9)}
    write(tmp_path, together | {"tests/test_standalone.py": module.format("runs_elsewhere")})
    status, _, said = run(tmp_path, "-n2", "-v")
    assert status == 0, said
    said = said.replace("::ipynb::", ".ipynb::")  # xdist takes the dot for one of a module
    ran = re.findall(r"^\[(gw\d)\].* PASSED (\S+?)::(Cell \d+|\w+)", said, re.MULTILINE)
    assert len(ran) == 5 * 9 + 3 + 9 + 9
    for name in together:
        assert len({worker for worker, file, _ in ran if file == name}) == 1, name
    assert len({worker for worker, _, test in ran if test == "test_compiled"}) == 1
    for n in (3, 9):
        assert [test for _, file, test in ran if file == f"notebooks/{n}.ipynb"] == [f"Cell {i}" for i in range(n)]
    first = [next(file for worker, file, _ in ran if worker == name) for name in ("gw0", "gw1")]
    assert sorted(first) == ["notebooks/3.ipynb", "notebooks/9.ipynb"]


def test_the_named_files_and_tests_exist():
    assert [name for name in [*spread.HEAVY, *spread.TOGETHER] if not (ROOT / name).is_file()] == []
    for name in spread.APART:
        file, test = name.split("::")
        assert f"def {test}" in (ROOT / file).read_text(encoding="utf-8"), name
