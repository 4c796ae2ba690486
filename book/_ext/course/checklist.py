"""The directives of the Monday page: things to do, each with its minutes and a link to its place.

``{checklist}`` holds a list whose items begin with ``(5 min) **Title.**``; ``{checklist-questions} TIER`` lists the
questions of a tier, ``{checklist-drills}`` the drills that are named. Each begins with its span on the page's clock,
which is counted through. Without a script these are plain lists; `checklist.js` adds boxes and remembers them.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

from . import depends, drills, questions

PAGE = "book/interview/monday"
ITEM = re.compile(r"\((\d+) min\) \*\*(.+?)\*\* ?(.*)", re.DOTALL)
CLOCK = "checklist-minutes-so-far"


class _Checklist(SphinxDirective):
    """What the three share: items to nodes, and the clock."""

    def inline(self, text: str) -> list[nodes.Node]:
        found, messages = self.state.inline_text(" ".join(text.split()), self.lineno)
        return [*found, *messages]

    def item(self, name: str, minutes: int, title: list[nodes.Node], text: Sequence[nodes.Node] = ()) -> nodes.list_item:
        """One thing to do; ``name`` is what the browser remembers it by."""
        heading = nodes.strong("", "", *title, classes=["checklist-title"])
        tail = nodes.inline("", f"{minutes} min", classes=["checklist-minutes"])
        paragraph = nodes.paragraph("", "", heading, nodes.Text(" "), *text, nodes.Text(" "), tail)
        return nodes.list_item("", paragraph, ids=[f"do-{name}"], minutes=minutes)

    def link(self, page: str, fragment: str = "", *content: nodes.Node) -> nodes.reference:
        uri = self.env.app.builder.get_relative_uri(self.env.docname, page)
        return nodes.reference("", "", *content, internal=True, refuri=uri + fragment)

    def block(self, items: list[nodes.list_item]) -> list[nodes.Node]:
        start = self.env.temp_data.get(CLOCK, 0)
        end = start + sum(item["minutes"] for item in items)
        self.env.temp_data[CLOCK] = end
        span = f"{clock(start)} to {clock(end)}, {end - start} minutes"
        return [nodes.paragraph("", span, classes=["checklist-span"]), nodes.bullet_list("", *items, classes=["checklist"])]


def clock(minutes: int) -> str:
    """Hours and minutes, as 1:05."""
    return f"{minutes // 60}:{minutes % 60:02}"


class Checklist(_Checklist):
    """``{checklist}``: a list of ``- (5 min) **Title.** text``."""

    has_content = True

    def run(self):
        items = []
        for part in re.split(r"^- ", "\n".join(self.content), flags=re.MULTILINE)[1:]:
            match = ITEM.fullmatch(part.strip())
            if not match:
                raise self.error(f"an item must begin with (MINUTES min) **Title.**, got {part.strip()[:40]!r}")
            minutes, title, text = match.groups()
            name = nodes.make_id(title)
            items.append(self.item(name, int(minutes), self.inline(title), self.inline(text) if text else []))
        if not items:
            raise self.error("a checklist needs at least one item")
        return self.block(items)


class QuestionChecklist(_Checklist):
    """``{checklist-questions} must``: the questions of a tier; ``:extra:`` minutes on top of their own."""

    required_arguments = 1
    option_spec = {"extra": directives.nonnegative_int}

    def run(self):
        depends.uses(self.env, "questions")
        tier, extra = self.arguments[0], self.options.get("extra", 0)
        chosen = [item for item in self.env.app.course_questions if item["tier"] == tier]
        if not chosen:
            raise self.error(f"there are no questions of the tier {tier!r}")
        return self.block(
            [
                self.item(
                    f"question-{item['id']}",
                    item["minutes"] + extra,
                    [self.link(questions.PAGES[tier], f"#question-{item['id']}", *self.inline(item["question"]))],
                )
                for item in chosen
            ]
        )


class DrillChecklist(_Checklist):
    """``{checklist-drills} rms_norm layer_norm``: drills, each with the minutes that its file gives it."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self):
        root, items = Path(self.env.srcdir), []
        for slug in self.arguments[0].split():
            path = root / drills.FOLDER / f"{slug}.py"
            if not path.exists():
                raise self.error(f"there is no drill {slug}")
            depends.uses(self.env, f"files {path.relative_to(root).as_posix()}")
            title = self.link(f"book/drills/{slug}", "", nodes.literal(slug, slug))
            items.append(self.item(f"drill-{nodes.make_id(slug)}", drills.read(root, slug)["minutes"], [title]))
        return self.block(items)


def _load_script(app, pagename, templatename, context, doctree):
    if pagename == PAGE:
        for name in ("kept.js", "checklist.js"):
            app.add_js_file(name, loading_method="defer")


def setup(app):
    app.add_directive("checklist", Checklist)
    app.add_directive("checklist-questions", QuestionChecklist)
    app.add_directive("checklist-drills", DrillChecklist)
    app.connect("html-page-context", _load_script)
