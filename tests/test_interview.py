"""The question bank: its schema, its numbers, and the package's copy of it."""

import copy
import doctest
import re
import subprocess
import sys
from collections import Counter

import pytest
import questions as tool
import torch

from normlab import interview, ledger
from normlab.interview import expressions

SOURCE = tool.read_source(tool.ROOT)
BANK = interview.questions()


def test_the_package_carries_the_questions_of_the_book():
    """Evaluated anew from the formulas and the notebooks; `python tools/questions.py` renews the copy."""
    current = tool.as_json(tool.read_questions(tool.ROOT)) == interview.BANK.read_text(encoding="utf-8")
    assert current, "the texts or what cells recorded has changed: run `python tools/questions.py`"


def test_how_many_there_are():
    tiers = Counter(item["tier"] for item in BANK)
    assert tiers["must"] == 15 and tiers["likely"] == 30 and len(BANK) >= 85
    assert {item["type"] for item in BANK} == set(interview.TYPES)
    assert {item["level"] for item in BANK if item["tier"] == "deep"} >= {"L3", "L4"}
    assert [item["tier"] for item in BANK] == sorted((item["tier"] for item in BANK), key=interview.TIERS.index)
    assert interview.questions("must") == BANK[:15]
    with pytest.raises(ValueError, match="tier must be one of must, likely, deep, got 'easy'"):
        interview.questions("easy")


@pytest.mark.parametrize("item", SOURCE, ids=lambda item: item["id"])
def test_no_number_is_typed_by_hand(item):
    found = {field: numbers for field, text in interview.texts(item) if (numbers := expressions.typed_numbers(text))}
    assert found == {}


@pytest.mark.parametrize("item", BANK, ids=lambda item: item["id"])
def test_texts_are_finished(item):
    for field, text in interview.texts(item):
        assert "{{" not in text and "  " not in text, field
        assert text == text.strip() and text[-1] in ".?。", (field, text[-20:])
        assert not re.search(r"\b(nan|inf|None)\b", text), field


def test_numbers_of_two_must_answers_in_another_way():
    """Worked out with pencil and paper, not with the ledger."""
    at = {item["id"]: item for item in BANK}
    entries, width, layers, vocab = 32 * (4 * 4096**2 + 3 * 4096 * 11008), 4096, 32, 32000
    short, long = (2 * entries * t + 4 * layers * width * t * t + 2 * vocab * width for t in (2048, 16384))
    total = entries + 2 * vocab * width + 65 * width
    text = " ".join(word for _, text in interview.texts(at["two-k-to-sixteen-k"]) for word in text.split())
    for number in (
        f"{2048**2:,}",
        f"{16384**2:,}",
        f"× {long / short:.1f}",
        f"{short / 1e12:.2f}, then {long / 1e12:.1f} trillion",
        f"{entries // (2 * 32 * 4096):,} tokens",
        "8.000 GiB (8.590 GB)",
        f"at most {int((80e9 - 2 * total) // 2**33)} sequences",
    ):
        assert number in text
    text = " ".join(word for _, text in interview.texts(at["norm-parameters"]) for word in text.split())
    for number in (65, 65 * 4096, 2 * 65 * 4096, total, 129, 129 * 4096, 64 * 128, 64 * 4096):
        assert f" {number:,}" in text
    assert f"{100 * 65 * 4096 / total:.3f}%" in text


def shown(name: str) -> str:
    """All texts of a question on one line."""
    (item,) = (item for item in BANK if item["id"] == name)
    return " ".join(" ".join(text.split()) for _, text in interview.texts(item))


