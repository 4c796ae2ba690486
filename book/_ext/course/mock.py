"""The directive ``{mock-interview}``: every question with its rubric points and the steps that may follow.

Without a script the page is that list, folded. With it, `mock.js` draws from the list, takes the time, and follows the
tree of :mod:`normlab.interview.mock`, which stands in the page.
"""

import json
from html import escape
from pathlib import Path

from docutils import nodes

from . import tools
from .practice import Cards, raw
from .questions import PAGES

PAGE = "book/interview/mock"
SCRIPTS = ("kept.js", "mock.js")
STEPS = ("again", "mistake", "first", "second")
NAMES = {"again": "Once more", "mistake": "A mistake", "first": "Then they ask", "second": "And then"}


class MockInterview(Cards):
    """All questions of the bank; the script makes an interview of them."""

    def run(self):
        mock = tools.package(Path(self.env.app.srcdir), "interview.mock")
        data = {"tree": mock.TREE, "tiers": self.interview.TIERS, "levels": self.interview.LEVELS, "names": NAMES}
        island = json.dumps(data).replace("<", "\\u003c")
        script = f'<script type="application/json">{island}</script>'
        found = [raw(f'<div class="mock">{script}</div><div class="mock-pool">')]
        for item in self.questions:
            found += self._question(mock, item)
        return [*found, raw("</div>")]

    def _question(self, mock, item: dict) -> list[nodes.Node]:
        uri = self.env.app.builder.get_relative_uri(self.env.docname, PAGES[item["tier"]])
        data = {field: item[field] for field in ("tier", "level", "type", "minutes")}
        data |= {"id": item["id"], "href": f"{uri}#question-{item['id']}"}
        attributes = "".join(f' data-{name}="{escape(str(value))}"' for name, value in data.items())
        found = [raw(f'<details class="question-fold mock-question"{attributes}><summary>')]
        found += [*self.inline(item["question"]).children, raw("</summary>")]
        for point, text in mock.rubric(item):
            found += [raw('<div class="mock-point">'), self.labeled(point, text), raw("</div>")]
        for name in STEPS:
            asked, answer = mock.step(item, name)
            found += [raw(f'<div class="mock-step" data-step="{name}">'), self.labeled(NAMES[name], asked)]
            found += [raw('<div class="mock-answer">'), self.inline(answer), raw("</div></div>")]
        return [*found, self.claim_links(item["claims"]), raw("</details>")]


def _load_scripts(app, pagename, templatename, context, doctree):
    if pagename == PAGE:
        for name in SCRIPTS:
            app.add_js_file(name, loading_method="defer")


def setup(app):
    app.connect("html-page-context", _load_scripts)
    app.add_directive("mock-interview", MockInterview)
