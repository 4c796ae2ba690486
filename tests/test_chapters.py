"""The form of a chapter: what it opens with, what stands in the open, exercises that answer, how it closes.

All faults of a chapter are printed at once, one a line: ``pytest -n0 -q tests/test_chapters.py -k 03``.
"""

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import pytest
from docutils.nodes import make_id

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = sorted((ROOT / "notebooks").glob("[01]*.ipynb"))
CLAIM = "application/vnd.normlab.claim+json"

MOST_WORDS, MOST_WORDS_OF = 3300, {"05_placement": 3000}
MOST_WORDS_IN_FRONT = 700
ANSWERS = {"thirty seconds": 75, "three minutes": 420}  # words at most
MOST_TRAPS = 8
WITH_MUCH_TO_SHOW = ("05", "06", "07", "08", "09", "10", "11")
LEAST_CLAIMS, LEAST_FIGURES = 8, 3
FOLDED = {"hide-input", "hide-cell"}
CLOSING = {"in the interview", "exercises", "solutions", "what this chapter settled", "sources"}

# Terms that are ordinary English as well: a chapter need not link them.
ORDINARY = {"block", "claim", "depth", "gain", "head", "knob", "ledger", "probe", "record", "size", "verdict"}
# With an s these are verbs.
VERBS = {"drift", "overflow"}


# --- the parts of a chapter -----------------------------------------------------------------------


@dataclass
class Part:
    """A heading with the text and the code cells under it, up to the next heading."""

    level: int
    title: str
    labels: list[str]
    text: str = ""
    cells: list = field(default_factory=list)


def parts(notebook) -> list[Part]:
    found = [Part(1, "", [])]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            found[-1].cells.append(cell)
            continue
        labels, fence = [], ""
        for line in cell.source.split("\n"):
            mark = re.match(r"`{3,}", line)
            if mark:
                fence = "" if fence else mark[0]
            heading = None if fence else re.fullmatch(r"(#+) (.*)", line)
            label = None if fence else re.fullmatch(r"\(([\w.-]+)\)=", line)
            if label:
                labels.append(label[1])
            elif heading:
                found.append(Part(len(heading[1]), heading[2].strip(), labels))
                labels = []
            else:
                found[-1].text += line + "\n"
    return found


def sections(notebook) -> list[tuple[Part, list[Part]]]:
    """The chapter's own ``##`` sections, each with all its parts; not those that close a chapter."""
    found = []
    for part in parts(notebook):
        if part.level == 2:
            found.append((part, [part]))
        elif part.level > 2 and found:
            found[-1][1].append(part)
    return [(head, under) for head, under in found if head.title.lower() not in CLOSING]


def with_title(notebook, title: str) -> Part | None:
    return next((part for part in parts(notebook) if part.title.lower() == title), None)


def calls(cell, name: str) -> int:
    """How many calls of the function ``name`` stand in a code cell."""
    tree = ast.parse(re.sub(r"(?m)^([ \t]*)[%!].*", r"\1pass", cell.source))
    return sum(isinstance(node, ast.Call) and ast.unparse(node.func) == name for node in ast.walk(tree))


def in_view(cell) -> bool:
    return not FOLDED & {*cell.metadata.get("tags", [])}


def printed(cell) -> list[str]:
    """The lines that a cell has printed."""
    return "".join(o.text for o in cell.outputs if o.output_type == "stream").splitlines()


def words(markdown: str) -> int:
    """Words between white space, without display formulas and the rows of tables."""
    formula = r"(?ms)\$\$.*?\$\$(?: *\([\w-]+\))?|^```\{math\}.*?^```|^\\begin\{(\w+\*?)\}.*?\\end\{\1\}"
    return len(re.sub(r"(?m)^\s*\|.*$", "", re.sub(formula, "", markdown)).split())


def spoken(markdown: str) -> str:
    """An answer without what nobody says aloud: options, ids of claims, numbers of equations, citations."""
    text = re.sub(r"(?m)^:[\w-]+:.*$", "", markdown)
    text = re.sub(r"\{(?:claim|eq|cite(?::\w+)?)\}`[^`]*`", "§", text)
    return re.sub(r"\((?:[§,;·\s]|see|and)*\)|§", "", text)


def slug(title: str) -> str:
    """The name by which MyST links a heading; docutils has another. That a link leads somewhere, the build says."""
    return re.sub(r"[^\w\u4e00-\u9fff\- ]", "", title.strip().lower().replace(" ", "-"))


