"""Pages on which the reader decides first: complete without a script, by keyboard with one; a bad file fails the build."""

import shutil

import pytest
import questions as tool
from course import practice
from pages import ROOT, parsed
from small_book import build, make_book
from test_question_pages import plain

MARKED = tool.read_marked(ROOT)


def opened(browser, html, name, **options):
    """The page on a phone, and what its scripts complained about."""
    context = browser.new_context(viewport={"width": 375, "height": 800}, **options)
    page, said = context.new_page(), []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto((html / f"{name}.html").as_uri())
    return page, said


def card(page, name: str):
    return page.locator(f"section#{name}")


@pytest.mark.parametrize("item", MARKED, ids=lambda item: item["id"])
def test_a_marked_answer_stands_folded_with_all_its_texts(html, item):
    found = parsed(html / f"{practice.MARKED}.html").find(id=f"marked-{item['id']}")
    (fold,) = found.find_all("details")
    assert not fold.has_attr("open")
    inside = " ".join(fold.get_text().split())
    before = " ".join(" ".join(t for t in found.strings if not t.find_parent("details")).split())
    assert plain(item["asked"]) in before and plain(item["answer"]) in before
    for field in ("right", "when", "better", *(["fails"] if item["grade"] != "right" else [])):
        assert plain(item[field]) in inside and plain(item[field]) not in before
    assert f"Our grade: {practice.GRADES[item['grade']]}" in inside
    assert [link.text for link in fold.select(".question-claims a")] == item["claims"]
    assert [choice["value"] for choice in found.select("form input")] == list(practice.GRADES)


def test_grading_by_keyboard(browser, html):
    page, said = opened(browser, html, practice.MARKED)
    score = page.locator(".practice-score")
    assert score.text_content() == f"{len(MARKED)} to decide"
    for number, item in enumerate(MARKED[:4], start=1):
        box = card(page, f"marked-{item['id']}")
        fold = box.locator("details")
        button = box.get_by_role("button", name="Compare")
        button.press("Enter")
        assert box.locator("output").text_content() == "Choose first." and fold.get_attribute("open") is None
        wrong = next(grade for grade in practice.GRADES if grade != item["grade"])
        for grade in (wrong, item["grade"]):  # the first one counts
            box.locator(f"input[value={grade}]").focus()
            page.keyboard.press("Space")
            page.keyboard.press("Enter")
            assert fold.get_attribute("open") is not None
            assert (box.locator("output").text_content() == "Right.") == (grade == item["grade"])
        assert score.text_content().startswith(f"0 of {number} right at the first try")
    box = card(page, f"marked-{MARKED[4]['id']}")
    box.locator(f"input[value={MARKED[4]['grade']}]").check()
    box.get_by_role("button").click()
    assert score.text_content().startswith("1 of 5 right")
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    assert page.evaluate("Object.keys(localStorage).filter(key => /marked|practice/.test(key))") == []
    assert said == []
    page.context.close()


def test_without_a_script_choices_and_folds_are_there(browser, html):
    page, _ = opened(browser, html, practice.MARKED, java_script_enabled=False)
    box = card(page, f"marked-{MARKED[0]['id']}")
    assert box.locator("input").first.is_visible() and page.locator("form.practice button").count() == 0
    box.locator("summary").focus()
    page.keyboard.press("Enter")
    assert box.get_by_text(plain(MARKED[0]["better"])).is_visible()
    page.context.close()


def test_paper_shows_what_is_folded(browser, html):
    page, _ = opened(browser, html, practice.MARKED)
    page.emulate_media(media="print")
    page.wait_for_function("document.querySelector('details.question-compare').open")
    assert card(page, f"marked-{MARKED[0]['id']}").get_by_text(plain(MARKED[0]["better"])).is_visible()
    assert not page.locator("form.practice button").first.is_visible()
    page.context.close()


def test_bad_marked_answers_fail_the_build(tmp_path):
    make_book(tmp_path)
    (tmp_path / "book" / "interview").mkdir()
    (tmp_path / "book" / "interview" / "marked.yml").write_text("- id: a\n  asked: Why?\n")
    shutil.copy(ROOT / "tools" / "questions.py", tmp_path / "tools")
    shutil.copytree(ROOT / "src" / "normlab" / "interview", tmp_path / "src" / "normlab" / "interview")
    for name in ("__init__.py", "ledger.py"):
        shutil.copy(ROOT / "src" / "normlab" / name, tmp_path / "src" / "normlab")
    code, said = build(tmp_path)
    assert code != 0
    assert "book/interview/marked.yml: marked answer 'a': answer, better, claims" in " ".join(said.split())