def test_numbers_of_deep_answers_in_another_way():
    """By running, counting or simulating what the answers take from formulas."""
    bf16, half = torch.bfloat16, torch.float16
    one = torch.ones((), dtype=bf16)
    above = next(k for k in range(20, 0, -1) if one + 2.0**-k != one)  # the smallest power of two that shows
    below = next(k for k in range(20, 0, -1) if one - 2.0**-k != one)
    assert f"bfloat16 numbers are {2.0**-above:.4f} apart above and {2.0**-below:.4f} below" in shown("gains-that-stay-at-one")

    def stalls_at(addend):
        """The running sum that equal addends no longer move, over one of them."""
        total = torch.zeros((), dtype=bf16)
        while total + addend != total:
            total = total + addend
        return (total / addend).item()

    ratios = [stalls_at(torch.tensor(value, dtype=bf16)) for value in (1.0, 1.01, 1.25, 1.5, 1.75, 1.99, 0.3)]
    assert ratios[0] == min(ratios) == 256 and 500 < max(ratios) <= 512
    assert "when it is 256 to 512 times as large as one, for ones at 256:" in shown("gain-gradient-sum")
    single = int(1 / torch.finfo(torch.float32).eps) * 2
    assert f"For ones at {single:,}, for other equal addends between" in shown("gain-gradient-sum")

    sizes = torch.arange(1, 2000) / 100
    sums = (4096 * sizes.double() ** 2).to(half)
    assert f"passes it at a size of {float(sizes[~sums.isfinite()].min()):.2f}" in shown("largest-float16-token")

    def counted(size):
        """How many of equal squares a sum in float16 takes in, added one by one."""
        total, square = torch.zeros((), dtype=half), torch.tensor(size, dtype=half).square()
        for _ in range(4096):
            total = total + square
        return float(total / square)

    counts = {size: counted(size) for size in (1.0, 1.3, 2.0, 3.9, 5.0)}
    assert counts[1.0] == counts[2.0] == 2048 and 2048 < counts[1.3] < 4096 and counts[5.0] == torch.inf
    assert "squares of one stop adding up at 2,048" in shown("largest-float16-token")
    small = torch.full((8,), 1e-4, dtype=half)
    for eps, expected in ((1e-6, 1e-4 / 1e-3), (1e-8, torch.inf)):  # its mean square is zero
        found = small * torch.rsqrt(small.square().mean() + torch.tensor(eps, dtype=half))
        assert found[0].item() == pytest.approx(expected, rel=0.02)

    token = torch.tensor([1000.0] + [1.0, -1.0] * 2047 + [1.0], dtype=torch.float64)
    normed = torch.nn.functional.rms_norm(token, (4096,), eps=1e-12)
    step = float(normed[0]) / 127
    text = shown("outlier-and-int8")
    assert f"comes out at {normed[0]:.1f} and the others with a spread of {normed[1:].std(correction=0):.4f}" in text
    assert f"over 127, {step:.2f}; what is below half a step, {step / 2 / abs(float(normed[1])):.1f} spreads" in text

    tiny = torch.full((8,), 1e-3, dtype=torch.float64)
    inside = torch.nn.functional.rms_norm(tiny, (8,), eps=1e-5)[0]
    assert f"from {inside:.2f} to {tiny[0] / (tiny.square().mean().sqrt() + 1e-6):.3f}" in shown("review-an-epsilon")

    wide = torch.randn(4096, dtype=torch.float64, generator=torch.manual_seed(0))
    off = 1 - float(wide.std(correction=0) / wide.std())
    assert f"off by {off:.1e}"[:10] in shown("gradient-test") and "× 10⁻⁴ of the output" in shown("gradient-test")


