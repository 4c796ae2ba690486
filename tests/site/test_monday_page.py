"""The Monday page: three hours, a link for everything to do, boxes that are remembered, and a plain list without them."""

import re

import pytest
from course import checklist
from pages import parsed
from small_book import build, make_book

from normlab import interview

HOURS = 3
BLOCKED = """Object.defineProperty(window, "localStorage", {configurable: true, get() {
    throw new DOMException("blocked", "SecurityError") }})"""


@pytest.fixture
def items(html):
    return parsed(html / f"{checklist.PAGE}.html").select(".checklist > li")


def test_the_minutes_are_three_hours_without_a_gap(html, items):
    minutes = [int(item.select_one(".checklist-minutes").text.removesuffix(" min")) for item in items]
    assert sum(minutes) == 60 * HOURS
    page = parsed(html / f"{checklist.PAGE}.html")
    spans = [re.fullmatch(r"(\S+) to (\S+), \d+ minutes", span.text).groups() for span in page.select(".checklist-span")]
    starts, ends = zip(*spans)
    assert starts == ("0:00", *ends[:-1]) and ends[-1] == f"{HOURS}:00"


def test_everything_has_a_name_of_its_own_and_leads_to_its_place(items):
    assert all(item.select("a[href]") for item in items)
    assert len({item["id"] for item in items}) == len(items)


def test_all_questions_that_must_be_known_are_there(items):
    musts = [item["id"] for item in interview.questions() if item["tier"] == "must"]
    found = [item["id"].removeprefix("do-question-") for item in items if item["id"].startswith("do-question-")]
    assert found == musts and len(found) == 15
    assert sum(item["id"].startswith("do-drill-") for item in items) == 6


def test_without_a_script_it_is_a_plain_list(html):
    assert not parsed(html / f"{checklist.PAGE}.html").select("article :is(input, button.checklist-status)")


class Page:
    """The page with its boxes; nothing may be said on the console."""

    def __init__(self, browser, html, script: str = ""):
        self.context = browser.new_context(viewport={"width": 375, "height": 800})
        if script:
            self.context.add_init_script(script)
        self.page, self.said = self.context.new_page(), []
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.goto((html / f"{checklist.PAGE}.html").as_uri())
        self.boxes = self.page.get_by_role("checkbox")
        self.boxes.first.wait_for()

    def checked(self) -> list[int]:
        return [i for i, box in enumerate(self.boxes.all()) if box.is_checked()]

    def status(self) -> str:
        return self.page.locator(".checklist-status output").text_content()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.context.close()


def test_boxes_by_keyboard_and_after_a_reload(browser, html, items):
    with Page(browser, html) as monday:
        assert monday.boxes.count() == len(items) and monday.checked() == []
        assert monday.status() == f"0 of {len(items)} done, 180 of 180 minutes left."
        monday.boxes.nth(2).focus()
        monday.page.keyboard.press("Space")
        monday.page.keyboard.press("Tab")
        assert monday.checked() == [2]
        monday.page.reload()
        monday.boxes.first.wait_for()
        assert monday.checked() == [2]
        assert monday.status() == f"1 of {len(items)} done, 170 of 180 minutes left."
        assert monday.boxes.nth(2).evaluate("box => document.getElementById(box.getAttribute('aria-labelledby')).textContent")
        assert monday.said == []


# What Chromium does now and then with a page from a file: nothing is found there, and what is written is lost.
CUT_OFF = """if ((history.state?.times ?? 0) < {times}) {{
    Storage.prototype.getItem = () => null;
    Storage.prototype.setItem = () => undefined;
}}"""


@pytest.mark.parametrize("times", [1, 2])
def test_a_page_that_is_cut_off_from_its_storage_is_loaded_again(browser, html, times):
    with Page(browser, html, CUT_OFF.format(times=times)) as monday:
        monday.boxes.nth(4).check()
        monday.page.goto("about:blank")
        monday.page.goto((html / f"{checklist.PAGE}.html").as_uri())
        monday.boxes.first.wait_for()
        assert monday.checked() == [4] and monday.said == []


def test_where_nothing_stays_the_boxes_work_all_the_same(browser, html):
    with Page(browser, html, CUT_OFF.format(times=9)) as monday:
        monday.boxes.nth(4).check()
        assert monday.checked() == [4] and monday.said == []


def test_start_again_can_be_undone(browser, html):
    with Page(browser, html) as monday:
        for i in (0, 5):
            monday.boxes.nth(i).check()
        monday.page.get_by_role("button", name="Start again").click()
        assert monday.checked() == []
        monday.page.get_by_role("button", name="Undo").click()
        assert monday.checked() == [0, 5]
        assert monday.said == []


def test_blocked_storage_and_a_spoiled_entry(browser, html):
    with Page(browser, html, BLOCKED) as monday:
        monday.boxes.nth(1).check()
        assert monday.checked() == [1] and "keeps no site data" in monday.status()
        assert monday.said == []
    for entry in ("{", '{"a": 1}', "3"):
        with Page(browser, html, f"localStorage.setItem('course-monday', '{entry}')") as monday:
            assert monday.checked() == [] and monday.said == []


def test_paper_has_boxes_with_and_without_a_script(browser, html):
    for script in (True, False):
        context = browser.new_context(java_script_enabled=script)
        page = context.new_page()
        page.emulate_media(media="print")
        page.goto((html / f"{checklist.PAGE}.html").as_uri())
        box = page.locator(".checklist > li").first
        if script:
            assert box.locator("input").is_visible()
            assert not page.get_by_role("button", name="Start again").is_visible()
        else:
            assert "☐" in box.evaluate("item => getComputedStyle(item).listStyleType")
        context.close()


TROUBLES = {
    "```{checklist}\n- **No minutes.** Text.\n```": "an item must begin with",
    "```{checklist}\nText.\n```": "at least one item",
    "```{checklist-drills} no_such_drill\n```": "no drill no_such_drill",
    "```{checklist-questions} no-such-tier\n```": "no questions of the tier",
}


def test_what_does_not_fit_fails_the_build(tmp_path):
    code, said = build(make_book(tmp_path, "\n\n".join(TROUBLES)))
    assert code != 0
    assert [trouble for trouble in TROUBLES.values() if trouble not in said] == []
