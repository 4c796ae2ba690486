"""The prose data of the book: book/claims.yml, book/references.bib and book/glossary.md are well formed.

That ids and keys used on the pages exist is checked by the strict build.
"""

import re
from collections import Counter
from pathlib import Path

import pytest
import yaml
from pybtex.database import parse_file

BOOK = Path(__file__).resolve().parents[1] / "book"
KINDS = {"identity", "measured", "code", "historical", "opinion"}
FIELDS = {"id": str, "sentence": str, "source": list, "kind": str, "limits": str}
READ = {"paper", "abstract", "second hand"}
ARTICLE_SECTION = re.compile(r"000-(intro|[A-E]|R)|003-[简详一二三四五六七八]")
CHINESE = re.compile(r"[\u4e00-\u9fff]")

# Every claim of the two articles that the course mirrors; chapters may add ids of their own.
ARTICLE_CLAIMS = set(
    """
    zscore-exam orthogonal-axes mainstream-rms-pre
    three-quantities residual-update not-monotone drunkard-10 var-identity linear-var-conditions sqrt-growth ratio-2.6
    mean-drift neg-corr shared-dir residual-scaling drift-is-systematic scale-to-grad update-not-only-scale spike-causes
    pre-norm-target ics-original noisy-bn smoothing bn-not-all-norms bn-padding bn-batchmates bn-train-eval
    text-stats-noisy ln-per-token powernorm-groupnorm fig-bn-ln-axes
    ln-formula ln-last-dim ln-train-infer-same eps-common eps-role gamma-beta-names gamma-beta-count gamma-not-inverse
    gamma-relearn scale-immunity neg-alpha grad-1-over-alpha free-adaptive-lr norm-growth not-block-level
    reduce-two-passes welford-one-pass memory-bound zs-hypothesis rms-formula rms-drops-beta seed-code-ln seed-code-rms
    fp32-stats llama-fp32 wd-exclusion per-token-cost seven-64 graph-simpler params-saved fusion recenter-lost few-hurt
    t5-2019 adopters fig-4-vs-2-steps
    post-pre-formulas original-post identity-path warmup-sensitive xiong-post xiong-pre across-models within-uniform
    warmup-steps must-warmup-too-strong deepnorm-counter tfixup-removes pre-needs-warmup pre-lowers-sensitivity
    gpt2-turn final-norm-role final-norm-not-theorem final-norm-common pre-cost-growth dilution near-identity
    post-final-quality stability-first deepnorm-1000 gemma2-peri peri-formula peri-trunk-free peri-bounds peri-name
    qk-norm-exists two-knobs not-optimal fig-llama ref-list
    3-post-hard 3-drift 3-zero-mean-unit 3-larger-lr 3-two-params 3-rms-quality 3-rms-cheaper 3-adopters 3-table 3-ics
    3-bn-ln-reasons 3-ar-friendly 3-root-cause 3-half-ops 3-scale-invariance 3-post-repeat-norm 3-must-warmup
    3-pre-clean 3-sandwich 3-llama-recipe 3-validated 3-attn-64x 3-32-4096 3-misc-batchdim 3-free-lunch 3-final-norm
    3-standard 3-std-deep
    """.split()
)

CLAIMS = yaml.safe_load((BOOK / "claims.yml").read_text(encoding="utf-8"))
BIBLIOGRAPHY = parse_file(str(BOOK / "references.bib")).entries  # raises on a repeated key


def glossary() -> list[tuple[list[str], str]]:
    """The entries of the glossary: their terms (an entry may have synonyms) and the definition."""
    entries = []
    for block in re.findall(r"^```\{glossary\}\n(.*?)^```", (BOOK / "glossary.md").read_text(encoding="utf-8"), re.S | re.M):
        lines = [line for line in block.splitlines() if not line.startswith(":")]
        for entry in "\n".join(lines).strip().split("\n\n"):
            terms = [line for line in entry.splitlines() if not line.startswith(" ")]
            definition = " ".join(line.strip() for line in entry.splitlines() if line.startswith(" "))
            entries.append((terms, definition))
    return entries


