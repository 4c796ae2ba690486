"""The package's own code on the page, under the cell that calls it."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from html import escape

from normlab.page.claims import publish


def source(*functions: Callable | type, docstrings: bool = False) -> None:
    """Show the code of functions or classes, folded in a notebook, as plain text elsewhere.

    The text comes from the installed package, so that what is shown is what runs. Docstrings are left out unless
    ``docstrings``: they stand on the reference page.

    Raises:
        TypeError: something without source code, a built-in function for example.
    """
    for function in functions:
        name = f"{function.__module__}.{function.__qualname__}"
        text = source_text(function, docstrings)
        html = (
            f'<details class="normlab-source"><summary>Source of <code>{escape(name)}</code></summary>'
            f'<div class="highlight"><pre tabindex="0">{escape(text)}</pre></div></details>'
        )
        if not publish({"text/plain": f"# {name}\n{text}", "text/html": html}):
            print(text)


def source_text(function: Callable | type, docstrings: bool = False) -> str:
    """The code of a function or class, without indentation and, unless ``docstrings``, without docstrings."""
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (TypeError, OSError) as problem:
        raise TypeError(f"{function!r} has no source code to show: {problem}") from None
    if docstrings:
        return text.rstrip()
    lines = text.splitlines()
    documented = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in reversed([n for n in ast.walk(ast.parse(text)) if isinstance(n, documented)]):
        if ast.get_docstring(node) is not None and len(node.body) > 1:
            first = node.body[0]
            end = first.end_lineno or first.lineno
            while end < len(lines) and not lines[end].strip():
                end += 1
            del lines[first.lineno - 1 : end]
    return "\n".join(lines).rstrip()
