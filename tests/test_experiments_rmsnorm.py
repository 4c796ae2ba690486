"""Chapter 4's experiments against closed forms, torch, float64 and hand counts."""

import ast
import json
import math
import re
import shutil
from pathlib import Path

import nbformat
import pytest
import torch
import torch.nn.functional as F
import yaml
from draw import normal, randomize

from normlab import functional, record
from normlab.experiments import rmsnorm as rms
from normlab.norms import LayerNorm, RMSNorm

WIDTH = 64


def disturbed(norm, seed=0, **options):
    """A small model in float64 with random gains and biases."""
    return randomize(rms.small_model(norm, seed, layers=2, width=16, **options).double(), matrices=True)


# --- the mean ------------------------------------------------------------------------------------------------------


def test_mean_share_of_known_vectors():
    assert rms.mean_share(torch.tensor([[2.0, 2.0, 2.0, 2.0]])) == 1
    assert rms.mean_share(torch.tensor([[1.0, -1.0]])) == 0
    assert rms.mean_share(torch.tensor([[3.0, 1.0]])) == pytest.approx(4 / 5)  # mean 2, mean square 5


def test_mean_share_of_noise_is_one_over_d():
    assert rms.mean_share(normal(20_000, 50)) == pytest.approx(1 / 50, rel=0.05)


def test_mean_shares_have_one_entry_per_sublayer_and_the_start():
    shares = rms.mean_shares(disturbed("layernorm"))
    assert len(shares) == 1 + 2 * 2 and all(0 < s < 1 for s in shares)


# --- conversion and rotation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sublayers", [("attention", "mlp"), ("mlp",), ("attention",)])
def test_converted_model_computes_the_same(sublayers):
    model = disturbed("layernorm", sublayers=sublayers)
    new = rms.to_rmsnorm(model)
    assert not any(isinstance(m, LayerNorm) for m in new.modules())
    assert sum(isinstance(m, RMSNorm) for m in new.modules()) == 2 * len(sublayers) + 1
    assert rms.logit_difference(model, new) < 1e-12
    assert max(rms.mean_shares(new)) < 1e-25
    assert rms.logit_difference(model, rms.to_rmsnorm(model, center=False)) > 1e-3


def test_omissions_cost_what_the_careless_models_lose():
    model = randomize(rms.small_model("layernorm", 0, layers=2, width=16)).double()
    ids = rms.passages(2)
    rises = rms.rises_of_omissions(model, ids)
    bare = rms.small_model("rmsnorm", 0, layers=2, width=16).double()
    bare.load_state_dict({k: v for k, v in model.state_dict().items() if k in bare.state_dict()})
    with torch.no_grad():
        total = rms.passage_loss(bare, ids) - rms.passage_loss(model, ids)
    assert sum(rises.values()) == pytest.approx(total.item(), rel=1e-9) and min(map(abs, rises.values())) > 1e-4


def test_rotation_is_orthogonal():
    Q = rms.rotation(WIDTH)
    torch.testing.assert_close(Q @ Q.T, torch.eye(WIDTH, dtype=torch.float64))


def test_rotated_models():
    Q = rms.rotation(16)
    plain, converted = disturbed("rmsnorm"), rms.to_rmsnorm(disturbed("layernorm"))
    for model in (plain, converted):
        assert rms.logit_difference(model, rms.rotated(model, Q)) < 1e-11
        assert rms.logit_difference(model, rms.rotated(model, Q, fold=False)) > 1e-2
    eye = torch.eye(16, dtype=torch.float64)
    assert rms.logit_difference(plain, rms.rotated(plain, eye, fold=False)) < 1e-12


def test_gains_farther_from_one():
    model = disturbed("rmsnorm")
    farther = rms.with_gains_farther(model, 3.0)
    before, after = (dict(m.named_parameters()) for m in (model, farther))
    for name, p in before.items():
        expected = 3 * p - 2 if p.dim() == 1 else p
        torch.testing.assert_close(after[name], expected)


def test_no_gradient_reaches_the_mean_of_a_layer_norm_stream():
    ids = rms.passages(2)
    for norm, vanishes in (("layernorm", True), ("rmsnorm", False)):
        model = disturbed(norm)
        F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
        for writer in rms._writers(model):
            share = writer.weight.grad.mean(0).norm() / writer.weight.grad.norm()
            assert bool(share < 1e-13) is vanishes


# --- number formats ------------------------------------------------------------------------------------------------


def test_float16_overflows_at_256():
    sizes = [255.875, 256.0]

    def within(x):  # everything in the dtype of x
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    assert rms.size_after(within, sizes, torch.float16) == [1, 0]
    assert rms.size_after(functional.rms_norm, sizes, torch.float16) == [1, 1]


