"""Large tables: plain without a script; with it a reader filters, searches and sorts them."""

import pytest
from chromium import until
from pages import NOTEBOOKS, outputs, parsed

MARK = "normlab-table is-searchable"
PAGES = [name for name in NOTEBOOKS if any(MARK in "".join(o["data"].get("text/html", "")) for o in outputs(name))]


def test_there_is_one():
    assert PAGES


@pytest.mark.parametrize("name", PAGES)
def test_without_the_script_the_table_is_whole_and_names_its_rows_and_columns(name, html):
    (table,) = parsed(html / f"{name}.html").select("table.is-searchable")
    rows = table.select("tbody tr")
    assert len(rows) > 30 and not table.select("[hidden], button")
    assert table.caption.text and all(head["scope"] == "col" for head in table.select("thead th"))
    assert all(row.th["scope"] == "row" for row in rows)


@pytest.mark.parametrize("name", PAGES)
def test_filters_words_and_sorting(name, html, browser):
    page = browser.new_page(viewport={"width": 375, "height": 800})
    page.goto(f"{html.as_uri()}/{name}.html")
    heads = page.locator("table.is-searchable thead th")
    names = [text.strip() for text in heads.all_inner_texts()]
    column = lambda name: next(i for i, text in enumerate(names) if text.startswith(name))  # noqa: E731

    def shown(name):
        place = column(name) + 1
        cells = page.locator(f"table.is-searchable tbody tr:not([hidden]) > :nth-child({place})")
        return [text.strip() for text in cells.all_inner_texts()]

    everything = shown("model type")
    assert page.locator(".table-filter output").inner_text() == f"{len(everything)} of {len(everything)} rows"
    page.get_by_label("placement").select_option("peri")
    assert set(shown("placement")) == {"peri"} and 0 < len(shown("model type")) < len(everything)
    page.get_by_role("button", name="Show all").click()
    page.get_by_label("words").fill("MISTRAL llama")
    assert shown("model type") == ["llama"]
    page.get_by_role("button", name="Show all").click()
    until(page, "document.querySelectorAll('table.is-searchable tr[hidden]').length === 0")
    button = heads.nth(column("types")).get_by_role("button")
    for direction, order in (("ascending", 1), ("descending", -1)):
        button.press("Enter")  # by keyboard
        counts = [int(text) for text in shown("types")]
        assert counts == sorted(counts)[::order] and len(set(counts)) > 3
        assert heads.nth(column("types")).get_attribute("aria-sort") == direction
    assert page.locator("th[aria-sort]").count() == 1
    page.get_by_role("button", name="Show all").click()
    until(page, "!document.querySelector('th[aria-sort]')")
    assert shown("model type") == everything
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")  # the table scrolls, the page does not
    page.close()


# Each printed value with the name before it, its columns, and the rows that share a height with another.
PRINTED = """() => {
    const table = document.querySelector("table.is-searchable"), heads = [...table.tHead.rows[0].cells];
    const rows = [...table.tBodies[0].rows], named = (cell, i) => getComputedStyle(cell, "::before").content
        === JSON.stringify(` · ${heads[i].textContent}: `) && heads[i].textContent !== "";
    return {
        rows: rows.filter(row => row.checkVisibility()).length,
        values: rows.flatMap(row => [...row.cells].slice(1).filter(cell => cell.checkVisibility()).map(cell => cell.textContent)),
        unnamed: rows.flatMap(row => [...row.cells].filter((cell, i) => i && !named(cell, i)).map(cell => cell.outerHTML)),
        lefts: new Set(rows.map(row => Math.round(row.getBoundingClientRect().left))).size,
    };
}"""


@pytest.mark.parametrize("name", PAGES)
def test_on_paper_each_row_is_a_paragraph_that_names_its_values(name, html, browser):
    """And a choice of rows stays one."""
    page = browser.new_page(viewport={"width": 700, "height": 1000})
    page.goto(f"{html.as_uri()}/{name}.html")
    (table,) = parsed(html / f"{name}.html").select("table.is-searchable")
    values = [cell.text for cell in table.select("tbody td")]
    page.emulate_media(media="print")
    printed = page.evaluate(PRINTED)
    assert printed["rows"] == len(table.select("tbody tr")) and printed["lefts"] == 2 and printed["unnamed"][:3] == []
    assert printed["values"] == [value for value in values if value != "–"] != values
    page.emulate_media(media="screen")
    page.get_by_label("placement").select_option("peri")
    page.emulate_media(media="print")
    assert 0 < page.evaluate(PRINTED)["rows"] < printed["rows"]
    page.close()
