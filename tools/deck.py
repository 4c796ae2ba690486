"""The questions as an Anki deck.

    python tools/deck.py _build/two-knobs.apkg

A note's identity comes from the question's id alone, so that importing a later deck keeps what a reader has learned. The
same commit gives the same bytes. Needs genanki and PyYAML, not torch.
"""

import html
import io
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import genanki
import questions
import whole

ROOT = Path(__file__).resolve().parent.parent
NAME = "Two Knobs"
# Anki recognizes decks and note types by these numbers: never change them, nor the fields or their order.
DECKS = {"must": 1830465101, "likely": 1830465102, "deep": 1830465103}
MODEL = 1830465100
FIELDS = ("id", "question", "short", "long", "wrong", "refute", "follow_ups", "zh", "about")
OLDEST = 1767225600  # 2026-01-01, in seconds
FRONT = '<div class="about">{{about}}</div>{{question}}'
BACK = """{{FrontSide}}<hr id="answer">{{short}}
<details><summary>The long answer</summary>{{long}}<p><b>What would refute it:</b> {{refute}}</p></details>
<details><summary>Usual wrong answers</summary>{{wrong}}</details>
<details><summary>And then they ask</summary>{{follow_ups}}</details>
{{#zh}}<details lang="zh-Hans"><summary>中文</summary>{{zh}}</details>{{/zh}}"""
CSS = """.card { font-family: system-ui, sans-serif; font-size: 18px; line-height: 1.5; max-width: 38em; margin: auto; padding: 1em; }
.about { font-size: 0.75em; opacity: 0.7; }
code { font-family: ui-monospace, monospace; font-size: 0.9em; }
details { margin-top: 0.8em; }
summary { cursor: pointer; font-weight: 600; }
"""


class Note(genanki.Note):
    """A note that stays the same one when its texts change."""

    @property
    def guid(self):
        return genanki.guid_for("two-knobs", self.fields[0])

    @guid.setter
    def guid(self, value):
        pass


def as_html(text: str) -> str:
    """The Markdown that questions use, as what Anki shows: paragraphs, code, formulas, emphasis, names of claims."""
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return "".join(f"<p>{_inline(' '.join(paragraph.split()))}</p>" for paragraph in paragraphs)


_PIECES = re.compile(
    r"\$\$(?P<display>.+?)\$\$|\$(?P<formula>.+?)\$|`(?P<code>[^`]+)`|\*\*(?P<strong>.+?)\*\*|\*(?P<em>.+?)\*"
)


def _inline(text: str) -> str:
    text = re.sub(r"\{\w+\}`([^`]+)`", r"`\1`", text)  # a role: the name stays
    found, end = [], 0
    for piece in _PIECES.finditer(text):
        found += [html.escape(text[end : piece.start()]), _styled(piece.lastgroup, piece[piece.lastgroup])]
        end = piece.end()
    return "".join(found) + html.escape(text[end:])


def _styled(kind: str, text: str) -> str:
    inner = html.escape(text)
    if kind == "display":
        return rf"\[{inner}\]"
    if kind == "formula":
        return rf"\({inner}\)"
    return f"<{kind}>{inner}</{kind}>"


def fields(item: dict) -> dict[str, str]:
    """The fields of a question's note."""
    wrong = "".join(f"<p>“{_inline(pair['answer'])}”</p>{as_html(pair['why'])}" for pair in item["wrong"])
    chain = "".join(
        f"<p><b>{_inline(pair['question'])}</b></p>{as_html(pair['answer'])}" for pair in item["follow_ups"]
    )
    texts = {name: as_html(item[name]) for name in ("question", "short", "long")}
    about = f"{item['level']} · {item['type']} · {item['minutes']} min"
    zh = as_html(item["zh"]) if "zh" in item else ""
    rest = {"refute": _inline(item["refute"]), "zh": zh, "about": html.escape(about)}
    return {"id": item["id"], "wrong": wrong, "follow_ups": chain} | texts | rest


def write(root: Path, path: Path) -> None:
    """Write the deck of all questions of the repository at ``root``."""
    whole.check_writable(path)
    date = _date(root)
    templates = [{"name": "Question", "qfmt": FRONT, "afmt": BACK}]
    model = genanki.Model(MODEL, f"{NAME}: question", [{"name": name} for name in FIELDS], templates, css=CSS)
    decks = {tier: genanki.Deck(number, f"{NAME}::{tier}") for tier, number in DECKS.items()}
    for item in questions.read_questions(root):
        values = fields(item)
        tags = [f"{name}::{item[name]}" for name in ("level", "type", "topic")]
        decks[item["tier"]].add_note(Note(model, [values[name] for name in FIELDS], tags=tags))
    with tempfile.TemporaryDirectory() as folder:
        packed = Path(folder) / "deck.apkg"
        genanki.Package([deck for deck in decks.values() if deck.notes]).write_to_file(packed, timestamp=date)
        whole.write(path, _packed_again(packed))


def _packed_again(source: Path) -> bytes:
    """The same archive without the time at which it was made."""
    content = io.BytesIO()
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as new:
        for name in sorted(old.namelist()):
            new.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), old.read(name), zipfile.ZIP_DEFLATED)
    return content.getvalue()


def _date(root: Path) -> int:
    """When the questions were last committed, in seconds: Anki takes over a note that is newer than its own."""
    if stated := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(stated)
    command = ["git", "log", "-1", "--format=%ct", "--", "book/interview/questions.yml"]
    try:
        said = subprocess.run(command, cwd=root, capture_output=True, text=True).stdout.strip()
    except OSError:  # no git
        said = ""
    return max(int(said), OLDEST) if said.isdigit() else OLDEST


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "_build" / "two-knobs.apkg")
    with whole.told():
        write(ROOT, target)
    print(target)
