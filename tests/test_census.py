"""The census of real models: its rule, what it measures, and whether the library is still as recorded.

Oracles: what configurations say, formulas of the models' source, and planted changes.
"""

import ast
import json
import re
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from bs4 import BeautifulSoup
from some import some
from torch import nn

from normlab import record
from normlab.experiments import tiny_transformers
from normlab.experiments.census import drawings, families, live, measure, rows, stored
from normlab.inspection import report
from normlab.inspection.norm_probe import NormReport
from normlab.inspection.sublayers import Norm
from normlab.inspection.trace import Call, Node
from normlab.inspection.wiring import wiring_of
from normlab.norms import NormKind

pytest.importorskip("transformers")

CENSUS = rows.recorded()
SLICES = 6
older = pytest.mark.skipif(
    tuple(map(int, version("transformers").split(".")[:2])) < tuple(map(int, families.VERSION.split(".")[:2])),
    reason=f"the record is of transformers {families.VERSION}",
)


# --- has the library changed? -------------------------------------------------------------------------------------------


@older
def test_the_library_lists_the_recorded_types():
    assert set(families.listed()) - set(families.TYPES) == set(), "new in the library"
    assert set(families.TYPES) - set(families.listed()) == set(), "gone from the library"
    assert families.VERSION == CENSUS.version == version("transformers")


def test_the_record_has_every_type_once():
    names = [*CENSUS.rows, *CENSUS.composite, *CENSUS.not_built]
    assert sorted(names) == sorted(families.TYPES)
    assert [run["setting"] for run in record.load("census")["runs"]] == measure.RECORDS[0].settings


@older
@pytest.mark.parametrize("part", some(range(SLICES), [0]))
def test_every_row_is_as_recorded(part):
    """All rows together take half a minute; each part says which rows changed, in which column, from what to what."""
    names = list(CENSUS.rows)[part::SLICES]
    changed = rows.changes({name: CENSUS.rows[name] for name in names}, live.rows(names))
    assert not changed, "\n".join(["the library and the record differ; see normlab record census", *changed])


@older
@pytest.mark.parametrize("name", sorted(CENSUS.not_built))
def test_what_did_not_build_still_does_not(name):
    with pytest.raises(ValueError, match=f"^{name} does not build small: "):
        families.build(families.candidate(name))


def test_a_change_is_named_with_row_column_old_and_new():
    before = {"a": CENSUS.rows["llama"], "b": CENSUS.rows["bert"], "c": CENSUS.rows["t5"]}
    after = {"a": dict(CENSUS.rows["llama"], eps="1e-05", final="–"), "b": CENSUS.rows["bert"], "d": CENSUS.rows["t5"]}
    assert rows.changes(before, before) == []
    assert rows.changes(before, after) == [
        "c: a row of its own is gone",
        "d: a new row",
        "a, final: was 'RMSNorm', is '–'",
        "a, eps: was '1e-06', is '1e-05'",
    ]


def test_a_row_of_another_version_is_refused():
    with pytest.raises(ValueError, match=r"of transformers 4\.0\.0, .* is installed: change families\.VERSION"):
        measure.measured("llama", "4.0.0")


# --- the rule -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, composite", [("gemma3", True), ("gemma3_text", False), ("t5gemma", True), ("mpt", False)])
def test_composite_types_are_made_of_models(name, composite):
    assert families.candidate(name).composite is composite
    assert (name in CENSUS.composite) is composite


def test_a_mixed_stack_shows_each_kind_of_layer():
    found = families.sizes(families.candidate("olmo_hybrid"))
    assert sorted(found["layer_types"]) == ["full_attention", "linear_attention"] and found["num_hidden_layers"] == 2


def test_designs_differ_in_more_than_eps_and_keep_every_row():
    found = rows.designs(CENSUS.rows)
    assert sorted(name for design in found for name in design.members) == sorted(CENSUS.rows)
    keys = {(d.row["role"], *(d.row[c] for c in measure.COLUMNS if c != "eps")) for d in found}
    assert len(keys) == len(found)
    llama = next(d for d in found if d.name == "llama")
    assert "mistral" in llama.copies and "qwen3" not in llama.copies and "llama" not in llama.copies


def test_eps_of_a_design_counts_its_members():
    base = CENSUS.rows["llama"]
    found = rows.designs({"a": base, "bb": dict(base, eps="1e-05"), "ccc": dict(base, eps="1e-05")})
    assert [(d.name, d.eps) for d in found] == [("a", "1e-05 (2), 1e-06 (1)")]


# --- what is measured ---------------------------------------------------------------------------------------------------


