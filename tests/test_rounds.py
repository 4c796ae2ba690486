"""The rounds: placements by what the package's modules do, the recorded faulty runs, and their texts."""

import inspect
import json
import math
import re
import sys
from pathlib import Path

import pytest
import rounds as tool
import torch
from torch import nn

from normlab import norms, record
from normlab.experiments import faulty_runs
from normlab.interview import expressions
from normlab.placement import WIRING, WITH_NORM, WITH_OUTPUT_NORM, Placement, Residual

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "book" / "_ext"))
from course import claims, rounds  # noqa: E402

PLACEMENTS = json.loads(tool.FILE.read_text(encoding="utf-8"))
RUNS = rounds.read_runs(ROOT)
TEXTS = rounds.read_texts(ROOT)

# --- name this placement ------------------------------------------------------------------------------


def test_the_package_carries_what_the_tool_makes():
    current = tool.as_json(tool.placements()) == tool.FILE.read_text(encoding="utf-8")
    assert current, "the wirings have changed: run `python tools/rounds.py`"


def test_a_wiring_without_a_title_is_named(monkeypatch):
    monkeypatch.delitem(tool.TITLES, "peri")
    with pytest.raises(ValueError, match="TITLES of tools/rounds.py has no name for peri"):
        tool.placements()


def test_every_wiring_is_there_and_no_name_gives_it_away():
    assert {item["id"] for item in PLACEMENTS} == {kind.value for kind in Placement}
    assert len({item["code"] for item in PLACEMENTS}) == len(PLACEMENTS)
    for item in PLACEMENTS:
        assert len(item["code"].splitlines()) <= 6
        names = set(re.findall(r"[a-z]\w*", item["code"]))
        assert names <= {"def", "block", "return", "x", "f", "g", "h", "n1", "n2", *"abcd"}


def norm(kind: str) -> nn.Module:
    module = norms.make_norm(kind, 8).double()
    with torch.no_grad():
        module.weight.uniform_(0.5, 1.5)
        if kind == "layernorm":
            module.bias.normal_()
    return module


class Zero(nn.Module):
    def forward(self, x, **context):
        return torch.zeros_like(x)


@pytest.mark.parametrize("item", PLACEMENTS, ids=lambda item: item["id"])
@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_what_f_0_returns_by_the_packages_module(item, kind):
    """With biases only "yes" returns x, without them "only if" does as well."""
    torch.manual_seed(0)
    placement = Placement(item["id"])
    has_norm = placement in WITH_NORM or placement is Placement.PARALLEL
    output_norm = norm(kind) if placement in WITH_OUTPUT_NORM else None
    residual = Residual(Zero(), norm(kind) if has_norm else None, placement, output_norm=output_norm, alpha=1.5)
    x = 3 * torch.randn(2, 3, 8, dtype=torch.float64)
    returned = torch.equal(residual(x), x)
    assert returned == (item["zero"] in (("yes",) if kind == "layernorm" else ("yes", "only if")))


@pytest.mark.parametrize("item", PLACEMENTS, ids=lambda item: item["id"])
def test_the_lines_compute_the_wiring(item):
    torch.manual_seed(0)
    names: dict = {}
    exec(item["code"], names)  # noqa: S102
    block, x = names["block"], torch.randn(4, 8, dtype=torch.float64)
    f, g = (lambda v, m=torch.randn(8, 8, dtype=torch.float64): torch.tanh(v @ m) for _ in range(2))
    n, o = norm("layernorm"), norm("layernorm")
    wiring = WIRING[Placement(item["id"])]
    if item["id"] == "parallel":
        h = n(x)
        assert torch.allclose(block(x, f, g, n), wiring(wiring(x, f, h), g, h), rtol=0, atol=1e-13)
        return
    given = {"x": x, "F": f, "N": n, "O": o, "alpha": 1.5}
    wanted = list(inspect.signature(wiring).parameters)
    result = block(*(given[name] for name in wanted if name != "alpha"))
    assert torch.allclose(result, wiring(*(given[name] for name in wanted)), rtol=0, atol=1e-13)


# --- debug this run -----------------------------------------------------------------------------------

# What the experiment must say for a reader to believe it: of the faulty code's number f and the right one's r.
SHOWS = {
    "n-minus-one": lambda f, r: f == pytest.approx(7 / 8, abs=1e-3) and r == pytest.approx(1, abs=1e-3),
    "eps-outside": lambda f, r: f == 1 and r == 0,
    "wrong-axis": lambda f, r: f > 0.1 and r == 0,
    "cast-order": lambda f, r: f < 0.9 and r == 1,
    "batch-statistics": lambda f, r: f > r + 0.1,
    "mask-inverted": lambda f, r: f == 0 and r > 0.5,
    "alpha-on-branch": lambda f, r: f > 1.3 and r < 0.8,
    "gain-convention": lambda f, r: f > 1.5 * r,
    "post-stuck": lambda f, r: f < 1e-4 and r > 0.05,
    "half-squares": lambda f, r: f > 0.05 and r == 0,
}


