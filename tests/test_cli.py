"""The console script, as a user calls it."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from some import third
from tiny_models import dbrx_or_skip

import normlab
from normlab import cli
from normlab.inspection import command, cut
from normlab.inspection.report import inspect
from normlab.norms import NormKind
from normlab.placement import Placement


def run(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "normlab", *arguments], capture_output=True, text=True, timeout=120, **options
    )


def test_help_names_the_commands_and_does_not_wait_for_torch():
    code = "import sys; from normlab.cli import main; main([]); assert 'torch' not in sys.modules"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert all(f"  {name}" in out for name in cli.COMMANDS)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help(name, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([name, "--help"])
    assert stop.value.code == 0 and f"usage: normlab {name}" in capsys.readouterr().out


def test_an_unknown_command_is_named_with_the_known_ones():
    result = run("measure")
    assert result.returncode == 2
    assert "'measure'" in result.stderr and all(name in result.stderr for name in cli.COMMANDS)


def test_version(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out.strip() == f"normlab {normlab.__version__}"


def test_record_lists_what_is_there(capsys):
    assert cli.main(["record"]) == 0
    assert "warmup_post (" in capsys.readouterr().out



def test_record_lists_without_the_libraries_that_draw():
    """They are no requirement of the package, which is installed without them."""
    code = "import sys; sys.modules['matplotlib'] = sys.modules['scipy'] = None; from normlab.cli import main; main(['record'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "warmup_post (" in done.stdout, done.stderr


def test_a_missing_library_is_named_in_one_line(monkeypatch, capsys):
    def fail(*_):
        raise ModuleNotFoundError("No module named 'matplotlib'", name=missing)

    monkeypatch.setattr(cli, "_run", fail)
    missing = "matplotlib.axes"
    assert cli.main(["bench"]) == 2
    assert capsys.readouterr().err == "normlab bench: this needs matplotlib, which is not installed here\n"
    missing = "normlab.no_such_module"  # a fault of ours
    with pytest.raises(ModuleNotFoundError):
        cli.main(["bench"])


# --- normlab inspect ----------------------------------------------------------------------------------------------


def llama(folder, **changes):
    sizes = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    settings = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "intermediate_size": 48}
    path = folder / "config.json"
    path.write_text(json.dumps(sizes | settings | {"num_key_value_heads": 2} | changes))
    return path


def test_inspect_a_config_and_its_folder(tmp_path, capsys):
    path = llama(tmp_path)
    outputs = []
    for name in (path, tmp_path):
        assert cli.main(["inspect", str(name)]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert "attention: x + F(N(x)), pre" in outputs[0] and "rmsnorm over 32 features" in outputs[0]
    assert "cut" not in outputs[0]


MINE = """import torch

def make():
    return torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

def one():
    return torch.zeros(2, 3, 8)

def several():
    return one(), None

def named():
    return {"src": one()}

def wrong():
    return [1, 2]

