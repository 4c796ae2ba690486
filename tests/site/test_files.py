"""The built pages as files: links, anchors, alt texts, headings, downloads."""

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from bs4 import BeautifulSoup
from pages import CHAPTERS, DOCUMENTS, NOTEBOOKS, alt_texts, identifiers, is_stale, notebook, parsed, stray_dollars


def test_a_change_of_any_source_makes_the_book_stale(tmp_path):
    sources = ["_config.yml", "_toc.yml", "constraints.txt"]
    sources += ["book/_ext/course/a.py", "notebooks/a.ipynb", "src/normlab/records/a.json", "tools/a.py"]
    others = ["tests/test_a.py", "src/normlab/__pycache__/a.pyc", "src/normlab.egg-info/PKG-INFO"]
    built = ["_build/.doctrees/finished"]
    for name in sources + others + built:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (0, 1000 + 1000 * (name in built)))
    for name in sources + others:
        os.utime(tmp_path / name, (0, 3000))
        assert is_stale(tmp_path) == (name in sources), name
        os.utime(tmp_path / name, (0, 1000))


def pages(html: Path) -> list[Path]:
    return [page for page in html.rglob("*.html") if "_static" not in page.parts]  # the theme's templates


def article(html: Path, name: str):
    return parsed(html / f"{name}.html").find("article")


def test_every_link_and_anchor_resolves(html):
    dead = []
    for page in pages(html):
        for tag in parsed(page).find_all(["a", "link", "script", "img", "source"]):
            address = urlsplit(tag.get("href") or tag.get("src") or tag.get("srcset") or "")
            if address.scheme or address.netloc or not (address.path or address.fragment):
                continue
            target = (page.parent / unquote(address.path)).resolve() if address.path else page
            where = f"{page.relative_to(html)}: {tag.get('href') or tag.get('src') or tag.get('srcset')}"
            if not target.is_file():
                dead.append(where)
            elif address.fragment and target.suffix == ".html":
                if unquote(address.fragment) not in identifiers(target):
                    dead.append(where)
    assert not dead


def test_nothing_is_loaded_from_another_host(html):
    """Links may lead away; what a page loads may not."""
    for page in pages(html):
        for tag in parsed(page).find_all(["link", "script", "img", "source", "iframe", "video"]):
            address = urlsplit(tag.get("href") or tag.get("src") or tag.get("srcset") or "")
            assert address.netloc == "" or tag.get("rel") == ["canonical"], f"{page}: {tag}"
    for sheet in html.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def test_no_page_names_a_strangers_repository(html):
    for page in pages(html):
        assert "executablebooks" not in page.read_text(encoding="utf-8"), page


def test_no_source_maps_and_no_unused_icon_fonts(html):
    assert not list(html.rglob("*.map"))
    assert not list(html.rglob("fa-*.*"))
    assert not [p for p in html.rglob("*.woff2") if p.stat().st_size > 60_000]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_image_has_an_alt_text(html, name):
    for image in article(html, name).find_all("img"):
        alt, file = image.get("alt", ""), Path(image["src"])
        assert len(alt.split()) >= 5, f"{file.name}: {alt!r}"
        assert file.name not in alt and file.stem not in alt


@pytest.mark.parametrize("name", CHAPTERS)
def test_alt_texts_are_those_of_the_notebook(html, name):
    shown = [image["alt"] for image in article(html, name).select("div.cell_output img")]
    assert shown == alt_texts(name)
    assert shown, "a chapter without a figure"


def test_no_page_shows_a_dollar_sign(html):
    """What the build cannot see: the tables and claims that cells show, titles in the margin."""
    assert {page.name: found for page in pages(html) if (found := stray_dollars(parsed(page)))} == {}


def test_stray_dollars_are_found():
    shown = "<p>$x$</p> <table><td>$ 5</td></table> <img alt='from $y$'>"
    hidden = "<code>$x$</code> <pre>$x$</pre> <script>$(x)</script> <span class='katex'><i>$</i></span>"
    page = BeautifulSoup(f"<head><title>$</title></head><body>{shown} {hidden}</body>", "html.parser")
    assert stray_dollars(page) == ["$x$", "$ 5", "from $y$"]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_headings_do_not_jump(html, name):
    levels = [int(tag.name[1]) for tag in article(html, name).find_all(re.compile("^h[1-6]$"))]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(below - above <= 1 for above, below in zip(levels, levels[1:])), levels


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_page_offers_its_standalone_copy(html, name):
    page = html / f"{name}.html"
    [link] = [a for a in parsed(page).select("a.course-button") if a.has_attr("download")]
    copy = (page.parent / link["href"]).resolve()
    assert copy == html / "standalone" / f"{Path(name).name}.ipynb"
    nbformat.validate(nbformat.read(copy, as_version=4))
    code = [cell for cell in notebook(name)["cells"] if cell["cell_type"] == "code"]
    assert len([c for c in nbformat.read(copy, as_version=4).cells if c.cell_type == "code"]) == len(code)


@pytest.mark.parametrize("name", sorted(set(DOCUMENTS) - set(NOTEBOOKS)))
def test_a_prose_page_offers_no_download(html, name):
    assert not [a for a in parsed(html / f"{name}.html").select("a.course-button") if a.has_attr("download")]
