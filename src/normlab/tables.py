"""Small result tables that look the same in Jupyter, Colab, GitHub and the book."""

from collections.abc import Sequence
from html import escape

from normlab.claims import publish


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> None:
    """Show a table of ready-made strings: HTML in a notebook, aligned text elsewhere.

    The first column is text, the others are numbers (right-aligned).

    Raises:
        ValueError: a row whose length differs from the header's.
    """
    for row in rows:
        if len(row) != len(headers):
            raise ValueError(f"a table of {len(headers)} columns has a row of {len(row)}: {row}")
    text = _text(headers, rows, caption)
    if not publish({"text/plain": text, "text/html": _html(headers, rows, caption)}):
        print(text)


def _text(headers, rows, caption):
    lines = [headers, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headers))]
    body = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))).rstrip()
        for line in lines
    ]
    return "\n".join(([caption] if caption else []) + body)


def _html(headers, rows, caption):
    def cells(tag, line):
        return "".join(
            f'<{tag} style="text-align:{"left" if i == 0 else "right"}">{escape(c)}</{tag}>' for i, c in enumerate(line)
        )

    head = f"<caption>{escape(caption)}</caption>" if caption else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        '<div style="overflow-x:auto" tabindex="0"><table class="normlab-table">'
        f"{head}<thead><tr>{cells('th', headers)}</tr></thead><tbody>{body}</tbody></table></div>"
    )
