"""The ledger page and the claims' boxes, against the claims file and the notebooks' outputs."""

import json
import re
from collections import Counter

import jsonschema
import pytest
import yaml
from pages import NOTEBOOKS, ROOT, by_id, notebook, outputs, parsed

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


@pytest.fixture(scope="module")
def cards(html):
    """The entries of the ledger by the claim's id."""
    found = by_id(html / "book" / "claims.html").items()
    return {name.removeprefix("ledger-"): tag for name, tag in found if name.startswith("ledger-")}


def test_each_claim_is_settled_at_most_once_and_is_in_the_file():
    counts = Counter(found["id"] for _, found in FOUND)
    assert not set(counts) - set(CLAIMS)
    assert [name for name, count in counts.items() if count > 1] == []


def test_the_ledger_shows_every_claim_once(ledger):
    ids = [card["id"].removeprefix("ledger-") for card in ledger.select(".claim-card")]
    assert sorted(ids) == sorted(CLAIMS)


def test_a_card_has_sentence_kind_and_verdict(cards):
    for name, claim in CLAIMS.items():
        card = cards[name]
        assert claim["kind"] in card.select_one(".claim-head").text
        assert card.select_one(".verdict").text == verdict(name)
        assert plain(card.select_one(".claim-sentence").text) == plain(claim["sentence"])


def test_measured_line_and_link_are_those_of_the_notebook(cards):
    for name, (page, found) in SETTLED.items():
        result = cards[name].select_one(".claim-result")
        assert result.select_one(".claim-measured").text == found["line"]
        assert result.find("a")["href"] == f"../{page}.html#claim-{name}"


def test_a_reported_claim_names_who_reports_it_and_the_setting(cards):
    reported = [name for name in CLAIMS if verdict(name) == "reported"]
    assert reported
    for name in reported:
        card = cards[name]
        works = [source for source in CLAIMS[name]["source"] if not source.startswith("00") and source != "course"]
        cited = card.select_one(".claim-result").select("a[href*='bibliography.html#']")
        assert len(cited) == len(works) > 0, name
        assert f"Setting: {CLAIMS[name]['setting']}" in plain(card.text), name
        read = CLAIMS[name]["read"]
        said = re.findall("|".join(READ.values()), card.select_one(".claim-result").text)
        assert said == ([READ[read]] if isinstance(read, str) else [READ[how] for how in read.values()]), name


def test_limits_stand_on_the_card_and_fold_in_the_box(cards, html):
    for name, claim in CLAIMS.items():
        notes = plain(" ".join(note.text for note in cards[name].select(".claim-note")))
        assert (f"Limits: {plain(claim['limits'])}" in notes) if claim["limits"] else "Limits:" not in notes, name
    for page, found in FOUND:
        box = by_id(html / f"{page}.html")[f"claim-{found['id']}"]
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


def test_a_card_names_its_chapter(ledger, cards):
    """The one that settles the claim, else those whose text names it."""
    offered = {option["value"] for option in ledger.select("select[name=chapter] option[value^=in-]")}
    used = set()
    of_chapter = {name: "in-" + name.split("_", 1)[1].replace("_", "-") for name in NOTEBOOKS}
    for name in CLAIMS:
        shown = {c for c in cards[name]["class"] if c.startswith("in-")}
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
        box = by_id(html / f"{page}.html")[f"claim-{found['id']}"]
        assert box.find_parent("div", class_="cell_output")
        assert box.select_one(".verdict").text == found["verdict"]
        assert plain(box.select_one(".claim-sentence").text) == plain(CLAIMS[found["id"]]["sentence"])
        assert box.select_one(".claim-measured").text == found["line"]
        assert box.select_one("a.claim-id")["href"] == f"../book/claims.html#ledger-{found['id']}"


def test_a_box_and_a_card_say_under_which_condition(cards, html):
    for page, found in FOUND:
        box = by_id(html / f"{page}.html")[f"claim-{found['id']}"]
        for place in (box, cards[found["id"]]):
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


# --- claims.json ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(html):
    return json.loads((html / "book" / "claims.json").read_text(encoding="utf-8"))


def test_the_data_fit_their_schema(html, data):
    schema = (ROOT / "book" / "claims.schema.json").read_text(encoding="utf-8")
    assert (html / "book" / "claims.schema.json").read_text(encoding="utf-8") == schema
    checker = jsonschema.Draft202012Validator(json.loads(schema))
    checker.check_schema(checker.schema)
    assert [f"{'/'.join(map(str, e.path))}: {e.message}" for e in checker.iter_errors(data)] == []
    for field, value in [("verdict", "maybe"), ("measured", None), ("cell", "notebooks/x.html"), ("id", "A b"), ("note", "")]:
        assert not checker.is_valid(data | {"claims": [data["claims"][0] | {field: value}]}), field


def test_the_data_say_what_the_page_says(html, cards, data):
    assert [claim["id"] for claim in data["claims"]] == list(CLAIMS)
    for claim in data["claims"]:
        name, card = claim["id"], cards[claim["id"]]
        assert plain(card.select_one(".claim-sentence").text) == plain(claim["sentence"])
        assert card.select_one(".verdict").text == claim["verdict"]
        measured, condition = card.select_one(".claim-measured"), card.select_one(".claim-only-if")
        assert (measured and measured.text) == claim["measured"]
        assert (condition and plain(condition.text)) == (claim["condition"] and plain(claim["condition"]))
        page, fragment = (claim["cell"] or claim["entry"]).split("#")
        assert fragment in by_id((html / "book" / page).resolve()), name


def test_the_versions_are_those_of_the_package_and_of_the_pins(data):
    import normlab

    pins = dict(re.findall(r"^([\w-]+)==([^\s;]+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE))
    names = ("torch", "numpy", "transformers")
    assert data["versions"] == {"normlab": normlab.__version__} | {name: pins[name] for name in names}


def test_the_page_describes_every_field(data):
    page = (ROOT / "book" / "claims.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(data["claims"][0])
