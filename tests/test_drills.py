"""The drills: every mistake is seen and named, right solutions pass, and the learner's code can do no harm."""

import ast
import json
import os
import re
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import drill_notebooks
import nbformat
import pytest
import torch
import torch.nn.functional as F
from right_solutions import RIGHT
from some import third
from torch import nn
from wrong_solutions import WRONG
from wrong_solutions_fresh import FRESH

from normlab import backward, cli
from normlab.drills import check_test, checking, drill, guard, ladder, modes, progress, repair, review, values
from normlab.drills.scoring import row, score, table

ROOT = Path(__file__).resolve().parent.parent

STORED = {line[0]: line for line in json.loads((ROOT / "book" / "drills" / "score.json").read_text("utf-8"))}

sys.path.insert(0, str(ROOT / "book" / "_ext"))
from course import drills as pages  # noqa: E402

SLUGS = [slug for week in ladder().values() for slug in week]


@pytest.fixture(autouse=True)
def own_progress(tmp_path, monkeypatch):
    monkeypatch.setenv(progress.VARIABLE, str(tmp_path / "drills.json"))


def seen(slug, solution):
    """A report without a process of its own, which is quicker."""
    d = drill(slug)
    return checking.judge(d, checking.collect(checking.observe(d, lambda: solution)))


# --- the catalogue ------------------------------------------------------------------------------------------------


def test_the_ladder_has_all_drills_once():
    assert len(SLUGS) == len(set(SLUGS)) == 23
    files = {path.stem for path in (ROOT / "src" / "normlab" / "drills").glob("*.py")}
    assert set(SLUGS) <= files and set(RIGHT) == set(SLUGS)
    with pytest.raises(KeyError, match="no drill 'norm', but rms_norm"):
        drill("norm")


@pytest.mark.parametrize("slug", SLUGS)
def test_a_drill_says_everything(slug):
    d = drill(slug)
    ids = [m.id for m in d.mistakes]
    assert d.slug == slug and len(ids) == len(set(ids)) >= 11 and not set(ids) & set(checking.COMMON)
    assert 3 <= d.minutes <= 12 and len(d.hints) == 3 and d.task.endswith(".") and d.why.endswith(".")
    assert slug in repr(d) and d.signature in repr(d)
    for m in d.mistakes:
        assert m.says.endswith(".") and m.fix.endswith(".") and m.probe in d.probes, m.id
        assert not m.accepted or m.convention
        if isinstance(m.change, dict):
            assert checking.edited(d.source, m) not in (None, d.source), f"{m.id} changes nothing, or no single place"


def float_tensors(value, name):
    if isinstance(value, torch.Tensor):
        yield from [(name, value)] if value.is_floating_point() else []
    elif isinstance(value, tuple | list):
        for item in value:
            yield from float_tensors(item, name)


@pytest.mark.parametrize("slug", SLUGS)
def test_probes_have_entries_of_both_signs(slug):
    """Positive gains would let a solution pass that takes their absolute value."""
    d, signs = drill(slug), {}
    for probe in d.probes.values():
        for name, tensor in (pair for i, a in enumerate(probe.arguments()) for pair in float_tensors(a, i)):
            signs.setdefault(name, set()).update(tensor.double().sign().flatten().tolist())
    assert all({-1.0, 1.0} <= found for found in signs.values()), signs


@pytest.mark.parametrize("slug", third(SLUGS))
def test_every_mistake_is_seen_by_its_probe_and_named_and_pairs_are_told_apart(slug):
    d = drill(slug)
    found = score(d)
    assert found.unseen == () and found.misnamed == () and found.unexplained == ()
    assert set(found.equal) == set(d.equal)
    assert found.named >= 0.88 * found.doubles > 20
    assert row(found) == STORED[slug], "run tools/drill_score.py"


def test_the_score_is_shown(capsys):
    assert cli.main(["drill", "welford", "--score"]) == 0
    out = capsys.readouterr().out
    assert out == table([score(drill("welford"))]) + "\n" and "11        11" not in out
    count = str(len(drill("welford").mistakes))
    assert [line.split()[:4] for line in out.splitlines()[1:]] == [[n, *3 * [count]] for n in ("welford", "together")]


def test_a_score_finds_what_is_wrong_with_a_catalogue():
    d = drill("welford")
    blind = checking.Mistake("blind", "one", {"total / count": "total / (count + 0.5)"}, "x.", "y.")
    twin = checking.Mistake("twin", "plain", {"return mean, total / count": "return mean, total"}, "x.", "y.")
    found = score(replace(d, mistakes=(*d.mistakes, blind, twin)))
    assert found.unseen == ("blind",) and "twin" in found.misnamed and ("returns_sum", "twin") in found.equal


@pytest.mark.parametrize("slug", SLUGS)
def test_right_solutions_of_other_kinds_pass(slug):
    assert len(RIGHT[slug]) >= 5
    for solution in RIGHT[slug]:
        report = seen(slug, solution)
        assert report.passed and report.mistakes == (), f"{solution}: {report.texts[2]}"


