"""The page that offers sheet and deck, and the files behind its links."""

import re
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from course import takeaway
from pages import ROOT, parsed
from small_book import build, make_book

PAGE = "book/interview/takeaway.html"


@pytest.mark.parametrize("name", takeaway.FILES.values())
def test_the_page_links_to_the_files_with_their_sizes(html, name):
    (link,) = [a for a in parsed(html / PAGE).select("article a") if a.get("download") == name]
    path = (html / PAGE).parent / link["href"]
    assert path.resolve() == html / takeaway.FOLDER / name
    assert f", {path.stat().st_size // 1000} kB" in link.parent.get_text()
    assert path.stat().st_size < 300_000


def test_the_files_are_a_document_and_a_deck(html):
    assert (html / takeaway.FOLDER / takeaway.FILES["sheet"]).read_bytes().startswith(b"%PDF-")
    with zipfile.ZipFile(html / takeaway.FOLDER / takeaway.FILES["deck"]) as deck:
        assert "collection.anki2" in deck.namelist()


@pytest.fixture
def served(html):
    """The site's address on this machine: from a file a browser shows a document instead of saving it."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(html))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_download_works_in_the_browser(browser, html, served):
    context = browser.new_context(viewport={"width": 375, "height": 800})
    page = context.new_page()
    page.goto(f"{served}/{PAGE}")
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    for name in takeaway.FILES.values():
        with page.expect_download() as started:
            page.locator(f"article a[download='{name}']").click()
        assert started.value.suggested_filename == name
        assert started.value.path().read_bytes() == (html / takeaway.FOLDER / name).read_bytes()
    context.close()


def test_a_fault_in_the_sheet_fails_the_build(tmp_path):
    make_book(tmp_path)
    (tmp_path / "book" / "interview").mkdir()
    (tmp_path / "book" / "interview" / "sheet.typ").write_text("Text")
    (tmp_path / "tools" / "sheet.py").write_text("def write(root, path):\n    raise ValueError('sheet.typ: too long')\n")
    (tmp_path / "tools" / "deck.py").write_text("def write(root, path):\n    pass\n\n\ndef _date(root):\n    return 0\n")
    code, said = build(tmp_path)
    assert code != 0 and "sheet.typ: too long" in said


def test_a_book_without_a_sheet_has_none(tmp_path):
    make_book(tmp_path)
    code, said = build(tmp_path)
    assert code == 0, said
    assert not (tmp_path / "_build" / "html" / takeaway.FOLDER).exists()


def test_make_writes_the_same_files_alone():
    commands = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name, tool in (("sheet", "tools/sheet.py"), ("deck", "tools/deck.py")):
        assert re.search(rf"^{name}:.*\n\t@\$\(PY\) {tool} _build/{re.escape(takeaway.FILES[name])}$", commands, re.MULTILINE)
