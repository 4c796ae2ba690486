"""The ledger page and the claims' boxes, against the claims file and the notebooks' outputs."""

import re
from collections import Counter

import pytest
import yaml
from pages import NOTEBOOKS, ROOT, outputs, parsed

MIME = "application/vnd.normlab.claim+json"
CLAIMS = {c["id"]: c for c in yaml.safe_load((ROOT / "book" / "claims.yml").read_text(encoding="utf-8"))}
FOUND = [(name, o["data"][MIME]) for name in NOTEBOOKS for o in outputs(name) if MIME in o["data"]]
SETTLED = {found["id"]: (name, found) for name, found in FOUND}
VERDICTS = ("holds", "holds only if", "refuted here", "reported", "opinion", "not yet checked")


def verdict(name: str) -> str:
    """What the pages must say about a claim."""
    if name in SETTLED:
        return SETTLED[name][1]["verdict"]
    return {"historical": "reported", "opinion": "opinion"}.get(CLAIMS[name]["kind"], "not yet checked")


def plain(text: str) -> str:
    """Without the difference between straight and typographic quotes and apostrophes."""
    return text.replace("’", "'").replace("“", '"').replace("”", '"')


@pytest.fixture(scope="module")
def ledger(html):
    return parsed(html / "book" / "claims.html")


def test_each_claim_is_settled_at_most_once_and_is_in_the_file():
    counts = Counter(found["id"] for _, found in FOUND)
    assert not set(counts) - set(CLAIMS)
    assert [name for name, count in counts.items() if count > 1] == []


def test_the_ledger_shows_every_claim_once(ledger):
    ids = [card["id"].removeprefix("ledger-") for card in ledger.select(".claim-card")]
    assert sorted(ids) == sorted(CLAIMS)


def test_a_card_has_sentence_kind_and_verdict(ledger):
    for name, claim in CLAIMS.items():
        card = ledger.find(id=f"ledger-{name}")
        assert claim["kind"] in card.select_one(".claim-head").text
        assert card.select_one(".verdict").text == verdict(name)
        assert plain(card.select_one(".claim-sentence").text) == plain(claim["sentence"])


def test_measured_line_and_link_are_those_of_the_notebook(ledger):
    for name, (page, found) in SETTLED.items():
        result = ledger.find(id=f"ledger-{name}").select_one(".claim-result")
        assert result.select_one(".claim-measured").text == found["line"]
        assert result.find("a")["href"] == f"../{page}.html#claim-{name}"


def test_a_reported_claim_names_who_reports_it_and_the_setting(ledger):
    reported = [name for name in CLAIMS if verdict(name) == "reported"]
    assert reported
    for name in reported:
        card = ledger.find(id=f"ledger-{name}")
        works = [source for source in CLAIMS[name]["source"] if not source.startswith("00") and source != "course"]
        cited = card.select_one(".claim-result").select("a[href*='bibliography.html#']")
        assert len(cited) == len(works) > 0, name
        assert "Setting and limits" in card.text, name


def test_sources_are_words_and_not_codes(ledger):
    text = " ".join(note.text for note in ledger.select(".claim-note"))
    assert "the long article" in text and "the interview article" in text
    assert not re.search(r"\b00[03]-", ledger.find("article").text)


def test_counts_are_right(ledger):
    shown = {}
    for label in ledger.select(".claim-filter label"):
        name, count = label.text.strip().rsplit(" ", 1)
        shown[name] = int(count)
    counts = Counter(map(verdict, CLAIMS))
    assert shown == {"all": len(CLAIMS)} | {name: counts[name] for name in VERDICTS}


def test_each_claim_has_a_box_under_the_cell_that_settles_it(html):
    for page, found in FOUND:
        box = parsed(html / f"{page}.html").find(id=f"claim-{found['id']}")
        assert box.find_parent("div", class_="cell_output")
        assert box.select_one(".verdict").text == found["verdict"]
        assert plain(box.select_one(".claim-sentence").text) == plain(CLAIMS[found["id"]]["sentence"])
        assert box.select_one(".claim-measured").text == found["line"]
        assert box.select_one("a.claim-id")["href"] == f"../book/claims.html#ledger-{found['id']}"


def test_a_box_says_under_which_condition(html):
    conditional = [(page, found) for page, found in FOUND if found["verdict"] == "holds only if"]
    assert conditional
    for page, found in conditional:
        box = parsed(html / f"{page}.html").find(id=f"claim-{found['id']}")
        shown = box.select_one(".claim-only-if, .claim-note")
        expected = found.get("only_if") or CLAIMS[found["id"]]["conditions"]
        assert plain(expected) in plain(shown.text), found["id"]
