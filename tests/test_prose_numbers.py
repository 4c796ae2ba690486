"""A number with three or more significant digits in a chapter's prose is backed by something that was computed.

It must stand, rounded as the prose rounds it, in a text output or an alt text of the same notebook; or in a record
that the notebook's metadata names (`normlab.data`), as a single value, not inside a list; or in a sentence with a
citation. Not looked at:

* code, roles (`{claim}`, `{eq}`), links' addresses, HTML tags;
* years (1900 to 2099), dates, arXiv ids, version numbers (after Python, torch or PyTorch, or with two points);
* numbers that are part of a name (GPT-2, float64, ResNet-101).

Zeros at the end of a whole number are not significant (10,000 walkers: one digit), zeros after the point are.
"""

import json
import re
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MIN_DIGITS = 3

EXPONENT = (
    r"(?:\s*(?:×|·|\\times|\\cdot)\s*10(?:\^\{?(?P<tex>[-−+]?\d+)\}?|(?P<sup>[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+))|[eE](?P<e>[-+]?\d+))?"
)
NUMBER = re.compile(
    rf"(?<![\w.,])(?<![A-Za-z]-)(?P<digits>\d{{1,3}}(?:(?:,|\{{,\}}|\u202f|\u2009)\d{{3}})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
    rf"{EXPONENT}(?P<percent>\s*\\?%|\s+percent)?"
)
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺−", "0123456789-+-")

NOT_PROSE = [
    r"^(?P<fence>`{3,}|~{3,})(?!\{).*?^(?P=fence)`*\s*$",  # code blocks, not directives
    r"\{[\w:-]+\}(`+).+?\1",  # roles
    r"(`+).+?\1",  # code
    r"\]\([^)\s]*\)|https?://\S+",  # addresses
    r"<[^<>\n]+>",  # HTML tags
    r"\b\d{4}-\d{2}-\d{2}\b",  # dates
    r"\barXiv[: ]*\d{4}\.\d{4,5}(v\d+)?",
    r"\b(?:Python|torch|PyTorch)\s+\d+(?:\.\d+)*|\b\d+(?:\.\d+){2,}\b",  # versions
]


@dataclass(frozen=True)
class Number:
    """A number as it is written: its value, the unit of its last digit, how many digits say something."""

    text: str
    value: Decimal
    unit: Decimal
    digits: int

    def rounds(self, exact: Decimal) -> bool:
        """Whether this is ``exact``, rounded to the last digit written. The sign is left to the words around."""
        return abs(abs(exact) - self.value) <= self.unit / 2


def numbers(text: str) -> list[Number]:
    """All numbers in ``text``. One in percent counts as written; `backed` also tries the fraction."""
    found = []
    for match in NUMBER.finditer(text):
        plain = re.sub(r"[^\d.]", "", match["digits"])
        power = (match["tex"] or match["sup"] or match["e"] or "0").translate(SUPERSCRIPTS)
        scale = Decimal(1).scaleb(int(power))
        decimals = len(plain.partition(".")[2])
        digits = plain.replace(".", "").lstrip("0")
        if not decimals and not match["e"]:
            digits = digits.rstrip("0")
        unit = Decimal(1).scaleb(-decimals) * scale
        found.append(Number(match[0].strip(), Decimal(plain) * scale, unit, len(digits)))
    return found


def sentences(cell: str) -> list[str]:
    """The sentences of a Markdown cell; a list item, a table row and a heading are sentences of their own."""
    text = re.sub(NOT_PROSE[0], "", cell, flags=re.DOTALL | re.MULTILINE)
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*|#>]|\d+\.)\s?)|(?<=\|)\n", text)
    ends = r"(?<!e\.g\.)(?<!i\.e\.)(?<!cf\.)(?<!al\.)(?<=[.!?])[)\"*_”]*\s+(?=[\w$\"“*_(\[{\\])"
    return [sentence for block in blocks for sentence in re.split(ends, block)]


def unbacked(notebook, records: list) -> list[str]:
    """The numbers of the notebook's prose that nothing backs, each with its cell and sentence."""
    known = [number.value for text in shown(notebook) for number in numbers(text)]
    known += [value for record in records for value in single_values(record)]
    missing = []
    for position, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type != "markdown":
            continue
        for sentence in sentences(cell.source):
            if "{cite" in sentence:
                continue
            for pattern in NOT_PROSE[1:]:
                sentence = re.sub(pattern, " ", sentence, flags=re.DOTALL | re.IGNORECASE)
            missing += [
                f"cell {position}: {number.text} in {' '.join(sentence.split())!r}"
                for number in numbers(sentence)
                if number.digits >= MIN_DIGITS and not is_year(number) and not backed(number, known)
            ]
    return missing


def is_year(number: Number) -> bool:
    return re.fullmatch(r"(19|20)\d\d", number.text) is not None


def backed(number: Number, known: list[Decimal]) -> bool:
    factors = (1, 100) if "%" in number.text or "percent" in number.text else (1,)
    return any(number.rounds(value * factor) for value in known for factor in factors)