def test_conventions_pass_by_name_unless_the_task_names_another():
    def cast_last(x, w, eps):  # torch's own rounds so in 2.13, and otherwise in 2.6
        return F.rms_norm(x.float(), x.shape[-1:], w.float(), eps).to(x.dtype)

    passed = drill("rms_norm").check(cast_last)
    assert passed.passed and passed.convention == "cast_after_gain" and "Gemma" in passed.texts[0]
    failed = seen("rms_norm", lambda x, w, eps: F.rms_norm(x, x.shape[-1:], 1 + w, eps))
    assert not failed.passed and failed.convention == "gemma_gain" and failed.mistakes == ("gemma_gain",)
    assert "convention of Gemma" in failed.texts[1]
    for slug in SLUGS:
        for m in drill(slug).mistakes:
            if m.accepted:
                assert seen(slug, checking.wrong(drill(slug), m.id)).convention == m.id


# --- pages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slug", SLUGS)
def test_a_page_says_what_the_drill_says(slug):
    """The book reads the files without importing them."""
    d, read = drill(slug), pages.read(ROOT, slug)
    assert (read["task"], read["minutes"], read["why"], read["hints"]) == (d.task, d.minutes, d.why, d.hints)
    assert read["probes"] == {name: probe.sees for name, probe in d.probes.items()}
    assert read["solution"] == d.source.rstrip() and read["signature"] == d.signature
    assert [{name: getattr(m, name) or "" for name in pages.MISTAKE} for m in d.mistakes] == [
        {name: m[name] or "" for name in pages.MISTAKE} for m in read["mistakes"]
    ]
    text = (ROOT / "book" / "drills" / f"{slug}.md").read_text(encoding="utf-8")
    assert text == f"# Drill: `{slug}`\n\n```{{drill}} {slug}\n```\n"


