"""The ledger page and the claims' boxes, against the claims file and the notebooks' outputs."""

import re
from collections import Counter

import pytest
import yaml
from pages import NOTEBOOKS, ROOT, notebook, outputs, parsed

MIME = "application/vnd.normlab.claim+json"
CLAIMS = {c["id"]: c for c in yaml.safe_load((ROOT / "book" / "claims.yml").read_text(encoding="utf-8"))}
FOUND = [(name, o["data"][MIME]) for name in NOTEBOOKS for o in outputs(name) if MIME in o["data"]]
SETTLED = {found["id"]: (name, found) for name, found in FOUND}
READ = {"paper": "read in the paper itself", "abstract": "read in the abstract only", "second hand": "read second hand"}
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
        assert f"Setting: {CLAIMS[name]['setting']}" in plain(card.text), name
        read = CLAIMS[name]["read"]
        said = re.findall("|".join(READ.values()), card.select_one(".claim-result").text)
        assert said == ([READ[read]] if isinstance(read, str) else [READ[how] for how in read.values()]), name


def test_limits_stand_on_the_card_and_fold_in_the_box(ledger, html):
    for name, claim in CLAIMS.items():
        notes = plain(" ".join(note.text for note in ledger.find(id=f"ledger-{name}").select(".claim-note")))
        assert (f"Limits: {plain(claim['limits'])}" in notes) if claim["limits"] else "Limits:" not in notes, name
    for page, found in FOUND:
        box = parsed(html / f"{page}.html").find(id=f"claim-{found['id']}")
        folded = box.select("details")
        limits = CLAIMS[found["id"]]["limits"]
        assert len(folded) == bool(limits)
        if limits:
            assert not folded[0].has_attr("open") and plain(limits) in plain(folded[0].text)
            assert folded[0].find("a")["href"] == f"../book/claims.html#ledger-{found['id']}"


def test_without_the_script_the_page_is_a_plain_list(ledger):
    assert ledger.select_one("form.claim-filter").has_attr("hidden")
    assert not [card["id"] for card in ledger.select(".claim-card, .claim-group") if card.has_attr("hidden")]
    assert not ledger.select(".is-covered, .claim-reveal")


def test_a_card_names_its_chapter(ledger):
    """The one that settles the claim, else those whose text names it."""
    offered = {option["value"] for option in ledger.select("select[name=chapter] option[value^=in-]")}
    used = set()
    of_chapter = {name: "in-" + name.split("_", 1)[1].replace("_", "-") for name in NOTEBOOKS}
    for name in CLAIMS:
        shown = {c for c in ledger.find(id=f"ledger-{name}")["class"] if c.startswith("in-")}
        used |= shown
        if name in SETTLED:
            assert shown == {of_chapter[SETTLED[name][0]]}, name
        else:
            assert shown == {of_chapter[page] for page in NOTEBOOKS if f"{{claim}}`{name}`" in prose_of(page)}, name
    assert offered == used and len(used) > 3


def prose_of(page: str) -> str:
    return "\n".join("".join(cell["source"]) for cell in notebook(page)["cells"] if cell["cell_type"] == "markdown")


def test_sources_are_words_and_not_codes(ledger):
    text = " ".join(note.text for note in ledger.select(".claim-note"))
    assert "the long article" in text and "the interview article" in text
    assert not re.search(r"\b00[03]-", ledger.find("article").text)


def test_counts_are_right(ledger):
    shown = {}
    for label in ledger.select(".claim-filter fieldset label"):
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


def test_a_box_and_a_card_say_under_which_condition(ledger, html):
    for page, found in FOUND:
        box = parsed(html / f"{page}.html").find(id=f"claim-{found['id']}")
        for place in (box, ledger.find(id=f"ledger-{found['id']}")):
            head = plain(" ".join(place.select_one(".claim-head").text.split()))
            assert head.startswith(plain(f"{found['verdict']} {found.get('only_if', '')}".strip()))
            assert len(place.select(".claim-only-if")) == ("only_if" in found)


def test_the_disagreements_show_the_verdicts_of_the_ledger(html):
    page = parsed(html / "book" / "disagreements.html")
    places = page.select("section section")
    assert len(places) == 14
    for place in places:
        assert "article" in place.find("em").text
        cards = place.select(".claim-card")
        assert len(cards) >= 2
        for card in cards:
            name = card.select_one(".claim-id").text
            assert card.select_one(".verdict").text == verdict(name)
            assert plain(card.select_one(".claim-sentence").text) == plain(" ".join(CLAIMS[name]["sentence"].split()))
            if name in SETTLED:
                where, found = SETTLED[name]
                assert plain(found["line"]) in plain(card.text)
                assert card.select_one(".claim-result a")["href"] == f"../{where}.html#claim-{name}"
