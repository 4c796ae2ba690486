"""What a reader does on the pages, in a headless browser with the network blocked, from disk and over http.

Needs a Chromium or Chrome; without one the tests are skipped, except under CI=true, where that fails.
"""

import functools
import http.server
import io
import json
import re
import threading
from urllib.parse import quote

import pytest
from chromium import LAUNCH, until
from course import search
from pages import CHAPTERS, DOCUMENTS, KINDS, NOTEBOOKS, PAGES, one_of_a_kind, parsed, prose
from some import some, third
from visit import DESKTOP, VISIBLE, Visit, visible_text


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def addresses(html):
    """Where the site is: from disk and over http."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=html))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield {"file": html.as_uri(), "http": f"http://127.0.0.1:{server.server_port}"}
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("name", some([*KINDS, "search"], [CHAPTERS[0], "book/interview/quiz", "book/claims"]))
def test_a_first_visit_over_http_is_silent(browser, addresses, name):
    """And a chapter's copy downloads."""
    with Visit(browser) as visit:
        page = visit.open(f"{addresses['http']}/{name}.html")
        page.wait_for_load_state("networkidle")
        if name in NOTEBOOKS:
            with page.expect_download() as download:
                page.locator("a.course-button[download]").click()
            assert download.value.suggested_filename == f"{name.split('/')[-1]}.ipynb"
        assert visit.troubles == []


@pytest.mark.parametrize("scheme", ["file", "http"])
def test_the_front_door_leads_to_the_first_page(browser, addresses, scheme):
    with Visit(browser) as visit:
        visit.page.goto(f"{addresses[scheme]}/index.html")
        visit.page.wait_for_url(f"{addresses[scheme]}/{PAGES[0]}")


def test_theme_button_cycles(browser, addresses):
    with Visit(browser) as visit:
        assert_theme_button_cycles(visit.open(f"{addresses['file']}/{PAGES[0]}"))
        assert visit.troubles == []


def assert_theme_button_cycles(page):
    assert page.evaluate("document.documentElement.dataset.mode") == "auto"
    seen = []
    for _ in range(3):
        page.locator("button.theme-switch-button:visible").click()
        seen.append(page.evaluate("document.documentElement.dataset.mode"))
    assert sorted(seen) == ["auto", "dark", "light"]


@pytest.fixture(scope="module")
def rare_word(html):
    """A word from the middle of a chapter that no other page uses, and the chapter."""
    name, *others = NOTEBOOKS
    others += [page for page in DOCUMENTS if page not in NOTEBOOKS]
    words = re.findall(r"\b[a-z]{8,14}\b", " ".join(p.text for p in parsed(html / f"{name}.html").select("article p")))
    pages = [(html / f"{page}.html").read_text(encoding="utf-8") for page in others]
    taken = {word[:6] for page in pages for word in re.findall(r"[a-z]{6,}", page[page.index("<article") :])}
    rare = [(i, word) for i, word in enumerate(words) if word[:6] not in taken]
    return min(rare, key=lambda found: abs(found[0] - len(words) / 2))[1], name


@pytest.mark.parametrize("scheme", ["file", "http"])
def test_search_finds_a_word_in_the_text(browser, addresses, rare_word, scheme):
    word, name = rare_word
    with Visit(browser) as visit:
        page = visit.open(f"{addresses[scheme]}/search.html?q={quote(word)}")
        hit = page.locator(f"#search-results a[href*='{name}.html']").first
        hit.wait_for(timeout=10_000)
        page.wait_for_load_state("networkidle")
        assert visit.troubles == []
        hit.click()
        page.wait_for_url(f"**/{name}.html*")
        assert word in visible_text(page)
        assert visit.troubles == []


def test_search_dialog_opens_from_the_keyboard(browser, addresses, rare_word):
    with Visit(browser) as visit:
        assert_search_dialog_finds(visit.open(f"{addresses['file']}/{PAGES[0]}"), *rare_word)
        assert visit.troubles == []


def assert_search_dialog_finds(page, word, name):
    page.keyboard.press("Control+k")
    page.locator("dialog input[type=search]").fill(word)
    page.keyboard.press("Enter")
    page.locator(f"#search-results a[href*='{name}.html']").first.wait_for(timeout=10_000)


@pytest.fixture(scope="module")
def hits(browser, addresses):
    """The pages that the search offers for a query."""

    @functools.cache
    def ask(query: str) -> set[str]:
        with Visit(browser) as visit:
            page = visit.open(f"{addresses['file']}/search.html?q={quote(query)}")
            page.locator("#search-results h2:text-is('Search Results')").wait_for(state="attached", timeout=10_000)
            assert visit.troubles == []
            links = page.locator("#search-results a").evaluate_all("links => links.map(link => link.href)")
            return {link.removeprefix(f"{addresses['file']}/").split(".html")[0] for link in links}

    return ask