GLOSSARY = glossary()


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: str(claim.get("id")))
def test_claim_is_well_formed(claim):
    own = {name: type(value) for name, value in claim.items() if name not in ("setting", "read")}
    assert own == FIELDS
    assert re.fullmatch(r"[a-z0-9]+([.-][a-z0-9]+)*", claim["id"])
    assert claim["kind"] in KINDS
    sentence = claim["sentence"]
    assert sentence == sentence.strip() and sentence.endswith(".") and "\n" not in sentence
    assert len(sentence.split()) <= 40
    assert claim["limits"] == claim["limits"].strip()


def test_a_measured_claim_says_at_which_size():
    """The page for teachers sends readers to the limits for it."""
    assert [claim["id"] for claim in CLAIMS if claim["kind"] == "measured" and not claim["limits"].strip()] == []


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: str(claim.get("id")))
def test_a_historical_claim_has_its_setting_and_how_it_was_read(claim):
    """No other claim has; prose that says it once more is not needed."""
    if claim["kind"] != "historical":
        assert not {"setting", "read"} & {*claim}
        return
    assert claim["setting"].endswith(".") and claim["setting"] == claim["setting"].strip()
    works = {source for source in claim["source"] if source in BIBLIOGRAPHY}
    read = claim["read"] if isinstance(claim["read"], dict) else dict.fromkeys(works, claim["read"])
    assert {*read} == works
    assert {*read.values()} <= READ
    assert isinstance(claim["read"], str) or len({*read.values()}) > 1, "one word says it for all"
    said = claim["setting"] + claim["limits"]
    assert not re.search(r"read in (the |its |both )?(papers?|abstracts?)\b|second hand", said)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: str(claim.get("id")))
def test_sources_exist(claim):
    sources = claim["source"]
    assert sources and len(set(sources)) == len(sources)
    cited = [s for s in sources if s != "course" and not ARTICLE_SECTION.fullmatch(s)]
    assert not [key for key in cited if key not in BIBLIOGRAPHY]
    if claim["kind"] == "historical":
        assert cited, "a historical claim needs a work from the bibliography"


def test_ids_are_unique():
    assert not [id for id, times in Counter(claim["id"] for claim in CLAIMS).items() if times > 1]


def test_all_claims_of_the_articles_are_there():
    from_articles = {c["id"] for c in CLAIMS if any(ARTICLE_SECTION.fullmatch(s) for s in c["source"])}
    assert from_articles == ARTICLE_CLAIMS


@pytest.mark.parametrize("key", BIBLIOGRAPHY)
def test_bibliography_entry_is_complete(key):
    entry = BIBLIOGRAPHY[key]
    year = entry.fields["year"]
    assert re.fullmatch(rf"[a-z]+{year}[a-z0-9]+", key)
    assert entry.fields["title"] and entry.persons["author"]
    assert {"eprint", "doi", "url"} & set(entry.fields.keys()), "no link"
    if "eprint" in entry.fields:
        assert entry.fields["archivePrefix"] == "arXiv"
        assert re.fullmatch(r"\d{4}\.\d{4,5}", entry.fields["eprint"])


def test_no_work_stands_twice():
    links = [e.fields.get("eprint") or e.fields.get("doi") or e.fields["url"] for e in BIBLIOGRAPHY.values()]
    titles = [e.fields["title"].lower() for e in BIBLIOGRAPHY.values()]
    assert len(set(links)) == len(set(titles)) == len(BIBLIOGRAPHY)


def test_glossary_terms_are_unique():
    terms = [term.lower() for terms, _ in GLOSSARY for term in terms]
    assert terms and len(set(terms)) == len(terms)


@pytest.mark.parametrize("terms, definition", GLOSSARY, ids=[terms[0] for terms, _ in GLOSSARY])
def test_definition_is_a_chinese_term_and_one_sentence(terms, definition):
    assert terms
    chinese, english = re.fullmatch(r"\((.+?)\) (.+)", definition).groups()
    assert CHINESE.search(chinese)
    plain = re.sub(r"\{[\w:]+\}`[^`]+`|\$[^$]+\$", "", english)
    assert plain.endswith(".") and len(re.findall(r"[.!?](?:\s|$)", plain)) == 1
