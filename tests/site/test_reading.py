"""Finding the way: search, previous and next, the keyboard, and what a page says to those who do not see it."""

import json
import re
from functools import cache

import pytest
import yaml
from bs4 import BeautifulSoup
from course import access, search
from pages import CHAPTERS, DOCUMENTS, MODULES, ROOT, alt_texts, parsed
from some import third

CLAIMS = [claim["id"] for claim in yaml.safe_load((ROOT / "book" / "claims.yml").read_text(encoding="utf-8"))]
CHINESE = re.compile("[\u3400-\u9fff]")


# --- search ---------------------------------------------------------------------------------------


@cache
def index(path) -> dict:
    return json.loads(re.fullmatch(r"Search\.setIndex\((.*)\)\s*", path.read_text(encoding="utf-8"), re.DOTALL)[1])


def found(html, query: str) -> set[str]:
    """The pages with every word of a query in their text or a title: as `searchtools.js` looks them up."""
    language, stored = search.SearchCourse({}), index(html / "searchindex.js")
    pages = set(stored["docnames"])
    for word in search.words(query):
        if word.lower() in language.stopwords:
            continue
        stem, hits = language.stem(word.lower()), set()
        for part in ("terms", "titleterms"):
            numbers = stored[part].get(stem, [])
            hits.update(numbers if isinstance(numbers, list) else [numbers])
        pages &= {stored["docnames"][number] for number in hits}
    return pages


def test_search_finds_every_claim(html):
    assert len(CLAIMS) > 200
    assert [name for name in CLAIMS if "book/claims" not in found(html, name)] == []


def test_search_finds_every_term_of_the_glossary(html):
    terms = [term.get_text().rstrip("#") for term in parsed(html / "book/glossary.html").select("dl.glossary > dt")]
    assert len(terms) > 80
    assert [term for term in terms if "book/glossary" not in found(html, term)] == []


def test_search_finds_every_model(html):
    ledger = pytest.importorskip("normlab.ledger")
    assert [name for name in ledger.PRESETS if "book/interview/calculator" not in found(html, name)] == []


def test_search_finds_every_model_type_of_the_census(html):
    (table,) = parsed(html / "notebooks/09_census.html").select("table.is-searchable")
    names = [row.th.text for row in table.select("tbody tr")]
    names += [copy for row in table.select("tbody tr") for copy in row.select("td")[-1].text.split(", ") if copy != "–"]
    assert len(names) > 180
    assert [name for name in names if "notebooks/09_census" not in found(html, name)] == []


def test_search_finds_functions_on_the_page_of_their_module(html):
    entries = [(tag["id"].split(".")[-1], name) for name in MODULES for tag in _entries(html, name)]
    assert len(entries) > 200
    assert [entry for entry in entries if entry[1] not in found(html, entry[0])] == []


def _entries(html, name):
    return parsed(html / f"{name}.html").select("dl.py.function > dt.sig[id], dl.py.class > dt.sig[id]")


def test_the_browser_finds_the_same(html, browser):
    page = browser.new_page()
    for query, name in [("post-norms-shut", "book/claims"), ("rms_norm", "book/api/functional")]:
        page.goto(f"{html.as_uri()}/search.html?q={query}")
        page.locator(f"#search-results a[href*='{name}.html']").first.wait_for(timeout=10_000)
        assert name in found(html, query)
    page.close()


# --- from page to page ----------------------------------------------------------------------------


def test_previous_and_next_lead_through_the_whole_book(html):
    order = DOCUMENTS.copy()
    place = order.index("book/api") + 1
    order[place:place] = MODULES
    for before, name, after in zip([None, *order], order, [*order[1:], None]):
        page = (html / f"{name}.html").read_text(encoding="utf-8")
        area = BeautifulSoup(page[page.index('<div class="prev-next-area">') :][:3000], "html.parser")
        for side, there in (("left-prev", before), ("right-next", after)):
            link = area.select_one(f"a.{side}")
            target = link and ((html / f"{name}.html").parent / link["href"]).resolve()
            assert target == (there and html.resolve() / f"{there}.html"), (name, side)


# --- what is said ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHAPTERS)
def test_an_alt_text_says_numbers(name):
    assert [text for text in alt_texts(name) if not re.search(r"\d", text)] == []


def test_chinese_is_marked_as_such(html):
    """A screen reader changes its voice, a browser its font."""
    pages = [name for name in DOCUMENTS if CHINESE.search((html / f"{name}.html").read_text(encoding="utf-8"))]
    assert len(pages) >= 3
    for name in pages:
        for text in parsed(html / f"{name}.html").article.find_all(string=CHINESE):
            assert text.find_parent(attrs={"lang": "zh-Hans"}) or text.find_parent("script"), f"{name}: {text}"


def test_only_chinese_is_marked():
    page = "<p>和</p><article><p title='和'>What 什么（区别）? <b lang=\"zh-Hans\">和</b></p><script>'<p>和</p>'</script></article>"
    marked = page.replace("什么（区别）", '<span lang="zh-Hans">什么（区别）</span>')
    assert access.mended(page) == marked == access.mended(marked)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_table_has_headers_with_a_scope(html, name):
    for table in parsed(html / f"{name}.html").article.select("table"):
        headers = table.select("th")
        assert headers and all(header.get("scope") in ("col", "row", "colgroup") for header in headers), str(table)[:300]


# --- the keyboard ---------------------------------------------------------------------------------

FOCUSED = """() => {
    const box = document.activeElement, place = box.getBoundingClientRect();
    const drawn = [box, box.nextElementSibling ?? box].some(part => getComputedStyle(part).outlineStyle !== "none");
    if (!box.dataset.stop) box.dataset.stop = String(document.querySelectorAll("[data-stop]").length + 1);
    return {
        inside: Boolean(box.closest("article")), name: box.outerHTML.slice(0, 120), drawn,
        seen: place.width > 0 && place.bottom > 0 && place.top < innerHeight,
    };
}"""
# A group of radio buttons is one stop, and its arrows lead on.
MISSED = """() => [...document.querySelectorAll("article :is(input, select, button, summary)")].filter(box =>
    box.checkVisibility({visibilityProperty: true}) && !box.disabled && !box.dataset.stop && !(box.type === "radio" &&
    document.querySelector(`input[name="${box.name}"][data-stop]`))).map(box => box.outerHTML.slice(0, 160))"""
WIDGETS = ["claims", "interview/mock", "interview/calculator", "interview/monday", "interview/must"]


@pytest.mark.parametrize("name", third([*(f"book/{name}" for name in WIDGETS), "notebooks/drills/week_1", CHAPTERS[2]]))
def test_the_keyboard_reaches_everything_and_shows_where_it_is(browser, html, name):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((html / f"{name}.html").as_uri(), wait_until="load")
    page.locator("article h1").click()
    page.evaluate("document.querySelectorAll('article .claim-card ~ .claim-card, article .question ~ .question')"
                  ".forEach(box => box.remove())")  # fmt: skip
    stops = []
    while len(stops) < 400:
        page.keyboard.press("Tab")
        stops.append(page.evaluate(FOCUSED))
        if not stops[-1]["inside"] and any(stop["inside"] for stop in stops):
            break
    assert page.evaluate(MISSED) == []
    assert [stop["name"] for stop in stops if not stop["drawn"] or not stop["seen"]] == []
    page.close()
