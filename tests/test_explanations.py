"""Explanations and universal words in the chapters have a check, a source, or say that they are a judgment."""

import explanations
import pytest


def test_sentences_with_nothing_behind_them_are_few_and_each_is_justified():
    found = [sentence for _, sentence in explanations.of_chapters()]
    kept = explanations.kept()
    new = [f"{chapter}: {s}" for chapter, s in explanations.of_chapters() if s not in kept]
    assert not new, "give these a claim, a citation or the words 'we think', or justify them in explanations.yml"
    assert not set(kept) - set(found), "no longer in any chapter: delete these from explanations.yml"
    assert len(found) <= explanations.MOST
    assert all(why.strip() for why in kept.values())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It grows because steps add up.", ["It grows because steps add up."]),
        ("One grows. The other never does!", ["The other never does!"]),
        ("It grows because steps add up, {claim}`adds-up`.", []),
        ("It grows because steps add up {cite}`xiong2020`.", []),
        ("It grows, we think, because steps add up.", []),
        ("Does it grow because steps add up?", []),
        ("```\nbecause\n```\n\nA table:\n\n| always | never |\n", []),
        ("# Always\n\nSteps add up.", []),
        ("## A heading\n\n:::{note}\nIt never does.\n:::\nMore.", ["It never does."]),
    ],
)
def test_what_counts_as_unsupported(text, expected):
    assert explanations.unsupported(text) == expected
