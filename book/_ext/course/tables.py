"""Large result tables (``normlab.page.table`` with filters) that can be searched, filtered and sorted.

The table stands in a notebook's output as a plain one. On pages that have such a table a script, `tables.js`, adds the
controls; without it all rows stand there in order. On paper each row is a paragraph (course.css): here its cells get the
names of their columns, and those without a value a mark.
"""

import json
import re
from html import unescape
from pathlib import Path

SCRIPT = Path(__file__).with_name("tables.js")
MARK = 'class="normlab-table is-searchable"'
NOTHING = re.compile(r"<td(?= [^>]*>–</td>)")


def printable(body: str) -> str:
    """The page's body with what a printed table needs: a style rule for each column."""
    table = body[body.index(MARK) :].partition("</table>")[0]
    names = [unescape(name) for name in re.findall("<th scope=\"col\"[^>]*>(.*?)</th>", table)]
    rules = "".join(
        f".is-searchable td:nth-child({i}):before{{content:{json.dumps(f' · {name}: ', ensure_ascii=False)}}}"
        for i, name in enumerate(names, start=1)
        if i > 1
    )
    marked = NOTHING.sub('<td class="is-none"', table)
    return body.replace(table, marked) + f"<style>@media print{{{rules}}}</style>\n"


def _add_script(app, pagename, templatename, context, doctree):
    if MARK in context.get("body", ""):
        context["body"] = printable(context["body"]) + f"<script>\n{SCRIPT.read_text(encoding='utf-8')}</script>\n"


def setup(app):
    app.connect("html-page-context", _add_script)
