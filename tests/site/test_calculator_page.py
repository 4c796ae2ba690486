"""The calculator page: its form follows the package's numbers, by mouse, by keyboard, and without a script."""

import pytest
from course import calculator
from pages import parsed

from normlab import ledger

TABLE = "[...document.querySelectorAll('.calculator tbody tr')].map(r => [...r.cells].map(cell => cell.textContent))"


@pytest.fixture
def page(browser, html):
    """The page on a phone, with nothing said on the console."""
    context = browser.new_context(viewport={"width": 375, "height": 800})
    page, said = context.new_page(), []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto((html / f"{calculator.PAGE}.html").as_uri())
    page.locator(".calculator form").wait_for()
    yield page
    assert said == []
    context.close()


def slider(page, name: str):
    return page.get_by_role("slider", name=name, exact=True)


def test_the_table_follows_model_and_numbers(page):
    for name in ledger.PRESETS:
        page.get_by_role("combobox", name="model").select_option(name)
        for dtype in ("bfloat16", "float32"):
            page.get_by_role("combobox", name="numbers").select_option(dtype)
            wanted = calculator.growth_table(ledger, name, calculator.SHORT, calculator.LONG, dtype=dtype)
            assert page.evaluate(TABLE) == wanted, (name, dtype)


def test_without_a_script_the_tables_are_there(html):
    page = parsed(html / f"{calculator.PAGE}.html")
    growth, models = page.select("table.normlab-table")
    read = [[[cell.text for cell in row.select("th, td")] for row in t.select("tbody tr")] for t in (growth, models)]
    assert read[0] == calculator.growth_table(ledger, calculator.MODEL, calculator.SHORT, calculator.LONG)
    assert read[1] == calculator.models_table(ledger)
    assert not page.select("article form")


def test_every_slider_moves_with_the_keyboard_and_says_where_it_is(page):
    for name in ("context", "sequences", "layers", "width"):
        control = slider(page, name)
        before, table = control.get_attribute("aria-valuetext"), page.evaluate(TABLE)
        control.focus()
        page.keyboard.press("ArrowRight")
        assert control.get_attribute("aria-valuetext") != before
        assert page.evaluate(TABLE) != table


def test_heads_stay_possible(page):
    """Any width has a number of heads that divides it, any number of heads one of KV heads."""
    for name, key in (("width", "Left"), ("heads", "Left"), ("KV heads", "Left"), ("heads", "Right")):
        for _ in range(3):
            slider(page, name).focus()
            page.keyboard.press(f"Arrow{key}")
            texts = [slider(page, n).get_attribute("aria-valuetext") for n in ("width", "heads", "KV heads")]
            width, heads, kv_heads = (int(text.replace(",", "")) for text in texts)
            assert width % heads == heads % kv_heads == 0


def test_a_changed_model_is_what_the_ledger_says(page):
    slider(page, "layers").focus()
    page.keyboard.press("Home")
    slider(page, "context").focus()
    page.keyboard.press("End")
    slider(page, "KV heads").focus()
    page.keyboard.press("Home")
    config = ledger.Config(vocab_size=32000, layers=1, width=4096, heads=32, kv_heads=1, mlp_width=11008)
    wanted = [text for _, _, text in calculator.rows(ledger, config, 2**20, 1, "bfloat16")]
    assert [row[2] for row in page.evaluate(TABLE)] == wanted
    assert page.locator(".calculator caption").text_content() == "Llama-2-7B, changed, bfloat16, one sequence"