# What a reader types, and how the book may write it.
NUMBERS = {"65504": "65,?504", "65,504": "65,?504", "2048": "2,?048", "64": "64", "0.02": r"0\.02", "1e-5": "1e-5"}
NUMBERS = {query: rf"(?<![\w.,]){written}(?!\w|[.,]\d)" for query, written in NUMBERS.items()}
SYMBOLS = {"√ℓ": r"√ℓ|\\sqrt *\{?\\ell\b", "ε": r"ε(?!\w)|\\varepsilon\b", "√(2L)": r"√\(2L\)|\\sqrt\{2L\}"}


@pytest.mark.parametrize("query", third([*NUMBERS, *SYMBOLS]))
def test_search_finds_numbers_and_symbols(hits, html, query):
    """On every page whose prose has it, and on none that does not show it."""
    written, found = (NUMBERS | SYMBOLS)[query], hits(query)
    assert {name for name in DOCUMENTS if re.search(written, prose(name))} <= found
    assert found
    if query in NUMBERS:
        assert [name for name in found if not re.search(written, parsed(html / f"{name}.html").article.text)] == []


def test_queries_are_cut_as_the_index_is(browser, addresses):
    """Two languages, the same rules: compared on all texts of the book."""
    texts = [prose(name).replace("\\", " ") for name in DOCUMENTS]
    with Visit(browser) as visit:
        page = visit.open(f"{addresses['file']}/search.html")
        assert page.evaluate("texts => texts.map(splitQuery)", texts) == [search.words(text) for text in texts]


@pytest.mark.parametrize("name", one_of_a_kind(CHAPTERS))
def test_search_finds_a_number_in_a_table(hits, html, name):
    texts = [cell.text for cell in parsed(html / f"{name}.html").select("article .cell_output td + td")]
    assert name in hits(next(found[0] for text in texts if (found := re.search(r"\d+\.\d+", text))))


@pytest.fixture
def without_site_data(browser, tmp_path):
    """A browser whose user has blocked site data: to look at localStorage is an error."""
    settings = {"profile": {"default_content_setting_values": {"cookies": 2}}}
    (tmp_path / "Default").mkdir()
    (tmp_path / "Default" / "Preferences").write_text(json.dumps(settings))
    context = browser.browser_type.launch_persistent_context(
        tmp_path, viewport=DESKTOP, color_scheme="light", **LAUNCH
    )
    yield context
    context.close()


def answer_of_storage(visit, address) -> str:
    """What a page without our scripts gets when it stores something."""
    page = visit.context.new_page()
    page.goto(f"{address}/_static/favicon.svg")
    answer = page.evaluate("() => { try { localStorage.setItem('a', 'b') } catch (problem) { return problem.name } }")
    page.close()
    return answer


@pytest.mark.parametrize("scheme", ["file", "http"])
def test_pages_work_without_site_data(browser, addresses, without_site_data, rare_word, scheme):
    with Visit(browser, without_site_data) as visit:
        assert answer_of_storage(visit, addresses[scheme]) == "SecurityError"
        assert_page_works(visit, addresses[scheme], rare_word)


def test_pages_work_with_a_full_storage(browser, addresses, rare_word):
    with Visit(browser) as visit:
        problem = "new DOMException('no room', 'QuotaExceededError')"
        visit.context.add_init_script(f"Storage.prototype.setItem = () => {{ throw {problem} }}")
        assert answer_of_storage(visit, addresses["file"]) == "QuotaExceededError"
        assert_page_works(visit, addresses["file"], rare_word)


def assert_page_works(visit, address, rare_word):
    """Theme button, search from the keyboard, the page that it finds, the menu of a phone."""
    word, name = rare_word
    page = visit.open(f"{address}/{PAGES[0]}")
    assert_theme_button_cycles(page)
    assert_search_dialog_finds(page, word, name)
    page.locator(f"#search-results a[href*='{name}.html']").first.click()
    page.wait_for_url(f"**/{name}.html*")
    page.set_viewport_size({"width": 375, "height": 800})
    entry = f"[id^=pst-primary-sidebar] a[href$='{PAGES[1].split('/')[-1]}']"
    seen = f"document.querySelector(`{entry}`).getBoundingClientRect().left >= 0"
    assert not page.evaluate(seen)
    page.locator("button.primary-toggle:visible").click()
    until(page, seen)
    assert visit.troubles == []


