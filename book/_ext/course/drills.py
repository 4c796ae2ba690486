"""The directives ``{drill}`` and ``{drills}``: pages of the coding drills, read from their files without an import.

``{drill} rms_norm`` shows the task, hints and probes, and after the fold the solution and the catalogue of mistakes;
``{drill-score}`` the table that tools/drill_score.py stored;
``{drills}`` the ladder. A drill's file is parsed by ``ast``, so the book needs no torch.
"""

import ast
import json
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from . import depends

FOLDER = Path("src", "normlab", "drills")
ALL = f"files {FOLDER.as_posix()}/*.py"
MISTAKE = ("id", "probe", "change", "says", "fix", "convention", "accepted", "story")


def read(root: Path, slug: str) -> dict[str, Any]:
    """What the file of a drill says: texts, source of the solution, probes by name, mistakes as dictionaries."""
    text = (root / FOLDER / f"{slug}.py").read_text(encoding="utf-8")
    tree = ast.parse(text)
    call = next(
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "DRILL"
    )
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    (solution,) = (node for node in tree.body if getattr(node, "name", "") == slug)
    found = {name: ast.literal_eval(given[name]) for name in ("task", "minutes", "why", "hints")}
    found["solution"] = ast.get_source_segment(text, solution)
    found["signature"] = f"{slug}({ast.unparse(_arguments(solution))})"
    found["probes"] = _probes(root, tree, given["probes"])
    found["mistakes"] = [_mistake(node) for node in given["mistakes"].elts]
    return found


def _arguments(solution: ast.AST) -> ast.arguments:
    if isinstance(solution, ast.FunctionDef):
        return solution.args
    init = next(node for node in solution.body if getattr(node, "name", "") == "__init__")
    init.args.args.pop(0)
    return init.args


def _probes(root: Path, tree: ast.Module, node: ast.expr) -> dict[str, str]:
    """What each probe is sensitive to; a call leads to the dictionary that a function of a drill's file returns."""
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        if not any(getattr(other, "name", "") == name for other in tree.body):
            module = next(
                n.module for n in tree.body if isinstance(n, ast.ImportFrom) and name in {a.name for a in n.names}
            )
            tree = ast.parse((root / FOLDER / f"{module.split('.')[-1]}.py").read_text(encoding="utf-8"))
        function = next(other for other in tree.body if getattr(other, "name", "") == name)
        node = next(n.value for n in ast.walk(function) if isinstance(n, ast.Return))
    return {ast.literal_eval(key): ast.literal_eval(value.args[0]) for key, value in zip(node.keys, node.values)}


def _mistake(node: ast.Call) -> dict[str, Any]:
    values = dict(zip(MISTAKE, node.args)) | {keyword.arg: keyword.value for keyword in node.keywords}
    return {name: ast.literal_eval(values[name]) if name in values else "" for name in MISTAKE}


def ladder(root: Path) -> dict[int, list[str]]:
    """The slugs of each week."""
    tree = ast.parse((root / FOLDER / "__init__.py").read_text(encoding="utf-8"))
    table = next(n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "_LADDER")
    return {ast.literal_eval(week): [name.id for name in row.elts] for week, row in zip(table.keys, table.values)}


def page(slug: str, drill: dict[str, Any]) -> str:
    """The page of a drill, as Markdown."""
    lines = [_plain(drill["task"]), "", f"Time: {drill['minutes']} minutes. Why it is asked, in our judgment: "]
    lines[-1] += _plain(drill["why"])
    call = f'from normlab.drills import drill\n\ndrill("{slug}").check({slug})'
    lines += ["", _code(f"{call}  # your function {drill['signature']}"), ""]
    for number, hint in enumerate(drill["hints"], start=1):
        lines += [f":::{{dropdown}} Hint {number}", _plain(hint), ":::", ""]
    lines += ["What the checker tries:", ""]
    lines += [f"- `{name}`: {_plain(sees)}" for name, sees in drill["probes"].items()]
    lines += ["", ":::{dropdown} A right solution", _code(drill["solution"]), ":::", ""]
    lines += [f":::{{dropdown}} All {len(drill['mistakes'])} mistakes of the catalogue", ""]
    for mistake in drill["mistakes"]:
        lines += _entry(mistake)
    return "\n".join([*lines, ":::"])


