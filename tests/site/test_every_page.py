"""Every kind of page in a browser, opened from the disk: its weight, its text, its colors, on a phone, on paper, by axe's rules.

All on one opened page: to open one takes longer than to look at it. `make test` looks at three chapters and a week of
drills, `make test-all` at all of them.
"""

import gzip
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from chromium import until
from pages import CHAPTERS, KINDS, NOTEBOOKS, alt_texts, one_of_a_kind, prose
from visit import DESKTOP, VISIBLE, Visit, background, visible_text

COMPRESSED = (".woff2", ".png", ".jpg")  # gain nothing from gzip
# All that may be left of unrendered text: a formula, a command, a role.
RAW = re.compile(r"\$[^$\n]+\$|\\(?:frac|sqrt|sum|mathrm|operatorname|text|begin)\b|\{(?:term|cite|claim|eq|ref)\b")


@pytest.mark.parametrize("name", [*one_of_a_kind(KINDS), "search"])
def test_page_reads_well(browser, html, axe, name):
    with Visit(browser) as visit:
        page = visit.open((html / f"{name}.html").as_uri())
        assert_not_heavy(visit, name)
        boxes = page.locator("input[type=search]")
        assert sum(boxes.nth(i).is_visible() for i in range(boxes.count())) <= (2 if name == "search" else 1)
        if name != "search":
            assert_text_is_rendered(page, name)
        assert_dark_mode_is_dark(page)
        if name != "search":
            assert_a_dark_page_is_printed_dark_on_white_and_unfolded(page)
        assert_it_fits_a_phone(page, name)
        if name in NOTEBOOKS:
            assert_folded_cells_open_with_the_keyboard(page)
            page.evaluate("document.querySelectorAll('article details').forEach(box => box.open = true)")
            assert_it_fits_a_phone(page, name)
        assert visit.troubles == []
        assert_axe_finds_nothing(page, axe)


# --- weight and text ------------------------------------------------------------------------------


def assert_not_heavy(visit, name):
    """All files that were read, raw and as a server with gzip would send them."""
    bodies = {path: Path(path).read_bytes() for path in {unquote(urlsplit(r.url).path) for r in visit.responses}}
    raw = sum(map(len, bodies.values()))
    gzipped = sum(len(body if path.endswith(COMPRESSED) else gzip.compress(body)) for path, body in bodies.items())
    print(f"{name}: {raw / 1000:.0f} KB, gzipped {gzipped / 1000:.0f} KB")
    many = name in NOTEBOOKS and len(alt_texts(name)) > 8
    assert len(bodies) > 20 and raw <= (1_800_000 if many else 1_500_000) and gzipped <= (600_000 if many else 500_000)


def assert_text_is_rendered(page, name):
    assert RAW.findall(visible_text(page)) == []
    assert page.locator(".katex-error, .problematic, .system-message").count() == 0
    assert page.locator("script[src*=katex], script[src*=mathjax]").count() == 0
    formulas = page.locator("article .math").count()
    assert formulas == page.locator("article .math:has(.katex .katex-html)").count()
    if re.search(r"\$[^$]+\$", prose(name)):
        assert formulas > 0
        assert page.evaluate("document.fonts.check('1em KaTeX_Main')")


# --- on a phone -----------------------------------------------------------------------------------