def test_a_claim_leads_from_the_ledger_to_its_cell_and_back(browser, addresses):
    with Visit(browser) as visit:
        page = visit.open(f"{addresses['file']}/book/claims.html")
        link = page.locator(".claim-result a").first
        if link.count() == 0:
            pytest.skip("no claim is settled yet")
        link.click()
        line = page.locator(".claim-line:target")
        line.wait_for()
        line.locator("a.claim-id").click()
        page.locator(".claim-card:target").wait_for()


@pytest.fixture
def ledger(browser, addresses):
    with Visit(browser) as visit:
        yield visit.open(f"{addresses['file']}/book/claims.html")
        assert visit.troubles == []


def shown(page) -> list[str]:
    """The cards that a reader sees, and that the page counts; no heading stands over nothing."""
    cards = page.locator(".claim-card").evaluate_all(VISIBLE)
    count = page.locator(".claim-card").count()
    assert page.locator(".claim-filter output").text_content() == f"{len(cards)} of {count} claims"
    headings = page.locator(".claim-group > h2").evaluate_all(VISIBLE)
    filled = "all => all.filter(group => group.querySelector('.claim-card:not([hidden])')).length"
    assert len(headings) == page.locator(".claim-group").evaluate_all(filled)
    return cards


def of_class(page, *names) -> list[str]:
    return page.locator(".claim-card" + "".join(f".{name}" for name in names)).evaluate_all("all => all.map(c => c.id)")


def test_the_ledger_filters_by_verdict_from_the_keyboard(ledger):
    values = ledger.locator("input[name=verdict]").evaluate_all("all => all.map(one => one.value)")
    assert len(values) == 7 and shown(ledger) == of_class(ledger)
    ledger.locator("input[name=verdict]").first.focus()
    for value in values[1:]:
        ledger.keyboard.press("ArrowRight")
        assert shown(ledger) == of_class(ledger, value)


@pytest.mark.parametrize("name", ["chapter", "kind"])
def test_the_ledger_filters_by_chapter_and_kind(ledger, name):
    values = ledger.locator(f"select[name={name}] option").evaluate_all("all => all.map(one => one.value)")
    assert len(values) > 4
    for value in values[1:]:
        ledger.locator(f"select[name={name}]").select_option(value)
        assert shown(ledger) == of_class(ledger, value) != []


def test_filters_of_the_ledger_work_together_and_are_undone(ledger):
    everything = shown(ledger)
    ledger.get_by_label("Words").press_sequentially("WARM-UP  steps")
    text_of = "all => all.map(card => [card.id, card.textContent.toLowerCase()])"
    texts = ledger.locator(".claim-card").evaluate_all(text_of)
    by_word = [name for name, text in texts if "warm-up" in text and "steps" in text]
    assert shown(ledger) == by_word and 0 < len(by_word) < len(everything)
    ledger.locator("select[name=kind]").select_option("kind-historical")
    both = shown(ledger)
    assert both == [name for name in by_word if name in of_class(ledger, "kind-historical")] and both
    ledger.get_by_label("Words").fill("no such word")
    assert shown(ledger) == []
    ledger.get_by_role("button", name="Show all").press("Enter")
    until(ledger, "document.querySelector('.claim-card').checkVisibility()")
    assert shown(ledger) == everything


OUTCOME = ".claim-card :is(.verdict, .claim-only-if, .claim-result, .claim-note, abbr)"


def test_the_ledger_covers_what_came_out_until_it_is_asked(ledger):
    outcome = ledger.locator(OUTCOME)
    assert len(outcome.evaluate_all(VISIBLE)) == outcome.count() > 0
    colors = "all => [...new Set(all.map(card => getComputedStyle(card).borderLeftColor))].length"
    ledger.get_by_role("button", name="Cover the verdicts").press("Enter")
    assert outcome.evaluate_all(VISIBLE) == []
    assert ledger.locator(".claim-card").evaluate_all(colors) == 1
    sentences = ledger.locator(".claim-card .claim-sentence")
    assert len(sentences.evaluate_all(VISIBLE)) == sentences.count()
    for number, ask in ((0, lambda button: button.click()), (1, lambda button: button.press("Space"))):
        card = ledger.locator(".claim-card").nth(number)
        button = card.get_by_role("button")
        assert button.get_attribute("aria-expanded") == "false"
        ask(button)
        assert button.get_attribute("aria-expanded") == "true"
        own = ledger.locator(f"[id='{card.get_attribute('id')}'] {OUTCOME.removeprefix('.claim-card ')}")
        assert len(own.evaluate_all(VISIBLE)) == own.count() == len(outcome.evaluate_all(VISIBLE))
        button.press("Enter")  # and covers it again
        assert outcome.evaluate_all(VISIBLE) == []
    ledger.get_by_role("button", name="Uncover the verdicts").click()
    assert len(outcome.evaluate_all(VISIBLE)) == outcome.count()
    assert ledger.locator(".claim-reveal").count() == 0