def _entry(mistake: dict[str, Any]) -> list[str]:
    text = f"**`{mistake['id']}`** (probe `{mistake['probe']}`) {_plain(mistake['says'])} {_plain(mistake['fix'])}"
    if mistake["convention"]:
        verdict = "it passes" if mistake["accepted"] else "this drill asks for another one"
        text += f" *The convention of {_plain(mistake['convention'])}; {verdict}.*"
    if mistake["story"]:
        text += f" *Seen in public: {_plain(mistake['story'])}*"
    change = mistake["change"]
    if isinstance(change, dict):
        edits = [line for old, new in change.items() for line in (*_marked("-", old), *_marked("+", new))]
        code = _code("\n".join(edits), "diff")
    else:
        code = _code("\n".join(line.removeprefix(" " * 12) for line in change.strip("\n").splitlines()).strip())
    return [text, "", code, ""]


def _marked(sign: str, text: str) -> list[str]:
    return [f"{sign} {line}" for line in text.rstrip("\n").split("\n") if line.strip()]


def _code(text: str, language: str = "python") -> str:
    return f"```{language}\n{text}\n```"


def _plain(text: str) -> str:
    """Text in which Markdown finds nothing of its own."""
    return re.sub(r"([*\[\]<>|$`\\])", r"\\\1", text)


class _FromMarkdown(SphinxDirective):
    def _parsed(self, text: str) -> list[nodes.Node]:
        parent = nodes.container()
        self.state.nested_parse(StringList(text.splitlines(), source=self.env.docname), self.content_offset, parent)
        return parent.children


class DrillPage(_FromMarkdown):
    """``{drill} rms_norm``: the page of one drill."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        (slug,) = self.arguments
        root = Path(self.env.srcdir)
        path = root / FOLDER / f"{slug}.py"
        if not path.exists():
            raise self.error(f"there is no drill {slug}")
        depends.uses(self.env, ALL)
        return self._parsed(page(slug, read(root, slug)))


class Ladder(_FromMarkdown):
    """``{drills}``: the ladder with links to the pages of the drills."""

    def run(self) -> list[nodes.Node]:
        root, lines = Path(self.env.srcdir), []
        depends.uses(self.env, ALL)
        for week, slugs in ladder(root).items():
            drills = [(slug, read(root, slug)) for slug in slugs]
            links = [
                f"[{slug}](drills/{slug}.md) ({d['minutes']} min, {len(d['mistakes'])} mistakes)" for slug, d in drills
            ]
            lines += [f"[Week {week}](../notebooks/drills/week_{week}.ipynb): {', '.join(links)}", ""]
        return self._parsed("\n".join(lines))


SCORE = Path("book", "drills", "score.json")


def score_table(rows: list[list]) -> str:
    """The stored scores as a table of Markdown, with their sum."""
    head, *drills = rows
    total = ["together", *(sum(column) for column in list(zip(*drills))[1:])]
    lines = [[str(cell) for cell in head], ["---", *["--:"] * (len(head) - 1)]]
    lines += [[f"[{line[0]}](drills/{line[0]}.md)", *map(str, line[1:])] for line in drills]
    lines.append([f"**{cell}**" for cell in total])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


class ScoreTable(_FromMarkdown):
    """``{drill-score}``: what the checker sees, names and tells apart."""

    def run(self) -> list[nodes.Node]:
        path = Path(self.env.srcdir, SCORE)
        depends.uses(self.env, f"files {SCORE.as_posix()}")
        return self._parsed(score_table(json.loads(path.read_text(encoding="utf-8"))))


def setup(app):
    app.add_directive("drill-score", ScoreTable)
    app.add_directive("drill", DrillPage)
    app.add_directive("drills", Ladder)
