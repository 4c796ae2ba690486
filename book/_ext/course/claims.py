"""Claims: from `book/claims.yml` and the notebooks' outputs to the pages.

The file says what is claimed, the outputs of ``normlab.page.claims.claim`` say what came out. What no cell
settled is reported (a historical claim rests on its sources), an opinion, or not yet checked. A claim's
box in a notebook carries the anchor ``claim-ID``, its entry in the ledger ``ledger-ID``. An id that is
not in the file, or in two outputs, is a warning, and so fails the strict build.

Where the repository's address is known, each entry ends with a link that reports a mistake in it. For other programs the
entries stand beside the page, in `claims.json`, with a schema.

The ledger is a plain list. A script, `claims.js`, filters it and covers the verdicts; without it the list stands as
it is.
"""

import json
import re
import shutil
from collections import Counter
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import yaml
from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

from . import depends, sources

LOGGER = logging.getLogger(__name__)
MIME = "application/vnd.normlab.claim+json"
LEDGER = "book/claims"  # the page with the directive
SCHEMA = Path("book", "claims.schema.json")
PINS = ("torch", "numpy", "transformers")  # the versions that the outputs were made with
SCRIPT = Path(__file__).with_name("claims.js")
VERDICTS = ("holds", "holds only if", "refuted here")  # of a check
UNCHECKED = "not yet checked"
WITHOUT_CHECK = {"historical": "reported", "opinion": "opinion"}  # by kind; every other kind waits for a check
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
    only_if: str = ""


# --- reading -------------------------------------------------------------------------------------


def claims_file(root: Path) -> Path:
    return root / "book" / "claims.yml"


def notebooks(root: Path) -> list[Path]:
    return sorted((root / "notebooks").glob("*.ipynb"))


# libyaml's loader, where PyYAML has it, is ten times as fast as the one in Python.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_claims(root: Path) -> dict[str, dict]:
    """The items of `book/claims.yml` by id."""
    items = yaml.load(claims_file(root).read_text(encoding="utf-8"), LOADER)
    return {item["id"]: item for item in items}


def read_chapters(root: Path) -> tuple[dict[str, str], dict[str, list[str]]]:
    """The chapters' short titles by page, and for each claim the pages whose text names it."""
    titles, named = {}, {}
    for path in notebooks(root):
        page = path.relative_to(root).with_suffix("").as_posix()
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        titles[page] = _typeset(re.search(r"^# ([^:?\n]+)", text, re.MULTILINE)[1].strip())
        for name in dict.fromkeys(re.findall(r"\{claim\}`([^`]+)`", text)):
            named.setdefault(name, []).append(page)
    return titles, named


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
            settled[name] = Settled(page, found["verdict"], found["line"], found.get("only_if", ""))
    return settled


def verdict_of(app, name: str) -> str:
    """What a cell found out about the claim, else what its kind says."""
    settled = app.course_verdicts.get(name)
    return settled.verdict if settled else WITHOUT_CHECK.get(app.course_claims[name]["kind"], UNCHECKED)


def _load(app):
    root = Path(app.srcdir)
    app.course_claims = read_claims(root)
    app.course_verdicts = read_verdicts(root, app.course_claims)
    app.course_chapters, app.course_named = read_chapters(root)
    for name, item in app.course_claims.items():
        settled = app.course_verdicts.get(name)
        depends.provide(app, f"claim {name}", [item, settled])
        depends.provide(app, f"place of claim {name}", [settled and settled.page, verdict_of(app, name)])
    depends.provide(app, "claims", [app.course_claims, app.course_verdicts, app.course_chapters, app.course_named])


# --- nodes ---------------------------------------------------------------------------------------


def _slug(verdict: str) -> str:
    return verdict.replace(" ", "-")


def _badge(verdict: str, only_if: str = "") -> list[nodes.Node]:
    """The verdict, and the condition of a "holds only if"."""
    badge = nodes.inline("", verdict, classes=["verdict"])
    condition = [nodes.Text(" "), nodes.inline("", _typeset(only_if), classes=["claim-only-if"])] if only_if else []
    return [badge, *condition, nodes.Text(" ")]


def _measured(line: str) -> nodes.inline:
    """What the cell printed, character by character."""
    return nodes.inline("", line, classes=["claim-measured"], support_smartquotes=False)