# What annoys on a phone, by kind. A button that shows itself under the mouse only is no target there.
ANNOYS = """() => {
    const seen = box => box.checkVisibility({visibilityProperty: true, opacityProperty: true}) && box.offsetParent;
    const all = selector => [...document.querySelectorAll(selector)].filter(seen);
    const style = box => getComputedStyle(box), place = box => box.getBoundingClientRect();
    const wide = box => box.scrollWidth > box.clientWidth + 1;
    const twice = card => {
        const texts = [...card.querySelectorAll("button, summary")].filter(seen).map(box => box.textContent.trim());
        return texts.some((text, i) => text && texts.indexOf(text) < i);
    };
    const letters = [], texts = document.createTreeWalker(document.querySelector("article"), NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const box = texts.currentNode.parentElement;
        if (texts.currentNode.data.trim() && box.checkVisibility() && !box.closest(".katex, svg, sup, sub, script, style"))
            if (parseFloat(style(box).fontSize) < 10.9) letters.push(box);
    }
    const first = box => {
        const range = document.createRange();
        range.selectNodeContents(box);
        return [...range.getClientRects()].find(line => line.width).left;
    };
    const found = {
        "formula wider than the page": all("article .katex-display").filter(wide),
        "scrolls without a shade": all("article *:not(.katex *)").filter(box => /auto|scroll/.test(style(box).overflowX)
            && wide(box) && !style(box).backgroundImage.includes("gradient")),
        "printed sentence that scrolls": all("article .cell_output pre").filter(box => wide(box)
            && !/\\S {2,}\\S|^(def|class|@)/m.test(box.textContent)),
        "cut": all("article *:not(.math, .math *)").filter(box => /hidden|clip/.test(style(box).overflowX) && wide(box)
            && box.clientWidth > 1),
        "caption out of view": all("article caption").filter(box => place(box).left < 0 || place(box).right > innerWidth),
        "small to tap": all(`article :is(button, summary, select, label:has(input), input):not(label input),
            .bd-header-article :is(a, button), .prev-next-area a`)
            .filter(box => Math.min(place(box).width, place(box).height) < 32),
        "field that a phone zooms in on": all("article :is(select, input[type=text], input[type=search])")
            .filter(box => parseFloat(style(box).fontSize) < 16),
        "the same words on two buttons": all("article :is(.practice-card, .question, .claim-card, .claim-line, .mock, form)").filter(twice),
        "code word that breaks from its period": all("article code.literal").filter(box => style(box).display !== "inline"),
        "first line does not hang": all("article div.citation").filter(box => first(box) > place(box).left + 1),
        "letters below 11 px": letters,
    };
    const short = boxes => boxes.slice(0, 5).map(box => box.outerHTML.slice(0, 160));
    return Object.fromEntries(Object.entries(found).filter(([, boxes]) => boxes.length).map(([k, b]) => [k, short(b)]));
}"""


def assert_it_fits_a_phone(page, name):
    for width in (320, 375):
        page.set_viewport_size({"width": width, "height": 812})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    if name != "search":
        assert page.evaluate(ANNOYS) == {}
    page.set_viewport_size(DESKTOP)


def test_what_annoys_is_seen(browser):
    """A page with one fault of each kind."""
    page = browser.new_page(viewport={"width": 375, "height": 812})
    page.set_content(f"""<article><style>body {{ margin: 0 }} button {{ height: 40px; width: 80px }}</style>
        <div class="katex-display" style="overflow: auto"><div style="width: 400px">f</div></div>
        <table style="width: 500px"><caption>c</caption><tr><td>1</td></tr></table>
        <summary style="height: 20px">s</summary><label style="display: block; height: 40px"><select><option>o</option></select></label>
        <form><button>Compare</button><button>Compare</button></form>
        <h2><code class="literal" style="display: inline-block">x</code>.</h2>
        <div class="citation" style="text-indent: 20px">a</div><p style="font-size: 9px">p</p>
        <pre style="overflow: hidden">{"cut" * 200}</pre>
        <div class="cell_output"><pre style="overflow: auto">{"a sentence " * 20}</pre></div></article>""")
    found = page.evaluate(ANNOYS)
    page.close()
    assert len(found) == ANNOYS.count('        "') == 11


# --- in the dark and on paper ---------------------------------------------------------------------


def assert_dark_mode_is_dark(page):
    assert min(background(page)) > 240
    page.emulate_media(color_scheme="dark")
    until(page, "document.documentElement.dataset.theme === 'dark'")
    assert max(background(page)) < 40
    plates = page.evaluate("""() => [...document.querySelectorAll("article .cell_output :is(img, .text_html)")]
        .map(output => getComputedStyle(output))
        .filter(s => s.backgroundColor !== "rgba(0, 0, 0, 0)" || s.filter !== "none").length""")
    assert plates == 0


