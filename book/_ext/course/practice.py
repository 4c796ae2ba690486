"""Pages on which the reader decides first and compares then: the directives ``{marked-answers}`` and ``{quiz}``.

A card is a question with radio buttons and a fold with the answer. Both are plain HTML, so that the page works without
a script and on paper (print.js); `practice.js` adds the button that compares, what it says, and the score. Nothing is
stored. The texts' numbers are put in by `tools/questions.py`; a file that does not fit its schema fails the build.
"""

from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.errors import ExtensionError

from . import access, claims, depends, tools
from .questions import _fold, _Texts

SCRIPT = "practice.js"
MARKED, QUIZ, ROUNDS = "book/interview/marked", "book/interview/quiz", "book/interview/rounds"
PAGES = (MARKED, QUIZ, ROUNDS)
Options = list[tuple[str, list[nodes.Node]]]  # value and what is shown
GRADES = {"right": "right", "half": "half right", "wrong": "wrong"}


def _load(app):
    """The marked answers and the quiz, if the book has any."""
    root = Path(app.srcdir)
    app.course_practice = {}
    for page, read in ((MARKED, "read_marked"), (QUIZ, "read_quiz")):
        if (root / f"{page}.yml").exists():
            try:
                app.course_practice[page] = getattr(tools.load(root, "questions"), read)(root)
            except ValueError as problem:
                raise ExtensionError(f"{page}.yml: {problem}") from problem
            depends.provide(app, page, app.course_practice[page])


def raw(html: str) -> nodes.raw:
    return nodes.raw("", html, format="html")


class Cards(_Texts):
    """What the directives share: a card of a question, its choices and the folded answer."""

    def items(self, page: str) -> list[dict]:
        if page not in self.env.app.course_practice:
            raise self.error(f"there is no {page}.yml")
        depends.uses(self.env, page)
        return self.env.app.course_practice[page]

    def card(self, name: str, title: list[nodes.Node], content: list[nodes.Node], answer: list[nodes.Node]):
        """A section; ``content`` stands before the fold."""
        section = nodes.section("", nodes.title("", "", *title), ids=[name], classes=["practice-card"])
        section += [*content, *_fold("Our answer", *answer, name="compare")]
        return section

    def choices(self, name: str, legend: str, right: str, options: Options) -> list[nodes.Node]:
        """A form of radio buttons for (value, shown), with the right value for the script."""
        return self.form(right, self.fieldset(name, legend, options))

    def form(self, right: str, content: list[nodes.Node], **said: str) -> list[nodes.Node]:
        """``right``: right values of the fieldsets, joined by bars; ``said``: what the script says to "yes" and "no"."""
        data = "".join(f' data-{name}="{escape(text)}"' for name, text in {"right": right, **said}.items())
        start = f'<form class="practice" autocomplete="off"{data}>'
        return [raw(start), *content, raw("</form>")]

    def fieldset(self, name: str, legend: str, options: Options) -> list[nodes.Node]:
        found = [raw(f"<fieldset><legend>{escape(legend)}</legend>")]
        for value, shown in options:
            formula = all(isinstance(node, nodes.math) for node in shown)  # which names nothing by itself
            label = f' aria-label="{escape(access.spoken(shown[0].astext()))}"' if formula else ""
            found += [raw(f'<label><input type="radio" name="{name}" value="{escape(value)}"{label}> <span>')]
            found += [*shown, raw("</span></label>")]
        return [*found, raw("</fieldset>")]

    def labeled(self, label: str, text: str, *classes: str) -> nodes.paragraph:
        paragraph = self.inline(text, *classes)
        paragraph.insert(0, nodes.strong("", f"{label}: "))
        return paragraph

    def claim_links(self, names: list[str]) -> nodes.paragraph:
        found = nodes.paragraph("", "", nodes.Text("Claims: "), classes=["question-claims"])
        for i, name in enumerate(names):
            found += [nodes.Text(", ")] if i else []
            found += claims.ClaimRole()("claim", "", name, self.lineno, self.state.inliner)[0]
        return found


class MarkedAnswers(Cards):
    """All marked answers: the reader grades, then compares."""

    def run(self):
        return [self._marked(item) for item in self.items(MARKED)]

    def _marked(self, item: dict) -> nodes.section:
        name = f"marked-{item['id']}"
        content = [self.inline(item["answer"], "question-said")]
        options = [(grade, [nodes.Text(text)]) for grade, text in GRADES.items()]
        said = {"yes": "So do we.", "no": "We grade it otherwise."}
        content += self.form(item["grade"], self.fieldset(name, "Your grade", options), **said)
        verdict = nodes.paragraph("", "", nodes.strong("", f"Our grade: {GRADES[item['grade']]}"))
        answer = [verdict, self.labeled("Right in it", item["right"])]
        if item["grade"] != "right":
            answer += [self.labeled("What fails", item["fails"]), self.labeled("When", item["when"])]
        else:
            answer += [self.labeled("Condition", item["when"])]
        answer += [self.labeled("Better", item["better"]), self.claim_links(item["claims"])]
        return self.card(name, self.inline(item["asked"]).children, content, answer)


class Quiz(Cards):
    """All quiz questions: choose an option or type a number, then compare."""

    def run(self):
        return [self._question(item) for item in self.items(QUIZ)]

    def _question(self, item: dict) -> nodes.section:
        name = f"quiz-{item['id']}"
        if "number" in item:
            html = (
                f'<form class="practice" autocomplete="off" data-number="{escape(item["number"])}">'
                f'<label>Your number <input type="text" inputmode="decimal" name="{name}"></label></form>'
            )
            content, right = [raw(html)], item["number"]
        else:
            texts = self.practice.shuffled(item)
            options = [(str(i), self.inline(text).children) for i, text in enumerate(texts)]
            content, right = self.choices(name, "Your answer", str(texts.index(item["right"])), options), item["right"]
        answer = [self.labeled("Right", right), self.inline(item["explanation"])]
        for option in item["options"]:
            value = option["text"] if "number" in item else str(texts.index(option["text"]))
            answer += [raw(f'<div class="practice-wrong" data-option="{escape(value)}">')]
            answer += [self.labeled("Not right", option["text"]), self.inline(option["why"]), raw("</div>")]
        answer.append(self.claim_links(item["claims"]))
        return self.card(name, self.inline(item["question"]).children, content, answer)

    @property
    def practice(self):
        return tools.package(Path(self.env.app.srcdir), "interview.practice")


def _load_scripts(app, pagename, templatename, context, doctree):
    if pagename in PAGES:
        app.add_js_file(SCRIPT, loading_method="defer")


def setup(app):
    app.connect("builder-inited", _load)
    app.connect("html-page-context", _load_scripts)
    app.add_directive("marked-answers", MarkedAnswers)
    app.add_directive("quiz", Quiz)