def _link(app, source: str, page: str, anchor: str, text: str, *classes: str) -> nodes.reference:
    """A link to an anchor of another page of the book."""
    uri = app.builder.get_relative_uri(source, page) if source != page else ""
    return nodes.reference("", text, internal=True, refuri=f"{uri}#{anchor}", classes=list(classes))


def claim_box(app, found: dict) -> nodes.container:
    """The box under a cell that settles a claim: verdict, id, the sentence, what was measured."""
    name, verdict = found["id"], found["verdict"]
    depends.uses(app.env, f"claim {name}")
    item = app.course_claims.get(name, {"sentence": "", "limits": ""})
    ledger = _link(app, app.env.docname, LEDGER, f"ledger-{name}", name, "claim-id")
    box = nodes.container("", ids=[f"claim-{name}"], classes=["claim-line", f"is-{_slug(verdict)}"])
    box += nodes.paragraph("", "", *_badge(verdict, found.get("only_if", "")), ledger, classes=["claim-head"])
    box += nodes.paragraph("", _typeset(item["sentence"]), classes=["claim-sentence"])
    box += nodes.paragraph("", found["line"], classes=["claim-result", "claim-measured"])
    if item["limits"]:
        more = _link(app, app.env.docname, LEDGER, f"ledger-{name}", "Sources in the ledger")
        limits = nodes.paragraph("", "", nodes.Text(_typeset(f"{item['limits']} ")), more, nodes.Text("."))
        limits["classes"] = ["claim-note"]
        box += nodes.raw("", '<details class="claim-details"><summary>limits</summary>', format="html")
        box += limits
        box += nodes.raw("", "</details>", format="html")
    return box


def _typeset(text: str) -> str:
    """Plain text with typographic apostrophes, as Sphinx sets them in running text."""
    return text.replace("'", "’")


class ClaimRole(SphinxRole):
    """``{claim}`ID` ``: the id, linked to the cell that settles the claim, else to what the ledger has to say."""

    def run(self):
        app, name = self.env.app, self.text
        depends.uses(self.env, f"place of claim {name}")
        if name not in app.course_claims:
            LOGGER.warning("claim %r is not in book/claims.yml", name, location=self.get_location())
            return [nodes.abbreviation("", name, explanation=UNCHECKED, classes=["claim-id"])], []
        settled, verdict = app.course_verdicts.get(name), verdict_of(app, name)
        if settled:
            return [_link(app, self.env.docname, settled.page, f"claim-{name}", name, "claim-id")], []
        if verdict in WITHOUT_CHECK.values():
            return [_link(app, self.env.docname, LEDGER, f"ledger-{name}", name, "claim-id")], []
        return [nodes.abbreviation("", name, explanation=verdict, classes=["claim-id"])], []


class ClaimLines(SphinxDirective):
    """The claims whose ids are the lines of the content: verdict, sentence, what was measured or reported, the cell."""

    has_content = True

    def run(self):
        cards = []
        depends.uses(self.env, *(f"claim {name}" for name in self.content))
        for name in self.content:
            if name not in self.env.app.course_claims:
                raise self.error(f"claim {name!r} is not in book/claims.yml")
            cards.append(self._card(self.env.app, self.env.app.course_claims[name]))
        return cards

    def _card(self, app, item: dict) -> nodes.container:
        name = item["id"]
        settled, verdict = app.course_verdicts.get(name), verdict_of(app, name)
        here, ledger = self.env.docname, f"ledger-{name}"
        head = nodes.paragraph("", "", *_badge(verdict, settled.only_if if settled else ""), classes=["claim-head"])
        head += _link(app, here, LEDGER, ledger, name, "claim-id")
        card = nodes.container("", head, classes=["claim-card", f"is-{_slug(verdict)}"])
        card += nodes.paragraph("", _typeset(item["sentence"]), classes=["claim-sentence"])
        if settled:
            cell = _link(app, here, settled.page, f"claim-{name}", "see the cell")
            card += nodes.paragraph("", "", _measured(settled.line), nodes.Text(" "), cell, classes=["claim-result"])
        elif "read" in item:
            children, messages = self.state.inline_text(sources.reported_by(item["source"], item["read"]), self.lineno)
            card += nodes.paragraph("", "", *children, *messages, classes=["claim-result"])
        return card


