"""The book's own Sphinx extension: what `_config.yml` cannot say.

=============  ====================================================================
repository     where the book's sources live on the web, found at build time
buttons        download link, Colab and repository buttons of a page
mathematics    formulas rendered to HTML at build time; a bad formula is a warning
outputs        notebook outputs next to their nodes: alt texts, claims
questions      the question bank: the directives ``{questions}``, ``{question-index}``
takeaway       the directive ``{takeaway}``: the one-page sheet and the Anki deck
mock           the directive ``{mock-interview}``: questions, rubric points and steps for its script
practice       cards to decide first: the directives ``{marked-answers}``, ``{quiz}``
rounds         the directive ``{round}``: placements, faulty runs and claims to decide
calculator     the directive ``{calculator}``: the tables and the script of its page
checklist      the directives ``{checklist…}``: what to do before Monday, with its minutes
api            the directive ``{api}``: the package's reference, from its docstrings
claims         the claims file, the role ``{claim}``, the directive ``{claims-ledger}``
tables         large result tables that a reader filters and sorts
search         a search that finds numbers and symbols
sources        what a claim's sources are called on the pages
moved          old addresses that keep working
storage        pages that work where the browser keeps no site data
drills         the directives ``{drill}`` and ``{drills}``: pages of the coding drills
house          the directive ``{house}``: a picture of the package, from its imports
tools          the repository's tools, loaded from their files
offline        what makes pages light and silent without a network
=============  ====================================================================

It needs no torch. Of the package it uses modules of plain Python, read from `src`.
"""

import hashlib
from pathlib import Path

from . import (
    api,
    buttons,
    calculator,
    checklist,
    claims,
    drills,
    house,
    mathematics,
    mock,
    moved,
    offline,
    outputs,
    practice,
    questions,
    rounds,
    search,
    storage,
    tables,
    takeaway,
)

PARTS = (
    api, buttons, calculator, checklist, claims, drills, house, mathematics, mock, moved, offline, outputs, practice,
    questions, rounds, search, storage, tables, takeaway,
)

# What the interview pages are made from.
INTERVIEW = (
    "src/normlab/ledger.py", "src/normlab/interview/*.py", "src/normlab/interview/*.json",
    "src/normlab/records/faulty_runs.json", "tools/questions.py", "tools/sheet.py", "tools/deck.py",
    "book/interview/*.yml", "book/interview/*.typ",
)


def _fingerprint(root: Path) -> str:
    """A digest of all that the pages depend on beyond their own sources.

    Sphinx re-reads a page only when its file changed; a claim settled in another notebook or a
    change in this extension would go unseen.
    """
    own = [path for path in Path(__file__).parent.iterdir() if path.is_file()]
    files = [*own, claims.claims_file(root), *claims.notebooks(root)]
    files += [path for pattern in INTERVIEW for path in sorted(root.glob(pattern))]
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _on_config(app, config):
    config.course_fingerprint = _fingerprint(Path(app.srcdir))
    config.course_copyright = config.copyright


def _keep_the_year(app, config):
    """Sphinx writes the year of SOURCE_DATE_EPOCH, which may be 1980, over the one in `_config.yml`."""
    config.copyright = config.course_copyright


def setup(app):
    app.add_config_value("course_fingerprint", "", "env")
    # Jupyter Book sets this value of sphinx_comments, which we leave out.
    app.add_config_value("comments_config", {}, "env")
    app.connect("config-inited", _on_config)
    app.add_config_value("course_copyright", "", "html")
    app.connect("config-inited", _keep_the_year, priority=900)  # after Sphinx's own, at 800
    for part in PARTS:
        part.setup(app)
    return {"version": "1.0", "parallel_read_safe": False, "parallel_write_safe": False}