# --- faults ---------------------------------------------------------------------------------------


def faults(notebook, name: str, glossary: list[list[str]]) -> list[str]:
    """What a chapter still lacks, one line each; empty for a chapter in form."""
    markdown = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    return [
        *length_faults(markdown, MOST_WORDS_OF.get(name, MOST_WORDS)),
        *opening_faults(notebook),
        *answer_faults("\n\n".join(markdown)),
        *trap_faults(notebook),
        *exercise_faults(notebook),
        *closing_faults(notebook),
        *open_faults(notebook),
        *(richness_faults(notebook) if name.startswith(WITH_MUCH_TO_SHOW) else ()),
        *term_faults(markdown, glossary),
    ]


def length_faults(markdown: list[str], most: int):
    count = sum(map(words, markdown))
    if count > most:
        yield f"length: {count} words, {count - most} more than {most}"


def opening_faults(notebook):
    _, mark, rest = notebook.cells[0].source.partition("**After this chapter you can**")
    if not mark:
        yield "opening: cell 0 has no “**After this chapter you can**”"
    else:
        count = 0
        for paragraph in re.split(r"\n\s*\n", rest.partition("\n")[2].strip("\n")):
            if not re.match(r"[-*] ", paragraph):
                break
            count += len(re.findall(r"(?m)^[-*] ", paragraph))
        if not 3 <= count <= 6:
            yield f"opening: {count} bullets under “After this chapter you can”, not 3 to 6"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    setups = sum("setup" in cell.metadata.get("tags", []) for cell in code)
    if setups != 1:
        yield f"set-up: {setups} cells with the tag setup, not 1"
    for cell in code[1:]:
        imports = [isinstance(node, (ast.Import, ast.ImportFrom)) for node in ast.parse(cell.source).body]
        if not in_view(cell) and sum(imports) >= 2 and sum(imports) * 2 > len(imports):
            yield f"set-up: a second one, cell {cell.id}: imports belong into the set-up cell"


def answer_faults(markdown: str):
    for title, most in ANSWERS.items():
        found = re.findall(rf"(?ims)^(:::+|```+)\{{admonition\}} [^\n]*{title}[^\n]*\n(.*?)^\1", markdown)
        if not found:
            yield f"interview: no admonition “{title.capitalize()}”"
        for _, text in found:
            count = len(re.findall(r"\S*\w\S*", spoken(text)))
            if not 0 < count <= most:
                yield f"interview: {title}: {count} words, not 1 to {most}"


def trap_faults(notebook):
    traps = with_title(notebook, "traps")
    rows = re.findall(r"(?m)^\s*\|.*", traps.text) if traps else []
    count = max(0, len(rows) - 2)
    if not 1 <= count <= MOST_TRAPS:
        yield f"traps: {count} rows, not 1 to {MOST_TRAPS}"


def exercise_faults(notebook):
    tasks, solutions, late = {}, {}, False
    for part in parts(notebook):
        heading = re.match(r"(Exercise|Solution) (\d+)\b", part.title)
        if not heading:
            continue
        kind, number = heading[1], int(heading[2])
        late = late or kind == "Solution"
        if kind == "Exercise" and late:
            yield f"exercises: exercise {number} stands below a solution"
        (tasks if kind == "Exercise" else solutions)[number] = part
    if not tasks:
        yield "exercises: none (“### Exercise 1 · name”)"
    if sorted(tasks) != sorted(solutions) or sorted(tasks) != [*range(1, len(tasks) + 1)]:
        yield f"exercises: numbered {sorted(tasks)}, solutions {sorted(solutions)}"
    for number, part in tasks.items():
        starters = [cell for cell in part.cells if in_view(cell) and calls(cell, "check")]
        if not starters:
            yield f"exercises: exercise {number} has no starter cell in view that calls check()"
        elif not any("not answered yet" in printed(cell) for cell in starters):
            yield f"exercises: the starter cell of exercise {number} does not print “not answered yet”"
        if any("right" in printed(cell) for cell in starters):
            yield f"exercises: the starter cell of exercise {number} already prints “right”"
    for number, part in solutions.items():
        folded = [c for c in part.cells if {"hide-cell", "solution"} <= {*c.metadata.get("tags", [])}]
        checked = [line for c in folded if calls(c, "check") for line in printed(c)]
        if not folded:
            yield f"exercises: solution {number} has no cell with the tags hide-cell and solution"
        elif "right" not in checked or any("not yet" in line or "not answered" in line for line in checked):
            yield f"exercises: solution {number} does not print “right” from check()"


