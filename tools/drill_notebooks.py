"""The notebooks of the drills, one for each week of the ladder, made from the drills themselves.

    python tools/drill_notebooks.py        (then: python tools/execute.py notebooks/drills/*.ipynb)

They hold what a learner needs and nothing that is written by hand; tests/test_drills.py compares. A notebook that is
current keeps its outputs.
"""

from pathlib import Path

import nbformat
import whole
from execute import clean
from setup_cell import SETUP_CELL, SETUP_TAGS

from normlab.drills import drill, ladder, repair

FOLDER = Path(__file__).resolve().parent.parent / "notebooks" / "drills"
IMPORTS = "import math\n\nimport torch\nfrom torch import nn\n\nfrom normlab.drills import drill, repair"
SUBJECT = {
    1: "norms and blocks, forward",
    2: "backward passes and statistics",
    3: "what surrounds a norm in a model",
    4: "attention, DyT, shards",
}
INTRO = """Write each function from memory into its cell, run the cell, then the one below it: the checker says which
input fails. `report.help(2)` names the mistake, `report.help(3)` says what to do, and `drill("{slug}").hint(1)` gives a
hint. With `drill("{slug}").start()` the next check tells how long it took. The solutions are folded at the end."""
READ = """## Read code

One mistake stands in this solution of `{slug}`. State your diagnosis before you run anything; `question.answer("A")`
tells."""
FOLDED = {"tags": ["hide-cell", "solution"]}
PROMPTS = {"code_prompt_show": "Show the solution", "code_prompt_hide": "Hide the solution"}


def notebook(week: int, slugs: tuple[str, ...]):
    """The notebook of one week, not run."""
    cells = [("markdown", "title", f"# Drills, week {week}: {SUBJECT[week]}\n\n{INTRO.format(slug=slugs[0])}", {})]
    cells += [("code", "setup", f"{SETUP_CELL}\n\n{IMPORTS}", {"tags": list(SETUP_TAGS)})]
    for slug in slugs:
        d = drill(slug)
        text = f"## `{slug}`\n\n{d.minutes} minutes. {d.why} [More about it](../../book/drills/{slug}.md)."
        stub = d.stub().removeprefix("import torch").strip()
        cells += [("markdown", slug, text, {}), ("code", f"{slug}-task", f'drill("{slug}")', {})]
        cells += [("code", f"{slug}-stub", stub, {})]
        cells += [("code", f"{slug}-check", f'report = drill("{slug}").check({slug})', {})]
    cells += [("markdown", "read", READ.format(slug=slugs[-1]), {})]
    cells += [("code", "read-code", f'question = repair(drill("{slugs[-1]}"))\nprint(question)', {})]
    cells += [("markdown", "solutions", "## Solutions", {})]
    for slug in slugs:
        check = f'report = drill("{slug}").check({slug}, count=False)'
        source = f"{drill(slug).source.strip()}\n\n\n{check}"
        cells += [("markdown", f"{slug}-title", f"### Solution of `{slug}`", {})]
        cells += [("code", f"{slug}-solution", source, {**FOLDED, "mystnb": dict(PROMPTS)})]
    answer = f'right = question.answer("{repair(drill(slugs[-1])).right}")'
    cells += [("markdown", "read-title", "### The diagnosis", {})]
    cells += [("code", "read-solution", answer, {**FOLDED, "mystnb": dict(PROMPTS)})]
    make = {"markdown": nbformat.v4.new_markdown_cell, "code": nbformat.v4.new_code_cell}
    found = [make[kind](source, id=id.replace("_", "-"), metadata=metadata) for kind, id, source, metadata in cells]
    return nbformat.v4.new_notebook(cells=found)


def renew(path: Path, made) -> bool:
    """Store the notebook ``made``, without outputs; False if, but for its outputs, it stands there already."""
    clean(made)
    if path.exists():
        stored = nbformat.read(path, as_version=4)
        for cell in stored.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        if stored.cells == made.cells:
            return False
    whole.write_text(path, nbformat.writes(made) + "\n")
    return True


def main() -> None:
    with whole.told():
        for week, slugs in ladder().items():
            path = FOLDER / f"week_{week}.ipynb"
            print(f"{path.name}: {'written, to be run' if renew(path, notebook(week, slugs)) else 'nothing changed'}")


if __name__ == "__main__":
    main()
