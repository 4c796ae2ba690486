"""The pages of the book as the table of contents lists them, what their sources hold, and built files.

The pages of the package's modules, which the table of contents lists by a pattern, are ``MODULES``: their text is that of
docstrings.
"""

import json
import re
import sys
from functools import cache
from pathlib import Path

import yaml
from bs4 import BeautifulSoup, Tag
from some import some

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book" / "_ext"))  # the extension `course`
from course import api  # noqa: E402

GENERATED = re.compile(r"(__pycache__|\.ipynb_checkpoints|\.egg-info)/")


def _documents(node) -> list[str]:
    """All values of `root` and `file`, in order."""
    if isinstance(node, list):
        return [name for item in node for name in _documents(item)]
    if isinstance(node, dict):
        return [
            name
            for key, value in node.items()
            for name in ([value] if key in ("root", "file") else _documents(value))
        ]
    return []


DOCUMENTS = _documents(yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8")))
NOTEBOOKS = [name for name in DOCUMENTS if (ROOT / f"{name}.ipynb").exists()]
CHAPTERS = [name for name in NOTEBOOKS if not name.startswith("notebooks/drills/")]
PAGES = [f"{name}.html" for name in DOCUMENTS]
MODULES = [page.docname for page in api.pages(ROOT)]
# The drills' pages are made by one directive, and so are those of the modules: in a browser those with the most and the
# fewest mistakes, and the longest, stand for all.
KINDS = [
    name
    for name in DOCUMENTS
    if not name.startswith("book/drills/") or name.endswith(("/rms_norm", "/welford"))
] + ["book/api/drills.checking"]

# Of these a short run looks at other pages of their kind.
ALIKE = {
    *NOTEBOOKS,
    *("book/interview/must", "book/interview/likely", "book/drills/welford"),
    *("book/conventions", "book/closing", "book/teaching", "book/disagreements"),
} - {"notebooks/01_drunkards_walk", "notebooks/05_placement", "notebooks/09_census", "notebooks/drills/week_1"}


def one_of_a_kind(names: list[str]) -> list:
    """Parameters of a test: those that are `ALIKE` only with ``--all``."""
    return some(names, set(names) - ALIKE)


def is_stale(root: Path) -> bool:
    """Whether the book built in ``root`` is older than what it is built from, by the Makefile's list."""
    sources = [root / name for name in ("_config.yml", "_toc.yml", "constraints.txt")]
    for folder in ("book", "notebooks", "src", "tools"):
        sources += [p for p in (root / folder).rglob("*") if not GENERATED.search(p.relative_to(root).as_posix())]
    finished = root / "_build" / ".doctrees" / "finished"  # as old as the start of the build; gone if it failed
    return _newest([finished]) < _newest(sources)


def _newest(paths) -> float:
    return max((path.stat().st_mtime for path in paths if path.is_file()), default=0.0)


def notebook(name: str) -> dict:
    return json.loads((ROOT / f"{name}.ipynb").read_text(encoding="utf-8"))


def outputs(name: str) -> list[dict]:
    """The display outputs of a notebook, in order."""
    cells = notebook(name)["cells"]
    return [output for cell in cells for output in cell.get("outputs", ()) if "data" in output]


def alt_texts(name: str) -> list[str]:
    """The alt texts of a notebook's figures in order: in the metadata, or for a slider in its HTML."""
    texts = []
    for output in outputs(name):
        if "normlab" in output["metadata"]:
            texts.append(output["metadata"]["normlab"]["alt"])
        else:
            html = BeautifulSoup("".join(output["data"].get("text/html", "")), "html.parser")
            texts += [image["alt"] for image in html.select("img")]
    return texts


def prose(name: str) -> str:
    """The Markdown of a page without its code blocks and code words."""
    if name in NOTEBOOKS:
        cells = notebook(name)["cells"]
        text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    else:
        text = (ROOT / f"{name}.md").read_text(encoding="utf-8")
    text = re.sub(r"^(```+)(?:python|bash|text|console)?\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]+`", "", text)


def stray_dollars(page: BeautifulSoup) -> list[str]:
    """Texts and alt texts of a built page with a dollar sign that a reader sees outside of code: a raw formula."""
    texts = [
        str(text)
        for text in page.body.find_all(string=re.compile(r"\$"))
        if not text.find_parent(["code", "pre", "script", "style"]) and not text.find_parent(class_="katex")
    ]
    return texts + [image["alt"] for image in page.body.find_all(alt=re.compile(r"\$"))]


@cache
def parsed(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


@cache
def by_id(path: Path) -> dict[str, Tag]:
    """The elements of a page that have an id."""
    return {tag["id"]: tag for tag in parsed(path).find_all(id=True)}


def identifiers(path: Path) -> set[str]:
    """The ids of a page, to which a link may lead."""
    return set(by_id(path))