EXPECTED = {  # from the models' source
    "llama": {"norm": "RMSNorm", "placement": "pre", "final": "RMSNorm", "gain": "w", "wide_gain": "float32"},
    "bert": {"norm": "LayerNorm", "placement": "post", "final": "–", "embedding": "LayerNorm", "wide_input": "error"},
    "gemma2": {"formula": "x + O(F(N(x)))", "gain": "1 + w", "wide_gain": "bfloat16", "wide_input": "float32"},
    "cohere": {"formula": "x + A(N(x)) + M(N(x))", "norm": "LayerNorm", "gain": "w", "multipliers": "logits × 0.0625"},
    "gpt_neox": {"formula": "x + A(N₁(x)) + M(N₂(x))", "placement": "parallel"},
    "minimax": {"formula": "N(x) + F(N(x))", "placement": "unnamed"},
    "nanochat": {"gain": "none", "embedding": "RMSNorm", "multipliers": "logits capped at 15"},
    "olmo2": {"qk_norm": "joint, before RoPE, RMSNorm (w)", "formula": "x + O(F(x))"},
    "qwen3": {"qk_norm": "per head, before RoPE, RMSNorm (w)"},
    "t5": {"multipliers": "attention logits × 1; logits × 1/√d", "wide_input": "bfloat16"},
    "olmo_hybrid": {"placement": "mixer: pre; mlp: pre / output; attention: output"},
    "deepseek_v3": {"inner": "attention: RMSNorm"},
    "fsmt": {"hidden": "the stream, ≠ last_hidden_state", "multipliers": "embedding × √d"},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_rows_say_what_the_source_says(name):
    assert {column: CENSUS.rows[name][column] for column in EXPECTED[name]} == EXPECTED[name]


@pytest.mark.parametrize("name", ["llama", "bert", "gemma2", "olmo2", "exaone4", "helium", "glm4", "deberta", "phi", "qwen2"])
def test_eps_is_that_of_the_configuration(name):
    small = families.config(families.candidate(name))
    names = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")
    assert float(CENSUS.rows[name]["eps"]) == next(getattr(small, n) for n in names if hasattr(small, n))


@pytest.mark.parametrize(
    "family, options, expected",
    [
        ("Granite", {"embedding_multiplier": 12.0}, ["embedding × 12", "attention logits × 1"]),
        ("Granite", {"logits_scaling": 8.0, "attention_multiplier": 8**-0.5}, ["logits × 0.125"]),
        ("Gemma 2", {"attn_logit_softcapping": None, "query_pre_attn_scalar": 16}, ["embedding × √d", "logits capped at 30"]),
        ("Cohere", {"logit_scale": 0.5}, ["logits × 0.5"]),
        ("Llama", {}, []),
        ("BLOOM", {}, []),  # 1 / √d is an argument of its product
        ("GPT-Neo", {}, ["attention logits × 1"]),
    ],
)
def test_multipliers_are_those_of_the_configuration(family, options, expected):
    model = tiny_transformers.tiny_model(family, **options)
    assert measure.multipliers(wiring_of(model, **families.inputs(model)), model) == expected


class _Scaled(nn.Module):
    def __init__(self, result):
        super().__init__()
        self.weight, self.result = nn.Parameter(torch.ones(4)), result

    def forward(self, x):
        if self.result is None and x.dtype != self.weight.dtype:
            raise RuntimeError("expected the same types")
        return (self.weight * x).to(self.result) if self.result else self.weight * x


@pytest.mark.parametrize(
    "result, expected",
    [(torch.bfloat16, ("bfloat16", "bfloat16")), (None, ("error", "error")), (torch.float32, ("float32", "float32"))],
)
def test_mixed_types_are_those_that_come_out(result, expected):
    call = Call(_Scaled(result), 0, [Node("", torch.ones(2, 4))])
    assert measure.mixed_types(Norm(call, NormReport("Scaled", NormKind.RMSNORM, 4))) == expected
    assert call.module.weight.dtype == torch.float32  # tried on a copy


def test_exceptions_name_what_differs():
    row = CENSUS.rows["llama"]
    assert rows.exceptions(row) == [] and rows.is_standard(row)
    assert rows.exceptions(CENSUS.rows["bert"]) == ["LayerNorm", "post", "no final norm"]
    assert rows.exceptions(dict(row, placement="unnamed")) == ["a formula without a name"]
    assert rows.exceptions(dict(row, placement="unnamed", unknown=["a norm"])) == ["wiring not told"]
    assert rows.exceptions(dict(row, placement="attention: pre; mlp: peri")) == ["mixed placement"]
    assert not any(rows.is_standard(dict(row, **change)) for change in ({"norm": "LayerNorm"}, {"final": "–"}))


def test_every_exception_is_no_standard():
    for row in CENSUS.rows.values():
        assert rows.is_standard(row) == (rows.exceptions(row) == [])


# --- storing and drawing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["Llama", "Gemma 3", "OLMo hybrid", "T5", "MiniMax-01", "Mamba", "nanochat"])
def test_a_report_comes_back_from_json(family):
    model = tiny_transformers.tiny_model(family)
    found = report.inspect(model, **tiny_transformers.inputs(family))
    assert stored.unpacked(json.loads(json.dumps(stored.packed(found)))) == found


def test_every_recorded_report_can_be_drawn_and_agrees_with_its_row():
    for row in CENSUS.rows.values():
        found = stored.unpacked(row["report"])
        assert found.model == row["class"] or row["class"] in repr(families.listed())
        formulas = {s.formula for stack in found.stacks for b in stack.blocks for s in b.sublayers if not s.joins_next}
        if row["formula"] in ("x + F(N(x))", "N(x + F(x))", "x + O(F(x))", "x + O(F(N(x)))"):
            assert formulas == {row["formula"]}


def test_the_gallery_shows_every_told_wiring_once(capsys):
    found = rows.designs(CENSUS.rows)
    groups = drawings.wirings(found)
    told = [d.name for d in found if not (rows.is_untold(d.row) or d.row["unknown"])]
    assert sorted(name for names in groups.values() for name in names) == sorted(told)
    assert "gemma2" in next(names for names in groups.values() if "glm4" in names)  # they differ in the gain only
    apart = [next(first for first, names in groups.items() if name in names) for name in ("cohere", "gpt_neox", "llama")]
    assert len(set(apart)) == 3
    drawings.gallery(found)
    lines = {re.split("[,:]", line)[0]: line for line in capsys.readouterr().out.splitlines()}
    assert len(lines) == len(groups)
    told = {first: line.split("QK-norm ")[1].split(";")[0] for first, line in lines.items() if "QK-norm" in line}
    shown = {name: next(text for first, text in told.items() if name in groups[first]) for name in ("qwen3", "llama4_text")}
    assert shown == {"qwen3": "per head, before RoPE", "llama4_text": "per head, after RoPE"}


def test_a_slim_drawing_keeps_the_wiring_and_drops_what_designs_may_not_share():
    drawn = drawings.diagram(CENSUS.rows["gemma3_text"])
    slim = drawings._slim(drawn.svg)
    words = [[t.get_text() for t in BeautifulSoup(svg, "html.parser").find_all("text")] for svg in (drawn.svg, slim)]
    assert "RMSNorm, gain 1 + w [1]" in words[0] and any("eps 1e-06" in text for text in words[0])
    wiring = [text.replace(", gain 1 + w", "").split(" [")[0] for text in words[0] if not re.match(r"\[\d|\s", text)]
    assert words[1] == wiring and "RMSNorm" in wiring
    assert slim.count("<path") == drawn.svg.count("<path") and len(slim) < 0.6 * len(drawn.svg)


def test_the_table_has_a_line_for_every_design():
    found = rows.designs(CENSUS.rows)
    lines = rows.table_rows(found)
    assert [line[0] for line in lines] == [design.name for design in found]
    assert {len(line) for line in lines} == {len(rows.HEADINGS)} and set(rows.FILTERS) <= set(rows.HEADINGS)
    assert sum(int(line[rows.HEADINGS.index("types")]) for line in lines) == len(CENSUS.rows)


def test_a_tied_group_takes_the_oldest_name():
    base = CENSUS.rows["llama"]
    (design,) = rows.designs({"new": dict(base, year=2026), "older": dict(base, year=2022), "none": dict(base, year=None)})
    assert design.name == "older" and replace(design, name="new").copies == ("older", "none")


def test_borrowed_code_is_counted_however_it_is_imported():
    """Oracle: Python's own parser, on all files that the library generates others from."""
    import transformers

    folder = Path(transformers.__file__).parent / "models"
    takers = {}
    for path in folder.glob("*/modular_*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                above = ("transformers", "models", path.parent.name)[: 4 - node.level] if node.level else ()
                match (*above, *node.module.split(".")):
                    case ("transformers", "models", other, file) if file.startswith("modeling_"):
                        takers.setdefault(other, set()).add(path.parent.name)
    assert {name: len(found - {name}) for name, found in takers.items() if found - {name}} == {
        name: count for name, count in measure.borrowers().items() if count
    }
    assert measure.borrowers()["llama"] > 50


# --- models in a cell ---------------------------------------------------------------------------------------------------


def test_a_cap_is_seen_where_the_library_would_run_a_kernel_without_one(monkeypatch):
    """transformers 5.14 takes torch's kernel for Gemma 2 by default, and then there is no cap."""
    from transformers.models.gemma2 import modeling_gemma2

    monkeypatch.setattr(modeling_gemma2.Gemma2PreTrainedModel, "_supports_sdpa", True)
    assert "attention logits capped at 50" in measure.row(families.candidate("gemma2"))["multipliers"]


def test_what_goes_in_and_out_of_modules():
    (llama,) = live.models(["llama"]).values()
    ids = torch.arange(6)[None]
    (before, after), (_, final) = live.seen(llama, [llama.model.layers[1], llama.model.norm], ids)
    assert not any(module._forward_hooks for module in llama.modules())
    with torch.no_grad():
        expected = llama(ids, output_hidden_states=True, use_cache=False).hidden_states
    torch.testing.assert_close(before, expected[1], rtol=0, atol=0)
    torch.testing.assert_close(final, expected[2], rtol=0, atol=0)
    assert not torch.equal(after, final)


@pytest.mark.parametrize("missing, expected", [("transformers", {}), ("another", None)])
def test_without_the_library_there_are_no_models(missing, expected, monkeypatch):
    def fail(name):
        raise ModuleNotFoundError(name=missing)

    monkeypatch.setattr(families, "candidate", fail)
    if expected is None:
        with pytest.raises(ModuleNotFoundError):
            live.models(["llama"])
    else:
        assert live.models(["llama"]) == expected