number = 3
"""


def test_inspect_a_function_in_the_current_folder(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    result = run("inspect", "mine:make", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "attention: N(x + F(x)), post" in result.stdout


@pytest.mark.parametrize("command", ["inspect", "doctor"])
def test_without_transformers_a_configuration_says_what_it_needs(monkeypatch, tmp_path, capsys, command):
    monkeypatch.setitem(sys.modules, "transformers", None)
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama"}')
    assert cli.main([command, str(path)]) == 2
    assert capsys.readouterr().err == (
        f"normlab {command}: {path} needs the library transformers, which is not installed here\n"
    )


def test_an_input_of_ones_own(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine_too.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    for value in ("one", "several", "named"):
        assert cli.main(["inspect", "mine_too:make", "--input", f"mine_too:{value}"]) == 0
        assert "attention: N(x + F(x)), post" in capsys.readouterr().out
    for model, value, message in (
        ("make", "mine_too:wrong", "returned list, not a tensor, a tuple or a dictionary"),
        ("number", "mine_too:one", "is a int, not a function"),
        ("make", "mine_too:two", "has no 'two'"),
        ("make", "mine", "'mine' is not of the form package.module:function"),
    ):
        assert cli.main(["inspect", f"mine_too:{model}", "--input", value]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "neither a config.json"),
        ("nowhere/config.json", "there is no file"),
        ("torch.nn:Nothing", "has no 'Nothing'"),
        (":make", "not of the form"),
        ("no_such_module:make", "no_such_module"),
        ("collections:OrderedDict", "returned OrderedDict, not a torch.nn.Module"),
    ],
)
def test_what_cannot_be_inspected_is_said_in_one_line(name, message, capsys):
    assert cli.main(["inspect", name]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "lama"}, "model_type 'lama' is not known"),
        ({"model_type": "lama", "auto_map": {"AutoModel": "x.Y"}}, "auto_map.*pass package.module:make_model"),
        ({"num_attention_heads": 5}, "5"),
        ({"hidden_size": "wide"}, "transformers refuses it"),
    ],
)
def test_bad_settings(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        command.report_on(str(llama(tmp_path, **changes)))


@pytest.mark.parametrize(("text", "message"), [("{", "is not JSON"), ("[1]", "holds a list")])
def test_files_that_are_no_configuration(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        command.report_on(str(tmp_path))


def test_what_is_too_large_for_the_machine_is_not_built(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "_largest", lambda: 1000)
    with pytest.raises(ValueError, match="parameters, more than the 1,000 that fit"):
        command.report_on(str(llama(tmp_path)), full=True)


def test_a_report_leaves_the_random_numbers_alone(tmp_path):
    path, before = llama(tmp_path), torch.get_rng_state()
    command.report_on(str(path))
    assert torch.equal(torch.get_rng_state(), before)


# --- JSON and SVG -------------------------------------------------------------------------------------------------


NORM_KEYS = "module kind width eps eps_place gain bias cast fraction groups across_tokens".split()
SUBLAYER_KEYS = """kind placement formula input_norm output_norm post_norm skip_norm input_scale output_scale
stream_scale sum_scale qk_norm inner_norms joins_next shares_norm hidden_norm unknown_qk_norm""".split()
STACK_KEYS = "blocks embedding_norm final_norm embedding_unknown final_unknown".split()


def test_json_has_the_documented_keys(tmp_path, capsys):
    qwen = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 8}
    assert cli.main(["inspect", str(llama(tmp_path, **qwen)), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report) == ["format", "model", "stacks", "last_hidden", "cut", "notes"]
    assert (report["format"], report["model"], report["cut"]) == (1, "Qwen3ForCausalLM", [])
    (stack,) = report["stacks"]
    assert list(stack) == STACK_KEYS and list(stack["final_norm"]) == NORM_KEYS
    assert [list(block) for block in stack["blocks"]] == 2 * [["sublayers", "unknown"]]
    attention, mlp = stack["blocks"][0]["sublayers"]
    assert list(attention) == list(mlp) == SUBLAYER_KEYS
    assert (attention["kind"], attention["placement"], mlp["qk_norm"]) == ("attention", "pre", None)
    assert list(attention["qk_norm"]) == ["how", "after_rope", "query", "key", "value"]
    assert attention["qk_norm"]["query"]["kind"] == "rmsnorm" and attention["qk_norm"]["how"] == "per_head"


def test_json_is_what_the_report_holds():
    report = command.as_json(inspect(torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)))
    assert json.loads(json.dumps(report)) == report
    norm = report["stacks"][0]["blocks"][0]["sublayers"][0]["post_norm"]
    assert norm["kind"] == "layernorm" and norm["eps"] == pytest.approx(1e-5) and norm["bias"] is True


def test_svg(tmp_path, capsys):
    picture = tmp_path / "wiring.svg"
    picture.write_text("old")
    for _ in range(2):
        assert cli.main(["inspect", str(llama(tmp_path)), "--svg", str(picture)]) == 0
        assert picture.read_text().startswith("<svg") and "pre" in capsys.readouterr().out
    for bad, message in (("wiring.png", "must end in .svg"), ("nowhere/wiring.svg", "cannot be written to")):
        assert cli.main(["inspect", str(llama(tmp_path)), "--svg", str(tmp_path / bad)]) == 2
        assert message in capsys.readouterr().err


# --- large configurations, cut ------------------------------------------------------------------------------------


TYPED = json.loads(Path(__file__).with_name("typed_configs.json").read_text("utf-8"))
TYPED.pop("about")
LN, RMS = NormKind.LAYERNORM, NormKind.RMSNORM
# layers left; of the first block: kinds, placement, norm; from the published code, as in test_inspect's census
EXPECTED = {
    "llama-3-70b": (2, "attention mlp", "pre", RMS),
    "mistral-7b": (2, "attention mlp", "pre", RMS),
    "mixtral-8x22b": (2, "attention mlp", "pre", RMS),
    "qwen3-30b-a3b": (2, "attention mlp", "pre", RMS),
    "gemma-2-27b": (2, "attention mlp", "peri", RMS),  # a sliding window in every other layer
    "gemma-3-27b": (6, "attention mlp", "peri", RMS),  # full attention in every sixth
    "olmo-2-32b": (2, "attention mlp", "output", RMS),
    "deepseek-v3": (4, "attention mlp", "pre", RMS),  # three dense layers first
    "gpt-oss-120b": (2, "attention mlp", "pre", RMS),
    "gpt2-xl": (2, "attention mlp", "pre", LN),
    "bert-large": (2, "attention mlp", "post", LN),
    "t5-11b": (2, "attention mlp", "pre", RMS),
    "glm-4-32b": (2, "attention mlp", "peri", RMS),
    "command-r-plus": (2, "attention mlp", "parallel", LN),
    "falcon-40b": (2, "attention mlp", "parallel", LN),
    "falcon-7b": (2, "attention mlp", "parallel", LN),
    "phi-3-medium-128k": (2, "attention mlp", "pre", RMS),
    "qwen3-next-80b": (4, "mixer mlp", "pre", RMS),  # attention in every fourth
    "llama-4-maverick-text": (4, "attention mlp", "pre", RMS),  # experts in every second, no RoPE in every fourth
    "jamba-large": (5, "mixer mlp", "pre", RMS),  # attention from the fifth on, in every eighth
    "mamba2-2.7b": (2, "mixer", "pre", RMS),
    "qwen2-vl-72b": (2, "attention mlp", "pre", RMS),
    "llama-3.2-90b-vision-text": (3, "attention mlp", "pre", RMS),  # the fourth waits for a picture
}


WITH_QK_NORM = ("qwen3-30b-a3b", "gemma-3-27b", "olmo-2-32b", "command-r-plus")


def test_every_typed_configuration_is_expected():
    assert EXPECTED.keys() == TYPED.keys()


@pytest.mark.parametrize("name", third(EXPECTED))
def test_a_published_configuration_is_cut_to_what_shows_every_kind_of_layer(name, tmp_path, monkeypatch):
    layers, kinds, placement, norm = EXPECTED[name]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TYPED[name]))
    built = []
    monkeypatch.setattr(command, "inspect", lambda model, **_: built.append(model) or inspect(model))
    report = command.report_on(str(path))
    assert sum(p.numel() for p in built[0].parameters()) < 3_000_000
    assert report.cut and "layers" in " ".join(report.notes) and str(report).splitlines()[1].startswith("  cut: ")
    assert all(cut.after < cut.before for cut in report.cut)
    stack = report.stacks[0]
    assert len(stack.blocks) == layers and not any(block.unknown for block in stack.blocks)
    first = stack.blocks[0].sublayers
    assert " ".join(s.kind for s in first) == kinds
    assert {s.placement for s in first} == {Placement(placement)}
    assert {n.kind for s in first for n in (s.norm, s.output_norm) if n} == {norm}
    if "attention" in kinds:
        assert (first[0].qk_norm is not None) == (name in WITH_QK_NORM)
    assert any("layers 4 did not run" in note for note in report.notes) == name.endswith("vision-text")


def test_the_cut_is_said_in_json(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(TYPED["deepseek-v3"]))
    assert cli.main(["inspect", str(tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {"name": "num_hidden_layers", "before": 61, "after": 4} == report["cut"][0]
    notes = " ".join(report["notes"])
    assert "61 layers of 2 kinds, 3 like layer 1 (1–3), 58 like layer 4 (4–61)" in notes
    assert "auto_map is not followed" in notes and "not quantized" in notes


def without_sizes(value):
    if isinstance(value, dict):
        return {k: without_sizes(v) for k, v in value.items() if k != "width"}
    return [without_sizes(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", third(EXPECTED))
def test_a_cut_keeps_what_the_report_says(name, tmp_path, monkeypatch):
    """Against the model as it is, narrow, and twice as long as what is cut from it."""
    middle = cut.smaller(TYPED[name])
    for settings in (middle, middle.get("text_config", {})):
        for depth in settings.keys() & {"num_hidden_layers", "n_layer", "num_layers"}:
            settings[depth] = 2 * EXPECTED[name][0] + 2
            if "layer_types" in settings:
                settings["layer_types"] = settings["layer_types"][: settings[depth]]
    if name == "gemma-3-27b":
        middle["vision_config"]["num_hidden_layers"] = 3
    path = tmp_path / "config.json"
    path.write_text(json.dumps(middle))
    whole = command.as_json(command.report_on(str(path), full=True))
    monkeypatch.setattr(command, "WHOLE", 0)
    part = command.as_json(command.report_on(str(path)))
    assert part["cut"] and not whole["cut"] and part["last_hidden"] == whole["last_hidden"]
    for long, short in zip(without_sizes(whole["stacks"]), without_sizes(part["stacks"]), strict=True):
        assert len(short["blocks"]) < len(long["blocks"]) or "vision-text" in name
        assert short["blocks"] == long["blocks"][: len(short["blocks"])]
        assert all(block in short["blocks"] for block in long["blocks"])
        assert short["final_norm"] == long["final_norm"] and short["embedding_norm"] == long["embedding_norm"]


def test_a_configuration_is_made_again_from_what_is_kept_of_it():
    """Else a setting would be lost silently; for every text model of the library."""
    import transformers
    from transformers.models.auto import modeling_auto

    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    lost = {"bailing_hybrid": {"linear_head_dim"}, "moshi": {"audio_vocab_size"}}  # set by their classes from others
    kinds = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES | modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    for kind in kinds:
        try:
            config = known[kind]()
        except Exception:  # some cannot be made without settings
            continue
        if getattr(config, "vision_config", None):  # parts of other kinds come with what their own class does not know
            continue
        again = transformers.AutoConfig.for_model(kind, **json.loads(json.dumps(command._settings(config, {}))))
        before, after = config.to_dict(), again.to_dict()
        assert {n for n in before.keys() | after.keys() if before.get(n) != after.get(n)} <= lost.get(kind, set()), kind


def test_settings_that_a_class_does_not_declare_are_kept(tmp_path):
    """dbrx reads the base of its rotation from a nested setting, which its class knows only if it is given."""
    dbrx_or_skip()
    attention, experts = {"rope_theta": 5e5, "kv_n_heads": 8, "clip_qkv": 8}, {"ffn_hidden_size": 10752, "moe_num_experts": 16}
    sizes = {"d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100352}
    settings = {"model_type": "dbrx", "architectures": ["DbrxForCausalLM"], **sizes}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(settings | {"attn_config": attention, "ffn_config": experts | {"moe_top_k": 4}}))
    report = command.report_on(str(path))
    before = {cut.name: cut.before for cut in report.cut}
    assert before["attn_config.kv_n_heads"] == 8 and before["ffn_config.moe_num_experts"] == 16
    assert [s.kind for s in report.stacks[0].blocks[0].sublayers] == ["attention", "mlp"]


class Deep(torch.nn.Module):
    """Layers with a factor that depends on their number or on the depth."""

    def __init__(self, settings, factor):
        super().__init__()
        depth = settings["num_hidden_layers"]
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(depth))
        for number, layer in enumerate(self.layers):
            layer.factor, layer.number = factor(number, depth), number


@pytest.mark.parametrize(
    ("factor", "kept"),
    [
        (lambda number, depth: 1.0, 2),
        (lambda number, depth: number == 4, 5),
        (lambda number, depth: number % 3 == 2, 3),
        (lambda number, depth: depth**-0.5, 9),  # the layers of a shorter model are others: not cut
        (lambda number, depth: (1 + number) ** -0.5, 9),  # every layer is of its own kind
        (lambda number, depth: number == depth - 1, 9),
    ],
)
def test_depth_is_cut_only_where_the_layers_stay_what_they_were(factor, kept):
    settings = {"num_hidden_layers": 9, "layer_types": list("abcdefghi"), "dense_layers_idx": [0, 3, 8], "other": [1]}
    found, layers = cut.shorter(settings, lambda s: Deep(s, factor))
    assert found["num_hidden_layers"] == len(found["layer_types"]) == kept
    assert found["other"] == [1] and bool(layers) == (kept < 9)
    assert found["dense_layers_idx"] == [n for n in (0, 3, 8) if n < kept]
    assert settings["num_hidden_layers"] == 9


def test_nothing_is_downloaded(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps(TYPED["phi-3-medium-128k"]))

    def no(*_, **__):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", no)
    monkeypatch.setattr(socket, "getaddrinfo", no)
    command.report_on(str(tmp_path))
