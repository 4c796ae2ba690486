"""The ledger page and the claims' anchors, against the claims file and the notebooks' outputs."""

from collections import Counter

import pytest
import yaml
from pages import NOTEBOOKS, ROOT, outputs, parsed

MIME = "application/vnd.normlab.claim+json"
CLAIMS = {c["id"]: c for c in yaml.safe_load((ROOT / "book" / "claims.yml").read_text(encoding="utf-8"))}
FOUND = [(name, o["data"][MIME]) for name in NOTEBOOKS for o in outputs(name) if MIME in o["data"]]
SETTLED = {found["id"]: (name, found) for name, found in FOUND}


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


def test_verdict_line_and_link_are_those_of_the_notebook(ledger):
    for name, claim in CLAIMS.items():
        card = ledger.find(id=f"ledger-{name}")
        assert claim["kind"] in card.select_one(".claim-head").text
        shown = card.select_one(".verdict").text
        if name not in SETTLED:
            assert shown == "not yet checked" and not card.select_one(".claim-result")
            continue
        page, found = SETTLED[name]
        result = card.select_one(".claim-result")
        assert shown == found["verdict"]
        assert result.select_one(".claim-measured").text == found["line"]
        assert result.find("a")["href"] == f"../{page}.html#claim-{name}"


def test_counts_are_right(ledger):
    shown = {}
    for label in ledger.select(".claim-filter label"):
        verdict, count = label.text.strip().rsplit(" ", 1)
        shown[verdict] = int(count)
    counts = Counter(found["verdict"] for _, found in FOUND)
    assert shown.pop("all") == len(CLAIMS)
    assert shown.pop("not yet checked") == len(CLAIMS) - len(SETTLED)
    assert shown == {verdict: counts[verdict] for verdict in ("holds", "holds only if", "refuted here")}


def test_each_claim_has_an_anchor_under_the_cell_that_settles_it(html):
    for page, found in FOUND:
        line = parsed(html / f"{page}.html").find(id=f"claim-{found['id']}")
        assert line.find_parent("div", class_="cell_output")
        assert line.select_one(".verdict").text == found["verdict"]
        assert line.select_one(".claim-measured").text == found["line"]
        assert line.select_one("a.claim-id")["href"] == f"../book/claims.html#ledger-{found['id']}"
