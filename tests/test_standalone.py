"""The standalone copies run in an empty folder, without the package, and show what the committed notebooks show.

With ``--all`` (`make test-all`) all of them run, otherwise the quickest one, the set-up cells and the imports.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import psutil
import pytest
import standalone
from execute import notebooks
from setup_cell import SETUP_CELL, SETUP_TAGS, standalone_cell
from some import some

ROOT = Path(__file__).resolve().parent.parent
PATHS = {path.stem: path for path in notebooks(ROOT)}
NOTEBOOKS = list(PATHS)
QUICKEST = "06_interview"  # on a quiet core 4 of the 270 seconds that all chapters take
RUN_TIMEOUT_SECONDS = 1200  # on a busy machine
WITHOUT_PICTURES = "its pictures stand here in words"

# Cells put around a second run of the set-up cell: it must change neither the import path nor a file.
BEFORE = """
import sys
from pathlib import Path

def state():
    files = [path for path in sorted(Path().rglob("*.*")) if path.suffix in (".py", ".txt", ".json")]
    return list(sys.path), [(path, path.stat().st_mtime_ns) for path in files]

seen = state()
"""
AFTER = "assert state() == seen"

# Runs the imports of the cells and of the modules that came along, those inside of functions too.
IMPORTS = """
import ast
from pathlib import Path
import normlab

def run_imports(code, package):
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            if "msvcrt" in ast.unparse(node):  # Windows alone has it
                continue
            exec(ast.unparse(node), {"__name__": package, "__package__": package})

folder = Path(normlab.__file__).parent
for path in folder.rglob("*.py"):
    run_imports(path.read_text(encoding="utf-8"), ".".join(path.relative_to(folder.parent).parent.parts))
run_imports(Path("cells.py").read_text(encoding="utf-8"), "")
"""

# Runs imports.py in each of the folders named, with the libraries imported once: they are not what is tried.
EACH = """
import gc, os, runpy, sys
import dask.distributed, IPython.display, matplotlib.pyplot, sklearn.datasets
import torch.distributed.fsdp, torch._inductor.utils, transformers.debug_utils
from transformers.models.llama import modeling_llama

