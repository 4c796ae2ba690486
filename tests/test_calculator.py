"""The script of the calculator page computes what `normlab.ledger` computes, on many configurations.

It runs in the node that renders the book's formulas.
"""

import dataclasses
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from normlab import ledger

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "book" / "_ext"))
from course import mathematics  # noqa: E402

SCRIPT = ROOT / "book" / "_static" / "ledger.js"
PROGRAM = """
const ledger = require(process.argv[1]);
const whole = (key, value) => (typeof value === "bigint" ? String(value) : value);
const calls = JSON.parse(require("fs").readFileSync(0, "utf8"));
const results = calls.map(([config, run]) => {
  const {tokens, batch, dtype, phase, causal, head, softmax_copy} = run;
  return {
    parameters: ledger.parameters(config),
    flops: ledger.flops(config, tokens, phase, causal, head, batch),
    scores: ledger.scores(config, tokens, batch, dtype, causal, softmax_copy),
    kv_cache: ledger.kvCache(config, tokens, batch, dtype),
    norms: ledger.norms(config, tokens, batch, dtype),
    size: ledger.size(ledger.kvCache(config, tokens, batch, dtype).total),
  };
});
process.stdout.write(JSON.stringify(results, whole));
"""


def random_config(draw: random.Random) -> ledger.Config:
    layers, kv_heads = draw.randint(1, 130), draw.randint(1, 16)
    windows = tuple(draw.choice([None, 1, 2, 512, 4096]) for _ in range(layers))
    return ledger.Config(
        vocab_size=draw.randint(1, 300_000),
        layers=layers,
        width=draw.randint(1, 20_000),
        heads=kv_heads * draw.randint(1, 16),
        kv_heads=kv_heads,
        head_dim=draw.randint(1, 300),
        mlp_width=draw.randint(1, 60_000),
        gated=draw.random() < 0.5,
        tied_head=draw.random() < 0.5,
        positions=draw.choice([0, 1024]),
        norm=draw.choice(ledger.NORMS),
        placement=draw.choice(ledger.PLACEMENTS),
        qk_norm=draw.choice(ledger.QK_NORMS),
        final_norm=draw.choice([None, True, False]),
        bias=draw.random() < 0.5,
        windows=draw.choice([None, windows]),
    )


def random_run(draw: random.Random) -> dict:
    return {
        "tokens": draw.choice([1, 2, 511, 2048, 4097, 16384, 1_000_000]),
        "batch": draw.choice([1, 3, 64]),
        "dtype": draw.choice(list(ledger.DTYPES)),
        "phase": draw.choice(["prefill", "decode"]),
        "causal": draw.random() < 0.5,
        "head": draw.choice(["last", "all", "none"]),
        "softmax_copy": draw.random() < 0.5,
    }


def results(config: ledger.Config, run: dict) -> dict:
    """What the program above prints, from Python."""
    where = run["tokens"], run["batch"], run["dtype"]
    flops = ledger.flops(config, run["tokens"], run["phase"], run["causal"], run["head"], run["batch"])
    extra = {name: getattr(flops, name) for name in ("matrices", "attention_share", "norm_share")}
    own = ledger.parameters(config)
    return {
        "parameters": {**dataclasses.asdict(own), "total": own.total},
        "flops": {**dataclasses.asdict(flops), **extra},
        "scores": dataclasses.asdict(ledger.scores(config, *where, run["causal"], run["softmax_copy"])),
        "kv_cache": dataclasses.asdict(ledger.kv_cache(config, *where)),
        "norms": dataclasses.asdict(ledger.norms(config, *where)),
        "size": ledger.size(ledger.kv_cache(config, *where).total),
    }


def in_text(value):
    """Whole numbers as strings, as the script prints its own, which may be longer than a JSON reader keeps."""
    if isinstance(value, dict):
        return {name: in_text(item) for name, item in value.items()}
    return str(value) if isinstance(value, int) else value


def test_the_script_rounds_as_python_does():
    values = [0.0, 0.5, 1.5, 2.5, 0.0625, 16.125, 16.375, 12.284999, 1e-9, 0.1, 999.95, 123456.5]
    program = (
        "const {fixed} = require(process.argv[1]); const values = JSON.parse(process.argv[2]);"
        "console.log(JSON.stringify([0, 2, 3].map(places => values.map(value => fixed(value, places)))));"
    )
    command = [mathematics._node(), "-e", program, str(SCRIPT), json.dumps(values)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert found == [[f"{value:.{places}f}" for value in values] for places in (0, 2, 3)]


def test_the_script_computes_what_the_ledger_computes():
    draw = random.Random(0)
    configs = [*ledger.PRESETS.values(), *(random_config(draw) for _ in range(120))]
    calls = [(config, random_run(draw)) for config in configs]
    sent = json.dumps([(dataclasses.asdict(config), run) for config, run in calls])
    command = [mathematics._node(), "-e", PROGRAM, str(SCRIPT)]
    done = subprocess.run(command, input=sent, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == len(calls) > 50
    for (config, run), script in zip(calls, found):
        own = in_text(results(config, run))
        for name in ("attention_share", "norm_share"):  # quotients of rounded numbers: the last digit is free
            assert script["flops"].pop(name) == pytest.approx(own["flops"].pop(name), rel=1e-14)
        assert script == own, (config, run)