def test_matrices_that_an_output_norm_makes_scale_free():
    """Those in which the sublayer is linear, as joint-orthogonality says; others are not."""

    def sublayer(x, query, key, value, output, gate, up, down):
        read = torch.nn.functional.scaled_dot_product_attention(x @ query, x @ key, x @ value) @ output
        both = torch.cat([read, (torch.nn.functional.silu(x @ gate) * (x @ up)) @ down])
        return torch.nn.functional.rms_norm(both, both.shape[-1:], eps=1e-300)

    names = ("query", "key", "value", "output", "gate", "up", "down")
    generator = torch.manual_seed(0)
    x, *matrices = (torch.randn(8, 8, dtype=torch.float64, generator=generator) for _ in range(8))
    weights = dict(zip(names, matrices))
    before = sublayer(x, **weights)
    moved = {name: float((sublayer(x, **weights | {name: 3 * weights[name]}) - before).abs().max()) for name in names}
    assert {name for name, change in moved.items() if change < 1e-12} == {"value", "output", "up", "down"}
    text = shown("joint-orthogonality")
    assert "each one in which the sublayer is linear: the values', a gated MLP's up projection" in text


def test_first_step_of_adam_with_and_without_bias_correction():
    for scale in (1e-3, 1.0, 1e3):
        w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        w.grad = torch.tensor([scale], dtype=torch.float64)
        torch.optim.Adam([w], lr=1.0, eps=0.0).step()
        assert abs(w.item()) == pytest.approx(1)
        first, second = (1 - 0.9) * scale, (1 - 0.999) * scale**2
        assert f"moves by {first / second**0.5:.1f} rates" in shown("warm-up")


def test_gains_in_the_library_as_the_answers_say():
    """Of more than one dimension in Cohere's QK-norm; stored as w, to be read as 1 + w, up to Gemma 3."""
    pytest.importorskip("transformers")
    from transformers.models.cohere.modeling_cohere import CohereLayerNorm
    from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm

    assert CohereLayerNorm((2, 4)).weight.dim() == 2 and "Cohere's QK-norms" in shown("weight-decay")
    for norm in (Gemma2RMSNorm(4), Gemma3RMSNorm(4)):
        assert not norm.weight.any() and norm(torch.ones(1, 4)).allclose(torch.ones(1, 4), atol=1e-3)
    gemma4 = pytest.importorskip("transformers.models.gemma4.modeling_gemma4")
    assert gemma4.Gemma4RMSNorm(4).weight.eq(1).all()


def test_gradient_of_the_size_at_zero():
    """NaN by the root of the mean square, zero by torch's norm(): review-an-epsilon."""
    for size, finite in ((lambda x: x.square().mean().sqrt(), False), (lambda x: x.norm() / x.numel() ** 0.5, True)):
        x = torch.zeros(4, requires_grad=True)
        (x / (size(x) + 1e-6)).sum().backward()
        assert x.grad.isfinite().all() == finite


def test_turns_of_the_deep_answer_by_simulation():
    """Independent gradients at a right angle to W: how far it turns in a step, under SGD and with Adam's momentum."""
    generator, width, rate, decay = torch.manual_seed(0), 400, 1e-3, 0.1
    turns = {}
    for momentum in (0.0, 0.9):
        w, m = torch.randn(width, generator=generator, dtype=torch.float64), torch.zeros(width, dtype=torch.float64)
        w *= (rate / (2 * decay)) ** 0.5 / w.square().mean().sqrt()  # where it settles, so that it need not get there
        found = []
        for step in range(400):
            gradient = torch.randn(width, generator=generator, dtype=torch.float64)
            m = momentum * m + (1 - momentum) * gradient
            new = w * (1 - rate * decay) - rate * m
            found.append(torch.arccos(torch.nn.functional.cosine_similarity(w, new, dim=0)))
            w = new
        turns[momentum] = float(torch.stack(found[50:]).mean())
    text = shown("turn-per-step")
    for momentum, number in ((0.0, "0.0141"), (0.9, "0.0032")):
        assert f"{number} rad" in text and abs(turns[momentum] / float(number) - 1) < 0.05


