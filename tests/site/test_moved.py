"""Addresses that were given away keep working: chapters and the reference were divided, their fragments followed."""

import json

import pytest
from pages import identifiers, parsed

OLD = {
    "notebooks/04_rmsnorm": ["to-64-faster", "claim-3-rms-cheaper"],
    "notebooks/05_placement": """
        two-lines-one-pair-of-brackets gradients-at-initialization-two-readings-of-1-l what-does-vanish-in-post-ln
        warm-up-who-trains-where what-the-map-says-about-pre-ln-and-ways-out-for-post-ln four-accounts-of-warm-up
        why-is-post-ln-hard suspect-one-large-gradients-near-the-output suspect-two-an-output-that-overreacts
        suspect-three-the-norms-shut the-final-norm-at-initialization and-trained the-price-of-pre-at-initialization
        turn-the-knob-yourself after-training roads-after-pre-and-post what-1000-layers-means
        the-output-norm-that-needs-a-partner qk-norm-a-bound-that-no-weight-can-break who-ends-lower
        qk-norm-and-logit-growth-at-high-learning-rates what-real-models-do in-the-interview traps
        exercise-3-which-half-must-shrink exercise-4-a-bound-of-your-choice what-this-chapter-settled
        claim-post-norms-shut claim-adam-first-step claim-roads-quality claim-qk-norm-bound claim-identity-path
    """.split(),
    "notebooks/08_roads_after": """
        what-real-models-do claim-two-knobs claim-3-standard claim-minimax-deepnorm claim-3-llama-recipe
        claim-qk-norm-exists claim-3-attn-64x who-ends-lower claim-roads-quality
    """.split(),
    "book/api": """
        formulas-functional layers-norms settings-of-a-transformer-config where-nan-began-training-nonfinite
        taking-a-block-apart-inspection-sublayers results-and-data the-learner-s-shelf command-line-cli
        normlab.functional.layer_norm normlab.norms.RMSNorm normlab.placement.Residual.forward module-normlab.bench
    """.split(),
}


@pytest.mark.parametrize("name", OLD)
def test_every_old_fragment_leads_somewhere(html, name):
    path = html / f"{name}.html"
    places = json.loads(parsed(path).find(id="moved").string)
    for old in OLD[name]:
        if old not in identifiers(path):
            there, _, fragment = places[old].partition("#")
            assert fragment in identifiers(path.parent / (there or path.name)), (old, places[old])
    assert not set(places) & identifiers(path)


def test_the_browser_follows(html, browser):
    page = browser.new_page()
    for old, new in [
        ("suspect-two-an-output-that-overreacts", "07_why_post_ln_is_hard.html"),
        ("claim-roads-quality", "08_roads_after.html"),
    ]:
        page.goto(f"{html.as_uri()}/notebooks/05_placement.html#{old}")
        page.wait_for_url(f"**/{new}#{old}", timeout=10_000)
    page.goto(f"{html.as_uri()}/notebooks/04_rmsnorm.html#to-64-faster")
    page.wait_for_url("**/10_cost.html#to-64-taken-apart", timeout=10_000)
    page.goto(f"{html.as_uri()}/book/api.html#normlab.norms.RMSNorm")
    page.wait_for_url("**/api/norms.html#normlab.norms.RMSNorm", timeout=10_000)
    page.goto(f"{html.as_uri()}/notebooks/05_placement.html#traps")
    assert page.url.endswith("05_placement.html#traps")
