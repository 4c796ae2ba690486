"""The mock interview page: it draws what fits, follows the tree, and says what to revise; also where nothing is kept."""

import json

import pytest
from chromium import until
from course import mock as page_of
from pages import parsed
from some import some

from normlab import interview
from normlab.interview import mock

BANK = {item["id"]: item for item in interview.questions()}
KEY = "normlab-mock-interview"
NO_STORAGE = """for (const name of ["localStorage", "sessionStorage"])
    Object.defineProperty(window, name, {get() { throw new DOMException("denied", "SecurityError"); }, configurable: true});"""


@pytest.fixture(params=["storage", "no storage"])
def page(browser, html, request):
    """The page on a phone, with and without site data, and nothing said on the console."""
    context = browser.new_context(viewport={"width": 375, "height": 800})
    if request.param == "no storage":
        context.add_init_script(NO_STORAGE)
    page, said = context.new_page(), []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto((html / f"{page_of.PAGE}.html").as_uri())
    page.locator(".mock form").wait_for()
    yield page
    assert said == []
    context.close()


def choose(page, **choices):
    for name, value in choices.items():
        page.get_by_role("combobox", name=name.capitalize()).select_option(value)


def drawn(page) -> dict:
    """The question on the stage."""
    asked = page.locator(".mock-asked").inner_html()
    found = page.evaluate(
        "html => [...document.querySelectorAll('.mock-question')]"
        ".filter(q => q.querySelector('summary').innerHTML === html).map(q => q.dataset.id)",
        asked,
    )
    assert len(found) == 1
    return BANK[found[0]]


def press(page, name: str):
    page.get_by_role("button", name=name, exact=True).press("Enter")


def play(page, way) -> dict:
    """A round by keyboard: points for the answer, then right or wrong for each step."""
    press(page, "Draw a question")
    question = drawn(page)
    assert page.locator(".mock-timer").text_content().endswith(f"of {question['minutes']}:00")
    press(page, "I have answered")
    ticks = page.get_by_role("checkbox")
    assert ticks.count() == 3
    (_, points), *rest = way
    for i in range(int(points)):
        ticks.nth(i).press("Space")
    press(page, "Go on")
    for name, grade in rest:
        part = page.locator(f".mock-question[data-id='{question['id']}'] [data-step={name}]")
        assert page.locator(".mock-asked").inner_html() == part.locator("p").first.inner_html()
        press(page, "I have answered")
        shown = page.locator(".mock-stage .mock-answer")
        assert shown.inner_html().strip() == part.locator(".mock-answer").inner_html().strip()
        press(page, "That was mine" if grade == "right" else "It was not")
    assert page.locator(".mock-asked").text_content().startswith(f"{points} of 3 points.")
    return question


WAYS = {
    "all right": [("answer", "3"), ("first", "right"), ("second", "right")],
    "a mistake": [("answer", "2"), ("mistake", "right"), ("first", "wrong")],
    "not much": [("answer", "0"), ("again", "wrong")],
}


@pytest.mark.parametrize("name", some(WAYS, ["a mistake"]))
def test_a_round_by_keyboard_follows_the_tree(page, name):
    way = WAYS[name]
    for (step, grade), (following, _) in zip(way, way[1:]):
        assert mock.TREE[step][grade] == following
    assert mock.TREE[way[-1][0]][way[-1][1]] is None
    choose(page, tier="must", level="L2")
    question = play(page, way)
    assert (question["tier"], question["level"]) == ("must", "L2")
    links = page.locator(".mock-report li > a")
    if way[0][1] == "3":
        assert links.count() == 0 and "Nothing to revise" in page.locator(".mock-report").text_content()
    else:
        assert links.first.get_attribute("href") == f"must.html#question-{question['id']}"
        assert page.locator(".mock-report .question-claims a").all_text_contents() == question["claims"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 375


def test_the_tree_of_the_page_is_that_of_the_package(html):
    found = parsed(html / f"{page_of.PAGE}.html").select_one(".mock script")
    assert json.loads(found.string)["tree"] == mock.TREE


def test_the_count_is_what_fits(page):
    choices = {}
    for change in ({}, {"tier": "likely"}, {"level": "L3"}, {"minutes": "3"}, {"tier": "must"}, {"minutes": "1"}):
        choose(page, **change)
        choices |= change
        wanted = mock.fitting(BANK.values(), choices.get("tier"), choices.get("level"), int(choices.get("minutes", 99)))
        shown = page.locator(".mock form output").text_content()
        assert shown == (f"{len(wanted)} questions fit" if len(wanted) != 1 else "1 question fits"), choices


def test_no_question_comes_twice_before_all_have_come(page):
    choose(page, tier="must", level="L1", minutes="1")
    fitting = mock.fitting(BANK.values(), "must", "L1", 1)
    seen = {play(page, WAYS["not much"])["id"] for _ in fitting}
    assert seen == {item["id"] for item in fitting} and len(seen) > 1


def test_what_came_out_is_kept_in_the_browser_alone(browser, html):
    context = browser.new_context()
    page = context.new_page()
    page.goto((html / f"{page_of.PAGE}.html").as_uri())
    question = play(page, WAYS["not much"])
    page.reload()
    assert page.locator(".mock-total").text_content() == "1 answered, 0 of 3 points."
    assert json.loads(page.evaluate(f"localStorage.getItem('{KEY}')"))[0]["id"] == question["id"]
    page.evaluate(f"localStorage.setItem('{KEY}', 'spoiled')")
    page.reload()
    page.locator(".mock form").wait_for()
    assert page.locator(".mock-total").count() == 0
    play(page, WAYS["all right"])
    press(page, "Forget all")
    assert page.locator(".mock-total").count() == 0 and page.evaluate(f"localStorage.getItem('{KEY}')") is None
    context.close()


def test_without_a_script_and_on_paper_every_question_is_there(browser, html):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((html / f"{page_of.PAGE}.html").as_uri())
    boxes = page.locator(".mock-question")
    assert boxes.count() == len(BANK) and boxes.first.is_visible()
    boxes.first.locator("summary").press("Enter")
    assert boxes.first.locator(".mock-point").count() == 3 and boxes.first.locator(".mock-answer").last.is_visible()
    context.close()
    page = browser.new_page()
    page.goto((html / f"{page_of.PAGE}.html").as_uri())
    page.locator(".mock form").wait_for()
    assert not page.locator(".mock-question").first.is_visible()
    page.emulate_media(media="print")
    until(page, "document.querySelector('.mock-question').open")
    assert page.locator(".mock-answer").last.is_visible() and not page.locator(".mock form").is_visible()
    page.close()
