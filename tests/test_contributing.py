"""The recipes of CONTRIBUTING.md, followed as they are written, in a copy of the sources, with the tests that they name."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from setup_cell import SETUP_CELL, SETUP_TAGS
from some import some

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"^### (.+?)\n(.*?)(?=^### |\Z)", TEXT, re.MULTILINE | re.DOTALL))
TRIED = ["A norm", "A placement", "A claim and a chapter", "A question", "A mistake of a drill"]
# What a recipe names behind "Then:" and its own example has to pass; the other examples are too small to.
GUARDS = {
    "A question": ["tests/test_interview.py"],
    "A mistake of a drill": ["tests/test_drills.py", "-k", "(welford or score) and not told_apart"],
}
BLOCK = re.compile(r"([^\n]+(?:\n[^\n]+)*):\n\n```(\w+)\n(.*?)```\n", re.DOTALL)


def blocks(recipe: str) -> list[tuple[str, str, str]]:
    """What to do with a block, its language and its text."""
    found = [(" ".join(said.split()), language, text) for said, language, text in BLOCK.findall(RECIPES[recipe])]
    assert len(found) == RECIPES[recipe].count("\n```") / 2, recipe
    return found


def follow(root: Path, said: str, text: str) -> None:
    """Do what the words before a block say. Raises ValueError if they say nothing that we know."""
    if match := re.match(r"In a new notebook `(.+?)`", said):
        cells = [nbformat.v4.new_markdown_cell("# Halves", id="title")]
        cells += [nbformat.v4.new_code_cell(SETUP_CELL, id="setup", metadata={"tags": list(SETUP_TAGS)})]
        cells += [nbformat.v4.new_code_cell(text.strip(), id="claim")]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), root / match[1])
        return
    if match := re.fullmatch(r"At the end of `(.+?)`", said):
        path = root / match[1]
        path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")
        return
    match = re.fullmatch(r"In `(.+?)`, (above|below|instead of) `(.+)`", said)
    if not match:
        raise ValueError(f"not understood: {said}")
    path, (place, anchor) = root / match[1], match.groups()[1:]
    old = path.read_text(encoding="utf-8")
    assert old.count(anchor) == 1, f"{anchor!r} stands {old.count(anchor)} times in {path.name}"
    if place == "instead of":
        new = old.replace(anchor, text.removesuffix("\n"))
    else:
        at = old.index(anchor)
        at = old.rindex("\n", 0, at) + 1 if place == "above" else old.index("\n", at) + 1
        new = old[:at] + text + old[at:]
    path.write_text(new, encoding="utf-8")


@pytest.fixture
def copy(tmp_path):
    for name in ("src", "book", "tools", "notebooks", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "vendor"))
    for name in ("_toc.yml", "_config.yml", "pyproject.toml", "conftest.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_every_recipe_is_tried_or_names_existing_files():
    assert list(RECIPES) == [*TRIED, "A drill"]
    for name in re.findall(r"`([\w./]+/[\w./]+)`", TEXT):
        assert (ROOT / name).exists() or "NAME" in name or name == "notebooks/12_halves.ipynb", name


@pytest.mark.parametrize("recipe", some(TRIED, set(TRIED) - {"A claim and a chapter"}))
def test_a_recipe_works_as_it_is_written(copy, recipe):
    *steps, (said, language, last) = blocks(recipe)
    assert steps and said == "It works if this runs"
    for said, _, text in steps:
        follow(copy, said, text)
    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    commands = [["python", "-c", last]] if language == "python" else [line.split() for line in last.splitlines()]
    if guards := GUARDS.get(recipe):
        commands += [["python", "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "--all", *guards]]
    told = [
        subprocess.run([sys.executable, *words[1:]], cwd=copy, env=environment, capture_output=True, text=True, timeout=300)
        for words in commands
    ]
    assert [done.returncode for done in told] == [0] * len(told), told[-1].stdout + told[-1].stderr
    if recipe == "A claim and a chapter":
        assert [done.stdout.split(": ")[1].strip() for done in told[:2]] == ["stored", "nothing changed"]
        assert "half-of-four" in (copy / "notebooks" / "12_halves.ipynb").read_text(encoding="utf-8")


def test_the_table_names_commands_that_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name in re.findall(r"`make ([a-z-]+)", TEXT):
        assert re.search(rf"^{name}:", makefile, re.MULTILINE), name