def test_the_pages_follow_the_ladder():
    assert list(STORED) == ["drill", *SLUGS]
    assert pages.ladder(ROOT) == {week: list(slugs) for week, slugs in ladder().items()}
    listed = re.findall(r"book/drills/(\w+)$", (ROOT / "_toc.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == SLUGS
    shown = pages.score_table([STORED["drill"], STORED["welford"], STORED["dyt"]]).splitlines()
    assert shown[-1].split(" | ")[1] == f"**{STORED['welford'][1] + STORED['dyt'][1]}**" and len(shown) == 5


@pytest.mark.parametrize("week", ladder())
def test_the_notebook_of_a_week_is_current(week):
    stored = nbformat.read(ROOT / "notebooks" / "drills" / f"week_{week}.ipynb", as_version=4)
    made = drill_notebooks.notebook(week, ladder()[week])
    assert [c.id for c in stored.cells] == [c.id for c in made.cells]
    assert [c.source for c in stored.cells] == [c.source for c in made.cells], "run tools/drill_notebooks.py"
    said = {cell.id: "".join(o.get("text", "") for o in cell.outputs) for cell in stored.cells if "outputs" in cell}
    for slug in ladder()[week]:
        id = slug.replace("_", "-")
        assert said[f"{id}-check"] == f"{slug}: not written yet.\n" and f"{slug}: passed" in said[f"{id}-solution"]
    assert said["read-solution"].startswith("Right.")


def test_only_the_notebooks_that_change_lose_their_outputs(tmp_path):
    path = tmp_path / "week_4.ipynb"
    path.write_bytes((ROOT / "notebooks" / "drills" / path.name).read_bytes())
    before = path.read_bytes()
    assert not drill_notebooks.renew(path, drill_notebooks.notebook(4, ladder()[4])) and path.read_bytes() == before
    assert drill_notebooks.renew(path, drill_notebooks.notebook(4, ladder()[4][:-1]))
    written = nbformat.read(path, as_version=4)
    assert written.cells and all(not cell.get("outputs") for cell in written.cells)
    assert ladder()[4][-1].replace("_", "-") not in {cell.id for cell in written.cells}


# --- the solutions themselves, against torch, autograd and closed forms ---------------------------------------------


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def arguments(slug, probe):
    return drill(slug).probes[probe].arguments()


def test_norms_equal_torch():
    x, w, b, eps = arguments("layer_norm", "three_axes")
    close(drill("layer_norm").solution(x, w, b, eps), F.layer_norm(x, (6,), w, b, eps))
    x, w, eps = arguments("rms_norm", "three_axes")
    close(drill("rms_norm").solution(x, w, eps), F.rms_norm(x, (6,), w, eps))
    x, r, w, eps = arguments("add_rms_norm", "random")
    close(drill("add_rms_norm").solution(x, r, w, eps), (F.rms_norm(x + r, (6,), w, eps), x + r))
    shards, gains, eps = arguments("sharded_rms_norm", "three")
    whole = F.rms_norm(torch.cat(shards, -1), (8,), torch.cat(gains), eps)
    close(torch.cat(drill("sharded_rms_norm").solution(shards, gains, eps), -1), whole)


def test_backward_passes_equal_autograd():
    for slug, forward in (
        ("rms_norm_backward", lambda x, w, b, eps: F.rms_norm(x, x.shape[-1:], w, eps)),
        ("layer_norm_backward", lambda x, w, b, eps: F.layer_norm(x, x.shape[-1:], w, b, eps)),
    ):
        for probe in drill(slug).probes:
            dy, x, w, eps = arguments(slug, probe)
            found = drill(slug).solution(dy, x, w, eps)
            leaves = [t.clone().requires_grad_() for t in (x, w, torch.zeros_like(w))][: len(found)]
            y = forward(*leaves, *[None] * (3 - len(leaves)), eps)
            torch.testing.assert_close(found, torch.autograd.grad(y, leaves, dy), rtol=1e-10, atol=1e-12)


def test_batch_norms_equal_torch():
    x, mask, w, b, eps = arguments("masked_batch_norm", "pad")
    y = drill("masked_batch_norm").solution(x, mask, w, b, eps)
    close(y[mask], F.batch_norm(x[mask], None, None, w, b, True, 0.0, eps))
    assert (y[~mask] == 0).all()
    batches, x, momentum, eps = arguments("batch_norm_running_stats", "uneven")
    layer = nn.BatchNorm1d(5, eps, momentum, affine=False).double()
    outputs = [layer(batch) for batch in batches]
    found = drill("batch_norm_running_stats").solution(batches, x, momentum, eps)
    close(list(found), [outputs, layer.running_mean, layer.running_var, layer.eval()(x)])


def test_statistics_equal_closed_forms():
    assert drill("welford").solution([1e8 + 4, 1e8 + 7, 1e8 + 13, 1e8 + 16]) == (1e8 + 10, 22.5)
    a, b = torch.arange(3.0).double(), torch.tensor([9.0, -4, 0.5, 2]).double()
    pair = [(len(t), t.mean(), len(t) * t.var(correction=0)) for t in (a, b, torch.cat([a, b]))]
    close(drill("chunk_merge").solution(*pair[:2]), pair[2])


def test_blocks_equal_transformers_of_torch():
    """With torch's own encoder layer, whose sublayers are handed over."""
    for slug, first in (("post_norm_block", False), ("pre_norm_block", True)):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=first).double()
        nn.init.normal_(layer.norm1.weight), nn.init.normal_(layer.norm2.bias)
        x = torch.randn(2, 5, 8).double()
        parts = lambda h: layer.self_attn(h, h, h, need_weights=False)[0], layer._ff_block, layer.norm1, layer.norm2
        close(drill(slug).solution(x, *parts), layer.train()(x))
    x = torch.tensor([1.0, 2, 3, 4]).double()
    norm, square = lambda h: F.layer_norm(h, (4,)), torch.square
    peri = drill("peri_norm_block").solution(x, square, torch.zeros_like, norm, norm, norm, norm)
    torch.testing.assert_close(peri, torch.tensor([2.0, 1, 2, 5]).double(), rtol=0, atol=3e-5)


def test_deepnorm_equals_the_paper_by_hand():
    x, g = torch.tensor([1.0, 1, -1, -1]).double(), torch.tensor([1.0, -1, 1, -1]).double()
    alpha, beta, y = drill("deepnorm").solution(x, lambda h: g, lambda h: F.layer_norm(h, (4,), eps=0.0), 8)
    assert alpha == 2.0 and beta == pytest.approx(0.35355, abs=1e-5)
    torch.testing.assert_close(y, torch.tensor([3.0, 1, -1, -3]).double() / 5**0.5)


def test_attention_and_head_equal_torch():
    q, k, v, wq, wk, rope, eps = arguments("qk_norm_attention", "random")
    nq, nk = (rope(F.rms_norm(t, (4,), w, eps)) for t, w in ((q, wq), (k, wk)))
    expected = F.scaled_dot_product_attention(nq, nk, v, is_causal=True)
    close(drill("qk_norm_attention").solution(q, k, v, wq, wk, rope, eps), expected)
    hidden, w, embedding, eps = arguments("final_norm_head", "random")
    expected = F.linear(F.rms_norm(hidden, (6,), w, eps), embedding)[:, -1]
    close(drill("final_norm_head").solution(hidden, w, embedding, eps), expected)


def test_folding_keeps_the_layer():
    gain, shift, W, b = arguments("fold_norm", "rectangle")
    x = torch.randn(5, 4).double()
    folded = F.linear(F.layer_norm(x, (4,)), *drill("fold_norm").solution(gain, shift, W, b))
    close(folded, F.linear(F.layer_norm(x, (4,), gain, shift), W, b))


def test_arithmetic_equals_known_models():
    llama, gemma = (arguments("kv_cache_bytes", probe)[0] for probe in ("llama", "gemma"))
    assert drill("kv_cache_bytes").solution(llama, 1, 1, 2) == 128 * 2**10
    assert gemma["hidden"] // gemma["heads"] == 288 and gemma["head_dim"] == 256
    norms, parameters, moved = drill("norm_ledger").solution("rmsnorm", 4096, 32, 2, True, 1, 2)
    assert (norms, parameters, moved) == (65, 266_240, 65 * 2 * 4096 * 2)  # of Llama 2 7B


def test_weight_decay_groups_of_torch_modules():
    layer = nn.TransformerEncoderLayer(4, 2, 8)
    decay, rest = drill("weight_decay_groups").solution(layer)
    matrices = {"self_attn.in_proj_weight", "self_attn.out_proj.weight", "linear1.weight", "linear2.weight"}
    assert set(decay) == matrices and set(decay) | set(rest) == dict(layer.named_parameters()).keys()


def test_gradients_by_differences_equal_autograd():
    f, x, h = arguments("gradient_check", "fine")
    exact = torch.autograd.functional.jacobian(f, x)
    off = [(drill("gradient_check").solution(f, x, step) - exact).abs().max() for step in (h, h / 2)]
    assert off[0] < 1e-4 and off[0] / off[1] == pytest.approx(4, rel=0.01)


def test_module_and_dyt_equal_torch():
    x = torch.randn(2, 3, 5)
    torch.testing.assert_close(drill("rms_norm_module").solution(5)(x), nn.RMSNorm(5, eps=1e-6)(x))
    x, a, w, b = arguments("dyt", "huge")
    close(drill("dyt").solution(x, a, w, b), x.sign() * w + b)


# --- what is said -------------------------------------------------------------------------------------------------


def unbiased(x, weight, bias, eps):
    return (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True) + eps) * weight + bias


