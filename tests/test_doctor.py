"""``normlab.doctor``: what it measures, that nothing changes, what it says to bad input, how it shows."""

import copy
import json
import math
import re
import time

import pytest
import torch
from test_cli import llama
from torch import nn

import normlab
from normlab import cli, norms, optimizers
from normlab.experiments import faulty_runs, small_models
from normlab.inspection import measurements, observe
from normlab.inspection.diagnosis import Diagnosis
from normlab.inspection.findings import KINDS, NOT_VISIBLE
from normlab.inspection.subject import Subject

IDS, TARGETS = small_models.passages(4)


def fresh(**options):
    return small_models.model(0, **({"layers": 2, "width": 32, "norm": "rmsnorm"} | options))


def value(diagnosis, name):
    return next(row.value for row in diagnosis.table if row.name.startswith(name))


# --- nothing changes --------------------------------------------------------------------------------------------------


class Counting(nn.Module):
    """A model that counts its runs in a buffer, drops out, and draws random numbers in evaluation mode too."""

    def __init__(self, faulty):
        super().__init__()
        self.model = fresh(norm="batchnorm")
        self.register_buffer("runs", torch.zeros(()))
        self.drop = nn.Dropout(0.5)
        self.seen = []
        if faulty:
            faulty_runs.with_formula(self.model, faulty_runs.half_squares)

    def forward(self, ids, attention_mask=None):
        self.runs += 1
        self.seen.append(ids)
        return self.drop(self.model(ids, attention_mask)) + 0 * torch.rand(())


def state_of(model, optimizer):
    return {
        "weights": {name: t.clone() for name, t in model.state_dict().items()},
        "gradients": {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None},
        "required": {name: p.requires_grad for name, p in model.named_parameters()},
        "modes": {name: m.training for name, m in model.named_modules()},
        "hooks": {name: [len(v) for k, v in vars(m).items() if "hooks" in k] for name, m in model.named_modules()},
        "random": torch.get_rng_state(),
        "optimizer": copy.deepcopy(optimizer.state_dict()),
    }


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and bool(((one == other) | (one.isnan() & other.isnan())).all())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