def test_the_ledger_remembers_nothing(ledger):
    everything = shown(ledger)
    ledger.get_by_label("Words").fill("warm-up")
    ledger.get_by_role("button", name="Cover the verdicts").click()
    assert shown(ledger) != everything
    for again in (lambda: ledger.reload(), lambda: (ledger.goto("about:blank"), ledger.go_back())):
        again()
        until(ledger, "document.querySelector('.claim-filter output').textContent")
        assert shown(ledger) == everything
        assert ledger.locator(".is-covered").count() == 0 and ledger.get_by_label("Words").input_value() == ""
        assert ledger.evaluate("Object.keys(localStorage).filter(key => /claim|course/.test(key))") == []


def test_without_scripts_the_ledger_is_the_whole_list(browser, addresses):
    with Visit(browser, java_script_enabled=False) as visit:
        page = visit.open(f"{addresses['file']}/book/claims.html")
        assert not page.locator(".claim-filter").is_visible()
        for part in (".claim-card", ".claim-card .verdict", ".claim-card .claim-result"):
            parts = page.locator(part)
            assert parts.count() > 20 and all(parts.nth(i).is_visible() for i in range(parts.count()))


def test_the_ledger_works_without_site_data(without_site_data, addresses):
    with Visit(None, without_site_data) as visit:
        page = visit.open(f"{addresses['file']}/book/claims.html")
        page.locator("select[name=kind]").select_option("kind-opinion")
        assert shown(page) == of_class(page, "kind-opinion")
        page.get_by_role("button", name="Cover the verdicts").click()
        assert page.locator(OUTCOME).evaluate_all(VISIBLE) == []
        assert visit.troubles == []


# The size of a letter on the screen, the room left beside each name, the contrast of name and box.
PICTURE = """() => [...document.querySelectorAll(".house g")].map(group => {
    const [text, box] = [group.querySelector("text"), group.querySelector("rect")];
    const light = element => getComputedStyle(element).fill.match(/[\\d.]+/g).slice(0, 3).map(Number)
        .map(part => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
        .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0.05);
    const [one, other] = [light(text), light(box)];
    return {
        letter: parseFloat(getComputedStyle(text).fontSize) * group.getScreenCTM().a,
        room: box.getBBox().width - text.getBBox().width,
        contrast: Math.max(one, other) / Math.min(one, other),
    };
})"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1280])
def test_the_picture_of_the_package_is_legible(browser, addresses, width, scheme):
    with Visit(browser, viewport={"width": width, "height": 800}, color_scheme=scheme) as visit:
        page = visit.open(f"{addresses['file']}/book/package.html")
        names = page.evaluate(PICTURE)
        assert len(names) > 20
        for name in names:
            assert name["letter"] >= 11 and name["room"] >= 4 and name["contrast"] >= 4.5, name


def test_a_slim_figure_shows_what_matplotlib_drew(browser):
    """Both files drawn by the browser; they may differ by a shade along edges."""
    pyplot, image, numpy = (pytest.importorskip(name) for name in ("matplotlib.pyplot", "matplotlib.image", "numpy"))
    from normlab.page import figures

    with pyplot.rc_context(figures.STYLE):
        fig, (left, right) = pyplot.subplots(1, 2, figsize=(6.4, 3), layout="constrained")
        left.semilogy([1, 2, 3], [0.01, 0.5, 7], "o--", label="−1.5 × Öl")
        left.set(title="Σ and σ: √(2L)", xlabel="a value, with (signs) & “quotes”")
        left.legend()
        right.fill_between([0, 1, 2], [0, 1, 0], [1, 2, 3], alpha=0.3)
        right.text(0.5, 0.5, "-1 ✗ 0.5", rotation=30)
        file = io.StringIO()
        fig.savefig(file, format="svg")
        svgs = file.getvalue(), figures.slim_svg(fig)
        pyplot.close(fig)
    page, pictures = browser.new_page(viewport={"width": 640, "height": 320}), []
    for svg in svgs:
        page.set_content(svg[svg.index("<svg") :])
        pictures.append(image.imread(io.BytesIO(page.screenshot())))
    page.close()
    before, after = pictures
    difference = numpy.abs(before - after)
    assert numpy.std(before) > 0.01 and difference.mean() < 1e-3
    assert (difference.max(-1) > 0.3).mean() < 1e-3
