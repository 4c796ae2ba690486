"""What a screen reader needs and the theme, Sphinx or Markdown leave out: names of buttons, headers of tables, roles,
the language of Chinese words.

``MENDS`` are replacements in the built pages; a test runs axe on every page and so notices when one of them no longer
fits what the theme writes.
"""

import re
from pathlib import Path

from docutils import nodes

from . import search

SPOKEN = {**search.SYMBOLS, "cdot": "⋅", "dots": "…"}
PAGE_BELOW = (
    r"(?P<link><a [^>]*>(?P<title>(?:(?!</a>).)*)</a>)"
    r'<details(?P<open>[^>]*)><summary>(?=<span class="toctree-toggle)'
)


def _named_fold(match: re.Match) -> str:
    title = " ".join(re.sub("<[^>]*>", "", match["title"]).split())
    return f'{match["link"]}<details{match["open"]}><summary aria-label="Pages below “{title}”">'


CHINESE = re.compile(r"[\u3400-\u9fff]+(?:[、。，；：？！（）]|[\u3400-\u9fff])*")
# What a reader sees between two tags, if it is Chinese and not yet marked as such; scripts are passed over.
TEXT = re.compile(r'<script\b.*?</script>|(?<=>)(?<!lang="zh-Hans">)[^<>]*[\u3400-\u9fff][^<>]*(?=<)', re.DOTALL)

MENDS = [  # (what stands there, what shall stand there)
    # The sidebar: the arrow that unfolds pages has no name; the title of the book stands in no landmark.
    (re.compile(PAGE_BELOW, re.DOTALL), _named_fold),
    (
        re.compile(r'<div class="sidebar-primary-item">(?=\s*<a class="navbar-brand)'),
        '<div class="sidebar-primary-item" role="navigation" aria-label="Start">',
    ),
    # Names of buttons that say something else than what is seen on them.
    (re.compile(r'(<button class="[^"]*search-button-field[^"]*" title="Search") aria-label="Search"'), r"\1"),
    (re.compile(r'(<i class="theme-switch [^>]*?)\s+title="[^"]*"'), r"\1"),
    (re.compile(r'<summary aria-label="Toggle hidden content">'), "<summary>"),
    # The bibliography: a role that is no longer one, in a list that has no items.
    (re.compile(r' role="doc-biblioentry"'), ' role="listitem"'),
    # Tables: a corner is no header, a header says of what, a box that scrolls says what it is.
    (re.compile(r"<th\b[^>]*>(?:<p></p>)?</th>"), "<td></td>"),
    (re.compile(r'<th class="(?=head)'), '<th scope="col" class="'),
    (re.compile(r'<th class="(?=stub)'), '<th scope="row" class="'),
    (
        re.compile(r'<div style="overflow-x:auto" tabindex="0">'),
        '<div style="overflow-x:auto" tabindex="0" role="group" aria-label="Table">',
    ),
    (
        re.compile(r'<div class="pst-scrollable-table-container">'),
        '<div class="pst-scrollable-table-container" tabindex="0" role="group" aria-label="Table">',
    ),
]


def mended(page: str) -> str:
    """A built page with all mends; mending twice changes nothing."""
    for pattern, replacement in MENDS:
        page = pattern.sub(replacement, page)
    return re.sub("<article.*</article>", lambda article: TEXT.sub(_marked_chinese, article[0]), page, flags=re.DOTALL)


def _marked_chinese(text: re.Match) -> str:
    return text[0] if text[0].startswith("<script") else CHINESE.sub(r'<span lang="zh-Hans">\g<0></span>', text[0])


def spoken(formula: str) -> str:
    """LaTeX as a name for a screen reader: its commands as symbols, without braces."""
    text = search.COMMAND.sub(lambda match: SPOKEN.get(match[1], f" {match[1]} "), formula)
    return " ".join(re.sub(r"[{}\\]", "", text).split())


def _name_rows(app, doctree):
    """In a table whose corner is empty, the first column names the rows."""
    for table in doctree.findall(nodes.tgroup):
        corner, *names = [row[0].astext().strip() for row in table.findall(nodes.row)]
        if not corner and all(names):
            next(table.findall(nodes.colspec))["stub"] = 1


def _mend_pages(app, exception):
    if exception is not None or app.builder.format != "html":
        return
    for path in Path(app.outdir).rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        if (whole := mended(page)) != page:
            path.write_text(whole, encoding="utf-8")


def setup(app):
    app.connect("doctree-read", _name_rows)
    app.connect("build-finished", _mend_pages)
