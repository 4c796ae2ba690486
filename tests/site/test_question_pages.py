"""The pages of the question bank: complete, folded, open by keyboard, on paper; a bad bank fails the build."""

import re
import shutil

import pytest
from course import questions
from pages import DOCUMENTS, ROOT, parsed
from small_book import build, make_book

from normlab import interview

BANK = interview.questions()
PAGES = {tier: page for tier, page in questions.PAGES.items() if page in DOCUMENTS}


def section(html, item):
    return parsed(html / f"{PAGES[item['tier']]}.html").find(id=f"question-{item['id']}")


def plain(text: str) -> str:
    """The longest piece of a text without formula, code and quotation marks, as a page shows it."""
    pieces = re.split(r"\$\$.+?\$\$|\$.+?\$|`.+?`|[*\"]", " ".join(text.split()))
    return max(pieces, key=len).replace("'", "’").strip()


@pytest.mark.parametrize("item", BANK, ids=lambda item: item["id"])
def test_a_question_stands_on_the_page_of_its_tier_with_all_its_texts(html, item):
    found = section(html, item)
    shown = " ".join(found.get_text().split())
    assert all(plain(text) in shown for _, text in interview.texts(item))
    assert all(len(plain(text)) > 2 for _, text in interview.texts(item))
    assert f"{item['level']} · {item['type']} · {item['minutes']} minute" in shown
    assert [link.text for link in found.select(".question-claims a")] == item["claims"]


@pytest.mark.parametrize("item", BANK, ids=lambda item: item["id"])
def test_answers_are_folded_and_follow_ups_are_a_chain(html, item):
    found = section(html, item)
    boxes = found.find_all("details")
    assert len(boxes) == (7 if item["tier"] == "must" else 6) and not any(box.has_attr("open") for box in boxes)
    for text in (item["short"], item["long"], *(pair["why"] for pair in item["wrong"])):
        assert plain(text) not in " ".join(t for t in found.strings if not t.find_parent("details"))
    first, second = item["follow_ups"]
    (chain,) = found.select("details.question-chain")
    (outer, inner) = chain.select("details.question-follow-up")
    assert inner in outer.descendants
    assert plain(first["question"]) in " ".join(chain.text.split())
    assert plain(second["question"]) in " ".join(outer.text.split())
    assert plain(second["answer"]) in " ".join(inner.text.split())
    chinese = found.select("details[lang=zh-Hans]")
    assert len(chinese) == (item["tier"] == "must")


def test_the_index_leads_to_every_question(html):
    links = {a["href"] for a in parsed(html / "book/interview/questions.html").select(".question-index a")}
    assert links == {f"{PAGES[item['tier']].split('/')[-1]}.html#question-{item['id']}" for item in BANK}


@pytest.fixture
def page(browser, html):
    context = browser.new_context(viewport={"width": 375, "height": 800})
    page = context.new_page()
    page.goto((html / "book/interview/must.html").as_uri())
    yield page
    context.close()


def test_answers_open_with_the_keyboard(page):
    first = page.locator(".question").first
    for name in ("short", "long", "wrong", "chain"):
        box = first.locator(f"details.question-{name}")
        assert not box.locator("p").first.is_visible()
        box.locator("summary").first.focus()
        page.keyboard.press("Enter")
        assert box.locator("p").first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 375


def test_the_level_filter_works_from_the_keyboard_and_without_a_script(page):
    levels = {item["level"] for item in BANK if item["tier"] == "must"}
    page.locator(".claim-filter input").first.focus()
    for level in sorted(levels):
        page.keyboard.press("ArrowRight")
        shown = page.locator(".question:visible").evaluate_all("boxes => boxes.map(box => box.id)")
        assert shown == sorted(
            (f"question-{item['id']}" for item in BANK if item["tier"] == "must" and item["level"] == level),
            key=shown.index,
        )
        topics = page.locator(".question-topic:visible > h2").count()
        assert topics == len({item["topic"] for item in BANK if item["tier"] == "must" and item["level"] == level})


BAD = """
- id: a
  tier: must
  question: "{{ 1 / 0 }}"
"""


def test_a_bad_bank_fails_the_build(tmp_path):
    make_book(tmp_path)
    (tmp_path / "book" / "interview").mkdir()
    (tmp_path / "book" / "interview" / "questions.yml").write_text(BAD)
    for name in ("questions.py", "whole.py"):
        shutil.copy(ROOT / "tools" / name, tmp_path / "tools")
    shutil.copytree(ROOT / "src" / "normlab" / "interview", tmp_path / "src" / "normlab" / "interview")
    for name in ("__init__.py", "files.py", "ledger.py"):
        shutil.copy(ROOT / "src" / "normlab" / name, tmp_path / "src" / "normlab")
    code, said = build(tmp_path)
    assert code != 0
    problem = "book/interview/questions.yml: question 'a'.question: {{ 1 / 0 }}: ZeroDivisionError"
    assert problem in " ".join(said.split())
