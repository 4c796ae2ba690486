"""The book's own Sphinx extension: what `_config.yml` cannot say.

=============  ====================================================================
repository     where the book's sources live on the web, found at build time
buttons        download link, Colab and repository buttons of a page
mathematics    formulas rendered to HTML at build time; a bad formula is a warning
outputs        notebook outputs next to their nodes: alt texts, panels, claims
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
depends        what pages are made from: a build reads anew what changed, and nothing else
sweep          nothing stays in the site that no page needs
storage        pages that work where the browser keeps no site data
drills         the directives ``{drill}`` and ``{drills}``: pages of the coding drills
house          the directive ``{house}``: a picture of the package, from its imports
tools          the repository's tools, loaded from their files
offline        what makes pages light and silent without a network
access         names, roles and table headers for a screen reader
policy         a content security policy in every page
=============  ====================================================================

It needs no torch. Of the package it uses modules of plain Python, read from `src`.
"""

from pathlib import Path

from . import (
    access,
    api,
    buttons,
    calculator,
    checklist,
    claims,
    depends,
    drills,
    house,
    mathematics,
    mock,
    moved,
    offline,
    outputs,
    policy,
    practice,
    questions,
    rounds,
    search,
    storage,
    sweep,
    tables,
    takeaway,
)

PARTS = (
    access, depends, api, buttons, calculator, checklist, claims, drills, house, mathematics, mock, moved, offline,
    outputs, policy, practice, questions, rounds, search, storage, sweep, tables, takeaway,
)

# A change of these concerns all pages: they are read anew. What single pages are made from is in `depends`.
EVERYWHERE = (
    "_config.yml", "_toc.yml", "book/api.md", "constraints.txt", "book/references.bib", "book/_ext/**/*.*", "tools/*.py",
    "src/normlab/ledger.py", "src/normlab/interview/*.py", "src/normlab/page/panels.py",
)
STATIC = ("book/_static/*.*",)  # a page names its style sheets and scripts with a digest: all are written again


def _on_config(app, config):
    config.course_fingerprint = depends.digest_of_files(Path(app.srcdir), *EVERYWHERE)
    config.course_static = depends.digest_of_files(Path(app.srcdir), *STATIC)
    config.course_copyright = config.copyright


def _keep_the_year(app, config):
    """Sphinx writes the year of SOURCE_DATE_EPOCH, which may be 1980, over the one in `_config.yml`."""
    config.copyright = config.course_copyright


def setup(app):
    app.add_config_value("course_fingerprint", "", "env")
    app.add_config_value("course_static", "", "html")
    # Jupyter Book sets this value of sphinx_comments, which we leave out.
    app.add_config_value("comments_config", {}, "env")
    app.connect("config-inited", _on_config)
    app.add_config_value("course_copyright", "", "html")
    app.connect("config-inited", _keep_the_year, priority=900)  # after Sphinx's own, at 800
    for part in PARTS:
        part.setup(app)
    # Not in parallel: one process of node renders the formulas, and sphinx_multitoc_numbering would forbid it anyway.
    return {"version": "1.0", "env_version": 1, "parallel_read_safe": False, "parallel_write_safe": False}