def shown(notebook):
    """The texts that the notebook's cells printed: streams, plain texts (claims and tables too), alt texts."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            yield output.get("text", "")
            yield output.get("data", {}).get("text/plain", "")


def single_values(record):
    """The numbers of a record that stand by themselves; in a long list something would always match."""
    if isinstance(record, dict):
        for value in record.values():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                yield Decimal(repr(value))
            yield from single_values(value)
    elif isinstance(record, list):
        for value in record:
            yield from single_values(value) if isinstance(value, (dict, list)) else ()


def read_records(notebook) -> list:
    names = notebook.metadata.get("normlab", {}).get("data", [])
    paths = [ROOT / "src" / "normlab" / name for name in names if name.endswith(".json")]
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


# --- the notebooks --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_numbers_in_prose_are_backed(path):
    notebook = nbformat.read(path, as_version=4)
    assert unbacked(notebook, read_records(notebook)) == []


# --- the checker itself ---------------------------------------------------------------------------


def check(prose: str, output: str = "", record=None) -> list[str]:
    v4 = nbformat.v4
    code = v4.new_code_cell("f()", outputs=[v4.new_output("stream", text=output)])
    notebook = v4.new_notebook(cells=[v4.new_markdown_cell(prose), code])
    return [line.split(": ")[1].split(" in ")[0] for line in unbacked(notebook, [record] if record else [])]


@pytest.mark.parametrize(
    ("prose", "output"),
    [
        ("They get 7.98 steps far.", "mean 7.98"),
        ("They get 7.98 steps far.", "mean 7.979 ± 0.03"),
        ("It falls by 0.352.", "change: -0.352"),
        ("It falls to −0.352.", "change: -0.3518"),
        ("Some 12.5 % are lost.", "0.1251 of all"),
        ("Some 12.5\\% are lost.", "12.5"),
        ("All 1,234 of them", "1234"),
        ("All $1{,}234$ of them", "1,234"),
        ("off by $1.23\\times10^{-5}$", "1.234e-05"),
        ("off by 1.23 × 10⁻⁵ only", "0.0000123"),
        ("about 0.0123", "0.01234"),
        ("the factor 2.58, not 80/12", "2.582"),
        # few digits
        ("10,000 walkers take 100 steps; 2.6 of them, 12 or 80 or 0.05, to 1e-12 or $10^{-12}$", ""),
        # what is not looked at
        ("As `12345` and {claim}`rms-10062` say, in 2017, on 2026-11-29:\n\n```python\nx = 3.14159\n```", ""),
        ("GPT-2 and float64 on ResNet-101; arXiv 2002.04745; Python 3.11, torch 2.13.0; release 1.0.4", ""),
        ("See [a page](https://example.org/12345) or https://example.org/67890.", ""),
        # citations
        ("{cite:t}`xiong2020` report 34.6 BLEU.", ""),
        ("They report 34.6 BLEU {cite:p}`xiong2020`.", ""),
        ("- reported: 34.6 {cite:p}`xiong2020`\n- here: 12.3", "12.3"),
        (":::{note}\nIt is 7.98.\n:::", "7.98"),
    ],
)
def test_accepts(prose, output):
    assert check(prose, output) == []


@pytest.mark.parametrize(
    ("prose", "output", "found"),
    [
        ("They get 7.98 steps far.", "mean 7.97", ["7.98"]),
        ("They get 7.98 steps far.", "mean 8", ["7.98"]),
        ("They get 7.984 steps far.", "mean 7.98", ["7.984"]),
        ("the factor 1.00", "1.006", ["1.00"]),
        ("Some 12.5 % are lost.", "0.131", ["12.5 %"]),
        ("12.5 are lost.", "0.125", ["12.5"]),
        ("a value of $\\sqrt{200/\\pi} = 7.98$", "", ["7.98"]),
        ("off by $1.23\\times10^{-5}$", "1.23e-04", [r"1.23\times10^{-5}"]),
        ("1,234 of them and 124M more", "", ["1,234", "124"]),
        ("between 1.25–1.75", "1.25", ["1.75"]),
        ("| a | 34.6 |\n| {cite:p}`xiong2020` | 12.3 |", "", ["34.6"]),
        ("It was 34.6. Others agree {cite:p}`xiong2020`.", "", ["34.6"]),
        ("Others agree {cite:p}`xiong2020`. Here it is 34.6.", "", ["34.6"]),
        ("- reported {cite:p}`xiong2020`\n- here: 34.6", "", ["34.6"]),
        (":::{admonition} A trap of 34.6\nIt is 7.98.\n:::", "", ["34.6", "7.98"]),
        ("## Why 34.6?", "", ["34.6"]),
    ],
)
def test_finds(prose, output, found):
    assert check(prose, output) == found


def test_records_back_single_values_only():
    record = {"runs": [{"result": {"loss": 2.3456, "curve": [7.891, 6.543]}}], "seeds": 5, "done": True}
    assert check("The loss is 2.35 after 7.89.", record=record) == ["7.89"]


def test_alt_texts_and_claims_back():
    v4 = nbformat.v4
    figure = v4.new_output("display_data", {"text/plain": "A curve up to 10.06.", "image/svg+xml": "<path d='7.98'/>"})
    code = v4.new_code_cell("f()", outputs=[figure])
    assert unbacked(v4.new_notebook(cells=[v4.new_markdown_cell("It is 10.1, 10.06 at the end."), code]), []) == []
    assert unbacked(v4.new_notebook(cells=[v4.new_markdown_cell("It is 7.98."), code]), []) != []