# The contrast of every text of the article with white paper: the worst for each kind of element.
CONTRAST_ON_PAPER = """() => {
    const linear = value => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    const texts = document.createTreeWalker(document.querySelector("article"), NodeFilter.SHOW_TEXT), worst = {};
    while (texts.nextNode()) {
        const box = texts.currentNode.parentElement;
        if (!texts.currentNode.data.trim() || !box.checkVisibility() || box.closest(".katex-mathml, script")) continue;
        const [red, green, blue] = getComputedStyle(box).color.match(/[\\d.]+/g).map(Number).map(linear);
        const ratio = 1.05 / (0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05);
        const kind = `${box.tagName}.${box.className}`;
        worst[kind] = Math.min(ratio, worst[kind] ?? ratio);
    }
    return worst;
}"""
# What would stand beyond the edge of the paper.
CUT_ON_PAPER = """() => [...document.querySelectorAll("article *")].filter(box => box.checkVisibility() &&
    !box.closest(".katex, svg, .headerlink") && box.getBoundingClientRect().right > innerWidth + 1).map(box =>
    box.outerHTML.slice(0, 100))"""
# Below 7 points.
SMALL_ON_PAPER = """() => [...document.querySelectorAll("article *:not(.katex *, svg *, sup, sub)")].filter(box =>
    [...box.childNodes].some(part => part.nodeType === 3 && part.data.trim()) && box.checkVisibility() &&
    parseFloat(getComputedStyle(box).fontSize) < 7 * 4 / 3).map(box => box.outerHTML.slice(0, 100))"""
ON_PAPER = """() => {
    const boxes = [...document.querySelectorAll("article details")];
    const theme = document.documentElement.dataset.theme;
    return [theme, boxes.filter(box => box.checkVisibility()).map(box => box.open)];
}"""


def assert_a_dark_page_is_printed_dark_on_white_and_unfolded(page):
    before = page.evaluate(ON_PAPER)
    assert before[0] == "dark" and not any(before[1]), "a reader should not see what is folded at first"
    page.emulate_media(media="print", color_scheme="dark")
    until(page, "document.documentElement.dataset.theme === 'light'")
    page.set_viewport_size({"width": 700, "height": 1000})  # what A4 leaves
    assert page.evaluate(CUT_ON_PAPER) == []
    assert page.evaluate(SMALL_ON_PAPER)[:5] == []
    assert page.locator("article .tag_solution summary").evaluate_all(VISIBLE) == []  # nothing to press on paper
    contrast = page.evaluate(CONTRAST_ON_PAPER)
    assert len(contrast) > 2 and {kind: ratio for kind, ratio in contrast.items() if ratio < 4.5} == {}
    on_paper = page.evaluate(ON_PAPER)
    assert all(on_paper[1]) and len(on_paper[1]) >= page.locator("article .tag_solution").count()
    page.emulate_media(media="screen", color_scheme="dark")
    until(page, "document.documentElement.dataset.theme === 'dark'")
    assert page.evaluate(ON_PAPER) == before
    page.set_viewport_size(DESKTOP)
    return on_paper


def assert_the_printer_gets(on_paper, page):
    before = page.evaluate(ON_PAPER)
    page.evaluate(f"addEventListener('beforeprint', () => window.printed = ({ON_PAPER})())")
    page.pdf(page_ranges="1")
    theme, printed = page.evaluate("window.printed")
    assert theme == "light" and printed.count(True) == len(on_paper[1])
    assert page.evaluate(ON_PAPER) == before


@pytest.mark.parametrize("name", [CHAPTERS[0], "book/claims"])
def test_a_page_that_is_opened_in_the_dark_is_dark_and_printed_on_white(browser, html, name):
    with Visit(browser, color_scheme="dark") as visit:
        page = visit.open((html / f"{name}.html").as_uri())
        assert max(background(page)) < 40
        assert_the_printer_gets(assert_a_dark_page_is_printed_dark_on_white_and_unfolded(page), page)
        assert visit.troubles == []


def assert_folded_cells_open_with_the_keyboard(page):
    """One of each kind; the others are opened as well."""
    kinds = page.evaluate("""() => [...document.querySelectorAll("article details")].map(box => box.open ?
        "open" : `${box.className} ${box.firstElementChild.className}`)""")
    assert kinds and "open" not in kinds, "a reader should not see this at first"
    for kind in set(kinds):
        box = page.locator("article details").nth(kinds.index(kind))
        box.locator("summary").first.focus()
        page.keyboard.press("Enter")
        assert box.get_attribute("open") is not None


