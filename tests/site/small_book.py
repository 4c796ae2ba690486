"""Throw-away books: the real configuration and extension around a few lines of text."""

import json
import os
import re
import shutil
import subprocess
import sys
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


def build(root: Path, *options: str, **environment: str) -> tuple[int, str]:
    """Strict build: exit code and what it said."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("BOOK_", "GITHUB_"))}
    program = shutil.which("jupyter-book", path=Path(sys.executable).parent)
    command = [program, "build", *options, ".", "-W", "-n", "--keep-going"]
    done = subprocess.run(command, cwd=root, env=inherited | environment, capture_output=True, text=True, timeout=120)
    return done.returncode, re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)


def git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)