class ClaimsLedger(SphinxDirective):
    """All claims in groups, each with its verdict.

    A line of the content ``PREFIX: Title`` makes a group of the claims whose first source begins
    with the prefix. The option ``other`` is the title of the group for the rest.
    """

    has_content = True
    option_spec = {"other": str}

    def run(self):
        app = self.env.app
        depends.uses(self.env, "claims")
        groups = self._groups(app.course_claims)
        verdicts = Counter(verdict_of(app, name) for name in app.course_claims)
        used = {page for name in app.course_claims for page in self._chapters(name)}
        chapters = {page: title for page, title in app.course_chapters.items() if page in used}
        return [_controls(verdicts, chapters), *(self._section(*group) for group in groups.items())]

    def _chapters(self, name: str) -> list[str]:
        """The chapter that settles the claim, else those that name it."""
        app = self.env.app
        settled = app.course_verdicts.get(name)
        return [settled.page] if settled else app.course_named.get(name, [])

    def _groups(self, claims: dict) -> dict[str, list]:
        title_of = {p.strip(): t.strip() for p, t in (line.split(":", 1) for line in self.content)}
        other = self.options.get("other", "Other claims")
        groups = {title: [] for title in (*title_of.values(), other)}
        for item in claims.values():
            matching = [t for prefix, t in title_of.items() if item["source"][0].startswith(prefix)]
            groups[matching[0] if matching else other].append(item)
        return {title: items for title, items in groups.items() if items}

    def _section(self, title: str, items: list) -> nodes.section:
        section = nodes.section("", nodes.title("", title), ids=[nodes.make_id(f"group {title}")])
        section["classes"] = ["claim-group"]
        section += [self._card(item) for item in items]
        return section

    def _card(self, item: dict) -> nodes.container:
        """One claim: verdict, sentence, what came out and where, or the works and their setting; limits, sources."""
        app, name = self.env.app, item["id"]
        settled, verdict = app.course_verdicts.get(name), verdict_of(app, name)
        anchor = f"ledger-{name}"
        badge = _badge(verdict, settled.only_if if settled else "")
        head = nodes.paragraph("", "", *badge, classes=["claim-head"])
        head += nodes.reference("", name, internal=True, refid=anchor, classes=["claim-id"])
        head += [nodes.Text(" "), nodes.abbreviation("", item["kind"], explanation=KINDS[item["kind"]])]
        chapters = [f"in-{_slug_of_page(page)}" for page in self._chapters(name)]
        classes = ["claim-card", f"is-{_slug(verdict)}", f"kind-{item['kind']}", *chapters]
        card = nodes.container("", head, ids=[anchor], classes=classes)
        card += self._markdown(item["sentence"], "claim-sentence")
        works, others = sources.cited(item["source"]), sources.named(item["source"])
        if settled:
            cell = _link(app, self.env.docname, settled.page, f"claim-{name}", "see the cell")
            card += nodes.paragraph("", "", _measured(settled.line), nodes.Text(" "), cell, classes=["claim-result"])
        if "read" in item:
            reported_by = f"{sources.reported_by(item['source'], item['read'])}."
            card += self._markdown(reported_by, "claim-result" if verdict == "reported" else "claim-note")
            card += self._markdown(f"*Setting:* {item['setting']}", "claim-note")
            works = ""
        if item["limits"]:
            card += self._markdown(f"*Limits:* {item['limits']}", "claim-note")
        where = "; ".join(filter(None, (others, works)))
        if where:
            card += self._markdown(f"*Source:* {where}", "claim-note")
        return card

    def _markdown(self, text: str, name: str) -> nodes.paragraph:
        children, messages = self.state.inline_text(text, self.lineno)
        return nodes.paragraph("", "", *children, *messages, classes=[name])


def _slug_of_page(page: str) -> str:
    return nodes.make_id(page.rsplit("/", 1)[-1].replace("_", "-").lstrip("0123456789-"))


