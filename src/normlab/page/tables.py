"""Small result tables that look the same in Jupyter, Colab, GitHub and the book."""

import re
from collections.abc import Sequence
from html import escape

from normlab.page.claims import publish


def table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "", filters: Sequence[str] = ()
) -> None:
    """Show a table of ready-made strings: HTML in a notebook, aligned text elsewhere.

    Columns of numbers are right-aligned, others left; the first column names its row.

    Args:
        filters: headers of columns by whose values the book's page lets a reader choose rows. With any, the page also
            searches and sorts; elsewhere the table is a plain one, and its text has the first column and these.

    Raises:
        ValueError: a row whose length differs from the header's, or a filter that is no header.
    """
    missing = [name for name in filters if name not in headers]
    if missing:
        raise ValueError(f"no column is called {missing[0]!r}; there are {', '.join(headers)}")
    text = table_text(headers, rows, caption)
    if filters:
        columns = [i for i, name in enumerate(headers) if i == 0 or name in filters]
        text = table_text([headers[i] for i in columns], [[row[i] for i in columns] for row in rows], caption)
    if not publish({"text/plain": text, "text/html": table_html(headers, rows, caption, filters)}):
        print(text)


def _alignments(headers, rows):
    """True for each column that holds numbers only: digits behind an optional sign."""
    number = re.compile(r"[×+−-]?\s?\d")
    return [i > 0 and all(number.match(row[i]) for row in rows) for i in range(len(headers))]


def table_text(headers: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """The table as aligned text; errors as in :func:`table`."""
    for row in rows:
        if len(row) != len(headers):
            raise ValueError(f"a table of {len(headers)} columns has a row of {len(row)}: {row}")
    lines = [headers, *rows]
    right = _alignments(headers, rows)
    widths = [max(len(line[i]) for line in lines) for i in range(len(headers))]
    body = [
        "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right)).rstrip() for line in lines
    ]
    return "\n".join(([caption] if caption else []) + body)


def table_html(
    headers: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "", filters: Sequence[str] = ()
) -> str:
    """The table as HTML that scrolls sideways where it is too wide; its rows are not checked."""
    styles = [f'style="text-align:{"right" if r else "left"}"' for r in _alignments(headers, rows)]
    if filters:  # a large one: a rule in place of most of them
        styles = [style.replace('style="text-align:left"', "") for style in styles]
    marks = [" data-filter" if name in filters else "" for name in headers]
    head = "".join(
        f'<th scope="col" {style}{mark}>{escape(h)}</th>' for h, style, mark in zip(headers, styles, marks)
    )
    body = "".join(
        f'<tr><th scope="row" {styles[0]}>{escape(row[0])}</th>'
        + "".join(f"<td {style}>{escape(c)}</td>" for c, style in zip(row[1:], styles[1:]))
        + "</tr>"
        for row in rows
    )
    searchable = " is-searchable" if filters else ""
    rule = "<style>.normlab-table.is-searchable :is(th,td){text-align:left}</style>" if filters else ""
    label = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'{rule}<div style="overflow-x:auto" tabindex="0"><table class="normlab-table{searchable}">'
        f"{label}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