sys.path[0] = ""
gc.freeze()  # else each child would walk through, and so copy, all of it
for folder in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        for descriptor in (1, 2):
            os.dup2(os.open("said", os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
        try:
            runpy.run_path("imports.py", run_name="__main__")
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)  # without taking the libraries apart
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("standalone")
    return {path.stem: path for path in standalone.write_copies(ROOT, folder)}


@pytest.fixture(scope="module")
def run_bare(bare_python, bare_environment):
    """Runs the bare interpreter with some arguments in a folder, with more variables in its environment."""

    def run(folder, *arguments, **variables):
        return subprocess.run(
            [bare_python, *arguments],
            cwd=folder,
            env=bare_environment | variables,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_SECONDS,
        )

    return run


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


# --- the copies of the chapters -------------------------------------------------------------------


def test_the_bare_interpreter_has_the_libraries_but_not_the_package(run_bare, tmp_path):
    for name in ("torch", "numpy", "matplotlib", "tqdm", "sklearn", "ipykernel"):
        found = run_bare(tmp_path, "-c", f"import {name}")
        assert found.returncode == 0, found.stderr
    assert "No module named 'normlab'" in run_bare(tmp_path, "-c", "import normlab").stderr


# What the libraries put there by themselves: caches, settings, files of a running kernel.
OF_LIBRARIES = re.compile(
    r"user/\.(cache|config)(/(matplotlib|fontconfig|torch|huggingface)\b.*)?|user/\.(ipython|jupyter)\b.*|"
    r"user/\.local(/share(/jupyter\b.*)?)?|temporary/torchinductor_\w+"
)


@pytest.fixture
def home(tmp_path):
    """An empty home and folder for temporary files, and what the environment has to say so."""
    places = {name: tmp_path / "home" / name for name in ("user", "temporary")}
    for place in places.values():
        place.mkdir(parents=True)
    return places["user"].parent, {
        "HOME": str(places["user"]),
        "USERPROFILE": str(places["user"]),
        **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(places["temporary"])),
        **dict.fromkeys(("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "MPLCONFIGDIR", "IPYTHONDIR", "HF_HOME"), ""),
    }


def left_behind(home: Path) -> list[str]:
    """Files and folders in a home and among the temporary files that no library puts there by itself."""
    names = [path.relative_to(home).as_posix() for place in home.iterdir() for path in place.rglob("*")]
    return [name for name in names if not OF_LIBRARIES.fullmatch(name)]


def processes_of(home: Path) -> list[psutil.Process]:
    """All processes whose home this is, wherever they were started."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has just ended, or is another user's
            if process.environ().get("HOME") == str(home / "user"):
                found.append(process)
    return found


@pytest.mark.skipif(os.name != "posix", reason="a home is another thing there")
def test_what_a_notebook_would_leave_behind_is_found(run_bare, tmp_path, home):
    place, variables = home
    code = (
        "import pathlib, subprocess, sys, tempfile\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True, "
        "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "for name in ('.cache/ours', '.cache/matplotlib', '../temporary/y'):\n"
        "    pathlib.Path.home().joinpath(name).mkdir(parents=True)\n"
        "assert pathlib.Path(tempfile.gettempdir(), 'y').exists()"
    )
    result = run_bare(tmp_path, "-c", code, **variables)
    assert result.returncode == 0, result.stderr
    assert sorted(left_behind(place)) == ["temporary/y", "user/.cache/ours"]
    (left,) = processes_of(place)
    left.kill()


@pytest.mark.parametrize("tried", some(NOTEBOOKS, [QUICKEST]))
def test_runs_elsewhere_with_the_same_outputs(tried, copies, run_bare, tmp_path, pytestconfig, home):
    """nbval compares, with the options that it has for the notebooks themselves. Nothing is left but in its folder."""
    place, variables = home
    folder = tmp_path / "here"
    folder.mkdir()
    copy = nbformat.read(copies[tried], as_version=4)
    committed = nbformat.read(PATHS[tried], as_version=4)
    for cell, stored in zip(code_cells(copy), code_cells(committed), strict=True):
        cell.outputs = stored.outputs  # a large copy has left its pictures out
    at = next(i for i, cell in enumerate(copy.cells) if "setup" in cell.metadata.get("tags", []))
    again = [nbformat.v4.new_code_cell(code, execution_count=1) for code in (BEFORE, copy.cells[at].source, AFTER)]
    again[1].metadata["tags"] = ["nbval-ignore-output"]  # it may say which versions it found
    copy.cells[at + 1 : at + 1] = again
    nbformat.write(copy, folder / "copy.ipynb")
    (folder / "pytest.ini").write_text(f"[pytest]\naddopts = {' '.join(pytestconfig.getini('addopts'))}\n")
    for name in ("nbval.cfg", "guard.py"):
        (folder / "tests").mkdir(exist_ok=True)
        shutil.copy(ROOT / "tests" / name, folder / "tests")

    result = run_bare(folder, "-m", "pytest", "-o", "pythonpath=tests", "-p", "guard", "copy.ipynb", **variables)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    assert f" {len(code_cells(copy))} passed" in result.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"here", "home"}
    assert left_behind(place) == []
    assert processes_of(place) == []


@pytest.fixture(scope="module")
def imported(copies, run_bare, tmp_path_factory):
    """The exit status of the imports of each copy, behind its set-up cell in an empty folder, and what they said."""
    folders = {name: tmp_path_factory.mktemp(name) for name in NOTEBOOKS}
    for name, folder in folders.items():
        copy = nbformat.read(copies[name], as_version=4)
        (setup,) = [cell.source for cell in copy.cells if "setup" in cell.metadata.get("tags", [])]
        (folder / "cells.py").write_text("\n".join(cell.source for cell in code_cells(copy)), encoding="utf-8")
        (folder / "imports.py").write_text(setup + IMPORTS, encoding="utf-8")
    result = run_bare(next(iter(folders.values())).parent, "-c", EACH, *folders.values())
    assert result.returncode == 0, result.stderr
    said = [(folder / "said").read_text(encoding="utf-8") for folder in folders.values()]
    return dict(zip(folders, zip(map(int, result.stdout.split()), said), strict=True))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_set_up_cell_brings_what_is_imported(name, imported):
    status, said = imported[name]
    assert status == 0, said


def test_imports_may_follow_in_the_set_up_cell(small, run_bare, tmp_path):
    root, _ = small
    path = root / "notebooks" / "01_walk.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[1].source += "\n\nfrom normlab import PATTERN\n\nprint(PATTERN)"
    nbformat.write(notebook, path)
    result = run_bare(tmp_path, "-c", copied(root).cells[1].source)
    assert result.returncode == 0 and result.stdout == "\\d\n", result.stderr
    notebook.cells[1].source = "import normlab"
    nbformat.write(notebook, path)
    with pytest.raises(ValueError, match="01_walk.ipynb: .* does not begin with .*SETUP_CELL"):
        copied(root)


def test_a_module_left_behind_is_found(run_bare, tmp_path):
    cell = standalone_cell({"normlab/__init__.py": "", "normlab/a.py": "def f():\n    from .b import g\n"})
    (tmp_path / "cells.py").write_text("from normlab import a\n")
    result = run_bare(tmp_path, "-c", cell + IMPORTS)
    assert "No module named 'normlab.b'" in result.stderr


def test_the_names_of_the_package_itself_work_in_a_copy(run_bare, tmp_path):
    """They are lazy: a copy has to bring the modules that define them, and importing the package still loads no torch."""
    names = "layer_norm, rms_norm, LayerNorm, RMSNorm, make_norm, Placement, Residual, Transformer, TransformerConfig, inspect"
    use = f"""
import sys
import normlab
assert "torch" not in sys.modules
from normlab import {names}
import torch
model = Transformer(TransformerConfig(vocab_size=5, context=4, layers=1, width=8, placement=Placement.PERI))
assert model(torch.tensor([[1, 2]])).shape == (1, 2, 5)
assert torch.equal(make_norm("rmsnorm", 4)(torch.ones(4)), RMSNorm(4)(torch.ones(4)))
assert rms_norm(torch.ones(4)).shape == layer_norm(torch.ones(4)).shape == LayerNorm(4)(torch.ones(4)).shape
assert isinstance(model.blocks[0].residuals[0], Residual)
print(inspect(model).stacks[0].blocks[0].sublayers[0].placement, normlab.__file__)
"""
    cell = standalone_cell(standalone.package_files(ROOT, use, []))
    result = run_bare(tmp_path, "-c", cell + use)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("Placement.PERI") and str(tmp_path) in result.stdout


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_copy_is_small_and_plain(name, copies):
    assert copies[name].stat().st_size <= 600_000
    copy = nbformat.read(copies[name], as_version=4)
    nbformat.validate(copy)
    for cell in copy.cells:
        if "setup" not in cell.metadata.get("tags", []):
            assert "../" not in cell.source
        if cell.cell_type == "markdown":
            prose = re.sub(r"^```.*?^```|`[^`\n]+`", "", cell.source, flags=re.DOTALL | re.MULTILINE)
            assert not re.search(r"\{[\w:-]+\}`|^:::|^`*\{|^\([\w:.-]+\)=", prose, re.MULTILINE), cell.source


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_copy_keeps_the_committed_outputs(name, copies):
    committed = code_cells(nbformat.read(PATHS[name], as_version=4))
    copy = nbformat.read(copies[name], as_version=4)
    if WITHOUT_PICTURES in copy.cells[0].source:
        assert not any(left_out(cell) & set(o.get("data", {})) for cell in copy.cells for o in cell.get("outputs", []))
        for cell in committed:
            for output in cell.outputs:
                for key in left_out(cell):
                    output.get("data", {}).pop(key, None)
                    output.get("metadata", {}).pop(key, None)
    assert [cell.outputs for cell in code_cells(copy)] == [cell.outputs for cell in committed]


def left_out(cell):
    """What a copy without pictures leaves out of the outputs of a cell."""
    slider = any("normlab-slider" in o.get("data", {}).get("text/html", "") for o in cell.get("outputs", []))
    return {"image/svg+xml", "text/html"} if slider else {"image/svg+xml"}


# --- a small repository ---------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path):
    """A repository with one notebook and a package of two modules; returns its root and a way to add cells."""
    root = tmp_path / "repository"
    v4 = nbformat.v4
    files = {
        "src/normlab/__init__.py": "'''The \"package\".'''\nPATTERN = r'\\d'\n_NAMES = {'title': 'normlab.tables'}\n",
        "src/normlab/data/__init__.py": "def load():\n    from ..tables import table\n\n    return table\n",
        "src/normlab/tables.py": "import normlab.claims\n\ntable = normlab.claims\n",
        "src/normlab/claims.py": "",
        "src/normlab/figures.py": "import matplotlib\n",
        "src/normlab/data/hamlet.txt": "To be, or not to be\n",
        "src/normlab/data/lear.txt": "Nothing will come of nothing\n",
        "src/normlab/data/NOTICE.md": "Public domain\n",
        "src/normlab/records/walk.json": "{}\n",
        "book/references.bib": "@misc{xiong2020, author={Xiong, R.}, title={T}, year={2020}, eprint={2002.04745}}\n",
        "book/conventions.md": "(masks)=\n# Conventions\n",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def write(*cells, data=("data/hamlet.txt", "records/walk.json")):
        setup = v4.new_code_cell(SETUP_CELL, metadata={"tags": list(SETUP_TAGS)}, execution_count=1)
        notebook = v4.new_notebook(cells=[v4.new_markdown_cell("# The walk"), setup, *cells])
        notebook.metadata["normlab"] = {"data": list(data)}
        (root / "notebooks").mkdir(exist_ok=True)
        nbformat.write(notebook, root / "notebooks" / "01_walk.ipynb")

    write()
    return root, write


def copied(root):
    (path,) = standalone.write_copies(root, root / "out")
    return nbformat.read(path, as_version=4)


def test_copy_carries_what_the_notebook_reaches_only(small, run_bare, tmp_path):
    root, write = small
    write(nbformat.v4.new_code_cell("from normlab import data\nprint(data.load())"))
    setup = copied(root).cells[1]
    assert setup.metadata.cellView == "form" and setup.source.startswith("#@title")
    empty = tmp_path / "empty"
    empty.mkdir()
    check = "\nimport normlab\nprint(normlab.PATTERN, normlab.__file__)"
    result = run_bare(empty, "-c", setup.source + check)
    assert result.returncode == 0, result.stderr
    (folder,) = empty.iterdir()
    assert result.stdout.startswith("\\d ") and folder.name in result.stdout
    written = {path.relative_to(folder).as_posix() for path in folder.rglob("*.*") if path.suffix != ".pyc"}
    names = ["__init__.py", "claims.py", "data/__init__.py", "tables.py"]
    names += ["data/hamlet.txt", "data/NOTICE.md", "records/walk.json"]
    assert written == {f"normlab/{name}" for name in names}
    for name in written:
        assert (folder / name).read_bytes() == (root / "src" / name).read_bytes()


@pytest.mark.parametrize(
    ("code", "modules"),
    [
        ("import torch", []),
        ("import normlab", ["__init__.py"]),
        ("import normlab\nnormlab.figures.figure()", ["__init__.py", "figures.py"]),
        ("import normlab.claims as c", ["__init__.py", "claims.py"]),
        ("from normlab.tables import table", ["__init__.py", "claims.py", "tables.py"]),
        ("def f():\n    from normlab import figures", ["__init__.py", "figures.py"]),
        ("from normlab import title", ["__init__.py", "claims.py", "tables.py"]),
        ("import normlab\nnormlab.title", ["__init__.py", "claims.py", "tables.py"]),
    ],
)
def test_reached_modules(small, code, modules):
    root, _ = small
    carried = standalone.package_files(root, code, [])
    assert sorted(carried) == [f"normlab/{name}" for name in modules]


def test_copies_with_other_contents_do_not_share_a_folder():
    one, other = (standalone_cell({"normlab/__init__.py": text}) for text in ("", "x = 1\n"))
    assert re.findall(r'"normlab-\w+"', one) != re.findall(r'"normlab-\w+"', other)


@pytest.mark.parametrize(
    "text", ["plain\n", "'''", "ends in a quote '", "backslash \\", "\\N{DASH} \\u12", "tab\tüß\n", ""]
)
def test_any_text_survives_the_set_up_cell(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # as if normlab were not installed
    exec(standalone_cell({"normlab/data/file.txt": text}), {})
    (written,) = tmp_path.rglob("file.txt")
    assert written.read_bytes() == text.encode()


def test_prose_and_solutions_are_converted(small):
    root, write = small
    v4 = nbformat.v4
    write(
        v4.new_markdown_cell("(here)=\n## How\n\n{cite:t}`xiong2020`, [](../book/conventions.md), {ref}`masks`"),
        v4.new_code_cell("print(1)", metadata={"tags": ["hide-cell", "solution"]}),
    )
    copy = copied(root)
    assert (
        copy.cells[2].source
        == "## How\n\n[Xiong (2020)](https://arxiv.org/abs/2002.04745), *Conventions*, *Conventions*"
    )
    assert copy.cells[3].source == "#@title Solution\nprint(1)"
    assert copy.cells[3].metadata.cellView == "form"
    assert "CC BY 4.0" in copy.cells[-1].source


@pytest.mark.parametrize(
    ("cell", "data", "problem"),
    [
        ("{download}`x`", [], r"01_walk.ipynb, cell 3 \(\w+\): unknown role {download}"),
        ("![a picture](../book/a.png)", [], "01_walk.ipynb, cell 3 .*cannot carry the picture"),
        ("x" * 600_001, [], "01_walk.ipynb: the copy has .* bytes, more than 600,000"),
    ],
)
def test_refuses(small, cell, data, problem):
    root, write = small
    write(nbformat.v4.new_markdown_cell(cell), data=data)
    with pytest.raises(ValueError, match=problem):
        copied(root)


def test_refuses_a_notebook_without_set_up_cell(small):
    root, _ = small
    path = root / "notebooks" / "01_walk.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    del notebook["cells"][1]
    path.write_text(json.dumps(notebook), encoding="utf-8")
    with pytest.raises(ValueError, match="0 cells have the tag 'setup'"):
        copied(root)


def test_a_large_copy_shows_its_pictures_in_words(small):
    root, write = small
    v4 = nbformat.v4

    def drawn(size):
        data = {"image/svg+xml": "<svg>" + size * "x" + "</svg>", "text/plain": "a line that rises"}
        return v4.new_code_cell("draw()", outputs=[v4.new_output("display_data", data)])

    table = v4.new_output("display_data", {"text/html": "<table></table>", "text/plain": "a table"})
    slider = v4.new_output("display_data", {"text/html": "<div class='normlab-slider'></div>", "text/plain": "frames"})
    gallery = v4.new_output("display_data", {"text/html": "<details><svg></svg></details>", "text/plain": "wirings"})
    shown = [v4.new_code_cell("show()", outputs=[output]) for output in (table, slider, gallery)]
    for size, pictures in ((1_000, 1), (700_000, 0)):
        write(drawn(size), *shown)
        copy = copied(root)
        data = [output.data for cell in code_cells(copy)[1:] for output in cell.outputs]
        assert [d["text/plain"] for d in data] == ["a line that rises", "a table", "frames", "wirings"]
        assert sum("image/svg+xml" in d for d in data) == pictures
        assert ["text/html" in d for d in data] == [False, True, bool(pictures), bool(pictures)]
        assert (WITHOUT_PICTURES in copy.cells[0].source) == (not pictures)
    write(v4.new_code_cell("print()", outputs=[v4.new_output("stream", text=700_000 * "x")]))
    with pytest.raises(ValueError, match="more than 600,000"):
        copied(root)


def test_two_runs_write_the_same_bytes(small):
    root, _ = small
    first = standalone.write_copies(root, root / "one")[0].read_bytes()
    assert standalone.write_copies(root, root / "two")[0].read_bytes() == first


def test_missing_package_is_explained(run_bare, tmp_path):
    """The set-up cell of the repository's notebooks, where the package is not installed."""
    result = run_bare(tmp_path, "-c", SETUP_CELL)
    assert result.returncode != 0
    assert "ModuleNotFoundError: This notebook needs the course's package normlab" in result.stderr
    assert "download link at the top of this chapter's page" in result.stderr
