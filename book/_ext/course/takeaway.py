"""What a reader takes away: the one-page sheet and the Anki deck, made when the book is built.

The directive ``{takeaway}`` lists both with their sizes and links. `tools/sheet.py` and `tools/deck.py` make them; a book
without `book/interview/sheet.typ` has none.
"""

from pathlib import Path

from docutils import nodes
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from . import tools

FOLDER = "takeaway"
FILES = {"sheet": "two-knobs-sheet.pdf", "deck": "two-knobs.apkg"}
TITLES = {"sheet": "The sheet, one page A4 (PDF)", "deck": "The deck for Anki (apkg)"}


def _write(app):
    """Before any page is read, so that a fault in them fails the build at once."""
    root = Path(app.srcdir)
    if app.builder.format == "html" and (root / "book" / "interview" / "sheet.typ").exists():
        for tool, name in FILES.items():
            try:
                tools.load(root, tool).write(root, Path(app.outdir) / FOLDER / name)
            except ValueError as problem:
                raise ExtensionError(str(problem)) from problem


class Takeaway(SphinxDirective):
    """A list of the files."""

    def run(self):
        here = self.env.app.builder.get_relative_uri(self.env.docname, "index")
        base = here.rsplit("/", 1)[0] + "/" if "/" in here else ""
        entries = []
        for tool, name in FILES.items():
            path = Path(self.env.app.outdir) / FOLDER / name
            kilobytes = f", {path.stat().st_size // 1000} kB" if path.exists() else ""
            link = f'<a href="{base}{FOLDER}/{name}" download="{name}">{TITLES[tool]}</a>{kilobytes}'
            entries.append(nodes.list_item("", nodes.paragraph("", "", nodes.raw("", link, format="html"))))
        return [nodes.bullet_list("", *entries)]


def setup(app):
    app.connect("builder-inited", _write)
    app.add_directive("takeaway", Takeaway)
