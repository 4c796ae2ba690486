"""A second build reads and writes what an edit concerns, leaves the rest alone, and ends with the site of a first one."""

import ast
import json
import re
import shutil
from pathlib import Path

import pytest
from pages import is_stale
from small_book import ROOT, build, claim_output, make_book

TEXT = "A claim {claim}`first`, and a [place](../notebooks/01_small.ipynb#a-place).\n\n{claim}`second`"
CHAPTER = "Text.\n\n## A place\n\nMore text."


@pytest.fixture
def book(tmp_path):
    root = make_book(tmp_path / "book", TEXT, [claim_output("first"), picture("a")], chapter=CHAPTER)
    (root / "book" / "other.md").write_text("# Other\n\nNothing of the rest.\n")
    edit(root, "_toc.yml", "chapters:\n", "chapters:\n  - file: book/other\n")
    built(root)
    return root


def picture(text: str) -> dict:
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><title>{text}</title></svg>'
    return {"output_type": "display_data", "metadata": {}, "data": {"image/svg+xml": svg, "text/plain": text}}


def edit(root: Path, name: str, old: str, new: str) -> None:
    text = (root / name).read_text(encoding="utf-8")
    assert old in text
    (root / name).write_text(text.replace(old, new), encoding="utf-8")


def built(root: Path) -> dict[str, int]:
    """The pages of the book with their times, after a build; not the root, which Sphinx writes with any other."""
    code, said = build(root)
    assert code == 0, said
    html = root / "_build" / "html"
    return {page.relative_to(html).as_posix(): page.stat().st_mtime_ns for page in html.glob("[bn]*/*.html") if page.stem != "intro"}


def read(root: Path, page: str) -> str:
    return (root / "_build" / "html" / page).read_text(encoding="utf-8")


def assert_like_a_first_build(root: Path) -> None:
    fresh = root.with_name("fresh")
    shutil.copytree(root, fresh, ignore=shutil.ignore_patterns("_build"))
    built(fresh)
    assert_same_sites(root, fresh)


def assert_same_sites(root: Path, fresh: Path) -> None:
    for folder in (root, fresh):
        (folder / "_build" / "html" / ".buildinfo").unlink(missing_ok=True)  # only Sphinx's own notes
    sites = [folder / "_build" / "html" for folder in (root, fresh)]
    left, right = ({p.relative_to(site).as_posix(): p for p in site.rglob("*") if p.is_file()} for site in sites)
    assert set(left) == set(right)
    assert search_index(left.pop("searchindex.js")) == search_index(right.pop("searchindex.js"))
    assert [name for name in left if left[name].read_bytes() != right[name].read_bytes()] == []


def search_index(path: Path) -> dict:
    """Its titles stand in another order after a second build."""
    return json.loads(path.read_text(encoding="utf-8").removeprefix("Search.setIndex(").removesuffix(")"))


def test_a_first_build_is_not_older_than_what_it_writes(tmp_path):
    """The reference's pages, which are sources of the book: else the tests of a fresh clone would call it stale."""
    root = make_book(tmp_path)
    (root / "book" / "api.md").write_text("# Reference\n\n```{api}\nFormulas: normlab.functional\n```\n")
    (root / "src" / "normlab").mkdir(parents=True)
    (root / "src" / "normlab" / "functional.py").write_text('"""Formulas of norms, for tests of the reference."""\n')
    (root / "constraints.txt").touch()
    edit(root, "_toc.yml", "chapters:\n", "chapters:\n  - file: book/api\n    sections:\n      - glob: book/api/*\n")
    built(root)
    assert (root / "book" / "api" / "functional.md").exists() and not is_stale(root)


LOADED = re.compile(r"\.course_(claims|verdicts|chapters|named|questions|practice)\b")


def test_who_reads_what_was_loaded_says_so():
    """Else its page would stay as it was when a claim or a question changes."""
    found = []
    for path in (ROOT / "book" / "_ext" / "course").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.parse(text).body:
            source = ast.get_source_segment(text, node)
            if isinstance(node, ast.ClassDef) and LOADED.search(source):
                found.append(node.name)
                assert "depends.uses(" in source, f"{path.name}: {node.name}"
    assert len(found) > 5


def test_an_edit_writes_what_it_concerns(book):
    """What a cell found, what it drew, and a sentence of the ledger."""
    before = built(book)
    edit(book, "notebooks/01_small.ipynb", "first: a line", "first: another line")
    edit(book, "notebooks/01_small.ipynb", '"line": "a line"', '"line": "another line"')
    edit(book, "notebooks/01_small.ipynb", "<title>a<", "<title>b<")
    after = built(book)
    assert {page for page in after if after[page] != before[page]} == {"notebooks/01_small.html", "book/claims.html"}
    assert "another line" in read(book, "notebooks/01_small.html") and "another line" in read(book, "book/claims.html")
    edit(book, "book/claims.yml", "Two is two.", "Two is even.")
    edit(book, "book/other.md", "Nothing", "Something")
    last = built(book)
    assert {page for page in last if last[page] != after[page]} == {"book/claims.html", "book/other.html"}
    assert_like_a_first_build(book)


def test_a_chapter_that_moves_or_settles_another_claim_changes_the_pages_that_name_it(book):
    path = book / "notebooks" / "01_small.ipynb"
    text = path.read_text(encoding="utf-8").replace("# Small", "# Large").replace("first", "second")
    (book / "notebooks" / "02_large.ipynb").write_text(text, encoding="utf-8")
    path.unlink()
    for name in ("_toc.yml", "book/intro.md"):
        edit(book, name, "01_small", "02_large")
    after = built(book)
    assert "notebooks/01_small.html" not in after and "Large" in read(book, "book/other.html")
    assert 'href="../notebooks/02_large.html#claim-second"' in read(book, "book/intro.html")
    assert_like_a_first_build(book)


def test_a_link_that_an_edit_elsewhere_kills_is_told_until_it_is_mended(book):
    edit(book, "notebooks/01_small.ipynb", "A place", "Another place")
    for _ in range(2):
        code, said = build(book)
        assert code != 0 and "a-place" in said, said
    edit(book, "book/intro.md", "a-place", "another-place")
    built(book)
    assert "01_small.html#another-place" in read(book, "book/intro.html")


def test_a_build_that_did_not_finish_is_forgotten(book):
    (book / "_build" / ".doctrees" / "finished").unlink()  # a build removes it when it starts
    page = book / "_build" / "html" / "book" / "other.html"
    page.write_text("half")
    (book / "_build" / ".doctrees" / "standalone.sha256").write_text("half")
    built(book)
    assert "Nothing of the rest" in page.read_text(encoding="utf-8")