def test_gains_that_cannot_move():
    """The largest step that bfloat16 rounds away next to 1 is 2^-9: what the optimizer does on either side of it."""
    one = torch.ones(()).bfloat16()
    assert one - 2**-9 == 1 and one - 1.01 * 2**-9 != 1
    stuck = rms.gains_moved("w, bfloat16", 1, lr=1.5e-3, steps=4)
    assert stuck == {"gains": 3 * 16, "moved": 0, "largest": 0}
    for stored, lr in (("w, bfloat16", 8e-3), ("1 + w, bfloat16", 6e-4), ("w, float32", 6e-4)):
        result = rms.gains_moved(stored, 1, lr=lr, steps=4)
        assert result["moved"] > 24 and 0 < result["largest"] < 10 * lr


# --- counts --------------------------------------------------------------------------------------------------------


def test_formulas_by_hand_equal_torch():
    x, weight, bias = normal(5, WIDTH), normal(WIDTH, seed=1), normal(WIDTH, seed=2)
    torch.testing.assert_close(rms.article_layer_norm(x, weight, bias), F.layer_norm(x, (WIDTH,), weight, bias))
    torch.testing.assert_close(rms.article_rms_norm(x, weight), F.rms_norm(x, (WIDTH,), weight, 1e-6))
    for norm in (rms.layer_norm_centered_once, rms.layer_norm_var_mean):
        torch.testing.assert_close(norm(x, weight, bias), F.layer_norm(x, (WIDTH,), weight, bias))


def test_all_implementations_agree():
    x, ways = normal(5, WIDTH).float(), rms.implementations(WIDTH)
    for kind in ("LayerNorm", "RMSNorm"):
        names = [n for n in ways if kind in n or n == f"F.{'layer' if kind == 'LayerNorm' else 'rms'}_norm"]
        assert len(names) == 3
        for name in names:
            torch.testing.assert_close(ways[name](x), ways[names[0]](x), rtol=1e-4, atol=1e-5)


def test_traffic_of_simple_functions():
    x = normal(8, WIDTH, dtype=torch.float32)
    add = rms.traffic(lambda x: x + x, x)
    assert (add.names, add.read, add.written, add.reductions) == (["add"], 2, 1, 0)
    expanded = rms.traffic(lambda x: x * x[:, :1].expand(-1, WIDTH), x)
    assert (expanded.read, expanded.written) == (2, 1)  # a part of x has x behind it
    column = normal(8, 1, dtype=torch.float32)
    assert rms.traffic(lambda x: x * column.expand(-1, WIDTH), x).read == 1
    chain = rms.traffic(lambda x: (x * 2).view(-1).sum(), x)  # a view costs nothing
    assert (chain.names, chain.read, chain.written, chain.reductions) == (["mul", "sum"], 2, 1, 1)


def test_traffic_by_hand():
    # LayerNorm: mean, x − mean, square, mean, x − mean, times gain, divide, plus bias: 8 reads, 6 writes.
    x, ways = normal(8, WIDTH, dtype=torch.float32), rms.implementations(WIDTH)
    ln, rn = (rms.traffic(ways[f"{kind}, by hand"], x) for kind in ("LayerNorm", "RMSNorm"))
    assert (len(ln.names), ln.reductions, ln.read, ln.written) == (8, 2, 8, 6)
    assert (len(rn.names), rn.reductions, rn.read, rn.written) == (4, 1, 4, 3)
    # Once: mean, x − mean, gain, square, mean, divide, bias. With var_mean: that, x − mean, gain, divide, bias.
    once, together = (rms.traffic(norm, x) for norm in rms.thriftier_layer_norms(WIDTH).values())
    assert (once.names.count("sub"), once.reductions, once.read, once.written) == (1, 2, 7, 5)
    assert (together.names[0], together.reductions, together.read, together.written) == ("var_mean", 1, 5, 4)


def test_kept_for_backward():
    x = normal(8, WIDTH, dtype=torch.float32)
    assert rms.kept_for_backward(lambda x: x * x, x) == 1
    assert rms.kept_for_backward(lambda x: x.exp().exp(), x) == 2  # each exp keeps its result
    assert rms.kept_for_backward(lambda x: x + 1, x) == 0


def test_graph_nodes():
    assert rms.graph_nodes(rms.article_rms_norm) == ["mul", "square", "mean", "add", "sqrt", "truediv"]


def test_record_of_compiled_kernels_is_what_this_compiler_makes():
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler")
    if torch.__version__.split("+")[0] != record.load("compiled_norms")["runs"][0]["provenance"]["torch"].split("+")[0]:
        pytest.skip("the record is of another torch")
    setting = {"norm": "LayerNorm, by hand", "backward": False}
    assert rms.compiled_kernels(**setting) == record.results(record.load("compiled_norms"), **setting)[0]


def test_loops_are_counted_by_the_outer_one_that_they_stand_in():
    head = "for(int64_t {}=static_cast<int64_t>(0L); "
    walk, row = head.format("x0"), head.format("x1")
    assert rms._inner_loops(walk + row + row) == [2]
    assert rms._inner_loops(walk + row + walk + walk + row) == [1, 1]  # the one in the middle has none inside


# --- what others measured and run ----------------------------------------------------------------------------------