def test_three_levels_of_help(capsys):
    report = drill("layer_norm").check(lambda x, w, b, eps: unbiased(x.double(), w, b, eps).to(x.dtype))
    first = capsys.readouterr().out
    assert report.mistakes == ("unbiased_var",) and not report.passed and report.convention is None
    assert "unbiased" not in first + repr(report) and "yours  [" in first and "right  [" in first
    assert "four features" in first
    report.help(2)
    second = capsys.readouterr().out
    assert "unbiased_var" in second and "d - 1" in second and "Fix" not in second
    report.help(3)
    assert "Fix: LayerNorm divides by d" in capsys.readouterr().out
    with pytest.raises(ValueError, match="level must be 1"):
        report.help(4)


def test_what_the_catalogue_lacks_is_said_to_be_missing_with_its_properties(capsys):
    def median_norm(x, weight, bias, eps):
        size = x.abs().median(-1, keepdim=True).values
        return x / (size + eps) * weight + bias

    report = drill("layer_norm").check(median_norm, level=2)
    out = capsys.readouterr().out
    assert report.mistakes == () and not report.passed
    assert checking.NOT_IN_CATALOGUE in out
    assert (
        "Yours: adding 10 to all features changes the result. Right: adding 10 to all features changes nothing" in out
    )


def test_double_mistakes_are_named():
    def both(x, weight, bias, eps):
        v = x.double()
        return ((v - v.mean(-1, keepdim=True)) / (v.std(-1, keepdim=True) + eps) * weight + bias).to(x.dtype)

    assert set(seen("layer_norm", both).mistakes) == {"unbiased_var", "eps_outside"}


@pytest.mark.parametrize(("slug", "ids", "solution"), WRONG)
def test_no_wrong_solution_gets_a_wrong_name(slug, ids, solution):
    report = seen(slug, solution)
    assert not report.passed and set(report.mistakes) == set(ids), report.texts[1]
    assert ids or checking.NOT_IN_CATALOGUE in report.texts[1]


@pytest.mark.parametrize(("slug", "ids", "solution"), FRESH, ids=lambda item: getattr(item, "__name__", None))
def test_fresh_wrong_solutions_get_their_right_names(slug, ids, solution):
    assert set(seen(slug, solution).mistakes) == set(ids.split())


WITH_EPS = [slug for slug in SLUGS if re.search(r"\beps\)", drill(slug).signature)]


@pytest.mark.parametrize("eps", [1e-6, 1e-12])
@pytest.mark.parametrize("slug", WITH_EPS)
def test_an_eps_of_ones_own_is_named(slug, eps):
    """Every drill that is given eps has an input on which this shows, and no other name comes near."""
    d = drill(slug)
    report = seen(slug, lambda *arguments: d.solution(*arguments[:-1], eps))
    assert len(report.mistakes) == 1, f"{slug} needs a mistake like eps_fixed of layer_norm.py, seen where eps is large"
    (id,) = report.mistakes
    assert "eps of your own" in d.mistake(id).says or "eps that is given is not used" in d.mistake(id).says


@pytest.mark.parametrize("slug", [slug for slug in SLUGS if slug != "rms_norm_module"])
def test_a_missing_return_is_said(slug):
    report = seen(slug, lambda *arguments: None)
    assert "wrong_type" in report.mistakes and "is the return statement missing?" in report.texts[0]


def test_names_that_are_missing_are_no_wrong_count():
    report = seen("weight_decay_groups", lambda model: (["up.weight"], []))
    assert report.mistakes == () and "missing  " in report.texts[0] and "embed.weight" in report.texts[0]
    right = drill("weight_decay_groups").solution
    twice = seen("weight_decay_groups", lambda model: tuple(2 * names for names in right(model)))
    assert not twice.passed and "too many  " in twice.texts[0] and "embed.weight again" in twice.texts[0]


def test_a_gain_that_is_no_parameter_may_be_used():
    class Plain(nn.Module):
        def __init__(self, width, eps=1e-6):
            super().__init__()
            self.weight, self.eps = torch.ones(width), eps

        def forward(self, x):
            return rms(x, self.weight.to(x.dtype), self.eps)

    assert seen("rms_norm_module", Plain).mistakes == ("not_registered",)