def closing_faults(notebook):
    settled = with_title(notebook, "what this chapter settled")
    if not settled:
        yield "closing: no “## What this chapter settled”"
        return
    lines = re.findall(r"(?ms)^[-*] .*?(?=^[-*] |^\s*$|\Z)|^\d+\. .*?(?=^\d+\. |^\s*$|\Z)|^\|[^\n]*", settled.text)
    for head, under in sections(notebook):
        anchors = "|".join(map(re.escape, [slug(head.title), make_id(head.title), *head.labels]))
        recap = [line for line in lines if re.search(rf"\]\(#?({anchors})\)|\{{ref\}}`[^`]*({anchors})>?`", line)]
        if not recap:
            yield f"closing: no recap line links to “{head.title}” (#{slug(head.title)})"
        elif any(settles(cell) for part in under for cell in part.cells) and "{claim}`" not in "".join(recap):
            yield f"closing: the recap line of “{head.title}” names no claim"
    if not re.search(r"\*\*The problem moved\.?\*\*\.?\s+\S", settled.text):
        yield "closing: no paragraph “**The problem moved.** …”"


def settles(cell) -> bool:
    return calls(cell, "claim") > 0 or any(CLAIM in output.get("data", {}) for output in cell.outputs)


def open_faults(notebook):
    for head, under in sections(notebook):
        settling = [cell for part in under for cell in part.cells if settles(cell)]
        if settling and not any(map(in_view, settling)):
            yield f"in the open: every claim of “{head.title}” stands in a folded cell"


def richness_faults(notebook):
    data = [o.data for cell in notebook.cells for o in cell.get("outputs", ()) if "data" in o]
    claims = sum(CLAIM in d for d in data)
    figures = sum(any(k.startswith("image/") for k in d) or "<img" in "".join(d.get("text/html", "")) for d in data)
    if claims < LEAST_CLAIMS:
        yield f"contents: {claims} claims, fewer than {LEAST_CLAIMS}"
    if figures < LEAST_FIGURES:
        yield f"contents: {figures} figures, fewer than {LEAST_FIGURES}"


# What is no prose: code, formulas, tags, directives and their options, headings, all roles but term, links.
NO_PROSE = re.compile(
    r"(?ms)^(`{3,})(?!\{(?:note|tip|admonition|dropdown)).*?^\1|\$\$.*?\$\$|^#+ .*?$|^:::.*?$|^```.*?$|"
    r"^:[\w-]+:.*?$|^\([\w.-]+\)=$|\$[^$\n]+\$|\{(?!term\})[\w:]+\}`[^`]*`|(?<![}`\w>)])`[^`\n]+`|"
    r"!?\[[^\]]*\]\([^)]*\)|<[^>\n]*>(?!`)|https?://\S+"
)


def term_faults(markdown: list[str], glossary: list[list[str]]):
    """Terms whose first use in the chapter is no link to the glossary; an entry's synonyms count as one."""
    entry_of = {term.lower(): terms for terms in glossary for term in terms}
    names = sorted((term for terms in glossary for term in terms), key=len, reverse=True)
    words = "|".join(map(_inflected, names))
    use = re.compile(rf"\{{term\}}`(?P<link>[^`]*)`|(?<![\w-])(?P<word>{words})(?![\w-])")
    seen = set()
    for cell in markdown:
        text = " ".join(NO_PROSE.sub(" ", cell).split())
        for match in use.finditer(text):
            if match["link"] is not None:
                name = re.sub(r".*<(.*)>", r"\1", match["link"]).lower()
            else:
                name = match["word"].lower()
                name = next(n for n in (name, name[:-1], name[:-2]) if n in entry_of)
            terms = entry_of.get(name, [name])
            if terms[0] in seen:
                continue
            seen.add(terms[0])
            if match["link"] is None and terms[0] not in ORDINARY:
                around = text[max(0, match.start() - 30) : match.end() + 25]
                yield f"glossary: {terms[0]}: first use is no {{term}} link: … {around} …"


def _inflected(term: str) -> str:
    """A pattern for the term, at the head of a sentence too, and with an s."""
    first = term[0] if term != term.lower() else f"[{term[0]}{term[0].upper()}]"
    return first + re.escape(term[1:]) + ("" if term in VERBS else "(?:e?s)?")


