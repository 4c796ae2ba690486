"""``normlab.inspection.diagram``: what is drawn is what the report says, whatever the report."""

import re
from collections import Counter
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import torch
from some import third
from tiny_models import tiny
from torch import nn

import normlab
from normlab.experiments.tiny_transformers import FAMILIES, inputs
from normlab.inspection.diagram import LETTER, WIDTH, as_ranges, kinds_of_blocks, wiring_diagram
from normlab.inspection.report import LastHidden
from normlab.placement import Placement
from normlab.transformer import Transformer, TransformerConfig

SVG = "{http://www.w3.org/2000/svg}"


def ours(**options):
    settings = {"vocab_size": 9, "context": 12, "layers": 3, "width": 16, "heads": 2, **options}
    return normlab.inspect(Transformer(TransformerConfig(**settings)))


def drawn(report):
    return ElementTree.fromstring(wiring_diagram(report).svg)


def count(root):
    """How many boxes of each kind there are."""
    return Counter(name for group in root.iter() for name in group.get("class", "").split())


def lowest(root, css):
    """Lower edges of all boxes of a class, the lowest first: the picture grows upwards."""
    groups = [g for g in root.iter(f"{SVG}g") if css in g.get("class", "").split()]
    boxes = [group.find(f".//{SVG}rect") for group in groups]
    return sorted((float(box.get("y")) + float(box.get("height")) for box in boxes), reverse=True)


def expected(report):
    """The same counts from the report."""
    total = Counter(reason=not report.stacks)
    for stack in report.stacks:
        outside = (stack.embedding_norm or stack.embedding_unknown, stack.final_norm or stack.final_unknown)
        total["norm"] += sum(map(bool, outside))
        for block in set(stack.blocks):
            total["block"] += 1
            total["reason"] += block.unknown is not None
            previous_joins = False
            for s in block.sublayers:
                total["branch"] += 1
                total["add"] += not s.joins_next
                inside = len(s.inner_norms) + s.hidden_norm + bool(s.qk_norm or s.unknown_qk_norm)
                shared_before = s.shares_norm and previous_joins
                total["inside"] += inside
                total["norm"] += inside + bool(s.output_norm) + bool(s.input_norm and not shared_before)
                total["norm"] += bool(s.post_norm and not s.joins_next) + bool(s.skip_norm and not previous_joins)
                total["scale"] += (s.input_scale != 1) + (s.output_scale != 1)
                total["scale"] += (s.stream_scale != 1 and not previous_joins) + (s.sum_scale != 1)
                previous_joins = s.joins_next
    return total


def check(report):
    root = drawn(report)
    found, wanted = count(root), expected(report)
    names = ("norm", "inside", "block", "reason", "branch", "add", "scale")
    assert [found[name] for name in names] == [wanted[name] for name in names]
    texts = ", ".join(root.itertext())
    assert all(s.formula in texts for stack in report.stacks for block in stack.blocks for s in block.sublayers)
    x, y, width, height = map(float, root.get("viewBox").split())
    for box in root.iter(f"{SVG}rect"):
        left, top = float(box.get("x")), float(box.get("y"))
        assert x <= left and left + float(box.get("width")) <= x + width
        assert y <= top and top + float(box.get("height")) <= y + height
    for text in root.iter(f"{SVG}text"):
        long = len(text.text) * LETTER / {"middle": 2}.get(text.get("text-anchor"), 1)
        ends = {"start": float(text.get("x")) + long, "middle": float(text.get("x")) + long}
        assert ends.get(text.get("text-anchor"), 0) <= WIDTH + 1
        assert y < float(text.get("y")) < y + height
    return root


@pytest.mark.parametrize("family", third(FAMILIES))
def test_families(family):
    check(normlab.inspect(tiny(family), **inputs(family)))


@pytest.mark.parametrize("scale", [0.5, nn.Parameter(torch.ones(8))])
def test_a_scaled_sum(scale):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.mlp, self.norm = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), nn.LayerNorm(8)
            self.scale = scale

        def forward(self, x):
            x = x + self.mlp(self.norm(x))
            return self.scale * (x + self.mlp(x))

    torch.manual_seed(0)
    report = normlab.inspect(nn.Sequential(Scaled(), Scaled()), torch.randn(2, 4, 8))
    check(report)
    assert count(drawn(report))["scale"] == 1


@pytest.mark.parametrize("placement", Placement)
def test_placements(placement):
    check(ours(placement=placement))


@pytest.mark.parametrize("placement", ["pre", "peri", "output", "parallel"])
def test_scaled_sublayers(placement):
    assert count(check(ours(placement=placement, output_scale="inverse_sqrt_layer")))["scale"]


