"""`make lab`: what JupyterLab reads and saves. tests/site/test_jupyterlab.py looks at it in a browser."""

import asyncio
import json
from pathlib import Path

import nbformat
import pytest
from lab import NotebookFiles

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))


@pytest.fixture
def files(tmp_path):
    return NotebookFiles(root_dir=str(tmp_path))


def sent(model: dict) -> dict:
    """A model as it goes over the wire."""
    return json.loads(json.dumps(model, default=str))


def opened(files, name: str) -> dict:
    return sent(asyncio.run(files.get(name)))


def save(files, name: str, content: dict) -> None:
    asyncio.run(files.save({"type": "notebook", "format": "json", "content": sent(content)}, name))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_saving_what_was_opened_leaves_every_byte(files, tmp_path, path):
    before = path.read_bytes()
    (tmp_path / path.name).write_bytes(before)
    content = opened(files, path.name)["content"]
    save(files, path.name, content)
    assert (tmp_path / path.name).read_bytes() == before


@pytest.mark.parametrize("path", NOTEBOOKS[:1], ids=lambda path: path.stem)
def test_what_jupyterlab_notes_by_itself_is_not_saved(files, tmp_path, path):
    """The kernel, times, and what the reader unfolded or scrolled; but a change of the text is."""
    (tmp_path / path.name).write_bytes(path.read_bytes())
    content = opened(files, path.name)["content"]
    content["metadata"]["language_info"]["version"] = "3.99.0"
    content["metadata"]["kernelspec"]["display_name"] = "Python 3.99"
    for number, cell in enumerate(content["cells"]):
        cell["metadata"] |= {"trusted": True, "jupyter": {"source_hidden": number % 2 == 0}}
        if cell["cell_type"] == "code":
            cell["metadata"] |= {"scrolled": True, "collapsed": False, "execution": {"iopub.status.busy": "2026"}}
    save(files, path.name, content)
    assert (tmp_path / path.name).read_bytes() == path.read_bytes()

    content["cells"][0]["source"] += "\nMore."
    save(files, path.name, content)
    assert nbformat.read(tmp_path / path.name, as_version=4).cells[0].source.endswith("\nMore.")


def test_jupyterlab_is_given_what_it_would_note(files, tmp_path):
    """Else a notebook that was only opened would count as changed."""
    import ipykernel.ipkernel

    (tmp_path / "a.ipynb").write_bytes(NOTEBOOKS[0].read_bytes())
    metadata = opened(files, "a.ipynb")["content"]["metadata"]
    assert metadata["language_info"] == ipykernel.ipkernel.IPythonKernel.language_info
    assert metadata["kernelspec"]["name"] == "python3"


@pytest.mark.parametrize("kernelspec", [{}, {"kernelspec": {"name": "ir", "language": "R", "display_name": "R"}}])
def test_other_notebooks_and_files_are_left_alone(files, tmp_path, kernelspec):
    cell = nbformat.v4.new_code_cell("1", metadata={"collapsed": True, "jupyter": {"source_hidden": True}})
    notebook = nbformat.v4.new_notebook(cells=[cell], metadata=kernelspec)
    nbformat.write(notebook, tmp_path / "other.ipynb")
    before = (tmp_path / "other.ipynb").read_bytes()
    content = opened(files, "other.ipynb")["content"]
    assert content["metadata"] == kernelspec
    save(files, "other.ipynb", content)
    assert (tmp_path / "other.ipynb").read_bytes() == before

    asyncio.run(files.save({"type": "file", "format": "text", "content": "a\n"}, "a.txt"))
    assert (tmp_path / "a.txt").read_text() == "a\n" == opened(files, "a.txt")["content"]
    assert {model["name"] for model in opened(files, "")["content"]} == {"a.txt", "other.ipynb"}
