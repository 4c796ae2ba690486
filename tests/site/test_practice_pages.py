"""Pages on which the reader decides first: complete without a script, by keyboard with one; a bad file fails the build."""

import shutil

import pytest
import questions as tool
from chromium import until
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
            said_so = "So do we." if grade == item["grade"] else "We grade it otherwise."
            assert box.locator("output").text_content() == said_so
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
    until(page, "document.querySelector('details.question-compare').open")
    assert card(page, f"marked-{MARKED[0]['id']}").get_by_text(plain(MARKED[0]["better"])).is_visible()
    assert not page.locator("form.practice button").first.is_visible()
    page.context.close()


def test_bad_marked_answers_fail_the_build(tmp_path):
    make_book(tmp_path)
    (tmp_path / "book" / "interview").mkdir()
    (tmp_path / "book" / "interview" / "marked.yml").write_text("- id: a\n  asked: Why?\n")
    for name in ("questions.py", "whole.py"):
        shutil.copy(ROOT / "tools" / name, tmp_path / "tools")
    shutil.copytree(ROOT / "src" / "normlab" / "interview", tmp_path / "src" / "normlab" / "interview")
    for name in ("__init__.py", "files.py", "ledger.py"):
        shutil.copy(ROOT / "src" / "normlab" / name, tmp_path / "src" / "normlab")
    code, said = build(tmp_path)
    assert code != 0
    assert "book/interview/marked.yml: marked answer 'a': answer, better, claims" in " ".join(said.split())


# --- the quiz -------------------------------------------------------------------------------------

QUIZ = tool.read_quiz(ROOT)


@pytest.mark.parametrize("item", QUIZ, ids=lambda item: item["id"])
def test_a_quiz_card_reads_question_choices_button_answer(html, item):
    """In that order for a screen reader, with a name for every field and a reason for every wrong option."""
    found = parsed(html / f"{practice.QUIZ}.html").find(id=f"quiz-{item['id']}")
    parts = [tag.name for tag in found.find_all(["h2", "form", "details"])]
    assert parts == ["h2", "form", "details"]
    if "right" in item:
        assert [label.input["value"] for label in found.select("form label")] == list("0123")[: len(item["options"]) + 1]
        assert found.fieldset.legend.text and all(label.span.text.strip() for label in found.select("form label"))
    else:
        assert found.select_one("form label").text.strip() and found.form.input["inputmode"] == "decimal"
    inside = " ".join(found.details.get_text().split())
    assert all(plain(option["why"]) in inside for option in item["options"]) and plain(item["explanation"]) in inside
    assert len(found.select("details .practice-wrong")) == len(item["options"])


@pytest.mark.parametrize("item", QUIZ, ids=lambda item: item["id"])
def test_a_wrong_answer_is_told_why_by_keyboard(quiz_page, item):
    box = card(quiz_page, f"quiz-{item['id']}")
    said, fold = box.locator("output"), box.locator("details")
    wrongs = box.locator(".practice-wrong")
    for i in range(wrongs.count()):
        give(quiz_page, box, item, wrongs.nth(i).get_attribute("data-option"))
        assert plain(item["options"][i]["why"]) in said.text_content() and said.text_content().startswith("Not right.")
        assert [wrongs.nth(k).get_attribute("class").split()[-1] == "is-chosen" for k in range(wrongs.count())] == [
            k == i for k in range(wrongs.count())
        ]
    right = item.get("number") or box.locator("form").get_attribute("data-right")
    give(quiz_page, box, item, right)
    assert said.text_content() == "Right." and fold.get_attribute("open") is not None
    assert box.locator(".is-chosen").count() == 0


def give(page, box, item, value):
    if "number" in item:
        box.get_by_label("Your number").fill(value)
    else:
        box.locator(f"input[value='{value}']").focus()
        page.keyboard.press("Space")
    page.keyboard.press("Enter")


@pytest.fixture(scope="module")
def quiz_page(browser, html):
    page, said = opened(browser, html, practice.QUIZ)
    yield page
    assert said == []
    page.context.close()


def test_what_is_no_number_is_asked_for_again(quiz_page):
    box = card(quiz_page, "quiz-count-of-norms")
    for typed in ("", "many"):
        box.get_by_label("Your number").fill(typed)
        quiz_page.keyboard.press("Enter")
        assert box.locator("output").text_content() == "Type a number first."
    box.get_by_label("Your number").fill("1000")
    quiz_page.keyboard.press("Enter")
    assert box.locator("output").text_content() == "Not right."


# --- the rounds -----------------------------------------------------------------------------------


def test_all_three_rounds_by_keyboard(browser, html):
    page, said = opened(browser, html, practice.ROUNDS)
    cards = page.locator("section.practice-card")
    scores = page.locator(".practice-score")
    assert scores.count() == 3
    counts = [int(text.split()[0]) for text in scores.all_text_contents()]
    assert sum(counts) == cards.count() and counts[0] == 8 and counts[1] == 10 and counts[2] > 20
    for name in ("placement-1", "run-1", "decide-final-norm-not-theorem"):
        box = card(page, name)
        rights = box.locator("form").get_attribute("data-right").split("|")
        sets = box.locator("fieldset")
        assert sets.count() == len(rights)
        for i, right in enumerate(rights):
            if i:  # one of two is not enough
                page.keyboard.press("Enter")
                assert box.locator("output").text_content() == "Choose first."
            sets.nth(i).locator(f"input[value='{right}']").focus()
            page.keyboard.press("Space")
        page.keyboard.press("Enter")
        assert box.locator("output").text_content() == "Right."
    assert [text.split(" right")[0] for text in scores.all_text_contents()] == ["1 of 1"] * 3
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    assert said == []
    page.context.close()


def test_half_of_a_placement(browser, html):
    page, _ = opened(browser, html, practice.ROUNDS)
    box = card(page, "placement-2")
    which, zero = box.locator("form").get_attribute("data-right").split("|")
    box.locator(f"input[value='{which}']").check()
    box.locator("fieldset").nth(1).locator(f"input:not([value='{zero}'])").first.check()
    page.keyboard.press("Enter")
    assert box.locator("output").text_content() == "Half of it is right."
    page.context.close()


def test_the_round_of_claims_is_the_ledgers(html):
    """Every verdict but "holds" is in it, and the answer names the condition."""
    ledger = {card["id"].removeprefix("ledger-"): card for card in parsed(html / "book/claims.html").select(".claim-card")}
    found = parsed(html / f"{practice.ROUNDS}.html").select("section[id^=decide-]")
    shown = {section["id"].removeprefix("decide-"): section for section in found}
    open_to_doubt = {name for name, card in ledger.items() if {"is-holds-only-if", "is-refuted-here"} & set(card["class"])}
    assert open_to_doubt < set(shown)
    for name, section in shown.items():
        verdict = ledger[name].select_one(".verdict").text
        assert section.form["data-right"] == verdict
        condition = ledger[name].select_one(".claim-only-if")
        assert (condition is None) == (verdict != "holds only if")
        if condition:
            assert " ".join(condition.text.split()) in " ".join(section.details.text.split())


def test_curves_have_their_losses_in_words(html):
    curves = parsed(html / f"{practice.ROUNDS}.html").select("svg.practice-curve")
    assert len(curves) >= 8
    for curve in curves:
        losses = curve["aria-label"].split(": ")[1].split(", ")
        assert len(losses) in (10, 20) and len(curve.polyline["points"].split()) == len(losses)
        assert [text.text for text in curve.find_all("text")][:2] == [losses[0], losses[-1]]
