"""The directive ``{round}``: cards of *Name this placement*, *Debug this run* and *Holds, only if, refuted*.

``{round} placement`` reads what `tools/rounds.py` left in the package, ``{round} debug`` the record of faulty runs and
the texts of `book/interview/debug.yml`, ``{round} claims`` the ledger: all claims that hold only if or are refuted, and
those named in the content.
"""

import hashlib
import json
from html import escape
from pathlib import Path

import yaml
from docutils import nodes
from sphinx.errors import ExtensionError

from . import claims, depends
from .practice import Cards, raw

PLACEMENTS = "src/normlab/interview/placements.json"
RECORD = "src/normlab/records/faulty_runs.json"
TEXTS = "book/interview/debug.yml"
ZERO = {"yes": "yes", "only if": "only if the output norm has no bias", "no": "no"}
FIELDS = {"id", "name", "setting", "experiment", "measured", "answer", "claims"}


def mixed(items: list, key) -> list:
    """In an order that the keys fix and nobody guesses."""
    return sorted(items, key=lambda item: hashlib.sha256(key(item).encode()).digest())


def number(value: float) -> str:
    """Up to four digits, as a reader writes them."""
    text = f"{value:.4g}"
    if "e" in text:
        digits, power = text.split("e")
        text = f"{digits} × 10{str(int(power)).translate(str.maketrans('0123456789-', '⁰¹²³⁴⁵⁶⁷⁸⁹⁻'))}"
    return text.replace("-", "−")


def read_runs(root: Path) -> dict[str, list[dict]]:
    """The results of the record by fault, in the order of the seeds."""
    found: dict[str, list[dict]] = {}
    runs = json.loads((root / RECORD).read_text(encoding="utf-8"))["runs"]
    for run in sorted(runs, key=lambda run: run["setting"]["seed"]):
        found.setdefault(run["setting"]["fault"], []).append(run["result"])
    return found


def read_texts(root: Path) -> list[dict]:
    """The texts of the faults. Raises ValueError for one with other fields, or without a run."""
    items, runs = yaml.safe_load((root / TEXTS).read_text(encoding="utf-8")), read_runs(root)
    for item in items:
        if set(item) != FIELDS:
            raise ValueError(f"{item.get('id')!r} must have {', '.join(sorted(FIELDS))}, got {', '.join(item)}")
        if item["id"] not in runs:
            raise ValueError(f"{item['id']!r} is not in the record faulty_runs: {', '.join(runs)}")
    return items