def glossary() -> list[list[str]]:
    """The terms of the glossary; an entry may have synonyms."""
    text = (ROOT / "book" / "glossary.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\{glossary\}\n(.*?)^```", text, re.S | re.M)
    lines = [line for block in blocks for line in re.sub(r"(?m)^:.*\n", "", block).split("\n")]
    entries = re.findall(r"((?:^\S.*\n)+)(?=  )", "\n".join(lines), re.M)
    return [entry.splitlines() for entry in entries]


# --- the chapters ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_form(path):
    found = faults(nbformat.read(path, as_version=4), path.stem, glossary())
    if found:
        pytest.fail(f"{path.stem}, {len(found)} faults:\n" + "\n".join(found), pytrace=False)


# --- the checker itself: a chapter in form passes, each planted fault is found --------------------

GLOSSARY = [["batch normalization", "BatchNorm"], ["attention logit"]]
GLOSSARY += [[term] for term in ("final norm", "logit", "size", "MLP", "drift")]
OPENING = """# A title with MLP

It drifts; short, with `logit` in code, $logit$ in a formula, [a logit](x.md) in a link and a size.

**After this chapter you can**

- write a {term}`norm <final norm>` and
more,
- derive its {term}`logits <logit>`,
- say it.

A last paragraph about a logit."""
INTERVIEW = """## In the interview

:::{admonition} Thirty seconds
:class: tip

"One two three ({claim}`some-id`, {eq}`eq-x`)."
:::

:::{admonition} Three minutes
:class: tip

- One two.
:::

### Traps

| you will hear | say instead | check |
|---|---|---|
| this | that | {claim}`some-id` |"""
CLOSING_TEXT = """## What this chapter settled

- [The subject](#the-subject-n--1): it
  holds, {claim}`some-id`.
- [Another](#other) has no claim.

**The problem moved.** What now?"""


def good_chapter():
    v4 = nbformat.v4

    def code(source, *tags, said=""):
        outputs = [v4.new_output("stream", name="stdout", text=said + "\n")] if said else []
        return v4.new_code_cell(source, outputs=outputs, metadata={"tags": list(tags)})

    trace = v4.new_output("display_data", {"text/plain": "", CLAIM: {"id": "some-id"}})
    return v4.new_notebook(
        cells=[
            v4.new_markdown_cell(OPENING),
            code("import torch\nimport math", "setup", "hide-input"),
            v4.new_markdown_cell("## The subject: n − 1\n\nA {term}`BatchNorm`, a batch normalization.\n\n### Under"),
            v4.new_code_cell("claim('some-id', True, 'a line')", outputs=[trace]),
            v4.new_markdown_cell("(other)=\n## Another\n\n```\n## no heading\n```"),
            code("draw()", "hide-input"),
            v4.new_markdown_cell(INTERVIEW),
            v4.new_markdown_cell("## Exercises\n\n### Exercise 1 · Count\n\nHow many?"),
            code("answer = ...\ncheck(answer, 2)", said="not answered yet"),
            v4.new_markdown_cell("## Solutions\n\n### Solution 1 · Count"),
            code("check(2, 2)", "hide-cell", "solution", said="right"),
            v4.new_markdown_cell(CLOSING_TEXT),
        ]
    )


def test_checker_accepts_a_chapter_in_form():
    assert faults(good_chapter(), "04_some", GLOSSARY) == []


def _replaced(number, old, new):
    def plant(nb):
        assert old in nb.cells[number].source
        nb.cells[number].source = nb.cells[number].source.replace(old, new)

    return plant


def _tagged(number, *tags):
    return lambda nb: nb.cells[number].metadata.update(tags=list(tags))


