"""The console script, as a user calls it."""

import json
import subprocess
import sys

import pytest
import torch

import normlab
from normlab import cli
from normlab.inspection import command


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


def test_inspect_a_function_in_the_current_folder(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\ndef make():\n    return torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)\n"
    )
    result = run("inspect", "mine:make", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "attention: N(x + F(x)), post" in result.stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "neither a config.json"),
        ("nowhere/config.json", "there is no file"),
        ("torch.nn:Nothing", "has no 'Nothing'"),
        ("no_such_module:make", "no_such_module"),
        ("collections:OrderedDict", "returned OrderedDict, not a torch.nn.Module"),
    ],
)
def test_what_cannot_be_inspected_is_said_in_one_line(name, message, capsys):
    assert cli.main(["inspect", name]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_bad_configs(tmp_path):
    with pytest.raises(ValueError, match="model_type 'lama' is not known"):
        command.build(str(llama(tmp_path, model_type="lama")))
    with pytest.raises(ValueError, match="parameters, more than 500,000,000"):
        command.build(str(llama(tmp_path, hidden_size=32768, vocab_size=500_000)))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        command.build(str(tmp_path))


def test_building_leaves_the_random_numbers_alone(tmp_path):
    path, before = llama(tmp_path), torch.get_rng_state()
    command.build(str(path))
    assert torch.equal(torch.get_rng_state(), before)
