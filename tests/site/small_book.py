"""Throw-away books: the real configuration and extension around a few lines of text."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MIME = "application/vnd.normlab.claim+json"
TOC = """
format: jb-book
root: book/intro
chapters:
  - file: book/claims
  - file: notebooks/01_small
"""
CLAIMS = """
- {id: first, sentence: One is one., source: [000-A], kind: identity, limits: ""}
- {id: second, sentence: Two is two., source: [course], kind: measured, limits: "In base ten."}
- {id: third, sentence: Three is odd., source: [course], kind: measured, limits: "Said of the number."}
"""
COPIES = """
def write_copies(root, out):
    paths = [out / path.name for path in (root / "notebooks").glob("*.ipynb")]
    for path in paths:
        path.write_text("{}")
    return paths
"""


def claim_output(name: str, verdict: str = "holds", **more) -> dict:
    """What `normlab.page.claims.claim` leaves in a notebook."""
    data = {"text/plain": f"{name}: a line", MIME: {"id": name, "line": "a line", "verdict": verdict} | more}
    return {"output_type": "display_data", "metadata": {}, "data": data}


def make_book(
    root: Path, text: str = "Text.", outputs: list[dict] = (), copies: str = COPIES, chapter: str = "Text."
) -> Path:
    """A book of an introduction with ``text``, a ledger, and a notebook with the text ``chapter`` and ``outputs``."""
    for folder in ("_ext", "_static", "_templates"):
        shutil.copytree(ROOT / "book" / folder, root / "book" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    cell = {"cell_type": "code", "id": "a", "execution_count": 1, "metadata": {}, "source": "1", "outputs": list(outputs)}
    title = {"cell_type": "markdown", "id": "t", "metadata": {}, "source": f"# Small\n\n{chapter}"}
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = {"cells": [title, cell], "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    shutil.copy(ROOT / "_config.yml", root / "_config.yml")
    files = {
        "_toc.yml": TOC,
        "book/intro.md": f"# Intro\n\n{text}\n",
        "book/claims.md": "# Claims\n\n```{claims-ledger}\n:other: Ours\n\n000-A: A trunk\n```\n",
        "book/claims.yml": CLAIMS,
        "book/references.bib": "",
        "notebooks/01_small.ipynb": json.dumps(notebook),
        "tools/standalone.py": copies,
    }
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content, encoding="utf-8")
    return root


# A build takes 0.7 s of a core, and what it imports 1.7 s. So each is forked from one process that has imported it
# all, and then does what the program jupyter-book does. The book's own extension is imported in the fork.
NURSERY = """
import gc, importlib, json, os, signal, sys
from jupyter_book.cli.main import main
from sphinx.application import builtin_extensions

sys.path.remove("")  # the program has its own folder there
for name in (*builtin_extensions, *sys.argv[1:]):
    importlib.import_module(name)
gc.freeze()  # the forks share the memory
for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if child == 0:
        signal.alarm(120)  # seconds, then it ends
        os.environ.clear()
        os.environ.update(order["env"])
        os.chdir(order["folder"])
        for descriptor in (1, 2):
            os.dup2(os.open(order["said"], os.O_WRONLY | os.O_APPEND | os.O_CREAT), descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.argv = ["jupyter-book", *order["words"]]
        sys.exit(main())
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
USED = ("myst_nb.sphinx_ext", "sphinx_book_theme", "sphinxcontrib.bibtex", "sphinxcontrib.katex", "bs4")
USED += ("sphinx_design.extension", "sphinx_external_toc.events", "sphinx_jupyterbook_latex.events", "sphinx_togglebutton")
USED += ("sphinx_copybutton", "sphinx_multitoc_numbering", "sphinx_thebe", "sphinx_comments", "sphinx.ext.mathjax")
USED += ("IPython.lib.lexers",)


@cache
def nursery() -> subprocess.Popen:
    """The process that builds; it ends with the process that asked for it, whose end closes its input."""
    return subprocess.Popen(
        [sys.executable, "-c", NURSERY, *USED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def build(root: Path, *options: str, **environment: str) -> tuple[int, str]:
    """Strict build: exit code and what it said."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("BOOK_", "GITHUB_"))}
    words = ["build", *options, ".", "-W", "-n", "--keep-going"]
    with tempfile.NamedTemporaryFile(suffix=".log") as said:
        order = {"folder": str(root), "words": words, "env": inherited | environment, "said": said.name}
        process = nursery()
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        code = int(process.stdout.readline())
        text = said.read().decode()
    return code, re.sub(r"\x1b\[[0-9;]*m", "", text)


def git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)
