"""Sentences of the chapters that explain or claim universally, and what stands behind them.

"Because" is a claim. A sentence with such a word has a check (a claim role), a source (a citation), or says that it is
a judgment ("we think"). What has none of these is listed in explanations.yml with the reason why it may stand.
"""

import json
import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "tests" / "explanations.yml"
MOST = 40

WORDS = re.compile(
    r"\b(because|since|so that|therefore|comes? from|due to|the reasons?|always|never|at all|nobody)\b", re.IGNORECASE
)
BEHIND = re.compile(
    r"\{claim\}`|\{cite(:\w+)?\}`|\bwe (think|believe|suspect|guess|suppose|read)\b|\bour (guess|reading|judgment)\b|"
    r"\bperhaps\b|\bprobably\b|\bopinion\b",
    re.IGNORECASE,
)


def sentences(markdown: str) -> list[str]:
    """The sentences of a Markdown text, each on one line; code, formulas, tables, headings and quizzes' options aside."""
    text = re.sub(r"(?s)```.*?```|\$\$.*?\$\$", "", markdown)
    text = re.sub(r"(?m)^(:::|:[\w-]+:|#|\|).*$", "", text)
    found = []
    for part in re.split(r"\n\s*\n|\n\s*[-*] |\n\s*\d+\. ", text):
        found += re.split(r"(?<=[.!?:])\s+(?=[A-Z*“\"(])", " ".join(part.split()))
    return [s for s in found if s]


def unsupported(markdown: str) -> list[str]:
    """Those sentences that explain or claim universally with nothing behind them."""
    return [s for s in sentences(markdown) if WORDS.search(s) and not BEHIND.search(s) and not s.endswith("?")]


def of_chapters() -> list[tuple[str, str]]:
    """(chapter, sentence) of all unsupported sentences of the chapters."""
    found = []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            if cell["cell_type"] == "markdown":
                found += [(path.stem, s) for s in unsupported("".join(cell["source"]))]
    return found


def kept() -> dict[str, str]:
    """The sentences that may stand as they are: sentence -> why."""
    return {item["sentence"]: item["why"] for item in yaml.safe_load(KEPT.read_text("utf-8")) or []}
