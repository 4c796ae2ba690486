"""Every notebook is stored as `make notebooks` leaves it: run in order, nothing volatile in it, figures described."""

import copy
import re
from pathlib import Path

import execute
import nbformat
import pytest
from setup_cell import SETUP_CELL, SETUP_TAGS

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = execute.notebooks(ROOT)
PATH = re.compile(
    r"(?<![\w.:/])/(?:home|root|tmp|work|Users|usr|opt|var|mnt|private)/[\w.-]+|[A-Z]:\\Users|site-packages"
)
ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")
MAX_LINES = 25
MAX_BYTES = 1_000_000
PROMPTS = {"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}


def problems(notebook) -> list[str]:
    """What is wrong with a notebook, each line naming its cell; empty if it is clean."""
    cells = list(enumerate(notebook.cells, start=1))
    code = [(number, cell) for number, cell in cells if cell.cell_type == "code"]
    found = [f"cell {number}: {problem}" for number, cell in code for problem in _code_problems(cell)]
    found += [f"cell {number}: {problem}" for number, cell in cells for problem in _text_problems(cell)]
    if [cell.execution_count for _, cell in code] != list(range(1, len(code) + 1)):
        found.append("the code cells were not run once each, from top to bottom")
    if len({cell.id for _, cell in cells}) != len(cells):
        found.append("two cells have the same id")
    if not (notebook.cells[0].cell_type == "markdown" and notebook.cells[0].source.startswith("# ")):
        found.append("the first cell is not the chapter's title")
    return [*found, *_version_problems(code), *_setup_problems(code), *_exercise_problems(notebook.cells), *_normal_form_problems(notebook)]


def _code_problems(cell):
    tags = cell.metadata.get("tags", [])
    lines = cell.source.strip().split("\n")
    if re.sub(r"#[^'\"]*$", "", lines[-1]).rstrip().endswith(";"):
        yield "ends with a semicolon (nbval fails falsely on it)"
    if len(lines) > MAX_LINES and "setup" not in tags:
        yield f"has {len(lines)} lines, more than {MAX_LINES}"
    if not cell.source.strip():
        yield "is empty"
    for output in cell.outputs:
        if output.output_type == "error":
            yield f"raised {output.ename}"
        if output.output_type == "stream" and output.name == "stderr":
            yield "wrote to stderr"
        if any(kind.startswith("image/") for kind in output.get("data", {})):
            yield from _figure_problems(output)


def _figure_problems(output):
    alt = output.metadata.get("normlab", {}).get("alt", "")
    if len(alt) < 40 or not re.search(r"\d", alt):
        yield f"shows a figure without an alt text that says what was measured: {alt!r}"
    elif output.data.get("text/plain") != alt:
        yield "shows a figure whose plain text is not its alt text"


def _text_problems(cell):
    """Traces of one machine, in what a cell says or shows (drawings aside: coordinates are no addresses)."""
    for text in (cell.source, *_shown(cell)):
        if match := PATH.search(text):
            yield f"contains a path of one machine: {match[0]}"
    for text in _shown(cell):
        if match := ADDRESS.search(text):
            yield f"shows a memory address: {match[0]}"


def _shown(cell):
    for output in cell.get("outputs", ()):
        yield output.get("text", "")
        yield from (str(value) for kind, value in output.get("data", {}).items() if not kind.startswith("image/"))


def _setup_problems(code):
    first = code[0][1] if code else nbformat.v4.new_code_cell()
    begins = first.source == SETUP_CELL or first.source.startswith(f"{SETUP_CELL}\n\n")
    if not begins or not {*SETUP_TAGS} <= {*first.metadata.get("tags", [])}:
        yield f"the first code cell is not SETUP_CELL of tools/setup_cell.py with the tags {SETUP_TAGS}"
    if sum("setup" in cell.metadata.get("tags", []) for _, cell in code) != 1:
        yield "not exactly one cell has the tag 'setup'"


def _exercise_problems(cells):
    """A solution is folded. That each exercise has one is for test_chapters.py to say."""
    for cell in cells:
        if "solution" in cell.metadata.get("tags", []):
            if "hide-cell" not in cell.metadata.tags or cell.metadata.get("mystnb") != PROMPTS:
                yield f"a solution is not folded (tag hide-cell, mystnb {PROMPTS}): {cell.source[:40]!r}"


def _normal_form_problems(notebook):
    """The notebook is as tools/execute.py stores it: no time stamps, no kernel versions, folded for JupyterLab too."""
    normal = copy.deepcopy(notebook)
    execute.clean(normal)
    if normal != notebook:
        yield "is not as tools/execute.py stores it (time stamps, versions, folding?): run tools/execute.py --no-run"


def _version_problems(code):
    """No cell whose outputs are compared prints the version of a library: it is another one elsewhere."""
    for number, cell in code:
        if "nbval-ignore-output" not in cell.metadata.get("tags", []):
            for text in ("".join(output.get("text", "")) for output in cell.outputs):
                if re.search(r"\{\w+\.__version__\}|print\(\w+\.__version__", cell.source) and text:
                    yield f"cell {number}: prints a version, and is compared: tag it nbval-ignore-output"


# --- the notebooks ------------------------------------------------------------------------------


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_clean(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert problems(notebook) == []
    assert path.stat().st_size <= MAX_BYTES
    assert path.read_text(encoding="utf-8") == nbformat.writes(notebook) + "\n"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_named_data_exist(path):
    for name in nbformat.read(path, as_version=4).metadata.get("normlab", {}).get("data", []):
        assert (ROOT / "src" / "normlab" / name).is_file(), name


# --- the checker itself: a clean notebook passes, each planted fault is found --------------------


def clean_notebook():
    v4 = nbformat.v4
    alt = "A curve that rises from 0 to 10.06 steps after 100 tosses of the coin."
    figure = v4.new_output(
        "display_data", {"text/plain": alt, "image/svg+xml": "<svg/>"}, metadata={"normlab": {"alt": alt}}
    )
    solution = v4.new_code_cell(
        "print(2)", execution_count=3, metadata={"tags": ["hide-cell", "solution"], "mystnb": dict(PROMPTS)}
    )
    notebook = v4.new_notebook(
        cells=[
            v4.new_markdown_cell("# A title"),
            v4.new_code_cell(SETUP_CELL, execution_count=1, metadata={"tags": list(SETUP_TAGS)}),
            v4.new_code_cell("draw()", execution_count=2, outputs=[figure]),
            v4.new_markdown_cell("### Solution 1 · Count"),
            solution,
            v4.new_markdown_cell("## What you can say now"),
        ]
    )
    execute.clean(notebook)
    return notebook


def test_checker_accepts_a_clean_notebook():
    assert problems(clean_notebook()) == []


def _stream(name, text):
    return lambda nb: nb.cells[2].outputs.append(nbformat.v4.new_output("stream", name=name, text=text))


def _prints_its_version(notebook):
    notebook.cells[2].source = 'print(f"torch {torch.__version__}")'
    notebook.cells[2].outputs.append(nbformat.v4.new_output("stream", name="stdout", text="torch 2.13.0+cpu\n"))


FAULTS = {
    "prints a version": _prints_its_version,
    "not run once each": lambda nb: nb.cells[2].update(execution_count=7),
    "same id": lambda nb: nb.cells[2].update(id=nb.cells[1].id),
    "not the chapter's title": lambda nb: nb.cells[0].update(source="A title"),
    "semicolon": lambda nb: nb.cells[2].update(source="plt.plot(x);  # a curve"),
    "26 lines": lambda nb: nb.cells[2].update(source="\n".join(["x = 1"] * 26)),
    "is empty": lambda nb: nb.cells[2].update(source=" "),
    "raised ValueError": lambda nb: nb.cells[2].outputs.append(
        nbformat.v4.new_output("error", ename="ValueError", evalue="", traceback=[])
    ),
    "wrote to stderr": _stream("stderr", "a warning"),
    "path of one machine": _stream("stdout", "read /mnt/somebody/file"),
    "memory address": _stream("stdout", "<object at 0x7f3a5c0012d0>"),
    "without an alt text": lambda nb: nb.cells[2].outputs[0].update(metadata={}),
    "is not its alt text": lambda nb: nb.cells[2].outputs[0].data.update({"text/plain": "<Figure>"}),
    "not SETUP_CELL": lambda nb: nb.cells[1].update(source=SETUP_CELL + "\n"),
    "exactly one cell has the tag": lambda nb: nb.cells[2].metadata.update(tags=["setup"]),
    "is not folded": lambda nb: nb.cells[4].metadata.update(tags=["solution"]),
    "tools/execute.py stores it": lambda nb: nb.cells[2].metadata.update(execution={"iopub.execute_input": "2026"}),
}


@pytest.mark.parametrize("problem", FAULTS)
def test_checker_finds(problem):
    notebook = clean_notebook()
    FAULTS[problem](notebook)
    found = problems(notebook)
    assert any(problem in line for line in found), found


def test_clean_keeps_alt_texts_and_joins_streams():
    notebook = clean_notebook()
    before = copy.deepcopy(notebook.cells[2].outputs[0])
    for text in ("one\n", "two\n"):
        notebook.cells[2].outputs.append(nbformat.v4.new_output("stream", name="stdout", text=text))
    notebook.metadata["widgets"] = {"state": {}}
    notebook.metadata.language_info["version"] = "3.12.1"
    execute.clean(notebook)
    assert notebook.cells[2].outputs[0] == before
    assert [output.get("text") for output in notebook.cells[2].outputs[1:]] == ["one\ntwo\n"]
    assert "widgets" not in notebook.metadata and "version" not in notebook.metadata.language_info


def test_clean_folds_in_jupyterlab_what_the_book_folds():
    notebook = clean_notebook()
    folded = [cell.metadata.get("jupyter") for cell in notebook.cells if cell.cell_type == "code"]
    assert folded == [{"source_hidden": True}, None, {"outputs_hidden": True, "source_hidden": True}]
    for cell in notebook.cells:
        cell.metadata["jupyter"] = {"source_hidden": cell.cell_type == "markdown"}  # as a reader left it
    execute.clean(notebook)
    assert [cell.metadata.get("jupyter") for cell in notebook.cells if cell.cell_type == "code"] == folded
    assert not any("jupyter" in cell.metadata for cell in notebook.cells if cell.cell_type == "markdown")


def test_the_form_can_be_stored_without_a_run(tmp_path, monkeypatch):
    path = tmp_path / "small.ipynb"
    cell = nbformat.v4.new_code_cell("1 / 0", metadata={"tags": ["hide-input"]}, execution_count=7)
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    monkeypatch.setattr(execute.os, "environ", {})
    execute.main(["--no-run", str(path)])
    (stored,) = nbformat.read(path, as_version=4).cells
    assert stored.metadata.jupyter == {"source_hidden": True} and stored.execution_count == 7


def test_second_execution_changes_nothing(tmp_path):
    """One run stores the outputs, with the figure's metadata; another leaves every byte as it is."""
    path = tmp_path / "small.ipynb"
    source = (
        "from IPython.display import publish_display_data\nimport os\n"
        "print(sorted({'a', 'b'}), os.environ['NORMLAB_STRICT_SHOW'], flush=True)\nprint('more')\n"
        "publish_display_data({'text/plain': 'alt'}, {'normlab': {'alt': 'alt'}})"
    )
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)]), path)
    environment = execute.ENVIRONMENT
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        assert execute.execute(path)
        first = path.read_bytes()
        assert not execute.execute(path)
    outputs = nbformat.read(path, as_version=4).cells[0].outputs
    assert outputs[0].text == "['a', 'b'] 1\nmore\n"
    assert outputs[1].metadata == {"normlab": {"alt": "alt"}}
    assert path.read_bytes() == first
