"""``normlab.inspect`` on families of the transformers library, against what their source says (inspect_answers.yml).

Right is what the source says, unknown what the report says it can't tell, wrong everything else. None may be wrong.
"""

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import transformers
from inspect_answers import ANSWERS, RIGHT, UNKNOWN, WRONG, Field, compare
from some import third

import normlab
from normlab.device import single_thread
from normlab.experiments import tiny_transformers

VERSION = "5.24.0"  # of the source that was read

pytestmark = pytest.mark.skipif(
    transformers.__version__ != VERSION, reason=f"the answers are those of transformers {VERSION}"
)


@cache
def fields(family: str) -> tuple[Field, ...]:
    with single_thread():
        report = normlab.inspect(tiny_transformers.tiny_model(family), **tiny_transformers.inputs(family))
    return tuple(compare(ANSWERS[family], report))


@pytest.mark.parametrize("family", third(ANSWERS))
def test_nothing_is_wrong(family):
    assert [field for field in fields(family) if field.verdict == WRONG] == []


def test_nine_tenths_and_more_are_right():
    """Of all fields together, and in all but a few families, each of which is known to be beyond the analysis."""
    counts = {family: Counter(field.verdict for field in fields(family)) for family in ANSWERS}
    total = sum(counts.values(), Counter())
    assert total[WRONG] == 0 and total[RIGHT] >= 0.99 * total.total(), total
    poor = {family for family, count in counts.items() if count[RIGHT] < 0.9 * count.total()}
    assert poor == {family for family, answer in ANSWERS.items() if "unknown" in answer}


def test_there_are_sixty_models_and_an_answer_for_each():
    assert len(ANSWERS) >= 60
    assert ANSWERS.keys() == tiny_transformers.FAMILIES.keys() | tiny_transformers.VARIANTS.keys()


@pytest.mark.parametrize("family", ["Llama", "BERT", "OLMo 2"])
def test_the_comparison_finds_what_is_wrong(family):
    """The report of one family is wrong about another."""
    for other in ("GPT-2", "Gemma 2", "T5", "DeepSeek-V3"):
        verdicts = Counter(field.verdict for field in compare(ANSWERS[other], _report(family)))
        assert verdicts[WRONG] >= 1, other


@cache
def _report(family: str):
    return normlab.inspect(tiny_transformers.tiny_model(family), **tiny_transformers.inputs(family))


TELLING = re.compile(r"^class |norm|\bln_|\.ln\b|pre_ln|residual|hidden_states|magnitude|capture_outputs", re.I)


@pytest.mark.parametrize("family", ANSWERS)
def test_the_lines_that_are_named_are_about_norms(family):
    """They exist and are classes, norms or sums: what a reader who checks the answer is sent to."""
    name, *lines = ANSWERS[family]["source"].split()
    path = Path(transformers.__file__).parent / "models" / name / f"modeling_{name}.py"
    text = path.read_text("utf-8").splitlines()
    for line in map(int, lines):
        assert TELLING.search(text[line - 1]), (line, text[line - 1])


def test_what_is_unknown_says_why():
    """Unknown is a value or a text of its own, never a silent None, and a block that is unknown says nothing else."""
    for family in ANSWERS:
        for field in fields(family):
            assert field.verdict != UNKNOWN or field.found is not None, (family, field)