@pytest.mark.parametrize("case", ["healthy", "batch statistics", "gradient not finite", "output not finite"])
def test_everything_is_left_as_it_was(case):
    model = Counting(False) if case == "batch statistics" else fresh(positions="rope")
    model.train()
    list(model.modules())[-1].eval()  # modes differ from module to module
    next(model.parameters()).requires_grad_(False)
    handle = model.register_forward_hook(lambda *_: None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(IDS).square().mean().backward()
    optimizer.step()
    if case == "gradient not finite":
        model.token_embedding.weight.data[IDS[0, 0]] = 0.0
        faulty_runs.with_formula(model, faulty_runs.eps_outside)
    if case == "output not finite":
        list(model.parameters())[-1].data.fill_(math.nan)
    before, seen = state_of(model, optimizer), list(getattr(model, "seen", []))
    keep = [p for group in optimizer.param_groups for p in group["params"]]
    found = normlab.doctor(model, IDS, optimizer=optimizer)
    after = state_of(model, optimizer)
    for name, state in before.items():
        assert equal(state, after[name]), name
    assert all(p is q for p, q in zip(keep, (p for group in optimizer.param_groups for p in group["params"])))
    assert list(getattr(model, "seen", [])) == seen
    assert ("nonfinite-backward" in found.ids) == (case == "gradient not finite")
    assert ("nonfinite-forward" in found.ids) == (case == "output not finite")
    handle.remove()


def test_it_runs_inside_of_no_grad_and_inference_mode():
    model = fresh()
    with torch.no_grad():
        assert normlab.doctor(model, IDS).ids == ()
    with torch.inference_mode():
        assert normlab.doctor(model, IDS).ids == ()


def test_a_model_that_counts_and_drops_out_is_run_in_evaluation_mode():
    model = Counting(False)
    model.train()
    first, second = (str(normlab.doctor(model, IDS)) for _ in range(2))
    assert first == second and model.runs == 0


# --- what it measures -------------------------------------------------------------------------------------------------


def test_the_loss_and_its_gradient_are_those_of_torch():
    model = fresh(positions="rope").eval()
    found = normlab.doctor(model, IDS)
    logits = model(IDS)[:, :-1].flatten(0, 1)
    loss = nn.functional.cross_entropy(logits, IDS[:, 1:].flatten())
    loss.backward()
    norm = sum(p.grad.square().sum() for p in model.parameters()) ** 0.5
    assert value(found, "loss (next token)") == f"{loss.item():.3f}"
    assert value(found, "gradient norm") == f"{norm.item():.2g}"
    assert value(found, "loss above ln 65") == f"{loss.item() - math.log(65):.2f}"


def test_a_loss_of_the_readers_own():
    model = fresh().eval()

    def loss(output, batch):
        return output.square().mean() + 0 * batch["ids"].sum()

    found = normlab.doctor(model, {"ids": IDS}, loss=loss)
    assert value(found, "loss (the one given)") == f"{model(IDS).square().mean().item():.3f}"


def test_padding_does_not_count():
    model = fresh(positions="rope").eval()
    mask = torch.ones_like(IDS)
    mask[:, 20:] = 0
    other = IDS.masked_fill(mask == 0, 3)
    batches = [{"ids": ids, "attention_mask": mask} for ids in (IDS, other)]
    one, two = ([row for row in normlab.doctor(model, batch).table if "change" not in row.name] for batch in batches)
    assert one == two
    cut = normlab.doctor(model, IDS[:, :20])
    assert value(cut, "loss (next token)") == value(normlab.doctor(model, batches[0]), "loss (next token)")


def measured(model, batch=IDS):
    subject = Subject(model.eval(), batch)
    return measurements.measured(subject, subject.wiring(), None)


@pytest.mark.parametrize("placement", ["pre", "post", "peri", "parallel"])
def test_sizes_are_those_of_the_readings(placement):
    model = fresh(placement=placement)
    readings = observe.readings(model, IDS)
    found = measured(model).depth
    assert [d.layer for d in found] == [r.layer for r in readings]
    for depth, reading in zip(found, readings, strict=True):
        for ours, theirs in ((depth.stream, reading.stream), (depth.increment, reading.increment)):
            assert ours == pytest.approx(theirs.square().mean().sqrt().item(), rel=1e-6)


def test_attention_logits_stay_below_their_bound_and_meet_it_for_one_direction():
    model = fresh(positions="none")
    found = measured(model)
    assert all(0 < reading.largest <= bound for reading, bound in zip(found.attention, found.bounds, strict=True))
    same = measured(model, torch.full_like(IDS, 5))  # all tokens alike
    attention, x = model.blocks[0].residuals[0].sublayer, same.norms[0].norm.output.value[0, 0]
    q, k = x @ attention.query.weight.T, x @ attention.key.weight.T
    heads = [(a.norm() * b.norm() / 8**0.5).item() for a, b in zip(q.view(4, 8), k.view(4, 8))]
    longest = max(a.norm() for a in q.view(4, 8)) * max(b.norm() for b in k.view(4, 8)) / 8**0.5
    assert max(heads) <= same.bounds[0] * (1 + 1e-6)
    assert same.bounds[0] == pytest.approx(longest.item(), rel=1e-5)


@pytest.mark.parametrize("eps", [1e-2, 1e-6])
def test_the_share_of_eps_is_eps_over_the_sum(eps):
    model = fresh(eps=eps, positions="none")
    first = measured(model).norms[0]
    square = model.embed(IDS).double().square().mean(-1)
    assert first.eps_share == pytest.approx((eps / (square + eps)).mean().item(), rel=1e-3)


@pytest.mark.parametrize("convention", ["llama", "gemma"])
def test_gains_are_the_effective_ones(convention):
    model = fresh(convention=convention)
    generator = torch.Generator().manual_seed(0)
    for norm in model.modules():
        if isinstance(norm, norms.RMSNorm):
            norm.weight.data += 0.3 * torch.randn(32, generator=generator)
    shift = 1.0 if convention == "gemma" else 0.0
    for reading in measured(model).norms:
        assert torch.equal(reading.gain.float(), (reading.norm.call.module.weight + shift).double().float())
        assert reading.gains == [reading.norm.call.module.weight]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_norm_that_is_torchs_own_is_within_one_rounding(dtype):
    model = fresh(norm="layernorm").to(dtype)
    errors = [reading.error for reading in measured(model).norms]
    assert len(errors) == 5 and all(0 < error < 1 for error in errors)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_half_types_on_the_cpu(dtype, placement):
    found = normlab.doctor(fresh(placement=placement, positions="rope").to(dtype), IDS)
    assert found.ids == ()
    assert value(found, "types of parameters") == str(dtype).removeprefix("torch.")
    assert "float32" in dict(found.not_measured)["shift of all positions"]


# --- what it can't measure --------------------------------------------------------------------------------------------


class Plain(nn.Module):
    """No residual blocks, no attention."""

    def __init__(self):
        super().__init__()
        self.table, self.norm, self.head = nn.Embedding(65, 16), nn.LayerNorm(16), nn.Linear(16, 65)

    def forward(self, ids):
        return self.head(self.norm(self.table(ids)).relu())


def test_what_cannot_be_measured_is_said_with_its_reason():
    torch.manual_seed(0)
    found = normlab.doctor(Plain(), IDS)
    reasons = dict(found.not_measured)
    assert found.ids == ()
    assert "no stack" in reasons["sizes of stream, inputs and increments"]
    assert "no attention" in reasons["attention logits and entropy"]
    assert "attention_mask" in reasons["influence of padding"]
    assert "no optimizer" in reasons["gains that cannot move"]
    for what, why in found.not_measured:
        assert f"not measured: {what}, because {why}" in str(found)


def test_vectors_in_place_of_ids_and_a_model_without_head():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(16), enable_nested_tensor=False)
    found = normlab.doctor(model, torch.randn(2, 8, 16))
    assert found.ids == ()
    assert "pass a loss" in dict(found.not_measured)["loss and gradients"]
    own = normlab.doctor(model, torch.randn(2, 8, 16), loss=lambda output, _: output.square().mean())
    assert value(own, "gradient norm") != "0"