def test_sizes_of_deep_answers_with_pencil_and_paper():
    entries, layers, width, vocab = 32 * (4 * 4096**2 + 3 * 4096 * 11008), 32, 4096, 32000
    text = shown("one-token-at-length")
    first, second = (2 * entries + 4 * layers * width * t + 2 * vocab * width for t in (2048, 16384))
    assert f"Operations: {first / 1e9:.1f}, then {second / 1e9:.1f} billion" in text
    weights = 2 * (entries + vocab * width + 65 * width)
    assert f"grow × {(weights + 2**33) / (weights + 2**30):.2f}, not" in text

    text = shown("alternating-windows")
    assert f"{13 * (4095 + 16384) * 2 * 4 * 256 * 2 / 2**30:.2f} GiB" in text and f"adds {13 * 2 * 4 * 256 * 2:,} bytes" in text
    windowed = sum(min(i + 1, 4096) for i in range(16384))
    everything = sum(i + 1 for i in range(16384))
    assert f"computes {100 * (windowed + everything) / (2 * everything):.0f}% of the causal pairs" in text

    text = shown("split-width")
    assert "64 KiB (65.5 kB)" in text and "128 MiB (134 MB)" in text  # 16,384 × 4 and × 4096 × 2 bytes
    text = shown("deepnorm-two-stacks")
    for number in (0.81 * 500 ** (5 / 16), 1500**0.25, 1000**0.25):
        assert f" {number:.2f}" in text


# --- expressions ----------------------------------------------------------------------------------

LINES = {"falls": "loss falls by 3.5 % in 2 of 5 runs"}


@pytest.mark.parametrize(
    "text, value",
    [
        ("no number", "no number"),
        ("{{ n(266240) }} and {{ f(2 / 3, 2) }}", "266,240 and 0.67"),
        ("{{ g(0.02, 1) }} {{ g(1234.5, 3) }} {{ g(0.00769, 2) }} {{ g(-12.29, 3) }}", "0.02 1,234 0.0077 -12.3"),
        ("{{ pct(0.3988, 1) }} {{ sci(0.0000123, 2) }}", "39.9% 1.2 × 10⁻⁵"),
        ("{{ line('falls', r'by (\\S+) %') }}", "3.5"),
        ("{{ norms(changed(P('GPT-2'), layers=2), 1).count }}", "5"),
        ("{{ size(2**31, 1) }}", "2.0 GiB (2.1 GB)"),
        ("{{ said('x', r'(\\d+) steps') }}", "2000"),
    ],
)
def test_expressions(text, value):
    assert expressions.evaluate(text, LINES, {"x": "It took 2000 steps."}) == value


@pytest.mark.parametrize(
    "text, problem",
    [
        ("{{ 1 / 0 }}", "{{ 1 / 0 }}: ZeroDivisionError"),
        ("{{ 2 / 3 }}", "must give a text or a whole number, got 0.66"),
        ("{{ True }}", "must give a text or a whole number, got True"),
        ("{{ n(2.5) }}", "for whole numbers, got 2.5"),
        ("{{ line('rises', '(a)') }}", "no cell recorded a line for the claim 'rises'"),
        ("{{ line('falls', r'by (\\S+) m') }}", "must have one group and match once, got \\[\\]"),
        ("{{ line('falls', r'(\\d) ') }}", "match once, got \\['5', '2', '5'\\]"),
        ("{{ P('Llama-9') }}", "KeyError"),
        ("{{ open('x') }}", "NameError"),
    ],
)
def test_a_bad_expression_is_named(text, problem):
    with pytest.raises(ValueError, match=problem):
        expressions.evaluate(text, LINES)


@pytest.mark.parametrize(
    "text, typed",
    [
        ("It has {{ n(65) }} norms in bfloat16, as Llama-2-7B and OLMo 2, GPT-2 and T5.", []),
        ("With ε of `1e-5` and $d - 2$ and $1/\\sqrt{2L}$, $4LdT^2$, see {claim}`3-attn-64x`.", []),
        ("It has 65 norms.", ["65"]),
        ("A factor of 12.3, or 7%.", ["12.3", "7"]),
        ("The product $266{,}240$.", ["266{,}240"]),
        ("Width `4096`.", ["4096"]),
        ("In 2015.", ["2015"]),
    ],
)
def test_typed_numbers_are_found(text, typed):
    assert expressions.typed_numbers(text) == typed


