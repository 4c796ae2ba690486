"""Claims: from `book/claims.yml` and the notebooks' outputs to the pages.

The file says what is claimed, the outputs of ``normlab.page.claims.claim`` say what came out. A claim's
line in a notebook carries the anchor ``claim-ID``, its entry in the ledger ``ledger-ID``. An id
that is not in the file, or in two outputs, is a warning, and so fails the strict build.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import yaml
from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

LOGGER = logging.getLogger(__name__)
MIME = "application/vnd.normlab.claim+json"
LEDGER = "book/claims"  # the page with the directive
UNCHECKED = "not yet checked"
VERDICTS = ("holds", "holds only if", "refuted here")
KINDS = {
    "identity": "proved and computed",
    "measured": "measured",
    "code": "read from code that runs",
    "historical": "reported, with its source",
    "opinion": "a judgment",
}


@dataclass(frozen=True)
class Settled:
    """What a notebook cell found out about a claim."""

    page: str
    verdict: str
    line: str


# --- reading -------------------------------------------------------------------------------------


def claims_file(root: Path) -> Path:
    return root / "book" / "claims.yml"


def notebooks(root: Path) -> list[Path]:
    return sorted((root / "notebooks").glob("*.ipynb"))


def read_claims(root: Path) -> dict[str, dict]:
    """The items of `book/claims.yml` by id."""
    items = yaml.safe_load(claims_file(root).read_text(encoding="utf-8"))
    return {item["id"]: item for item in items}


def claim_outputs(notebook: Path):
    """The claim outputs of a notebook file, in order."""
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", ()):
            if MIME in output.get("data", {}):
                yield output["data"][MIME]


def read_verdicts(root: Path, known: dict[str, dict]) -> dict[str, Settled]:
    """What the committed notebooks say about each claim; complains about ids that do not fit."""
    settled = {}
    for path in notebooks(root):
        page = path.relative_to(root).with_suffix("").as_posix()
        for found in claim_outputs(path):
            name = found["id"]
            if name not in known:
                LOGGER.warning("claim %r is not in book/claims.yml", name, location=page)
            elif name in settled:
                LOGGER.warning("claim %r is already settled in %s", name, settled[name].page, location=page)
            elif found["verdict"] not in VERDICTS:
                LOGGER.warning("claim %r: unknown verdict %r", name, found["verdict"], location=page)
            settled[name] = Settled(page, found["verdict"], found["line"])
    return settled


def _load(app):
    root = Path(app.srcdir)
    app.course_claims = read_claims(root)
    app.course_verdicts = read_verdicts(root, app.course_claims)


# --- nodes ---------------------------------------------------------------------------------------


def _slug(verdict: str) -> str:
    return verdict.replace(" ", "-")


def _badge(verdict: str) -> nodes.inline:
    return nodes.inline("", verdict, classes=["verdict"])


def _measured(line: str) -> nodes.inline:
    """What the cell printed, character by character."""
    return nodes.inline("", line, classes=["claim-measured"], support_smartquotes=False)


def _link(app, source: str, page: str, anchor: str, text: str, *classes: str) -> nodes.reference:
    """A link to an anchor of another page of the book."""
    uri = app.builder.get_relative_uri(source, page) if source != page else ""
    return nodes.reference("", text, internal=True, refuri=f"{uri}#{anchor}", classes=list(classes))


def claim_line(app, found: dict) -> nodes.container:
    """The line under a cell that settles a claim: verdict, id, what was measured."""
    name, verdict = found["id"], found["verdict"]
    line = nodes.paragraph("", "", _badge(verdict), nodes.Text(" "))
    line += _link(app, app.env.docname, LEDGER, f"ledger-{name}", name, "claim-id")
    line += [nodes.Text(" "), _measured(found["line"])]
    return nodes.container("", line, ids=[f"claim-{name}"], classes=["claim-line", f"is-{_slug(verdict)}"])


class ClaimRole(SphinxRole):
    """``{claim}`ID` ``: the id, linked to the cell that settles the claim."""

    def run(self):
        app, name = self.env.app, self.text
        if name not in app.course_claims:
            LOGGER.warning("claim %r is not in book/claims.yml", name, location=self.get_location())
        settled = app.course_verdicts.get(name)
        if settled is None:
            return [nodes.abbreviation("", name, explanation=UNCHECKED, classes=["claim-id"])], []
        anchor = f"claim-{name}"
        return [_link(app, self.env.docname, settled.page, anchor, name, "claim-id")], []


class ClaimsLedger(SphinxDirective):
    """All claims in groups, each with its verdict.

    A line of the content ``PREFIX: Title`` makes a group of the claims whose first source begins
    with the prefix. The option ``other`` is the title of the group for the rest.
    """

    has_content = True
    option_spec = {"other": str}

    def run(self):
        app = self.env.app
        groups = self._groups(app.course_claims)
        verdicts = [self._verdict(name) for name in app.course_claims]
        return [_filter(Counter(verdicts)), *(self._section(*group) for group in groups.items())]

    def _groups(self, claims: dict) -> dict[str, list]:
        title_of = {p.strip(): t.strip() for p, t in (line.split(":", 1) for line in self.content)}
        other = self.options.get("other", "Other claims")
        groups = {title: [] for title in (*title_of.values(), other)}
        for item in claims.values():
            matching = [t for prefix, t in title_of.items() if item["source"][0].startswith(prefix)]
            groups[matching[0] if matching else other].append(item)
        return {title: items for title, items in groups.items() if items}

    def _verdict(self, name: str) -> str:
        settled = self.env.app.course_verdicts.get(name)
        return settled.verdict if settled else UNCHECKED

    def _section(self, title: str, items: list) -> nodes.section:
        section = nodes.section("", nodes.title("", title), ids=[nodes.make_id(f"group {title}")])
        section["classes"] = ["claim-group"]
        section += [self._card(item) for item in items]
        return section

    def _card(self, item: dict) -> nodes.container:
        """One claim: sentence, verdict, what came out and where, conditions, sources."""
        name, verdict = item["id"], self._verdict(item["id"])
        settled = self.env.app.course_verdicts.get(name)
        anchor = f"ledger-{name}"
        head = nodes.paragraph("", "", _badge(verdict), nodes.Text(" "), classes=["claim-head"])
        head += nodes.reference("", name, internal=True, refid=anchor, classes=["claim-id"])
        head += [nodes.Text(" "), nodes.abbreviation("", item["kind"], explanation=KINDS[item["kind"]])]
        card = nodes.container("", head, ids=[anchor], classes=["claim-card", f"is-{_slug(verdict)}"])
        card += self._markdown(item["sentence"], "claim-sentence")
        if settled:
            cell = _link(self.env.app, self.env.docname, settled.page, f"claim-{name}", "see the cell")
            line = [_measured(settled.line), nodes.Text(" "), cell]
            card += nodes.paragraph("", "", *line, classes=["claim-result"])
        if item["conditions"]:
            card += self._markdown("*Conditions:* " + item["conditions"], "claim-note")
        card += self._markdown("*Source:* " + ", ".join(map(_source, item["source"])), "claim-note")
        return card

    def _markdown(self, text: str, name: str) -> nodes.paragraph:
        children, messages = self.state.inline_text(text, self.lineno)
        return nodes.paragraph("", "", *children, *messages, classes=[name])


def _source(key: str) -> str:
    """A source as Markdown: an article's section stays as it is, a bibliography key is cited."""
    is_article = re.match(r"\d{3}", key)
    return key if is_article or key == "course" else f"{{cite:t}}`{key}`"


def _filter(counts: Counter) -> nodes.raw:
    """Radio buttons with the counts; the style sheet hides what is not chosen, without a script."""
    choices = [("all", "all", counts.total())]
    choices += [(_slug(v), v, counts[v]) for v in (*VERDICTS, UNCHECKED)]
    labels = "".join(
        f'<label class="is-{slug}"><input type="radio" name="verdict" value="{slug}"'
        f'{" checked" if slug == "all" else ""}> <span>{text} <b>{count}</b></span></label>'
        for slug, text, count in choices
    )
    html = f'<fieldset class="claim-filter"><legend>Show claims by verdict</legend>{labels}</fieldset>'
    return nodes.raw("", html, format="html")


def setup(app):
    app.connect("builder-inited", _load)
    app.add_role("claim", ClaimRole())
    app.add_directive("claims-ledger", ClaimsLedger)