@pytest.mark.parametrize("ids", [IDS[:1], IDS[:, :1], IDS[:1, :1], torch.full((2, 8), 3), IDS[:, :5]])
def test_small_and_dull_batches_give_no_alarm(ids):
    assert normlab.doctor(fresh(), ids).ids == ()


def test_frozen_models_are_measured_but_for_their_gradient():
    found = normlab.doctor(fresh().requires_grad_(False), IDS)
    assert found.ids == () and "requires_grad" in dict(found.not_measured)["gradients"]


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, error, words",
    [
        (("model", IDS), TypeError, r"model must be a torch.nn.Module, got str"),
        ((nn.ReLU(), IDS), ValueError, "ReLU has no parameters"),
        ((fresh(), IDS[0]), ValueError, r"ids \[B, T\], got a tensor of shape \(32,\)"),
        ((fresh(), IDS[:0]), ValueError, "empty"),
        ((fresh(), [[1, 2]]), TypeError, "tensor of ids .* or a dictionary of arguments, got list"),
        ((fresh(), IDS > 3), TypeError, "token ids .* got torch.bool"),
        ((fresh(), {3: IDS}), TypeError, "names of arguments as keys, got 3"),
        ((fresh(), {"ids": 3}), ValueError, "hold no tensor"),
        ((fresh(), {"words": IDS}), ValueError, "Transformer failed on the batch .words int64 .4, 32. .*TypeError"),
        ((fresh(), IDS + 60), ValueError, "failed on the batch .int64 .4, 32. from 60 to 12.*IndexError"),
        ((fresh(), IDS.repeat(1, 2)), ValueError, "longer than the context of 32"),
        ((fresh(), IDS, 3), TypeError, "loss must be a function"),
        ((fresh(), IDS, lambda output, batch: output), TypeError, r"scalar tensor, got .* shape \(4, 32, 65\)"),
        ((fresh(), IDS, None, 3), TypeError, "optimizer must be a torch.optim.Optimizer, got int"),
        ((fresh().to("meta"), IDS.to("meta")), ValueError, "token_embedding.weight .* is on the meta device"),
        ((fresh(), IDS.to("meta")), ValueError, "the batch is on meta, the model on cpu"),
    ],
)
def test_bad_input_is_named(arguments, error, words):
    with pytest.raises(error, match=words):
        normlab.doctor(*arguments)