@pytest.mark.parametrize("fault", faulty_runs.FAULTS)
def test_the_experiment_shows_the_fault_at_every_seed(fault):
    assert len(RUNS[fault]) == 3
    for run in RUNS[fault]:
        assert SHOWS[fault](run["probe"]["faulty"], run["probe"]["right"]), run["probe"]
        assert 2 <= len(run["shown"]) <= 4 and all(math.isfinite(value) for value in run["shown"].values())


@pytest.mark.parametrize("fault", ["n-minus-one", "eps-outside", "alpha-on-branch"])
def test_the_quick_runs_are_what_the_record_says(fault):
    (wanted,) = record.results(record.load("faulty_runs"), fault=fault, seed=1)
    found = faulty_runs.faulty_run(fault, 1)
    for part in ("shown", "probe"):
        assert found[part] == pytest.approx(wanted[part], rel=1e-3, abs=1e-3)


def test_an_unknown_fault_is_named():
    with pytest.raises(ValueError, match="fault must be one of n-minus-one, .*, got 'typo'"):
        faulty_runs.faulty_run("typo", 0)


def test_what_the_texts_say_of_the_losses():
    def of(fault, key):
        return [run["shown"][key] if key in run["shown"] else run[key] for run in RUNS[fault]]

    entropy = of("mask-inverted", "entropy of single characters")
    assert all(a < h for a, h in zip(of("mask-inverted", "held-out loss of lines, padded on the right"), entropy))
    assert all(f[-1] > c[-1] for f, c in zip(of("mask-inverted", "loss"), of("mask-inverted", "control")))
    stuck = of("post-stuck", "held-out loss at the end")
    assert all(abs(a - h) < 0.1 for a, h in zip(stuck, of("post-stuck", "entropy of single characters")))
    jump = zip(*(of("gain-convention", f"{name}") for name in RUNS["gain-convention"][0]["shown"]))
    assert all(loaded > before + 0.3 and abs(after - before) < 0.2 for before, loaded, after in jump)
    whole, alone = (of("wrong-axis", name) for name in RUNS["wrong-axis"][0]["shown"])
    assert all(abs(a - b) > 0.01 for a, b in zip(whole, alone))
    assert all(abs(f[-1] - c[-1]) < 0.1 for f, c in zip(of("wrong-axis", "loss"), of("wrong-axis", "control")))
    assert all(f[-1] > c[-1] + 0.1 for f, c in zip(of("half-squares", "loss"), of("half-squares", "control")))
    assert of("half-squares", "NaN or infinite entries of gradients") == [0, 0, 0]
    small = [list(run["shown"].values()) for run in RUNS["batch-statistics"]]
    assert all(large < middle < least for large, middle, least in small)
    assert all(abs(run["probe"]["right"]) < 0.06 for run in RUNS["batch-statistics"])
    losses = [list(run["shown"].values())[:2] for run in RUNS["cast-order"]]
    assert all(abs(one - other) < 0.005 for one, other in losses)


def test_every_fault_has_texts_without_typed_numbers_and_claims():
    assert {item["id"] for item in TEXTS} == set(faulty_runs.FAULTS) == set(SHOWS)
    known = claims.read_claims(ROOT)
    for item in TEXTS:
        texts = [value for key, value in item.items() if key not in ("id", "name", "claims")]
        assert [number for text in texts for number in expressions.typed_numbers(text)] == []
        assert item["claims"] and set(item["claims"]) <= set(known)
        assert not set(item["name"].lower().split()) & {"log", "loss"} and item["answer"].endswith(".")


def test_bad_texts_are_named(tmp_path):
    for name in (rounds.RECORD, rounds.TEXTS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / rounds.TEXTS).write_text("- id: typo\n  name: x\n")
    with pytest.raises(ValueError, match="'typo' must have answer, claims, .*, got id, name"):
        rounds.read_texts(tmp_path)
    fields = "".join(f"  {field}: x\n" for field in sorted(rounds.FIELDS - {"id"}))
    (tmp_path / rounds.TEXTS).write_text(f"- id: typo\n{fields}")
    with pytest.raises(ValueError, match="'typo' is not in the record faulty_runs"):
        rounds.read_texts(tmp_path)


@pytest.mark.parametrize("value, text", [(2.3456789, "2.346"), (0, "0"), (-0.5, "−0.5"), (5.2e-8, "5.2 × 10⁻⁸"), (1, "1")])
def test_numbers_as_a_reader_writes_them(value, text):
    assert rounds.number(value) == text
