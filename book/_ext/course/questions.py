"""The directives ``{questions}`` and ``{question-index}``: the question bank as pages.

``{questions} TIER`` makes a section for each topic and in it one for each question; answers are folded boxes of the
browser, so that they open by keyboard, without a script, and on paper (print.js). ``{question-index}`` lists all
questions by topic and level with links to them. Texts are Markdown; numbers were put in by `tools/questions.py`. A bank
that does not fit its schema fails the build.
"""

from html import escape
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from . import claims, depends, tools

PAGES = {"must": "book/interview/must", "likely": "book/interview/likely", "deep": "book/interview/deep"}


def _load(app):
    """The questions, if the book has any."""
    root = Path(app.srcdir)
    app.course_questions = []
    if (root / "book" / "interview" / "questions.yml").exists():
        try:
            app.course_questions = tools.load(root, "questions").read_questions(root)
        except ValueError as problem:
            raise ExtensionError(f"book/interview/questions.yml: {problem}") from problem
    depends.provide(app, "questions", app.course_questions)


class _Texts(SphinxDirective):
    """What both directives share: Markdown texts to nodes."""

    def inline(self, text: str, *classes: str) -> nodes.paragraph:
        children, messages = self.state.inline_text(" ".join(text.split()), self.lineno)
        return nodes.paragraph("", "", *children, *messages, classes=list(classes))

    def block(self, text: str, *classes: str) -> nodes.container:
        box = nodes.container("", classes=list(classes))
        self.state.nested_parse(StringList(text.splitlines(), self.get_source_info()[0]), self.content_offset, box)
        return box

    def filter(self, items: list[dict]) -> nodes.raw:
        """Radio buttons with the counts; the style sheet does the hiding, without a script."""
        counts = {level: sum(item["level"] == level for item in items) for level in self.interview.LEVELS}
        choices = [("all", len(items)), *((level, count) for level, count in counts.items() if count)]
        labels = "".join(
            f'<label class="is-all"><input type="radio" name="level" value="{level}"'
            f'{" checked" if level == "all" else ""}> <span>{level} <b>{count}</b></span></label>'
            for level, count in choices
        )
        html = f'<fieldset class="claim-filter"><legend>Show questions of the level</legend>{labels}</fieldset>'
        return nodes.raw("", html, format="html")

    @property
    def questions(self) -> list[dict]:
        """The bank; the page that asks is made from it."""
        depends.uses(self.env, "questions")
        return self.env.app.course_questions

    @property
    def interview(self):
        return tools.package(Path(self.env.app.srcdir), "interview")


def _fold(summary: str, *content: nodes.Node, name: str, lang: str = "") -> list[nodes.Node]:
    """A box that the reader opens."""
    language = f' lang="{lang}"' if lang else ""
    start = f'<details class="question-fold question-{name}"{language}><summary>{escape(summary)}</summary>'
    return [nodes.raw("", start, format="html"), *content, nodes.raw("", "</details>", format="html")]


class Questions(_Texts):
    """All questions of the tier that is named."""

    required_arguments = 1

    def run(self):
        tier, topics = self.arguments[0], self.interview.TOPICS
        items = [item for item in self.questions if item["tier"] == tier]
        if not items:
            raise self.error(f"there are no questions of the tier {tier!r}")
        sections = []
        for topic, title in topics.items():
            chosen = [item for item in items if item["topic"] == topic]
            if chosen:
                section = nodes.section("", nodes.title("", title), ids=[f"topic-{topic}"], classes=["question-topic"])
                section += [self._question(item) for item in chosen]
                sections.append(section)
        return [self.filter(items), *sections]

    def _question(self, item: dict) -> nodes.section:
        title = nodes.title("", "", *self.inline(item["question"]).children)
        classes = ["question", f"level-{item['level'].lower()}"]
        section = nodes.section("", title, ids=[f"question-{item['id']}"], classes=classes)
        minutes = f"{item['minutes']} minute{'s' if item['minutes'] > 1 else ''}"
        section += nodes.paragraph("", f"{item['level']} · {item['type']} · {minutes}", classes=["question-meta"])
        section += _fold("Thirty seconds", self.inline(item["short"]), name="short")
        section += _fold("The long answer", self.block(item["long"]), *self._refute(item), name="long")
        section += _fold("Usual wrong answers", *(self._wrong(pair) for pair in item["wrong"]), name="wrong")
        section += self._chain(item["follow_ups"])
        if "zh" in item:
            section += _fold("中文 (Chinese)", self.inline(item["zh"]), name="zh", lang="zh-Hans")
        return section

    def _refute(self, item: dict) -> list[nodes.Node]:
        refute = self.inline(item["refute"], "question-refute")
        refute.insert(0, nodes.strong("", "What would refute it: "))
        checked = nodes.paragraph("", "", nodes.Text("Claims: "), classes=["question-claims"])
        for i, name in enumerate(item["claims"]):
            checked += [nodes.Text(", ")] if i else []
            checked += claims.ClaimRole()("claim", "", name, self.lineno, self.state.inliner)[0]
        return [refute, checked]

    def _wrong(self, pair: dict) -> nodes.container:
        answer = self.inline(pair["answer"], "question-said")
        return nodes.container("", answer, self.inline(pair["why"]), classes=["question-mistake"])

    def _chain(self, follow_ups: list[dict]) -> list[nodes.Node]:
        """Each next question stands inside of the answer before it."""
        content: list[nodes.Node] = []
        for pair in reversed(follow_ups):
            asked = self.inline(pair["question"], "question-asked")
            content = [asked, *_fold("Answer", self.inline(pair["answer"]), *content, name="follow-up")]
        return _fold("And then they ask", *content, name="chain")


class QuestionIndex(_Texts):
    """All questions with links, by topic; each with its tier, level, type and minutes."""

    def run(self):
        found = []
        for topic, title in self.interview.TOPICS.items():
            items = [item for item in self.questions if item["topic"] == topic]
            if items:
                section = nodes.section("", nodes.title("", title), ids=[f"index-{topic}"], classes=["question-topic"])
                entries = nodes.bullet_list("", *map(self._entry, items), classes=["question-index"])
                section += entries
                found.append(section)
        return [self._counts(), self.filter(self.questions), *found]

    def _counts(self) -> nodes.paragraph:
        items, interview = self.questions, self.interview
        parts = []
        for field, values in (("tier", interview.TIERS), ("level", interview.LEVELS), ("type", interview.TYPES)):
            counts = {value: sum(item[field] == value for item in items) for value in values}
            parts.append(", ".join(f"{count} {value}" for value, count in counts.items() if count))
        return nodes.paragraph("", f"{len(items)} questions: {'; '.join(parts)}.")

    def _entry(self, item: dict) -> nodes.list_item:
        entry = self.inline(item["question"])
        uri = self.env.app.builder.get_relative_uri(self.env.docname, PAGES[item["tier"]])
        link = nodes.reference("", "", *entry.children, internal=True, refuri=f"{uri}#question-{item['id']}")
        meta = f" {item['tier']} · {item['level']} · {item['type']} · {item['minutes']} min"
        text = nodes.paragraph("", "", link, nodes.inline("", meta, classes=["question-meta"]))
        return nodes.list_item("", text, classes=[f"level-{item['level'].lower()}"])


def setup(app):
    app.connect("builder-inited", _load)
    app.add_directive("questions", Questions)
    app.add_directive("question-index", QuestionIndex)
