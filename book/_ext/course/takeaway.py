"""What a reader takes away: the one-page sheet and the Anki deck, made when the book is built.

The directive ``{takeaway}`` lists both with their sizes and links. `tools/sheet.py` and `tools/deck.py` make them; a book
without `book/interview/sheet.typ` has none.
"""

from pathlib import Path

from docutils import nodes
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from . import depends, tools

FOLDER = "takeaway"
FILES = {"sheet": "two-knobs-sheet.pdf", "deck": "two-knobs.apkg"}
SOURCES = ("src/normlab/ledger.py", "src/normlab/interview/*.py", "tools/*.py", "book/interview/*")
TITLES = {"sheet": "The sheet, one page A4 (PDF)", "deck": "The deck for Anki (apkg)"}


def _write(app):
    """Before any page is read, so that a fault in them fails the build at once."""
    root, files = Path(app.srcdir), {tool: Path(app.outdir) / FOLDER / name for tool, name in FILES.items()}
    if app.builder.format == "html" and (root / "book" / "interview" / "sheet.typ").exists():
        makers = {tool: tools.load(root, tool) for tool in FILES}
        claims = [app.course_claims, app.course_verdicts]
        made_from = [depends.digest_of_files(root, *SOURCES), claims, makers["deck"]._date(root)]
        if not depends.unchanged(app, FOLDER, made_from) or not all(path.exists() for path in files.values()):
            for tool, path in files.items():
                try:
                    makers[tool].write(root, path)
                except ValueError as problem:
                    raise ExtensionError(str(problem)) from problem
            depends.settle(app, FOLDER, made_from)
    depends.provide(app, FOLDER, [path.stat().st_size for path in files.values() if path.exists()])


class Takeaway(SphinxDirective):
    """A list of the files."""

    def run(self):
        depends.uses(self.env, FOLDER)
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