def test_published_norms_are_conventions():
    pytest.importorskip("transformers")
    x = normal(4, 256).bfloat16()
    expected = {"llama": "llama", "gemma": "gemma", "olmo2": "olmo2", "t5": "t5"}
    norms = rms.published_norms()
    for name, convention in expected.items():
        found = [c.value for c in rms.conventions_of(rms.randomized(norms[name]).bfloat16(), x)]
        assert convention in found and ("olmo2" in found) == (name == "olmo2")


def test_decayed_counts():
    pytest.importorskip("transformers")
    models = rms.tiny_models()
    everything = {name: rms.decayed(m.named_modules(), lambda *_: True) for name, m in models.items()}
    assert everything == {"GPT-2": 2 * 5, "Llama": 5, "Qwen 3": 9}
    assert rms.decayed(models["Llama"].named_modules(), lambda name, p: p.dim() > 1) == 0


def test_gain_after_decay():
    assert rms.gain_after_decay(1.0) == pytest.approx(math.exp(-3), rel=1e-4)
    assert rms.gain_after_decay(0.0) == 0


# --- records -------------------------------------------------------------------------------------------------------


def test_seeds_are_paired():
    first, second = (rms.small_model(norm, 3) for norm in rms.NORMS)
    names = dict(second.named_parameters())
    assert all(torch.equal(p, names[n]) for n, p in first.named_parameters() if n in names)
    assert {n.rpartition(".")[2] for n, _ in first.named_parameters() if n not in names} == {"bias"}


def test_training_runs_and_describes():
    model, result = rms.train_small_model("rmsnorm", 0, layers=1, width=8, steps=3)
    assert set(result) == {"loss", "before", "after"} and 0 < result["loss"] < 6
    assert len(result["after"]) == 3 and result["before"] != result["after"]
    assert next(model.parameters()).device.type == "cpu"


def test_timings_cover_all_implementations():
    assert set(record.results(record.load("norm_timings"))[0]["forward"]) > set(rms.implementations(8))


@pytest.mark.parametrize("recipe", rms.RECORDS, ids=lambda recipe: recipe.name)
def test_records_are_complete(recipe):
    made = record.load(recipe.name)
    assert [run["setting"] for run in made["runs"]] == json.loads(json.dumps(recipe.settings))


# --- what is said of torch, and what is said of us -----------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[1]
TORCH_NORM = re.compile(
    r"\bF\.(layer_norm|rms_norm)|functional\.(layer_norm|rms_norm)\(\w+, \(|torch\.nn\.(LayerNorm|RMSNorm)"
)
ORACLE = {  # torch, in float32 or float64 and with an explicit eps, is what our formula is compared with
    "ln-formula", "ln-backward", "rms-formula", "fig-4-vs-2-steps", "seed-code-ln", "seed-code-rms",
}  # fmt: skip
ABOUT_TORCH = {"rms-eps-default", "cpu-rms-kernels"}


def claims_of(notebook):
    """(id, source of the check with the lines that define its names in that cell, the conditions around it)."""
    for cell in notebook.cells:
        if cell.cell_type != "code" or "claim(" not in cell.source:
            continue
        tree = ast.parse(cell.source)
        for guard, call in _calls(tree.body, ""):
            names, check = set(), ast.unparse(call.args[1])
            while found := {n.id for n in ast.walk(ast.parse(check)) if isinstance(n, ast.Name)} - names:
                names |= found
                lines = [s for s in tree.body if not isinstance(s, ast.Expr | ast.If) and _defines(s) & found]
                check = "\n".join([check, *map(ast.unparse, lines)])
            named = isinstance(call.args[0], ast.Constant)
            ids = [call.args[0].value] if named else re.findall(r'"(seed-code-\w+)"', cell.source)
            yield from ((id, check, guard) for id in ids)


def _calls(body, guard):
    for statement in body:
        if isinstance(statement, ast.If | ast.For):
            test = ast.unparse(statement.test) if isinstance(statement, ast.If) else ""
            yield from _calls(statement.body, f"{guard} {test}")
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            if ast.unparse(statement.value.func) == "claim":
                yield guard, statement.value


def _defines(statement):
    if isinstance(statement, ast.FunctionDef):
        return {statement.name}
    return {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


@pytest.mark.parametrize("chapter", ["03_layernorm", "04_rmsnorm"])
def test_claims_about_torch_are_kept_apart(chapter):
    """A claim about our functions must not fail where another torch behaves differently; one about torch is dated."""
    sentences = {c["id"]: c for c in yaml.safe_load((ROOT / "book" / "claims.yml").read_text("utf-8"))}
    found = list(claims_of(nbformat.read(ROOT / "notebooks" / f"{chapter}.ipynb", as_version=4)))
    assert len(found) > 20
    for id, check, guard in found:
        if id in ABOUT_TORCH:
            assert "of_torch_2_13" in guard and "torch 2.13" in str(sentences[id])
        else:
            assert "of_torch" not in guard
            assert id in ORACLE or not TORCH_NORM.search(check), f"{id} depends on what torch's norm does: {check}"
