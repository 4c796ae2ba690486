"""Standalone copies of the notebooks: one file that runs in Colab or in an empty folder, without the repository.

    python tools/standalone.py OUT

A copy keeps every cell and its outputs. Its first code cell carries the modules of the package that the notebook
imports, directly or through others, and the data that it names in its metadata (``normlab.data``); its text is
plain Markdown. Needs nbformat and pybtex, not torch; the Sphinx extension calls `write_copies`.
"""

import sys
from pathlib import Path

import nbformat
from execute import notebooks
from imports import dotted, files_of, imported_names
from myst_to_markdown import References, collect, convert, read_bibliography
from setup_cell import SETUP_CELL, read_packed, standalone_cell
from whole import told, write_text

ROOT = Path(__file__).resolve().parent.parent
LIMIT_BYTES = 600_000
LICENSE = (
    "---\n*This is a standalone copy of a chapter of* Two Knobs, *an executable course on normalization in "
    "Transformers. Text and figures: CC BY 4.0. Code: MIT.*"
)


def write_copies(root: Path, out: Path) -> list[Path]:
    """Write a copy of every notebook of the repository at ``root`` into the folder ``out``; return their paths.

    A copy above the limit comes without pictures. Raises ValueError if it is still above.
    """
    references = read_references(root)
    paths, packed = [], {}
    for former in out.glob("*.ipynb"):
        packed |= read_packed(former.read_text(encoding="utf-8"))
    for source in notebooks(root):
        copy = standalone_copy(root, source, references, packed)
        text = nbformat.writes(copy) + "\n"
        if len(text.encode()) > LIMIT_BYTES:
            text = nbformat.writes(without_pictures(copy)) + "\n"
        if len(text.encode()) > LIMIT_BYTES:
            raise ValueError(f"{source.name}: the copy has {len(text.encode()):,} bytes, more than {LIMIT_BYTES:,}")
        paths.append(out / source.name)
        write_text(paths[-1], text)
    return paths


def without_pictures(notebook):
    """The copy with its figures, sliders and drawings in HTML as text, until the reader runs it; a line at the top says so."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            html = data.get("text/html", "")
            if "image/svg+xml" in data or "normlab-slider" in html or "<svg" in html:
                for picture in ("image/svg+xml", "text/html"):
                    data.pop(picture, None)
                    output.metadata.pop(picture, None)
    first = next(cell for cell in notebook.cells if cell.cell_type == "markdown")
    first.source += "\n\n*To keep this file small, its pictures stand here in words. Run the cells, and they are drawn.*"
    return notebook


def read_references(root: Path) -> References:
    """The titles, labels, equation numbers and citations of all pages of the book."""
    references = References()
    bibliography = root / "book" / "references.bib"
    if bibliography.exists():
        references.bibliography = read_bibliography(bibliography)
    for path in sorted((root / "book").rglob("*.md")):
        collect(_page(root, path), path.read_text(encoding="utf-8"), references)
    for path in notebooks(root):
        cells = nbformat.read(path, as_version=4).cells
        text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
        collect(_page(root, path), text, references)
    return references


def standalone_copy(root: Path, source: Path, references: References, packed: dict[str, str] | None = None):
    """The notebook ``source`` with its package inside and its text in plain Markdown; ``packed`` as `standalone_cell` has it."""
    notebook = nbformat.read(source, as_version=4)
    setups = [cell for cell in notebook.cells if "setup" in cell.metadata.get("tags", [])]
    if len(setups) != 1:
        raise ValueError(f"{source.name}: {len(setups)} cells have the tag 'setup', one is needed")
    data = notebook.metadata.get("normlab", {}).get("data", [])
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    for number, cell in enumerate(notebook.cells, start=1):
        tags = cell.metadata.get("tags", [])
        if cell.cell_type == "markdown":
            try:
                cell.source = convert(cell.source, _page(root, source), references)
            except ValueError as problem:
                raise ValueError(f"{source.name}, cell {number} ({cell.id}): {problem}") from None
        elif "setup" in tags:
            if not cell.source.startswith(SETUP_CELL):
                raise ValueError(f"{source.name}: the cell tagged 'setup' does not begin with SETUP_CELL")
            carried = standalone_cell(package_files(root, code, data), packed)
            cell.source = carried + cell.source.removeprefix(SETUP_CELL)  # imports may follow
            _fold(cell)
        elif "solution" in tags:
            cell.source = f"#@title Solution\n{cell.source}"
            _fold(cell)
    notebook.cells.append(nbformat.v4.new_markdown_cell(LICENSE, id="license"))
    return notebook


def package_files(root: Path, code: str, data: list[str]) -> dict[str, str]:
    """The modules that ``code`` reaches and the named data files, by their path below the folder of the package."""
    package = root / "src" / "normlab"
    paths = _reached_modules(package, code) + [package / name for name in data]
    if any(name.startswith("data/") for name in data):
        paths += sorted((package / "data").glob("NOTICE*"))
    return {path.relative_to(package.parent).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def _reached_modules(package: Path, code: str) -> list[Path]:
    """The package's modules that ``code`` imports, that these import, and so on, in functions too."""
    reached, to_read = set(), [(code, package.name)]
    while to_read:
        for name in imported_names(*to_read.pop()):
            for path in files_of(package, name):
                if path not in reached:
                    reached.add(path)
                    to_read.append((path.read_text(encoding="utf-8"), dotted(package, path.parent)))
    return sorted(reached)


def _fold(cell) -> None:
    """Fold the code of ``cell``: in Colab (a form that shows the title only) and in JupyterLab."""
    cell.metadata["cellView"] = "form"
    cell.metadata["jupyter"] = {"source_hidden": True}


def _page(root: Path, path: Path) -> str:
    """The name of a page as the table of contents has it: its path without the suffix."""
    return path.relative_to(root).with_suffix("").as_posix()


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python tools/standalone.py OUT")
    with told():
        for path in write_copies(ROOT, Path(sys.argv[1])):
            print(f"{path}: {path.stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    main()