def _controls(counts: Counter, chapters: dict[str, str]) -> nodes.raw:
    """What filters and covers: hidden, for only the script, which shows it, gives it something to do."""
    verdicts = [("", "all", counts.total())]
    verdicts += [(f"is-{_slug(v)}", v, counts[v]) for v in (*VERDICTS, *WITHOUT_CHECK.values(), UNCHECKED)]
    chips = "".join(
        f'<label class="{value or "is-all"}"><input type="radio" name="verdict" value="{value}"'
        f'{"" if value else " checked"}> <span>{text} <b>{count}</b></span></label>'
        for value, text, count in verdicts
    )
    pages = [("", "all"), *((f"in-{_slug_of_page(page)}", title) for page, title in chapters.items())]
    kinds = [("", "all"), *((f"kind-{kind}", f"{kind}: {meaning}") for kind, meaning in KINDS.items())]
    html = (
        '<form class="claim-filter" autocomplete="off" aria-label="Filter the claims" hidden>'
        f"<fieldset><legend>Verdict</legend>{chips}</fieldset>"
        f'<label>Chapter <select name="chapter">{_options(pages)}</select></label>'
        f'<label>Kind <select name="kind">{_options(kinds)}</select></label>'
        '<label>Words <input type="search" name="words" placeholder="warm-up"></label>'
        '<p><button type="button" class="claim-cover" aria-pressed="false">Cover the verdicts</button> '
        '<button type="reset">Show all</button> <output aria-live="polite"></output></p></form>'
    )
    return nodes.raw("", html, format="html")


def _options(choices: list[tuple[str, str]]) -> str:
    return "".join(f'<option value="{value}">{escape(text)}</option>' for value, text in choices)


def _add_script(app, pagename, templatename, context, doctree):
    if pagename == LEDGER:
        context["body"] += f"<script>\n{SCRIPT.read_text(encoding='utf-8')}</script>\n"


# --- for others -----------------------------------------------------------------------------------


def errata_address(repository: str, name: str) -> str:
    """Where a mistake in a claim is reported: a new issue that names it."""
    title = f"Claim {name}: "
    if "gitlab" in urlsplit(repository).netloc:
        return f"{repository}/-/issues/new?{urlencode({'issue[title]': title})}"
    return f"{repository}/issues/new?{urlencode({'title': title})}"  # GitHub, Gitea, Forgejo


def _add_errata(app, doctree, docname):
    """When the page is written: its source does not know the address."""
    repository = app.config.course_repository.url
    if docname != LEDGER or not repository:
        return
    for card in doctree.findall(lambda node: isinstance(node, nodes.container) and "claim-card" in node["classes"]):
        name = card["ids"][0].removeprefix("ledger-")
        link = nodes.reference("", f"Report a mistake in {name}", refuri=errata_address(repository, name))
        card += nodes.paragraph("", "", link, classes=["claim-note", "claim-errata"])


def as_data(app) -> dict:
    """The ledger for other programs; `book/claims.schema.json` says what each field means."""
    found = []
    for name, item in app.course_claims.items():
        settled = app.course_verdicts.get(name)
        page = settled and app.builder.get_relative_uri(LEDGER, settled.page)
        found.append(
            {
                "id": name,
                "sentence": item["sentence"],
                "kind": item["kind"],
                "verdict": verdict_of(app, name),
                "condition": settled.only_if or None if settled else None,
                "measured": settled.line if settled else None,
                "cell": f"{page}#claim-{name}" if settled else None,
                "entry": f"{app.builder.get_relative_uri(LEDGER, LEDGER) or 'claims.html'}#ledger-{name}",
                "sources": item["source"],
                "setting": item.get("setting"),
                "limits": item["limits"] or None,
            }
        )
    return {"course": "Two Knobs", "license": "CC-BY-4.0", "versions": versions(Path(app.srcdir)), "claims": found}


def versions(root: Path) -> dict[str, str]:
    """Of the package, and of the pinned libraries that the committed outputs were made with."""
    init = (root / "src" / "normlab" / "__init__.py").read_text(encoding="utf-8")
    pins = re.findall(r"^([\w-]+)==([^\s;]+)", (root / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    return {"normlab": re.search(r'^__version__ = "(.+)"', init, re.MULTILINE)[1]} | {n: v for n, v in pins if n in PINS}


def _write_data(app, exception):
    schema = Path(app.srcdir) / SCHEMA
    if exception is None and app.builder.format == "html" and schema.exists():
        folder = (Path(app.outdir) / LEDGER).parent
        text = json.dumps(as_data(app), ensure_ascii=False, indent=1) + "\n"
        (folder / "claims.json").write_text(text, encoding="utf-8", newline="\n")
        shutil.copyfile(schema, folder / schema.name)


def setup(app):
    app.connect("doctree-resolved", _add_errata)
    app.connect("build-finished", _write_data)
    app.connect("builder-inited", _load)
    app.connect("html-page-context", _add_script)
    app.add_role("claim", ClaimRole())
    app.add_directive("claim-lines", ClaimLines)
    app.add_directive("claims-ledger", ClaimsLedger)