# --- how it shows -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sick():
    model = fresh(embedding_multiplier=128.0, final_norm=False, positions="rope")
    faulty_runs.with_formula(model, faulty_runs.half_squares)
    optimizer = torch.optim.AdamW(optimizers.parameter_groups(model, 0.0), lr=1e-3)
    return normlab.doctor(model, IDS, optimizer=optimizer)


def test_the_text_has_findings_table_and_limits(sick):
    text = str(sick)
    errors = sum(finding.severity == "error" for finding in sick.findings)
    assert text == repr(sick) and text.startswith(f"Transformer: {errors} error")
    for finding in sick.findings:
        assert f"{finding.severity.value} {finding.id}: {finding.text}" in text and finding.advice in text
    for row in sick.table:
        assert row.name in text
    for fault, why in NOT_VISIBLE:
        assert f"cannot be seen from here: {fault} ({why})" in text


def test_errors_come_first(sick):
    severities = [finding.severity.value for finding in sick.findings]
    assert severities == sorted(severities) and {"error", "warning"} == set(severities)


def test_the_page_is_accessible(sick):
    html = sick._repr_html_()
    assert html.count("<table") == 1 and 'scope="col"' in html and "<caption>" in html
    assert re.findall(r'<div role="img" aria-label="([^"]+)"><svg', html) == [f.alt for f in sick.figures]
    assert "#000000" not in html and "fill: #ffffff" not in html  # transparent, in a gray that both themes read
    for finding in sick.findings:
        assert f"<code>{finding.id}</code>" in html and f'href="{finding.chapter.split("/")[1]}.html"' in html


def test_the_figures_say_what_they_show(sick, capsys):
    sizes, gradients = sick.figures
    assert re.search(r"stream [\d.e+]+ to [\d.e+]+, sublayer reads", sizes.alt)
    assert "largest attention logit" in gradients.alt and "its bound" in gradients.alt
    sizes.show()
    assert capsys.readouterr().out.strip() == sizes.alt


def test_figures_without_anything_to_show():
    torch.manual_seed(0)
    for figure in normlab.doctor(Plain(), IDS).figures:
        assert figure.svg().startswith("<svg")


def test_json_holds_everything_but_the_drawings(sick):
    data = json.loads(json.dumps(sick.as_dict()))
    assert [f["id"] for f in data["findings"]] == [f.id for f in sick.findings]
    assert len(data["table"]) == len(sick.table) and len(data["not_visible"]) == len(NOT_VISIBLE)


def test_every_kind_has_advice_and_a_chapter():
    for id, kind in KINDS.items():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)+", id)
        assert kind.advice.endswith(".") and re.fullmatch(r"notebooks/\d\d_\w+", kind.chapter)