@pytest.mark.parametrize("shared", [False, True])
def test_a_mixed_stack(shared):
    report = ours(placement=("post", "pre", "parallel"), parallel_shared_norm=shared)
    assert count(check(report))["add"] == 5


@pytest.mark.parametrize(("placement", "below", "above"), [("pre", 1, 1), ("post", 0, 1), ("peri", 1, 2)])
def test_order(placement, below, above):
    """One MLP: norms that stand below and above its box, the final one among these."""
    root = drawn(ours(placement=placement, sublayers=("mlp",)))
    (branch,) = lowest(root, "branch")
    norms = [y > branch for y in lowest(root, "norm")]
    assert (norms.count(True), norms.count(False)) == (below, above)


def test_sublayers_stand_in_their_order_upwards():
    root = drawn(ours())
    assert lowest(root, "attention") > lowest(root, "mlp") and count(root)["attention"] == count(root)["mlp"] == 1


@pytest.mark.parametrize(("last", "below", "above"), list(zip(LastHidden, (0, 1, 1, 0), (1, 1, 0, 0))))
def test_where_the_last_hidden_state_is_taken(last, below, above):
    root = drawn(replace(ours(), last_hidden=last))
    final = lowest(root, "norm")[-1]
    marks = [float(circle.get("cy")) > final for circle in root.iter() if circle.get("class") == "hidden"]
    assert (marks.count(True), marks.count(False)) == (below, above)


def test_numbers_of_norms_are_those_of_the_text():
    for family in ("Gemma 3", "BitNet", "BERT", "T5"):
        report = normlab.inspect(tiny(family))
        listed = [" ".join(t.split()) for t in drawn(report).itertext()]
        for number, norm in re.findall(r"^  \[(\d+)\] (.*)$", str(report), re.MULTILINE):
            assert any(t.startswith(f"[{number}] {norm[:20]}") for t in listed)


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix = nn.Linear(8, 8)

    def forward(self, x):
        return self.matrix(x) * x.abs()


def test_unknown_is_dashed():
    unknown = drawn(normlab.inspect(nn.Sequential(Odd(), Odd())))
    assert count(unknown)["unknown"] >= 2 and "?" in "".join(unknown.itertext())
    nothing = drawn(normlab.inspect(nn.Linear(8, 8), torch.zeros(2, 3, 8)))
    assert count(nothing)["unknown"] == 1 and "structure unknown" in "".join(nothing.itertext())
    for root in (unknown, nothing):
        dashed = [box for box in root.iter(f"{SVG}rect") if box.get("stroke-dasharray")]
        assert len(dashed) == count(root)["unknown"]
    report = ours()
    stack = replace(report.stacks[0], final_norm=None, final_unknown="several norms stand behind the last block")
    assert count(check(replace(report, stacks=(stack,))))["unknown"] == 1


def test_names_are_escaped():
    name = """<script>"&'"""
    report = ours()
    norm = replace(report.stacks[0].final_norm, module=name)
    report = replace(report, model=name, stacks=(replace(report.stacks[0], final_norm=norm),))
    diagram = wiring_diagram(report)
    root = ElementTree.fromstring(diagram.svg)
    assert name in diagram.alt and sum(name in t for t in root.itertext()) >= 3
    assert all(element.tag != f"{SVG}script" for element in root.iter())


def test_equal_blocks_are_drawn_once_with_their_numbers():
    report = ours(layers=7, placement=("pre", "pre", "post", "pre", "pre", "post", "pre"))
    assert list(kinds_of_blocks(report.stacks[0].blocks).values()) == [[1, 2, 4, 5, 7], [3, 6]]
    texts = list(drawn(report).itertext())
    assert "blocks 1–2, 4–5, 7 · × 5" in texts and "blocks 3, 6 · × 2" in texts


@pytest.mark.parametrize(
    ("numbers", "text"), [([1], "1"), ([1, 2, 3], "1–3"), ([1, 3, 4, 9], "1, 3–4, 9"), ([], "")]
)
def test_ranges(numbers, text):
    assert as_ranges(numbers) == text


def test_it_is_a_figure_of_the_page():
    diagram = wiring_diagram(ours())
    data, metadata = diagram._repr_mimebundle_()
    assert data == {"image/svg+xml": diagram.svg, "text/plain": diagram.alt}
    assert metadata["image/svg+xml"] == metadata["normlab"] == {"alt": diagram.alt}
    assert "Blocks 1–3: attention x + F(N(x)) (N RMSNorm); mlp x + F(N(x)) (N RMSNorm)" in diagram.alt
    assert diagram == wiring_diagram(ours())
