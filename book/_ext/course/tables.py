"""Large result tables (``normlab.page.table`` with filters) that can be searched, filtered and sorted.

The table stands in a notebook's output as a plain one. On pages that have such a table a script, `tables.js`, adds the
controls; without it all rows stand there in order.
"""

from pathlib import Path

SCRIPT = Path(__file__).with_name("tables.js")
MARK = 'class="normlab-table is-searchable"'


def _add_script(app, pagename, templatename, context, doctree):
    if MARK in context.get("body", ""):
        context["body"] += f"<script>\n{SCRIPT.read_text(encoding='utf-8')}</script>\n"


def setup(app):
    app.connect("html-page-context", _add_script)