# --- by axe's rules -------------------------------------------------------------------------------

# Folded text is text; an answered card shows its colors; what moves or fades is judged where it ends.
UNFOLD = """() => {
    document.head.append(Object.assign(document.createElement("style"), {textContent:
        "*, ::before, ::after { transition: none !important; animation: none !important }"}));
    document.querySelectorAll("article details").forEach(box => box.open = true);
    for (const formula of document.querySelectorAll(".katex"))  // axe is not asked about formulas
        formula.replaceWith(formula.querySelector("annotation").textContent);
    for (const form of document.querySelectorAll("form.practice")) {
        form.querySelectorAll("fieldset").forEach(set => set.querySelector("input").click());
        form.querySelector("button")?.click();
    }
}"""
SCROLLS_UNREACHED = "[...document.querySelectorAll('pre')].some(box => box.scrollWidth > box.clientWidth && box.tabIndex < 0)"
STRUCTURE = """axe.run({resultTypes: ["violations"], rules: {
    "color-contrast": {enabled: false}, "link-in-text-block": {enabled: false},
    "label-content-name-mismatch": {enabled: true}, "td-has-header": {enabled: true}, "target-size": {enabled: true},
}}).then(found => found.violations)"""
# Colors depend on elements and classes: of those with equal names all the way up, the first three stand for all.
THIN = """where => {
    const seen = {}, path = element => element.matches("article, body") ? "" :
        `${path(element.parentElement)} > ${element.tagName}.${element.className.baseVal ?? element.className}`;
    for (const element of document.querySelectorAll(where)) {
        if (!element.isConnected) continue;
        const kind = path(element);
        if ((seen[kind] = (seen[kind] ?? 0) + 1) > 3) element.remove();
    }
}"""
COLORS = """axe.run({resultTypes: ["violations"], runOnly: ["color-contrast", "link-in-text-block"]})
    .then(found => found.violations)"""


@pytest.fixture(scope="module")
def axe() -> str:
    package = pytest.importorskip("axe_playwright_python")
    return (Path(package.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


def said(violations: list[dict]) -> list[str]:
    return [
        f"{found['impact']} {found['id']}: {node['html'][:150]} {node['failureSummary']}"
        for found in violations
        for node in found["nodes"][:3]
    ]


def assert_axe_finds_nothing(page, axe):
    """Structure, then colors in both themes. The page is the worse for it."""
    page.evaluate(UNFOLD)
    until(page, f"!({SCROLLS_UNREACHED})")  # the theme notices a moment after the window has changed
    page.evaluate(f"() => {{ {axe} }}")
    page.evaluate(THIN, "article pre *")  # words of code have no structure
    found = {"structure": page.evaluate(STRUCTURE)}
    page.evaluate(THIN, "article *")
    for theme in ("dark", "light"):
        page.emulate_media(color_scheme=theme)
        until(page, f"document.documentElement.dataset.theme === '{theme}'")
        found[theme] = page.evaluate(COLORS)
    assert {part: said(violations) for part, violations in found.items() if violations} == {}


def test_axe_sees_what_it_is_asked_for(browser, axe):
    """A page with one fault of each kind that was once in the book."""
    page = browser.new_page(viewport=DESKTOP)
    page.set_content("""<html lang="en"><title>Faults</title><main><h1>Faults</h1><article>
        <p style="color: #999; background: #fff">pale</p>
        <details open><summary></summary>text</details>
        <button aria-label="Color mode">Light</button>
        <div role="list"><a href="#x">no item</a></div>
        <table><thead><tr><th></th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table>
        <label><input type="radio"> <span></span></label>
        </article></main><p>outside</p></html>""")
    page.evaluate(f"() => {{ {axe} }}")
    found = {violation["id"] for code in (STRUCTURE, COLORS) for violation in page.evaluate(code)}
    page.close()
    wanted = {"color-contrast", "summary-name", "label-content-name-mismatch", "aria-required-children", "region"}
    assert wanted | {"empty-table-header", "label"} <= found
