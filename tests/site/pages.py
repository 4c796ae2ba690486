"""The pages of the book as the table of contents lists them, what their sources hold, and built files."""

import json
import re
from functools import cache
from pathlib import Path

import yaml
from bs4 import BeautifulSoup

ROOT = Path(__file__).resolve().parents[2]


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
PAGES = [f"{name}.html" for name in DOCUMENTS]


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


@cache
def parsed(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
