"""Every kind of page for those who do not look at it or see it otherwise: axe's rules in both themes."""

from pathlib import Path

import pytest
from chromium import until
from course import access
from pages import KINDS

VIEW = {"width": 1280, "height": 900}
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


@pytest.mark.parametrize("name", [*KINDS, "search"])
def test_axe_finds_nothing(browser, html, axe, name):
    page = browser.new_page(viewport=VIEW, color_scheme="light")
    page.goto((html / f"{name}.html").as_uri())
    page.evaluate(UNFOLD)
    page.evaluate(f"() => {{ {axe} }}")
    page.evaluate(THIN, "article pre *")  # words of code have no structure
    found = {"structure": page.evaluate(STRUCTURE)}
    page.evaluate(THIN, "article *")
    found["light"] = page.evaluate(COLORS)
    page.emulate_media(color_scheme="dark")
    until(page, "document.documentElement.dataset.theme === 'dark'")
    found["dark"] = page.evaluate(COLORS)
    page.close()
    assert {part: said(violations) for part, violations in found.items() if violations} == {}


def test_axe_sees_what_it_is_asked_for(browser, axe):
    """A page with one fault of each kind that was once in the book."""
    page = browser.new_page(viewport=VIEW)
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


def test_mending_twice_changes_nothing():
    page = """<div class="sidebar-primary-item"> <a class="navbar-brand logo">B</a></div>
        <a href="x">Drills <i>a</i></a><details><summary><span class="toctree-toggle"></span></summary></details>
        <div style="overflow-x:auto" tabindex="0"><table><tr><th class="head"><p></p></th><th class="head">b</th></tr>"""
    once = access.mended(page)
    assert access.mended(once) == once
    assert 'aria-label="Pages below “Drills a”"' in once and '<td></td><th scope="col" class="head">' in once


def test_a_formula_is_named_by_its_symbols():
    assert access.spoken(r"B \cdot T") == "B ⋅ T"
    assert access.spoken(r"\frac{\sigma}{\sqrt{2L}}") == "frac σ√2L"