def test_it_is_a_function_of_the_package_and_takes_seconds():
    start = time.process_time()
    assert isinstance(normlab.doctor(fresh(), IDS), Diagnosis)
    assert time.process_time() - start < 10


# --- normlab doctor ---------------------------------------------------------------------------------------------------


def test_the_command_on_a_configuration(tmp_path, capsys):
    pytest.importorskip("transformers")
    assert cli.main(["doctor", str(llama(tmp_path))]) == 0
    assert capsys.readouterr().out.startswith("LlamaForCausalLM: nothing found")


def test_a_large_configuration_is_cut_and_the_command_says_so(tmp_path, capsys):
    pytest.importorskip("transformers")
    path = llama(tmp_path, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32)
    assert cli.main(["doctor", str(path)]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("of the model cut to num_hidden_layers 32 -> ") and second.endswith("nothing found")


def test_the_command_on_a_function_with_a_batch_as_json(tmp_path, monkeypatch, capsys):
    (tmp_path / "own_model.py").write_text(
        "from normlab.experiments import small_models\n"
        "def make():\n    return small_models.model(0, layers=2, width=32, norm='batchnorm')\n"
    )
    (tmp_path / "batch.json").write_text(json.dumps({"ids": IDS.tolist()}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert cli.main(["doctor", "own_model:make", "--batch", "batch.json", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert [finding["id"] for finding in data["findings"]] == ["norm-across-tokens"]


@pytest.mark.parametrize("ending", ["pt", "npy", "json"])
def test_batches_are_read_from_files(tmp_path, ending):
    from normlab.inspection.doctor_command import read_batch

    path = tmp_path / f"ids.{ending}"
    if ending == "pt":
        torch.save(IDS, path)
    elif ending == "npy":
        import numpy as np

        np.save(path, IDS.numpy())
    else:
        path.write_text(json.dumps(IDS.tolist()))
    assert torch.equal(read_batch(path), IDS)


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("ids.txt", "1 2", ".json, .npy or .pt, got ids.txt"),
        ("ids.json", "[[1, 2], [3]]", "holds no batch"),
        ("ids.json", "{", "holds no batch"),
        ("ids.pt", "nothing", "holds no batch"),
        (None, None, "there is no file"),
    ],
)
def test_a_batch_that_is_none_is_named(tmp_path, capsys, name, content, words):
    pytest.importorskip("transformers")
    if name:
        (tmp_path / name).write_text(content)
    assert cli.main(["doctor", str(llama(tmp_path)), "--batch", str(tmp_path / (name or "absent.json"))]) == 2
    error = capsys.readouterr().err
    assert error.startswith("normlab doctor: ") and words in error and error.count("\n") == 1


def test_a_half_type_from_the_terminal(tmp_path, capsys):
    pytest.importorskip("transformers")
    assert cli.main(["doctor", str(llama(tmp_path)), "--dtype", "bfloat16"]) == 0
    assert "bfloat16" in capsys.readouterr().out


def test_what_is_advised_against_zeros_in_half_types_keeps_both_passes_finite():
    def passes(dtype, eps):
        x = torch.zeros(1, 4, dtype=torch.float16, requires_grad=True)
        wide = x.to(dtype)
        y = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).half()
        y.sum().backward()
        return y.isfinite().all().item(), x.grad.isfinite().all().item()

    assert passes(torch.float16, 1e-8) == (False, False)
    assert passes(torch.float16, 1e-6) == (True, False)  # "saves the forward pass only"
    assert passes(torch.float32, 1e-6) == (True, True)


def test_what_is_advised_against_padding_leaves_no_nan_in_a_row_that_sees_nothing():
    scores, hidden = torch.zeros(2, 3), torch.tensor([[True, True, True], [True, False, False]])
    assert scores.masked_fill(hidden, float("-inf")).softmax(-1).isnan().any()
    weights = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1)
    assert weights.isfinite().all() and weights[1].tolist() == [0, 0.5, 0.5]