FAULTS = {
    "length: 3": lambda nb: nb.cells[4].update(source=nb.cells[4].source + " word" * 3300),
    "no “**After this chapter": _replaced(0, "**After", "**Before"),
    "opening: 2 bullets": _replaced(0, "- say it.", "say it."),
    "opening: 0 bullets": _replaced(0, "you can**", "you can**\n\nmuch:"),
    "0 cells with the tag setup": _tagged(1, "hide-input"),
    "set-up: a second one": lambda nb: nb.cells[5].update(source="import torch\nimport math\ndevice = 'cpu'"),
    "no admonition “Thirty seconds”": _replaced(6, "Thirty seconds", "Shortly"),
    "thirty seconds: 76 words": _replaced(6, "One two three", "word " * 76),
    "three minutes: 421 words": _replaced(6, "One two.", "word " * 420 + "end"),
    "traps: 0 rows": _replaced(6, "| this | that | {claim}`some-id` |", ""),
    "traps: 9 rows": lambda nb: nb.cells[6].update(source=nb.cells[6].source + "\n| a | b | c |" * 8),
    "exercises: none": _replaced(7, "### Exercise 1", "### Task 1"),
    "numbered [1], solutions [2]": _replaced(9, "Solution 1", "Solution 2"),
    "numbered [2]": _replaced(7, "Exercise 1", "Exercise 2"),
    "exercise 1 stands below a solution": lambda nb: nb.cells.insert(7, nb.cells.pop(9)),
    "exercise 1 has no starter cell in view": _tagged(8, "hide-cell"),
    "has no starter cell in view that calls": _replaced(8, "check(", "print("),
    "does not print “not answered yet”": lambda nb: nb.cells[8].update(outputs=[]),
    "already prints “right”": lambda nb: nb.cells[8].update(outputs=nb.cells[10].outputs),
    "solution 1 has no cell with the tags": _tagged(10, "hide-cell"),
    "solution 1 does not print": lambda nb: nb.cells[10].update(outputs=nb.cells[8].outputs),
    "does not print “right” from check": _replaced(10, "check(", "print("),
    "no “## What this chapter settled”": _replaced(11, "settled", "did"),
    "no recap line links to “The subject: n − 1”": _replaced(11, "#the-subject", "#some-subject"),
    "no recap line links to “Another”": _replaced(11, "(#other)", ""),
    "recap line of “The subject: n − 1” names no claim": _replaced(11, ", {claim}`some-id`", ""),
    "no paragraph “**The problem moved.**": _replaced(11, " What now?", ""),
    "every claim of “The subject: n − 1” stands in a folded": _tagged(3, "hide-input"),
    "every claim of “Another” stands in a folded": _replaced(5, "draw()", "for i in 'ab':\n    claim(i, True, 'x')"),
    "glossary: batch normalization": _replaced(2, "A {term}", "Batch normalization, {term}"),
    "glossary: final norm": _replaced(0, "short, with", "two final norms,"),
    "glossary: logit": _replaced(0, "{term}`logits <logit>`", "logits"),
    "glossary: attention logit": _replaced(4, "## Another", "## Another\n\nThe attention\nlogits grow."),
    "glossary: drift": _replaced(0, "It drifts", "The drift"),
    "glossary: MLP": _replaced(6, "| this |", "| the MLPs |"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_checker_finds(fault):
    chapter = good_chapter()
    FAULTS[fault](chapter)
    found = faults(chapter, "04_some", GLOSSARY)
    assert any(fault in line for line in found), found
    assert len(found) <= 3, found


def test_some_chapters_have_much_to_show():
    found = faults(good_chapter(), "07_some", GLOSSARY)
    assert found == ["contents: 1 claims, fewer than 8", "contents: 0 figures, fewer than 3"]


def test_verbs_are_terms_without_the_s():
    assert VERBS <= {term for entry in glossary() for term in entry}


@pytest.mark.parametrize(
    "markdown, count",
    [
        ("two words", 2),
        ("one\n\n$$\na + b\n$$ (eq-ab)\n\ntwo", 2),
        ("one\n\n| a b | c |\n|---|---|\n| d | e |\n\ntwo", 2),
        ("one $a + b$ two", 5),
    ],
)
def test_words_are_counted_without_formulas_and_tables(markdown, count):
    assert words(markdown) == count


def test_the_glossary_is_read():
    terms = glossary()
    assert ["Pre-Norm", "Pre-LN"] in terms and ["warm-up"] in terms and ["claim"] in terms
    assert ORDINARY <= {term for entry in terms for term in entry}


def test_two_links_in_one_line_are_both_seen():
    assert list(term_faults(["{term}`logits <logit>` and {term}`MLP` and `code` of a logit and an MLP"], GLOSSARY)) == []


def test_the_front_page_is_short_and_has_three_ways_in():
    front = (ROOT / "book" / "intro.md").read_text(encoding="utf-8")
    assert list(length_faults([front], MOST_WORDS_IN_FRONT)) == []
    for way in ("**I read.**", "**I run.**", "**I have an interview on Monday.**"):
        paragraph = front.split(way)[1].split("\n\n")[0]
        assert re.search(r"\]\([^)]+\)", paragraph), way
