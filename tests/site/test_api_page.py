"""The package's reference, against the package itself."""

import importlib
import inspect

import pytest
from course import api
from pages import MODULES, ROOT, identifiers, parsed

PAGES = {page.module: page for page in api.pages(ROOT)}


def public(module) -> set[str]:
    """Functions and classes of the package that the module offers and documents."""
    names = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
    return {
        name
        for name in names
        if (inspect.isfunction(thing := getattr(module, name)) or inspect.isclass(thing))
        and (thing.__module__ == module.__name__ or hasattr(module, "__all__"))
        and thing.__module__.startswith("normlab")
        and thing.__name__ == name  # not an alias
        and vars(thing).get("__doc__", thing.__doc__)
    }


@pytest.mark.parametrize("name", PAGES)
def test_every_public_name_has_an_entry(name, html):
    page = parsed(html / f"{PAGES[name].docname}.html")
    shown = {tag["id"].removeprefix(f"{name}.") for tag in page.select("dt.sig[id]")}
    assert public(importlib.import_module(name)) <= shown


def test_references_between_docstrings_are_links(html):
    page = parsed(html / "book" / "api" / "norms.html")
    assert page.select('a.reference.internal[href="functional.html#normlab.functional.layer_norm"]')


def test_the_index_says_a_sentence_about_every_module(html):
    entries = parsed(html / "book" / "api.html").select("article .api-index li")
    links = [entry.a["href"] for entry in entries]
    assert links == [f"api/{page.name}.html" for page in PAGES.values()]
    assert [entry.text for entry in entries if len(entry.text.split()) < 6] == []


def test_the_pages_follow_the_index(html):
    """In the sidebar, and from one to the next."""
    sidebar = parsed(html / "book" / "api.html").select(".bd-sidebar-primary a[href^='api/']")
    assert [link["href"] for link in sidebar] == [f"api/{page.name}.html" for page in PAGES.values()]
    for name, following in zip(["book/api", *MODULES], MODULES):
        link = parsed(html / f"{name}.html").select_one(".prev-next-area a.right-next")
        assert link["href"].split("/")[-1] == f"{following.split('/')[-1]}.html"


def test_a_page_is_short(html):
    """One page had them all: half a megabyte, 84 screens."""
    sizes = {page.name: (html / f"{page.docname}.html").stat().st_size for page in PAGES.values()}
    assert {name: size for name, size in sizes.items() if size > 120_000} == {}


def test_pages_are_written_once_and_go_with_their_module(tmp_path):
    """A page that is up to date is left alone: a build must not make itself stale."""
    index = tmp_path / "book" / "api.md"
    index.parent.mkdir()
    index.write_text("# P\n\n```{api}\nOne: normlab.one\nTwo: normlab.a.two\n```\n")

    class App:
        srcdir = tmp_path

    def write():
        api._write_pages(App, None)
        return {path.name: path.stat().st_mtime_ns for path in (tmp_path / "book" / "api").iterdir()}

    first = write()
    assert set(first) == {"one.md", "a.two.md"} and write() == first
    index.write_text("# P\n\n```{api}\nOne: normlab.one\n```\n")
    assert write() == {"one.md": first["one.md"]}


def test_identifiers_of_entries_stand_on_one_page_only(html):
    """Else an old address could lead to either."""
    seen = [name for page in MODULES for name in identifiers(html / f"{page}.html") if name.startswith("normlab.")]
    assert len(seen) == len(set(seen)) > 400