# --- the schema -----------------------------------------------------------------------------------


def item(**changes):
    good = {
        "id": "a-question",
        "tier": "must",
        "level": "L1",
        "type": "recall",
        "topic": "definitions",
        "minutes": 2,
        "question": "Why?",
        "short": "Therefore.",
        "long": "For this reason.",
        "wrong": [{"answer": "No.", "why": "Yes."}],
        "refute": "A counterexample.",
        "follow_ups": [{"question": "And?", "answer": "So."}, {"question": "Then?", "answer": "Thus."}],
        "claims": ["one"],
        "zh": "因此。",
    }
    good = copy.deepcopy(good) | changes
    return {field: value for field, value in good.items() if value is not ...}


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"short": ...}, "short missing"),
        ({"zh": ...}, "zh missing"),
        ({"tier": "likely"}, "unknown field zh"),
        ({"company": "Acme"}, "unknown field company"),
        ({"tier": "maybe"}, "tier must be one of must, likely, deep, got 'maybe'"),
        ({"level": 1}, "level must be a text, got 1"),
        ({"level": "L5"}, "level must be one of L1, L2, L3, L4, got 'L5'"),
        ({"type": "trivia"}, "type must be one of recall, .*'trivia'"),
        ({"topic": "food"}, "topic must be one of definitions, .*'food'"),
        ({"minutes": 0}, "minutes must be an integer from 1 to 10, got 0"),
        ({"minutes": True}, "minutes must be an integer from 1 to 10, got True"),
        ({"short": "word " * 76}, "short must have at most 75 words, got 76"),
        ({"long": " "}, "long must be a text"),
        ({"wrong": []}, r"wrong must be a list of \{answer, why\}, got \[\]"),
        ({"wrong": [{"answer": "No."}]}, r"wrong\[0\] must have answer and why"),
        ({"wrong": [{"answer": "No.", "why": ""}]}, r"wrong\[0\].why must be a text, got ''"),
        ({"follow_ups": [{"question": "And?", "answer": "So."}]}, "follow_ups must be two, got 1"),
        ({"claims": []}, r"claims must be a list of one or more ids, got \[\]"),
        ({"claims": ["one", "three"]}, "claims must be ids of the ledger, got three"),
        ({"zh": "because"}, "zh must be Chinese"),
        ({"id": "A question"}, "id must be small letters, digits and single hyphens"),
    ],
)
def test_a_bad_question_is_named_with_its_field(changes, problem):
    interview.validate([item()], ["one", "two"])
    with pytest.raises(ValueError, match=f"question '.*': .*{problem}"):
        interview.validate([item(**changes)], ["one", "two"])


def test_ids_are_unique_and_items_are_mappings():
    with pytest.raises(ValueError, match="question 'a-question': id stands twice"):
        interview.validate([item(), item()], ["one"])
    with pytest.raises(ValueError, match="question number 2: must be a mapping, got str"):
        interview.validate([item(), "Why?"], ["one"])
    with pytest.raises(ValueError, match="question number 1: id missing"):
        interview.validate([item(id=...)], ["one"])


@pytest.mark.parametrize("text, count", [("One, two – three.", 3), ("$x$ is $a + b$", 4), ("see {claim}`a-b` now", 3)])
def test_words(text, count):
    assert interview.words(text) == count


def test_the_bank_needs_no_torch():
    program = "import sys; from normlab import interview; interview.questions(); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "yaml"} & set(run.stdout.split())


def test_the_examples_of_the_docstring():
    result = doctest.testmod(expressions)
    assert result.failed == 0 and result.attempted == 2
    assert set(ledger.PRESETS) >= {"Llama-2-7B", "GPT-2"}