@pytest.mark.parametrize("slug", SLUGS)
def test_a_stub_raises_and_is_recognized(slug):
    names = {}
    exec(drill(slug).stub(), names)
    report = seen(slug, names[slug])
    assert report.mistakes == ("not_written",) and report.texts[0] == f"{slug}: not written yet."


# --- the contract -------------------------------------------------------------------------------------------------


def rms(x, weight, eps):
    return drill("rms_norm").solution(x, weight, eps)


def in_place(x, weight, eps):
    v = x.float() if x.dtype in values.HALF else x
    v /= torch.sqrt(v.square().mean(-1, keepdim=True) + eps)
    return v.to(x.dtype) * weight


def in_place_in_float32_only(x, weight, eps):
    v = x.float()
    v *= torch.rsqrt(v.square().mean(-1, keepdim=True) + eps)
    return v.to(x.dtype) * weight


def narrows(x, weight, eps):
    return rms(x.float(), weight.float(), eps)


def detached(x, weight, eps):
    v = x.float() if x.dtype in values.HALF else x
    return (v * torch.rsqrt(v.detach().square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def with_state(x, weight, eps, calls=[0.0]):  # noqa: B006
    calls[0] += 1
    return rms(x, weight, eps) * (1 + 0.01 * (calls[0] % 2))


CONTRACT = [
    (lambda x, w, eps: None, "wrong_type", "is None: is the return statement missing?"),
    (lambda x, w, eps: rms(x, w, eps).tolist(), "wrong_type", "must be a tensor, got"),
    (lambda x, w, eps: rms(x, w, eps).numpy(), "wrong_type", "must be a tensor, got a ndarray"),
    (lambda x, w, eps: rms(x, w, eps)[0], "wrong_shape", "it must have (3, 4)"),
    (narrows, "wrong_dtype", "is float32, it must be float64"),
    (in_place, "modifies_input", "changes its argument x"),
    (in_place_in_float32_only, "modifies_input", "On float32 inputs your function changes its argument x"),
    (lambda x, w, eps: rms(x, w.mul_(2), eps), "modifies_input", "changes its argument weight"),
    (detached, "no_gradient", "the gradient through your function is not"),
    (with_state, "not_repeatable", "a second call with the same tensors"),
    (lambda x, w: x, "raises", "the signature is another one"),
    (lambda x, w, eps: x * torch.ones(7), "raises", "keepdim=True has lost its axis"),
    (lambda x, w, eps: x @ x, "raises", "This mostly means"),
    (lambda x, w, eps: x if x > 0 else w, "raises", "an if on a whole tensor"),
    (lambda x, w, eps: undefined_name * x, "raises", "a name that the solution does not define"),  # noqa: F821
    (lambda x, w, eps: rms(x, w.to("meta"), eps), "raises", "two devices"),
    (lambda x, w, eps: x.mean(dim=7), "raises", "an axis that this input does not have"),
]


@pytest.mark.parametrize(("solution", "id", "sentence"), CONTRACT)
def test_the_contract_is_explained(solution, id, sentence):
    report = seen("rms_norm", solution)
    assert not report.passed and id in report.mistakes and sentence in report.texts[0], report.texts


def test_an_operation_in_place_on_a_leaf_is_explained():
    def f(x, weight, eps):
        if x.requires_grad:
            x.mul_(2)
        return rms(x, weight, eps)

    assert "in-place operation on an input that requires a gradient" in seen("rms_norm", f).texts[0]


def test_too_few_results():
    d = drill("rms_norm_backward")
    report = seen("rms_norm_backward", lambda *a: d.solution(*a)[0])
    assert report.mistakes == ("wrong_count",) and "1 thing(s) returned, 2 are asked for" in report.texts[0]


def test_shortcuts_and_peeking_pass_with_a_remark():
    def peeks(x, weight, eps):
        sys._getframe()
        return rms(x, weight, eps)

    ours = drill("rms_norm_backward").check(backward.rms_norm_backward)
    torchs = drill("layer_norm").check(lambda x, w, b, eps: F.layer_norm(x, x.shape[-1:], w, b, eps))
    assert ours.passed and torchs.passed and seen("rms_norm", peeks).passed
    assert "torch's own layer_norm" in torchs.texts[0] and "asks for more" in torchs.texts[0]
    assert "looks at its caller or at this package" in seen("rms_norm", peeks).texts[0]
    autograd = RIGHT["rms_norm_backward"][0]
    assert "asks for more" in seen("rms_norm_backward", autograd).texts[0]


def by_import(x, weight, eps):
    from normlab.drills import rms_norm

    return rms_norm.rms_norm(x, weight, eps)


def by_name(x, weight, eps):
    return __import__("normlab.drills.rms_norm").drills.rms_norm.rms_norm(x, weight, eps)


class OfTorch(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.inner = nn.RMSNorm(width, eps=eps)

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize(
    ("slug", "solution", "named"),
    [
        ("rms_norm", by_import, "this package"),
        ("rms_norm", by_name, "this package"),
        ("rms_norm", lambda *arguments: rms(*arguments), "this package"),
        ("rms_norm_module", OfTorch, "rms_norm"),
        ("layer_norm", lambda x, w, b, eps: torch.layer_norm(x, x.shape[-1:], w, b, eps), "layer_norm"),
        ("layer_norm", lambda x, w, b, eps: torch.native_layer_norm(x, x.shape[-1:], w, b, eps)[0], "layer_norm"),
    ],
)
def test_other_roads_to_the_whole_thing_are_seen(slug, solution, named):
    report = seen(slug, solution)
    assert report.passed and named in report.texts[0] and "asks for more" in report.texts[0].replace("\n", " ")


@pytest.mark.parametrize("slug", SLUGS)
def test_no_right_solution_is_suspected(slug):
    source = checking.compiled(drill(slug), drill(slug).source)
    assert checking.collect(checking.observe(drill(slug), lambda: source)).notes["shortcuts"] <= {"normlab"}
    written = {name: value for name, value in vars(sys.modules[__name__]).items() if name in ("torch", "nn")}
    exec(drill(slug).source, written)
    assert "asks for more" not in seen(slug, written[slug]).texts[0]


# --- guard --------------------------------------------------------------------------------------------------------


def endless(x, weight, eps):
    while True:
        pass


def greedy(x, weight, eps):
    torch.ones(100_000_000_000)


@pytest.mark.parametrize("forks", [True, False])
def test_an_endless_loop_ends(forks, monkeypatch):
    monkeypatch.setattr(guard, "FORKS", forks and guard.FORKS)
    monkeypatch.setattr(guard.guarded, "__defaults__", (0.5,))
    start = time.monotonic()
    report = drill("rms_norm").check(endless)
    assert time.monotonic() - start < 5
    assert report.mistakes == ("too_slow",) and "an endless loop? on an input with a mean of 3" in report.texts[0]
    assert sys.gettrace() is None or not forks


@pytest.mark.parametrize("forks", [True, False])
def test_the_same_report_with_and_without_a_process_of_its_own(forks, monkeypatch):
    monkeypatch.setattr(guard, "FORKS", forks and guard.FORKS)
    assert drill("layer_norm").check(RIGHT["layer_norm"][0]).passed
    report = drill("layer_norm").check(checking.wrong(drill("layer_norm"), "joint_axes"))
    assert report.mistakes == ("joint_axes",)


@pytest.mark.skipif(not guard.FORKS, reason="needs a process of its own")
def test_a_memory_hog_ends():
    report = drill("rms_norm").check(greedy)
    assert report.mistakes == ("raises",) and "GiB of memory" in report.texts[0]


@pytest.mark.skipif(not guard.FORKS, reason="needs a process of its own")
def test_whoever_ends_the_process_ends_only_its_own():
    report = drill("rms_norm").check(lambda x, w, eps: os._exit(3))
    assert report.mistakes == ("died",) and "ended its process" in report.texts[0]
    assert "SystemExit" in drill("rms_norm").check(lambda x, w, eps: sys.exit("enough")).texts[0]


def test_prints_are_shown_once(capsys):
    def talks(x, weight, eps):
        print("shape", tuple(x.shape))
        return rms(x, weight, eps)

    assert drill("rms_norm").check(talks).passed
    out = capsys.readouterr().out
    assert out.startswith("Your code printed:\nshape (3, 4)\n") and out.count("shape (3, 4)") < 5


@pytest.mark.skipif(not guard.FORKS, reason="needs a process of its own")
def test_nothing_of_the_learner_is_changed():
    calls, weights = [], nn.Linear(2, 2)

    def f(x, weight, eps):
        calls.append(x)
        with torch.no_grad():
            weights.weight.zero_()
        torch.manual_seed(3)
        return rms(x, weight, eps)

    before, state = weights.weight.clone(), torch.get_rng_state()
    assert drill("rms_norm").check(f).passed
    assert calls == [] and torch.equal(weights.weight, before) and torch.equal(torch.get_rng_state(), state)


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="needs the function itself, got a tensor of shape"):
        drill("rms_norm").check(rms(torch.ones(2, 4), torch.ones(4), 1e-6))
    with pytest.raises(ValueError, match="level must be"):
        drill("rms_norm").check(rms, level=0)


# --- speed --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slug", SLUGS)
def test_a_check_takes_less_than_a_second_of_processor_time(slug):
    """Of a wrong solution, which takes longer: all single mistakes and pairs are tried."""
    d = drill(slug)
    checking.predicted_at.cache_clear(), checking.reference.cache_clear()
    start = time.process_time()
    checking.judge(d, checking.collect(checking.observe(d, lambda: lambda *a, **k: torch.zeros(1))))
    assert time.process_time() - start < 1


def test_the_import_is_quick():
    code = (
        "import torch, time; start = time.process_time(); import normlab.drills; print(time.process_time() - start);"
        "import sys; assert 'matplotlib' not in sys.modules and 'transformers' not in sys.modules"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(2)]
    assert min(float(run.stdout) for run in runs) < 0.1


# --- modes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slug", SLUGS)
def test_repair_and_review_have_one_right_answer(slug, capsys):
    d = drill(slug)
    for seed in range(3):
        question = repair(d, seed)
        assert len(question.choices) == len(set(question.choices.values())) == 4
        code = question.text.split("\n\n", 1)[1]
        (mistake,) = seen(slug, checking.compiled(d, code)).mistakes
        assert question.choices[question.right] == d.mistake(mistake).says
        assert question.answer(question.right) and capsys.readouterr().out.startswith(f"Right. {mistake}")
        assert question.because not in repr(question)
        question = review(d, seed)
        passed = {
            letter: seen(slug, checking.compiled(d, textwrap.dedent(code))).passed
            for letter, code in question.choices.items()
        }
        assert [letter for letter in passed if passed[letter]] == [question.right]
        other = next(letter for letter in passed if letter != question.right)
        assert not question.answer(other) and capsys.readouterr().out.startswith(f"No, {question.right}")
    assert repr(repair(d, 0)) == repr(repair(d, 0))
    with pytest.raises(ValueError, match="the answers are A, B, C"):
        review(d).answer("Z")


def test_a_test_is_scored_by_the_mistakes_that_it_finds(capsys):
    def lazy(f):
        x = torch.randn(2, 8)
        assert torch.allclose(f(x, torch.ones(8), torch.zeros(8), 1e-5), F.layer_norm(x, (8,)), atol=1e-4)

    report = check_test(drill("layer_norm"), lazy)
    out = capsys.readouterr().out
    assert report.accepts_right and {"eps_outside", "bias_before_gain", "no_eps"} <= set(report.survived)
    assert "unbiased_var" in report.found and "survives: eps_outside (seen on an input with eps = 0.3)" in out
    assert len(report.found) + len(report.survived) == len(drill("layer_norm").mistakes)


def test_a_good_test_finds_all_and_a_strict_one_is_told(capsys):
    d = drill("welford")

    def good(f):
        for values_, mean, variance in (
            ((1.0, 2.0, 6.0), 3.0, 14 / 3),
            ((1e8, 1e8 + 3), 1e8 + 1.5, 2.25),
            ((5.0,), 5, 0),
        ):
            found = f(iter(values_))
            assert found[0] == pytest.approx(mean) and found[1] == pytest.approx(variance, abs=1e-9)

    assert check_test(d, good).survived == ()

    def strict(f):
        assert f([1.0, 2.0]) == (1.5, 0.5)

    report = check_test(d, strict)
    assert not report.accepts_right and "rejects a right solution" in capsys.readouterr().out
    assert not check_test(d, lambda f: False).accepts_right


def test_a_test_that_rejects_a_right_solution_in_float32_is_told(capsys):
    def within(tolerance):
        def test(f):
            x, w = checking.normal(3, 4, seed=1), checking.normal(4, seed=2)
            expected = F.rms_norm(x, (4,), w, 0.3)
            torch.testing.assert_close(f(x, weight=w, eps=0.3), expected, rtol=tolerance, atol=tolerance)

        return test

    assert not check_test(drill("rms_norm"), within(1e-9)).accepts_right
    assert "rejects a right solution (computed in float32)" in capsys.readouterr().out
    assert check_test(drill("rms_norm"), within(1e-5)).accepts_right
    narrowed = [slug for slug in SLUGS if modes.in_float32(drill(slug))]
    assert len(narrowed) == len(SLUGS) - 1  # a class takes no tensors

    def of_float64(f):
        matrix = torch.ones(4, 4).double()
        f(torch.ones(2, 4).double(), *[lambda h: h @ matrix] * 4)

    assert check_test(drill("pre_norm_block"), of_float64).accepts_right


def test_a_test_that_rejects_an_accepted_convention_is_told(capsys):
    def llama_only(f):
        x = torch.tensor([3.0, 1, 1, 5], dtype=torch.bfloat16)
        w = torch.full((4,), 1.015625, dtype=torch.bfloat16)
        assert f(x, w, 1e-6).tolist() == [1.015625, 0.33984375, 0.33984375, 1.6875]

    assert not check_test(drill("rms_norm"), llama_only).accepts_right
    assert "with the convention cast_after_gain" in capsys.readouterr().out


# --- progress and command line ----------------------------------------------------------------------------------------


def test_progress_is_counted_and_may_be_lost(capsys, monkeypatch, tmp_path):
    assert progress.read() == {}
    drill("rms_norm").check(rms)
    drill("rms_norm").check(endless_not)
    assert progress.read() == {"rms_norm": {"tries": 2, "passes": 1}}
    for damaged in ("", "{", "[1]", '{"rms_norm": 3}', '{"rms_norm": {"tries": "x"}}', "\xff"):
        progress.place().write_bytes(damaged.encode("latin-1"))
        assert progress.read() == {}
        progress.note("dyt", True)
        assert progress.read() == {"dyt": {"tries": 1, "passes": 1}}
    progress.forget(), progress.forget()
    assert not progress.place().exists()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(progress.VARIABLE, str(tmp_path / "file" / "below.json"))
    progress.note("dyt", True)
    assert progress.read() == {}


def test_the_clock_runs_until_a_pass(capsys, monkeypatch):
    d, now = drill("rms_norm"), [1000.0]
    monkeypatch.setattr(progress.time, "time", lambda: now[0])
    assert progress.running("rms_norm") is None
    d.start()
    assert "Drill rms_norm, 5 minutes" in capsys.readouterr().out
    now[0] += 125
    d.check(endless_not)
    assert "2 min 5 s since the start; the budget is 5 min." in capsys.readouterr().out
    now[0] += 60
    d.check(rms)
    assert "3 min 5 s since the start" in capsys.readouterr().out and progress.running("rms_norm") is None
    d.check(rms)
    assert "since the start" not in capsys.readouterr().out
    assert progress.read() == {"rms_norm": {"tries": 3, "passes": 2}}


def test_stubs_and_given_solutions_are_no_tries():
    names = {}
    exec(drill("dyt").stub(), names)
    drill("dyt").check(names["dyt"])
    assert drill("dyt").check(drill("dyt").solution, count=False).passed and progress.read() == {}


def test_all_ways_to_practice_work_in_a_terminal(tmp_path, capsys):
    question = repair(drill("dyt"), 3)
    assert cli.main(["drill", "dyt", "--repair", "3"]) == 0
    assert capsys.readouterr().out == f"{question!r}\n"
    assert cli.main(["drill", "dyt", "--repair", "3", "--answer", question.right]) == 0
    other = next(letter for letter in question.choices if letter != question.right)
    assert cli.main(["drill", "dyt", "--repair", "3", "--answer", other]) == 1
    assert cli.main(["drill", "dyt", "--review", "1", "--answer", review(drill("dyt"), 1).right]) == 0
    assert capsys.readouterr().out.count("Right.") == 2
    assert cli.main(["drill", "dyt", "--review", "1", "--answer", "Z"]) == 2
    assert "the answers are A, B, C" in capsys.readouterr().err
    test = tmp_path / "my_test.py"
    test.write_text("def test(f):\n    pass\n")
    assert cli.main(["drill", "dyt", str(test), "--test"]) == 1
    assert "accepts the right solution and finds 0 of" in capsys.readouterr().out
    test.write_text("def other(f):\n    pass\n")
    assert cli.main(["drill", "dyt", str(test), "--test"]) == 1
    assert "defines no function test" in capsys.readouterr().out
    assert cli.main(["drill", "dyt", "--test"]) == 2 and "--test needs a file" in capsys.readouterr().err
    assert cli.main(["drill", "dyt", "--start"]) == 0 and progress.running("dyt") is not None


def endless_not(x, weight, eps):
    return x


def test_the_command_line(tmp_path, capsys):
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(drill("dyt").source.replace("torch.tanh", "__import__('torch').tanh"))
    bad.write_text(
        "import torch\n\ndef dyt(x, alpha, weight, bias):\n    return alpha * torch.tanh(x) * weight + bias\n"
    )
    assert cli.main(["drill", "dyt", str(good)]) == 0 and "dyt: passed" in capsys.readouterr().out
    assert cli.main(["drill", "dyt", str(bad)]) == 1
    told = capsys.readouterr().out
    assert "alpha_outside" not in told and "--level 2 names the mistake" in told
    assert cli.main(["drill", "dyt", str(bad), "--level", "2"]) == 1 and "alpha_outside" in capsys.readouterr().out
    assert cli.main(["drill"]) == 0
    listed = capsys.readouterr().out
    assert [line.split()[0] for line in listed.splitlines() if not line.startswith("week")] == SLUGS
    assert "1 of 3 tries passed" in listed
    assert cli.main(["drill", "dyt"]) == 0 and "Signature: dyt(x, alpha, weight, bias)" in capsys.readouterr().out
    assert cli.main(["drill", "dyt", "--stub"]) == 0 and "NotImplementedError" in capsys.readouterr().out
    assert (
        cli.main(["drill", "dyt", "--solution"]) == 0 and capsys.readouterr().out.strip() == drill("dyt").source.strip()
    )
    assert cli.main(["drill", "--forget"]) == 0 and progress.read() == {}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def other(): pass", "defines no function dyt"),
        ("def dyt(:", "SyntaxError"),
        ("raise OSError('no')", "OSError: no"),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("import sys; sys.exit(0)", "SystemExit"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_explained(text, sentence, tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(text)
    assert cli.main(["drill", "dyt", str(path)]) == 1
    out = capsys.readouterr().out
    assert "Loading your solution failed" in out and sentence in out


def test_misuse_of_the_command_line_is_said_in_one_line(tmp_path, capsys):
    for arguments, sentence in ((["norm"], "no drill 'norm'"), (["dyt", str(tmp_path / "no.py")], "there is no file")):
        assert cli.main(["drill", *arguments]) == 2
        error = capsys.readouterr().err
        assert sentence in error and error.count("\n") == 1


def test_the_progress_file_is_plain(tmp_path):
    progress.note("dyt", False)
    assert json.loads(progress.place().read_text()) == {"dyt": {"tries": 1, "passes": 0}}


def test_solutions_stand_in_files_of_their_own():
    for slug in SLUGS:
        tree = ast.parse((ROOT / "src" / "normlab" / "drills" / f"{slug}.py").read_text(encoding="utf-8"))
        assert slug in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
