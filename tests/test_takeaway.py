"""The one-page sheet and the Anki deck: complete, right, and the same bytes from the same sources."""

import copy
import io
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import zipfile
import zlib

import deck
import numpy as np
import pytest
import sheet
import torch
from bs4 import BeautifulSoup
from matplotlib import image

from normlab import interview
from normlab.interview import expressions
from normlab.placement import WIRING, Placement

SHEET = (sheet.ROOT / "book" / "interview" / sheet.SOURCE).read_text(encoding="utf-8")
BANK = interview.questions()


@pytest.fixture
def book(tmp_path):
    """A copy of what sheet and deck are made from, to spoil."""
    for name in ("book/interview", "src/normlab/interview"):
        shutil.copytree(sheet.ROOT / name, tmp_path / name)
    for name in ("book/claims.yml", "src/normlab/__init__.py", "src/normlab/ledger.py"):
        shutil.copy(sheet.ROOT / name, tmp_path / name)
    shutil.copytree(sheet.ROOT / "notebooks", tmp_path / "notebooks", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    return tmp_path


def change(book, name: str, old: str, new: str) -> None:
    path = book / "book" / "interview" / name
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


# --- the sheet ------------------------------------------------------------------------------------


def everything(pdf: bytes) -> bytes:
    """A PDF with its compressed parts unpacked."""
    parts = [pdf]
    for stream in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL):
        try:
            parts.append(zlib.decompress(stream))
        except zlib.error:  # not compressed
            pass
    return b"\n".join(parts)


def inked(png: bytes) -> np.ndarray:
    """The picture's points that are not white."""
    return image.imread(io.BytesIO(png))[..., :3].min(axis=-1) < 0.98