def curve(losses: list[float]) -> str:
    """A loss curve as a picture of 240 × 90, with its losses in words."""
    low, high = min(losses), max(losses)
    span = max(high - low, 0.05)
    points = [(8 + 224 * i / (len(losses) - 1), 10 + 65 * (high - y) / span) for i, y in enumerate(losses)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    label = f"Training loss, means of neighboring steps: {', '.join(number(y) for y in losses)}"
    return (
        f'<svg class="practice-curve" viewBox="0 0 240 90" role="img" aria-label="{label}"><title>{label}</title>'
        f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-width="2"/>'
        f'<text x="{points[0][0] + 6:.0f}" y="{points[0][1] + 4:.0f}">{number(losses[0])}</text>'
        f'<text x="232" y="{points[-1][1] - 5:.0f}" text-anchor="end">{number(losses[-1])}</text>'
        '<text x="232" y="12" text-anchor="end">training loss, nats a character</text></svg>'
    )


def table(rows: list[tuple[str, str]]) -> str:
    body = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>' for name, text in rows)
    return f'<table class="table normlab-table practice-numbers"><tbody>{body}</tbody></table>'


class Round(Cards):
    """One of the three rounds."""

    required_arguments = 1
    has_content = True

    def run(self):
        rounds = {"placement": self._placements, "debug": self._runs, "claims": self._claims}
        if self.arguments[0] not in rounds:
            raise self.error(f"the round must be one of {', '.join(rounds)}, got {self.arguments[0]!r}")
        depends.uses(self.env, "claims", *(f"files {name}" for name in (PLACEMENTS, RECORD, TEXTS)))
        return rounds[self.arguments[0]]()

    def texts(self, chosen) -> list[tuple[str, list[nodes.Node]]]:
        return [(value, [nodes.Text(text)]) for value, text in chosen]

    # --- name this placement ---

    def _placements(self) -> list[nodes.Node]:
        items = json.loads((Path(self.env.srcdir) / PLACEMENTS).read_text(encoding="utf-8"))
        titles = [(item["id"], item["title"]) for item in items]
        return [self._placement(i, item, titles) for i, item in enumerate(mixed(items, lambda i: f"code {i['id']}"), 1)]

    def _placement(self, i: int, item: dict, titles) -> nodes.section:
        name = f"placement-{i}"
        code = nodes.literal_block(item["code"], item["code"], language="python")
        which = self.fieldset(f"{name}-which", "Which wiring?", self.texts(titles))
        zero = self.fieldset(f"{name}-zero", "Does it return x when all f(…) are 0?", self.texts(ZERO.items()))
        form = self.form(f"{item['id']}|{item['zero']}", [*which, *zero])
        answer = [nodes.paragraph("", "", nodes.strong("", item["title"]), nodes.Text(f": {item['formula']}"))]
        answer += [self.labeled("Returns x when F = 0", f"{ZERO[item['zero']]}."), self.claim_links(["identity-which"])]
        return self.card(name, [nodes.Text(f"Placement {i}")], [code, *form], answer)

    # --- debug this run ---

    def _runs(self) -> list[nodes.Node]:
        root = Path(self.env.srcdir)
        try:
            items = read_texts(root)
        except ValueError as problem:
            raise ExtensionError(f"{TEXTS}: {problem}") from problem
        runs = read_runs(root)
        names = mixed([(item["id"], item["name"]) for item in items], lambda pair: pair[1])
        items = mixed(items, lambda item: f"run {item['id']}")
        return [self._run(i, item, runs[item["id"]], names) for i, item in enumerate(items, 1)]

    def _run(self, i: int, item: dict, runs: list[dict], names) -> nodes.section:
        first, probes = runs[0], [run["probe"] for run in runs]
        content = [self.inline(item["setting"]), *([raw(curve(first["loss"]))] if "loss" in first else [])]
        content += [raw(table([(name, number(value)) for name, value in first["shown"].items()]))]
        content += self.choices(f"run-{i}", "Which fault?", item["id"], self.texts(names))
        rows = [(name, ", ".join(number(probe[name]) for probe in probes)) for name in ("faulty", "right")]
        answer = [nodes.paragraph("", "", nodes.strong("", f"The fault: {item['name']}")), self.inline(item["answer"])]
        answer += [self.labeled("One line that shows it", f"{item['experiment']}.")]
        answer += [self.labeled("Measured", f"{item['measured']}, seeds 0, 1 and 2:"), raw(table(rows))]
        if "control" in first:
            answer += [nodes.paragraph("", "The same run without the fault:"), raw(curve(first["control"]))]
        return self.card(f"run-{i}", [nodes.Text(f"Run {i}")], content, [*answer, self.claim_links(item["claims"])])

    # --- holds, only if, refuted ---

    def _claims(self) -> list[nodes.Node]:
        app, named = self.env.app, [line.strip() for line in self.content if line.strip()]
        verdicts = {name: settled.verdict for name, settled in app.course_verdicts.items() if name in app.course_claims}
        for name in named:
            if verdicts.get(name) != "holds":
                raise self.error(f"{name!r} is no claim that holds: {verdicts.get(name, 'not checked')}")
        chosen = [name for name, verdict in verdicts.items() if verdict != "holds"] + named
        return [self._claim(name) for name in mixed(chosen, lambda name: f"claim {name}")]

    def _claim(self, name: str) -> nodes.section:
        item, settled = self.env.app.course_claims[name], self.env.app.course_verdicts[name]
        options = self.texts((verdict, verdict) for verdict in claims.VERDICTS)
        choices = self.choices(f"decide-{name}", "Your verdict", settled.verdict, options)
        verdict = nodes.paragraph("", "", nodes.strong("", settled.verdict))
        verdict += nodes.Text(f": {claims._typeset(settled.only_if)}." if settled.only_if else ".")
        answer = [verdict, nodes.paragraph("", "", claims._measured(settled.line))]
        answer += [nodes.paragraph("", claims._typeset(item["limits"]))] if item["limits"] else []
        title = [nodes.Text(claims._typeset(" ".join(item["sentence"].split())))]
        return self.card(f"decide-{name}", title, choices, [*answer, self.claim_links([name])])


def setup(app):
    app.add_directive("round", Round)
