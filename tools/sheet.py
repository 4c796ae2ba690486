"""The one-page sheet: book/interview/sheet.typ with its numbers, as a PDF.

    python tools/sheet.py _build/two-knobs-sheet.pdf

The same sources give the same bytes: only the fonts that typst carries are used, and the date is fixed. Needs typst and
PyYAML, not torch and no browser.
"""

import sys
import tempfile
from pathlib import Path

import questions
import typst
import whole

ROOT = Path(__file__).resolve().parent.parent
SOURCE = "sheet.typ"
LAYOUT = "sheet-layout.typ"
DATE = 1767225600  # 2026-01-01, in seconds


def source(root: Path) -> str:
    """The text of the sheet with its numbers. Raises ValueError for an expression that fails."""
    text = (root / "book" / "interview" / SOURCE).read_text(encoding="utf-8")
    try:
        return questions.evaluator(root)(text)
    except ValueError as problem:
        raise ValueError(f"book/interview/{SOURCE}: {problem}") from None


def render(root: Path, kind: str = "pdf") -> list[bytes]:
    """The sheet as a PDF, or as pictures ("png"), one a page.

    Raises:
        ValueError: what typst warns of, for example a missing glyph or font, or why it cannot set the text.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / SOURCE).write_text(source(root), encoding="utf-8")
        layout = (root / "book" / "interview" / LAYOUT).read_bytes()
        (Path(folder) / LAYOUT).write_bytes(layout)
        try:
            result, warnings = typst.compile_with_warnings(
                str(Path(folder) / SOURCE), ignore_system_fonts=True, format=kind, ppi=150, timestamp=DATE
            )
        except typst.TypstError as problem:
            raise ValueError(f"book/interview/{SOURCE}: {problem.message}") from problem
    if warnings:
        raise ValueError(f"book/interview/{SOURCE}: {'; '.join(warning.message for warning in warnings)}")
    return list(result) if isinstance(result, list) else [result]


def write(root: Path, path: Path) -> None:
    """Write the PDF."""
    whole.check_writable(path)
    whole.write(path, render(root)[0])


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "_build" / "two-knobs-sheet.pdf")
    with whole.told():
        write(ROOT, target)
    print(target)