def blank_strips_hold_ink(png: bytes) -> list[str]:
    """Margins and the gap between the columns, as far as they are not blank: text that is cut or overlaps."""
    ink = inked(png)
    height, width = ink.shape
    millimeter = width / 210
    margin, gap, header = int(10 * millimeter), int(2 * millimeter), int(20 * millimeter)
    strips = {
        "left": ink[:, :margin],
        "right": ink[:, -margin:],
        "top": ink[: int(8 * millimeter)],
        "bottom": ink[-int(5 * millimeter) :],
        "middle": ink[header : -int(15 * millimeter), width // 2 - gap : width // 2 + gap],
    }
    return [name for name, strip in strips.items() if strip.any()]


def test_the_sheet_is_one_a4_page_with_its_fonts():
    [pdf] = sheet.render(sheet.ROOT)
    text = everything(pdf)
    assert len(re.findall(rb"/Type\s*/Page\b", text)) == 1
    [box] = re.findall(rb"/MediaBox\s*\[([^\]]+)\]", text)
    assert np.allclose([float(x) for x in box.split()], [0, 0, 595.28, 841.89], atol=0.1)
    fonts = len(re.findall(rb"/Type\s*/FontDescriptor\b", text))
    assert fonts >= 3 and len(re.findall(rb"/FontFile[23]?\b", text)) == fonts


def test_nothing_on_the_sheet_is_cut_or_overlaps():
    [picture] = sheet.render(sheet.ROOT, "png")
    assert blank_strips_hold_ink(picture) == []
    ink = inked(picture)
    assert ink.mean() > 0.02 and ink[: len(ink) // 2].any() and ink[len(ink) // 2 :].any()


def test_a_sheet_that_does_not_fit_is_seen(book):
    change(book, "sheet.typ", "One token", "#box(width: 120mm, stroke: 1pt)[One token]")
    [picture] = sheet.render(book, "png")
    assert "middle" in blank_strips_hold_ink(picture)
    change(book, "sheet.typ", "#traps(", "#traps(" + "[Another trap, and a long one that takes two lines at least, we think.],\n" * 20)
    assert len(sheet.render(book, "png")) == 2


def test_the_same_sources_give_the_same_sheet():
    assert sheet.render(sheet.ROOT) == sheet.render(sheet.ROOT)


def test_what_typst_cannot_set_is_an_error(book):
    change(book, "sheet.typ", "[No norm]", "[{{ 1 / 0 }}]")
    with pytest.raises(ValueError, match=r"sheet.typ: {{ 1 / 0 }}: ZeroDivisionError"):
        sheet.render(book)
    change(book, "sheet.typ", "{{ 1 / 0 }}", "#nonsense")
    with pytest.raises(ValueError, match="sheet.typ: unknown variable: nonsense"):
        sheet.render(book)
    change(book, "sheet.typ", "#nonsense", "#text(font: \"Nowhere Sans\")[x]")
    with pytest.raises(ValueError, match="unknown font family"):
        sheet.render(book)


def test_every_character_of_the_sheet_has_a_glyph():
    """typst draws a box for a character that none of its fonts has, and says nothing: these we have looked at."""
    assert {c for c in sheet.source(sheet.ROOT) if ord(c) > 126} <= set("×")
    assert {c for c in (sheet.ROOT / "book" / "interview" / sheet.LAYOUT).read_text("utf-8") if ord(c) > 126} <= set("†‡")


def test_no_number_of_the_sheet_is_typed_by_hand():
    text = re.sub(r"//.*|#import.*|#super\[\d\]", "", SHEET)
    assert expressions.typed_numbers(text) == []


def block(name: str) -> str:
    """The arguments of one of the sheet's blocks."""
    (found,) = re.findall(rf"^#{name}\(\n(.*?)^\)$", SHEET, re.DOTALL | re.MULTILINE)
    return found


def wirings() -> dict[str, tuple[str, str]]:
    rows = [re.split(r", (?=[\[$])", row.strip(" ,")) for row in block("wirings").splitlines()]
    return {name.strip("[]"): (sublayer, returned) for name, _, sublayer, returned in rows}


def test_the_sheet_is_complete():
    assert SHEET.count("#formulas(") == 2 and len(wirings()) == 8
    titles = re.findall(r"^  \[(?=[^\n]*\],$)", block("numbers"), re.MULTILINE)
    assert len(re.findall(r"^  \[", block("numbers"), re.MULTILINE)) == 12 and titles
    assert len(re.findall(r"^  \[", block("traps"), re.MULTILINE)) == 10


WHICH = {
    "Post": Placement.POST,
    "Pre": Placement.PRE,
    "Output norm": Placement.OUTPUT,
    "Peri": Placement.PERI,
    "Parallel": Placement.PARALLEL,
    "DeepNorm": Placement.DEEPNORM,
    "HybridNorm": Placement.HYBRID,
    "No norm": Placement.NONE,
}


@pytest.mark.parametrize("name", WHICH)
def test_what_a_wiring_returns_if_its_sublayer_returns_zero(name):
    """The sheet's last column, against the package's wiring, with a bias in the output norm and without."""
    placement, returned = WHICH[name], wirings()[name][1]
    x, alpha = torch.randn(3, 8, dtype=torch.float64, generator=torch.manual_seed(0)), 1.7

    def norm(v):
        return torch.nn.functional.layer_norm(v, (8,))

    parts = {"x": x, "F": torch.zeros_like, "N": norm, "alpha": alpha, "h": norm(x)}
    wanted = {"$x$": x, "$N(x)$": norm(x), "$N(alpha x)$": norm(alpha * x), "[$x$#biasmark]": x}[returned]
    for bias in (0.0, 1.0):
        parts["O"] = lambda v, bias=bias: norm(v) + bias
        names = WIRING[placement].__code__.co_varnames[: WIRING[placement].__code__.co_argcount]
        out = WIRING[placement](**{key: parts[key] for key in names})
        assert torch.equal(out, wanted) == (bias == 0 or not "#biasmark" in returned)


def test_the_numbers_of_the_sheet_in_another_way():
    text = " ".join(sheet.source(sheet.ROOT).replace("~", " ").split())
    entries, layers, width, vocab = 32 * (4 * 4096**2 + 3 * 4096 * 11008), 32, 4096, 32000
    prefill = [2 * entries * t + 4 * layers * width * t * t + 2 * vocab * width for t in (2048, 16384)]
    total = entries + 2 * vocab * width + 65 * width
    for number in (
        f"{65 * 4096:,} gains",
        f"{100 * 65 * 4096 / total:.3f}%",
        f"× {(16384 // 2048) ** 2}, × {prefill[1] / prefill[0]:.1f}, × 8",
        f"[{100 * 65 * 2048 * (4 * 4096 + 2) / prefill[0]:.3f}%]",
        f"[{2 * 32 * 4096 * 2 * 16384 / 1024**3:.1f} GiB]",
        f"[× {(80 / 12) ** 0.5:.2f}]",
        f"{100 * (1 - 0.75**0.5):.1f}%",
        f"comes out at {(0.0004 / 0.00041) ** 0.5:.3f}",
    ):
        assert number in text, number


def test_sheet_and_deck_need_no_torch(tmp_path):
    program = f"""
import sys
for name in ("torch", "numpy", "matplotlib"):
    sys.modules[name] = None
sys.path.insert(0, {str(sheet.ROOT / "tools")!r})
import pathlib, deck, sheet
sheet.write(sheet.ROOT, pathlib.Path({str(tmp_path / "a.pdf")!r}))
deck.write(deck.ROOT, pathlib.Path({str(tmp_path / "a.apkg")!r}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.pdf").read_bytes()[:5] == b"%PDF-" and zipfile.is_zipfile(tmp_path / "a.apkg")


# --- the deck -------------------------------------------------------------------------------------


def opened(path, folder) -> sqlite3.Connection:
    zipfile.ZipFile(path).extract("collection.anki2", folder)
    return sqlite3.connect(folder / "collection.anki2")


def notes(path, folder) -> dict[str, tuple]:
    """Of each note, by the question's id: its identity, fields and tags."""
    rows = opened(path, folder).execute("select guid, flds, tags, mod from notes").fetchall()
    return {row[1].split("\x1f")[0]: (row[0], row[1].split("\x1f"), row[2].split(), row[3]) for row in rows}


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    path = tmp_path_factory.mktemp("deck") / "deck.apkg"
    deck.write(deck.ROOT, path)
    return path


def test_the_deck_has_a_note_for_each_question(packed, tmp_path):
    found = notes(packed, tmp_path)
    assert list(found) == [item["id"] for item in BANK]
    for item in BANK:
        _, fields, tags, _ = found[item["id"]]
        assert dict(zip(deck.FIELDS, fields, strict=True)) == deck.fields(item)
        assert tags == [f"level::{item['level']}", f"type::{item['type']}", f"topic::{item['topic']}"]
    [raw] = opened(packed, tmp_path).execute("select decks from col").fetchone()
    names = {entry["name"] for entry in json.loads(raw).values()}
    assert names >= {f"Two Knobs::{tier}" for tier in {item["tier"] for item in BANK}}


def test_what_anki_recognizes_never_changes():
    """Anki would take a changed deck for another one, and the reader would start anew."""
    assert deck.MODEL == 1830465100 and deck.DECKS == {"must": 1830465101, "likely": 1830465102, "deep": 1830465103}
    assert deck.FIELDS == ("id", "question", "short", "long", "wrong", "refute", "follow_ups", "zh", "about")
    assert deck.Note(fields=["ln-vs-rms"]).guid == "Bld/eC!6D{"


def test_a_changed_answer_keeps_its_note(book, packed, tmp_path):
    before = notes(packed, tmp_path)
    change(book, "questions.yml", "Write LayerNorm and RMSNorm, and name every difference.", "Write both norms.")
    deck.write(book, tmp_path / "new.apkg")
    after = notes(tmp_path / "new.apkg", tmp_path)
    assert {name: note[0] for name, note in before.items()} == {name: note[0] for name, note in after.items()}
    assert len({note[0] for note in after.values()}) == len(after)
    assert [name for name in before if before[name][1] != after[name][1]] == ["ln-vs-rms"]


def test_the_same_sources_give_the_same_deck_at_any_time(packed, tmp_path, monkeypatch):
    assert {entry.date_time for entry in zipfile.ZipFile(packed).infolist()} == {(1980, 1, 1, 0, 0, 0)}
    monkeypatch.setattr("time.time", lambda: 2e9)
    deck.write(deck.ROOT, tmp_path / "again.apkg")
    assert (tmp_path / "again.apkg").read_bytes() == packed.read_bytes()


def test_a_later_deck_is_newer(book, tmp_path, monkeypatch):
    """By the last commit of the questions; without a repository all decks are equally old."""
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)

    def date():
        deck.write(book, tmp_path / "a.apkg")
        return {note[3] for note in notes(tmp_path / "a.apkg", tmp_path).values()}

    assert date() == {deck.OLDEST}
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    for seconds in (1800000000, 1800000060):
        change(book, "questions.yml", "# The question bank.", "# The question bank. ")
        when = {"GIT_COMMITTER_DATE": f"{seconds} +0000", "PATH": os.environ["PATH"]}
        subprocess.run(["git", "init", "-q"], cwd=book, check=True)
        subprocess.run(["git", "add", "book/interview"], cwd=book, check=True)
        subprocess.run(["git", *who, "commit", "-qm", "a"], cwd=book, check=True, env=when)
        assert date() == {seconds}
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1900000000")
    assert date() == {1900000000}


TAGS = {"p", "code", "b", "strong", "em"}


@pytest.mark.parametrize("item", BANK, ids=lambda item: item["id"])
def test_cards_are_clean_html_with_all_words(item):
    """No text is eaten as a tag, no Markdown is left, and formulas stand as Anki wants them."""
    fields = deck.fields(item)
    pages = {name: BeautifulSoup(text, "html.parser") for name, text in fields.items()}
    assert {tag.name for page in pages.values() for tag in page.find_all()} <= TAGS
    for name, page in pages.items():
        shown = page.get_text()
        assert not re.search(r"[`$]|\*\*|\{\w+\}", re.sub(r"\\[(\[].*?\\[)\]]", "", shown)), (name, shown)

    def letters(text: str) -> str:
        return re.sub(r"\{\w+\}(?=`)|\W|_", "", text)

    shown = letters("".join(page.get_text() for page in pages.values()))
    assert all(letters(text) in shown for _, text in interview.texts(item))


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("a <b and c> d & e", "<p>a &lt;b and c&gt; d &amp; e</p>"),
        ("so `x < y` and $a<b$", r"<p>so <code>x &lt; y</code> and \(a&lt;b\)</p>"),
        ("one\ntwo\n\n$$a = b,\n\\qquad c$$", "<p>one two</p><p>\\[a = b, \\qquad c\\]</p>"),
        ("*not* **this** `a*b*c` $x * y * z$", r"<p><em>not</em> <strong>this</strong> <code>a*b*c</code> \(x * y * z\)</p>"),
        ("see {claim}`3-attn-64x`.", "<p>see <code>3-attn-64x</code>.</p>"),
    ],
)
def test_markdown_for_anki(text, wanted):
    assert deck.as_html(text) == wanted


def test_a_question_without_chinese_has_none():
    item = copy.deepcopy(next(item for item in BANK if "zh" not in item))
    assert deck.fields(item)["zh"] == ""
    assert deck.fields(item | {"zh": "因此。"})["zh"] == "<p>因此。</p>"
