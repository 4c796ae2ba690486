"""The ledger's formulas against models on the meta device, torch's flop counter, a real cache, and counting."""

import dataclasses
import doctest
import json
import operator
import re
import subprocess
import sys
from functools import cache, reduce

import pytest
import torch
import transformers
from some import third
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from normlab import ledger
from normlab.ledger import PRESETS, Config

LLAMA = PRESETS["Llama-2-7B"]
# The sizes of the published config.json files, by the names of transformers.
SHARED = dict(hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32)
PUBLISHED = {
    "GPT-2": ("GPT2", dict(vocab_size=50257, n_positions=1024, n_embd=768, n_layer=12, n_head=12)),
    "Llama-2-7B": ("Llama", dict(SHARED, vocab_size=32000, intermediate_size=11008)),
    "Llama-2-70B": (
        "Llama",
        dict(
            vocab_size=32000,
            hidden_size=8192,
            intermediate_size=28672,
            num_hidden_layers=80,
            num_attention_heads=64,
            num_key_value_heads=8,
        ),
    ),
    "Llama-3-8B": ("Llama", dict(SHARED, vocab_size=128256, intermediate_size=14336, num_key_value_heads=8)),
    "Mistral-7B": (
        "Mistral",
        dict(SHARED, vocab_size=32000, intermediate_size=14336, num_key_value_heads=8, sliding_window=4096),
    ),
    "Qwen3-0.6B": (
        "Qwen3",
        dict(
            vocab_size=151936,
            hidden_size=1024,
            intermediate_size=3072,
            num_hidden_layers=28,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=128,
            tie_word_embeddings=True,
        ),
    ),
    "Gemma-2-2B": (
        "Gemma2",
        dict(
            vocab_size=256000,
            hidden_size=2304,
            intermediate_size=9216,
            num_hidden_layers=26,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=256,
            sliding_window=4096,
        ),
    ),
    "OLMo-2-7B": ("Olmo2", dict(SHARED, vocab_size=100352, intermediate_size=11008)),
}


def hf_config(name: str):
    family, sizes = PUBLISHED[name]
    return getattr(transformers, f"{family}Config")(**sizes, attn_implementation="eager")


@cache
def model(name: str):
    """The model of transformers, without memory for its weights."""
    config = hf_config(name)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")


# --- parameters -----------------------------------------------------------------------------------

TOTALS = {
    "GPT-2": 124_439_808,
    "Llama-2-7B": 6_738_415_616,
    "Llama-2-70B": 68_976_648_192,
    "Llama-3-8B": 8_030_261_248,
    "Mistral-7B": 7_241_732_096,
    "Qwen3-0.6B": 596_049_920,
    "Gemma-2-2B": 2_614_341_888,
    "OLMo-2-7B": 7_298_617_344,
}


def kind(name: str) -> str:
    """The kind of a parameter of transformers, by its name."""
    if "norm" in name or ".ln_" in name:
        return "norms"
    if "attn" in name:
        return "attention"
    if "mlp" in name:
        return "mlp"
    return "head" if "lm_head" in name else "positions" if "wpe" in name else "embedding"


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_the_parameters_of_the_models_by_kind(name):
    counted = dict.fromkeys((f.name for f in dataclasses.fields(ledger.Parameters)), 0)
    for parameter_name, parameter in model(name).named_parameters():  # a tied head comes up once
        counted[kind(parameter_name)] += parameter.numel()
    own = ledger.parameters(PRESETS[name])
    assert dataclasses.asdict(own) == counted
    assert own.total == TOTALS[name]


@pytest.mark.parametrize("name", PRESETS)
def test_presets_count_the_norms_of_the_models(name):
    found = [m for path, m in model(name).named_modules() if "norm" in path.split(".")[-1] or ".ln_" in f".{path}"]
    own = ledger.norms(PRESETS[name], 1)
    assert own.count + own.qk_count == len(found)
    assert own.parameters == sum(p.numel() for m in found for p in m.parameters())


def test_every_field_of_every_preset_has_a_source():
    texts = {(name, f.name): ledger.source(name, f.name) for name in PRESETS for f in dataclasses.fields(Config)}
    assert all(re.search(r"config\.json|model\.py|transformers|model card", text) for text in texts.values())
    assert texts["Gemma-2-2B", "placement"] != texts["Gemma-2-2B", "width"]
    with pytest.raises(ValueError, match="preset must be one of GPT-2.*'Llama-4'"):
        ledger.source("Llama-4", "width")
    with pytest.raises(ValueError, match="field must be one of vocab_size.*'depth'"):
        ledger.source("GPT-2", "depth")


# --- operations -----------------------------------------------------------------------------------


def counted_flops(name: str, tokens: int, head: str, batch: int = 1) -> int:
    causal = torch.zeros(batch, 1, tokens, tokens, device="meta")
    masks = dict.fromkeys(("full_attention", "sliding_attention"), causal) if name == "Gemma-2-2B" else causal
    with FlopCounterMode(display=False) as counter:
        model(name)(
            torch.zeros(batch, tokens, dtype=torch.long, device="meta"),
            attention_mask=masks,
            use_cache=False,
            logits_to_keep=1 if head == "last" else 0,
        )
    # Some versions of transformers multiply positions by frequencies with a matrix product: angles, not the model's work.
    angles = [counts for path, counts in counter.get_flop_counts().items() if path.endswith("rotary_emb")]
    return counter.get_total_flops() - sum(flops for counts in angles for flops in counts.values())


@pytest.mark.parametrize("head", ["last", "all"])
@pytest.mark.parametrize("name", third(PRESETS))
def test_matrix_products_are_those_that_torch_counts(name, head):
    assert ledger.flops(PRESETS[name], 64, head=head).matrices == counted_flops(name, 64, head)


def test_a_batch_multiplies_everything():
    one, three = (ledger.flops(LLAMA, 64, batch=batch) for batch in (1, 3))
    assert three.matrices == counted_flops("Llama-2-7B", 64, "last", batch=3)
    assert (three.linear, three.attention, three.head, three.norms) == (
        3 * one.linear,
        3 * one.attention,
        3 * one.head,
        3 * one.norms,
    )


def small(**changes) -> Config:
    return Config(**{"vocab_size": 11, "layers": 2, "width": 12, "heads": 3, "mlp_width": 7, **changes})


@pytest.mark.parametrize("windows", [None, (3, None), (1, 4), (50, 50)])
@pytest.mark.parametrize("tokens", [1, 2, 5, 9])
def test_causal_pairs_by_counting(windows, tokens):
    config, pairs, last = small(windows=windows), 0, 0
    for window in windows or (None, None):
        for query in range(tokens):
            seen = sum(1 for key in range(tokens) if key <= query and (window is None or query - key < window))
            pairs += seen
            last += seen if query == tokens - 1 else 0
    each = 4 * config.heads * config.head_dim
    assert ledger.flops(config, tokens, causal=True).attention == each * pairs
    assert ledger.flops(config, tokens, "decode").attention == each * last
    assert ledger.flops(config, tokens, causal=False).attention == each * config.layers * tokens**2


@pytest.mark.parametrize("name", ["GPT-2", "Llama-3-8B", "OLMo-2-7B", "Mistral-7B"])
def test_prefill_is_decoding_token_by_token(name):
    config, length = PRESETS[name], 40
    whole = ledger.flops(config, length, causal=True, head="all")
    steps = [ledger.flops(config, t, "decode") for t in range(1, length + 1)]
    for part in ("linear", "attention", "head", "norms"):
        assert getattr(whole, part) == sum(getattr(step, part) for step in steps), part


class Counted:
    """A number that counts operations on it."""

    operations = 0

    def __init__(self, value: float):
        self.value = value

    def _count(self, operation, other=None):
        Counted.operations += 1
        other = other.value if isinstance(other, Counted) else other
        return Counted(operation(self.value) if other is None else operation(self.value, other))

    def __add__(self, other):
        return self._count(operator.add, other)

    def __sub__(self, other):
        return self._count(operator.sub, other)

    def __mul__(self, other):
        return self._count(operator.mul, other)

    def __truediv__(self, other):
        return self._count(operator.truediv, other)

    def rsqrt(self):
        return self._count(lambda x: x**-0.5)


def by_hand(norm: str, x: list, gain: list, bias: list) -> list:
    """The formula of a norm, number by number."""
    if norm == "layernorm":
        mean = reduce(operator.add, x) / len(x)
        x = [v - mean for v in x]
    factor = (reduce(operator.add, [v * v for v in x]) / len(x) + 1e-5).rsqrt()
    y = [v * factor * g for v, g in zip(x, gain)]
    return y if norm == "rmsnorm" else [v + b for v, b in zip(y, bias)]


@pytest.mark.parametrize("norm", ledger.NORMS)
@pytest.mark.parametrize("features", [1, 2, 12])
def test_norm_operations_by_counting(norm, features):
    x = [[float(i * i % 7) + k for i in range(features)] for k in range(3)]
    Counted.operations = 0
    y = by_hand(norm, *([Counted(v) for v in row] for row in x))
    assert ledger.norm_flops(norm, features) == Counted.operations
    x, gain, bias = torch.tensor(x)  # and what was counted is the norm
    shape = (features,)
    right = (
        torch.nn.functional.rms_norm(x, shape, gain, 1e-5)
        if norm == "rmsnorm"
        else torch.nn.functional.layer_norm(x, shape, gain, bias, 1e-5)
    )
    torch.testing.assert_close(torch.tensor([v.value for v in y]), right)


def test_norm_operations_of_a_model_are_those_of_its_norms():
    one = ledger.norm_flops
    olmo = ledger.flops(small(placement="output", qk_norm="joint", kv_heads=1), 5).norms
    assert olmo == 5 * (2 * (2 * one("rmsnorm", 12) + one("rmsnorm", 12) + one("rmsnorm", 4)) + one("rmsnorm", 12))
    qwen = ledger.flops(small(qk_norm="head", kv_heads=1), 5).norms
    assert qwen == 5 * (2 * (2 * one("rmsnorm", 12) + (3 + 1) * one("rmsnorm", 4)) + one("rmsnorm", 12))
    bert = ledger.flops(small(placement="post", norm="layernorm"), 5).norms
    assert bert == 5 * 4 * one("layernorm", 12)


# --- the numbers of the interview -----------------------------------------------------------------


def test_from_2k_to_16k():
    """Computed another way: by hand from P = 6,476,005,376 matrix entries, d = 4096, L = 32, V = 32,000."""
    entries, width, layers, vocab = 6_476_005_376, 4096, 32, 32_000
    at = {}
    for tokens in (2048, 16384):
        full = 2 * entries * tokens + 4 * layers * width * tokens**2 + 2 * vocab * width
        causal = 2 * entries * tokens + 2 * layers * width * tokens * (tokens + 1) + 2 * vocab * width
        assert ledger.flops(LLAMA, tokens).matrices == full
        assert ledger.flops(LLAMA, tokens, causal=True).matrices == causal
        at[tokens] = full, causal
    ratios = [round(long / short, 1) for long, short in zip(at[16384], at[2048])]
    assert ratios == [12.3, 10.2]
    assert ledger.scores(LLAMA, 16384).head == 64 * ledger.scores(LLAMA, 2048).head
    assert [ledger.size(ledger.kv_cache(LLAMA, t).total) for t in (2048, 16384)] == [
        "1.000 GiB (1.074 GB)",
        "8.000 GiB (8.590 GB)",
    ]
    shares = [f"{ledger.flops(LLAMA, t).norm_share:.3%}" for t in (2048, 16384)]
    assert shares == ["0.008%", "0.005%"]


def test_gib_and_gb():
    assert (ledger.gib(2**30), ledger.gb(10**9)) == (1, 1)
    assert ledger.size(2**31, 1) == "2.0 GiB (2.1 GB)"


# --- attention's memory ---------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 3, 7, 8, 9, 20])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["Llama-3-8B", "Mistral-7B", "Gemma-2-2B", "Qwen3-0.6B"])
def test_cache_bytes_are_those_of_a_real_cache(name, dtype, tokens):
    window = None if PRESETS[name].windows is None else 8
    windows = window and tuple(w and window for w in PRESETS[name].windows)
    config = hf_config(name)
    if window:
        config.sliding_window = window
    real = transformers.DynamicCache(config=config)
    own = dataclasses.replace(PRESETS[name], windows=windows)
    for layer in range(own.layers):
        shape = (3, own.kv_heads, tokens, own.head_dim)
        real.update(*torch.zeros(2, *shape, dtype=getattr(torch, dtype), device="meta").unbind(), layer)
    held = sum(t.numel() * t.element_size() for layer in real.layers for t in (layer.keys, layer.values))
    assert ledger.kv_cache(own, tokens, batch=3, dtype=dtype).total == held


def test_per_token_is_what_one_more_token_adds():
    gemma = PRESETS["Gemma-2-2B"]
    steps = [ledger.kv_cache(gemma, t + 1).total - ledger.kv_cache(gemma, t).total for t in (1, 4094, 4095)]
    assert steps == [ledger.kv_cache(gemma, 1).per_token] * 2 + [ledger.kv_cache(gemma, 1).per_token // 2]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("softmax_copy", [False, True])
def test_scores_are_those_of_real_tensors(causal, softmax_copy):
    config, tokens, batch = small(), 5, 4
    own = ledger.scores(config, tokens, batch, "float32", causal, softmax_copy)
    scores = torch.zeros(batch, config.heads, tokens, tokens)
    if causal:
        scores = scores[..., *torch.tril_indices(tokens, tokens)]
    stored = [scores, scores.softmax(-1)] if softmax_copy else [scores]
    assert own.head == scores[0, 0].numel()
    assert own.layer == scores.numel()
    assert own.model == config.layers * scores.numel()
    assert own.layer_bytes == sum(t.nbytes for t in stored)
    assert own.model_bytes == config.layers * own.layer_bytes


# --- norms' memory --------------------------------------------------------------------------------


class Traffic(TorchDispatchMode):
    """Bytes read and written by kernels, each tensor once per kernel, and how many kernels ran."""

    def __init__(self):
        super().__init__()
        self.bytes = self.launches = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        inputs = [t for t in args if isinstance(t, torch.Tensor)]
        self.bytes += sum(t.nbytes for t in (*inputs, out))
        self.launches += 1
        return out


def norm_shapes(config: Config):
    """Vectors of one token and their features, norm by norm, for two layers of width 12 with heads of 4 features."""
    blocks = {"pre": 2, "peri": 4}[config.placement] * [(1, 12)]
    queries = {"none": [], "head": [(3, 4), (1, 4)], "joint": [(1, 12), (1, 12)]}[config.qk_norm]
    return 2 * (blocks + queries) + [(1, 12)]


def eager(norm: str, x, gain, bias):
    """As Llama writes it; LayerNorm likewise."""
    wide = x.to(torch.float32)
    if norm == "layernorm":
        wide = wide - wide.mean(-1, keepdim=True)
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
    y = gain * wide.to(x.dtype)
    return y if norm == "rmsnorm" else y + bias


@pytest.mark.parametrize("norm", ledger.NORMS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [{}, {"placement": "peri"}, {"qk_norm": "head", "kv_heads": 1}, {"qk_norm": "joint"}])
def test_eager_traffic_by_counting(norm, dtype, shape):
    config = small(norm=norm, **shape)
    traffic = Traffic()
    for vectors, features in norm_shapes(config):
        x = torch.empty(2, 5, vectors, features, device="meta", dtype=getattr(torch, dtype))
        gain, bias = x[0, 0, 0].clone(), x[0, 0, 0].clone()
        with traffic, torch.no_grad():
            eager(norm, x, gain, bias)
    own = ledger.norms(config, 5, batch=2, dtype=dtype)
    assert own.eager == ledger.Work(traffic.bytes, traffic.launches)


def test_eager_bytes_for_a_feature():
    """36 and 52 bytes in bfloat16 beside 4 fused; 8 and 11 launches."""
    for norm, each, launches in (("rmsnorm", 36, 8), ("layernorm", 52, 11)):
        own = ledger.norms(small(norm=norm, width=4096, heads=32, layers=1), 1000)
        elements = own.count * 1000 * 4096
        assert own.eager.bytes / elements == pytest.approx(each, rel=2e-3)
        assert own.eager.launches == launches * own.count
        assert own.fused.bytes / elements == pytest.approx(4, rel=2e-3)


FUSED_PASSES = {  # worked out on paper for one block and the final norm: passes over [B, T, d], kernels
    # norms alone, additions alone, both with each addition inside a norm's kernel
    "pre": ((6, 3), (6, 2), (10, 3)),  # read x, write y; then twice: read x and F, write the sum and y
    "post": ((4, 2), (6, 2), (6, 2)),  # twice: read x and F, write N(x + F)
    "peri": ((10, 5), (6, 2), (12, 5)),  # twice: N reads x, writes y; N reads F and x, writes the sum; then N
    "output": ((6, 3), (6, 2), (8, 3)),  # twice: read F and x, write the sum; final norm
    "parallel": ((4, 2), (6, 2), (7, 2)),  # N(x); then read x, A and M, write the sum and y
}


@pytest.mark.parametrize("placement", FUSED_PASSES)
def test_fused_traffic_on_paper(placement):
    config = small(layers=1, placement=placement)
    own = ledger.norms(config, 5, batch=2, dtype="bfloat16")
    one_pass, weights = 2 * 5 * 12 * 2, own.parameters * 2
    (norm_passes, norm_launches), (add_passes, add_launches), (both, launches) = FUSED_PASSES[placement]
    assert own.fused == ledger.Work(norm_passes * one_pass + weights, norm_launches)
    assert own.adds == ledger.Work(add_passes * one_pass, add_launches)
    assert own.fused_add == ledger.Work(both * one_pass + weights, launches)


def test_without_a_final_norm_the_last_addition_stands_alone():
    own = ledger.norms(small(layers=1, final_norm=False), 5, dtype="float32")
    assert own.fused_add == ledger.Work((2 + 4 + 3) * 5 * 12 * 4 + own.parameters * 4, 3)


@pytest.mark.parametrize("norm, names", [("layernorm", 3), ("rmsnorm", 2)])
def test_kept_activations_are_what_a_fused_norm_saves(norm, names):
    """native_layer_norm and _fused_rms_norm return what their backward passes read again."""
    config = small(norm=norm, final_norm=False, layers=1)
    x = torch.randn(2, 5, 12)
    if norm == "layernorm":
        kept = (x, *torch.ops.aten.native_layer_norm(x, [12], None, None, 1e-5)[1:])
    else:
        fused = getattr(torch.ops.aten, "_fused_rms_norm", None)  # not in the oldest torch
        kept = (x, fused(x, [12], None, 1e-5)[1] if fused else x.square().mean(-1, keepdim=True).rsqrt())
    own = ledger.norms(config, 5, batch=2, dtype="float32")
    assert len(kept) == names
    assert own.kept_inputs == own.count * kept[0].nbytes
    assert own.kept_statistics == own.count * sum(t.nbytes for t in kept[1:])


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, error, text",
    [
        ({"layers": 0}, ValueError, "layers must be at least 1, got 0"),
        ({"layers": 2.0}, TypeError, "layers must be an integer, got 2.0"),
        ({"layers": True}, TypeError, "layers must be an integer, got True"),
        ({"vocab_size": -5}, ValueError, "vocab_size must be at least 1, got -5"),
        ({"width": 13}, ValueError, "head_dim must be given .* width=13, heads=3"),
        ({"kv_heads": 2}, ValueError, "kv_heads must divide heads, got heads=3, kv_heads=2"),
        ({"kv_heads": 0}, ValueError, "kv_heads must be at least 1, got 0"),
        ({"head_dim": "4"}, TypeError, "head_dim must be an integer, got '4'"),
        ({"norm": "rms"}, ValueError, "norm must be one of rmsnorm, layernorm, got 'rms'"),
        ({"placement": None}, ValueError, "placement must be one of pre, .*got None"),
        ({"qk_norm": True}, ValueError, "qk_norm must be one of none, head, joint, got True"),
        ({"gated": 1}, TypeError, "gated must be True or False, got 1"),
        ({"positions": -1}, ValueError, "positions must be at least 0, got -1"),
        ({"windows": 4096}, TypeError, "windows must be a tuple with one entry per layer, or None, got 4096"),
        ({"windows": (4,)}, ValueError, r"windows must have one entry per layer \(2\), got 1"),
        ({"windows": (4, 0)}, ValueError, r"windows\[1\] must be at least 1, got 0"),
    ],
)
def test_a_bad_config_names_the_field(changes, error, text):
    with pytest.raises(error, match=text):
        small(**changes)


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: ledger.flops(LLAMA, 0), ValueError, "tokens must be at least 1, got 0"),
        (lambda: ledger.flops("Llama-2-7B", 1), TypeError, "config must be a ledger.Config, got str"),
        (lambda: ledger.flops(LLAMA, 1, "train"), ValueError, "phase must be one of prefill, decode, got 'train'"),
        (lambda: ledger.flops(LLAMA, 1, head=True), ValueError, "head must be one of last, all, none, got True"),
        (lambda: ledger.flops(LLAMA, 1, causal="yes"), TypeError, "causal must be True or False, got 'yes'"),
        (lambda: ledger.kv_cache(LLAMA, 1, batch=0), ValueError, "batch must be at least 1, got 0"),
        (lambda: ledger.kv_cache(LLAMA, 1, dtype="bf16"), ValueError, "dtype must be one of float32, .*'bf16'"),
        (lambda: ledger.norms(LLAMA, 1, dtype=torch.float16), ValueError, "dtype must be .*torch.float16"),
        (lambda: ledger.scores(LLAMA, 2.5), TypeError, "tokens must be an integer, got 2.5"),
        (lambda: ledger.norm_flops("rmsnorm", 0), ValueError, "features must be at least 1, got 0"),
        (lambda: ledger.norm_flops("batchnorm", 4), ValueError, "norm must be one of rmsnorm, layernorm"),
    ],
)
def test_a_bad_argument_is_named(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_the_ledger_needs_neither_torch_nor_numpy():
    program = "import sys, json, normlab.ledger; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy"} & set(json.loads(run.stdout))


def test_the_docstring_example():
    assert doctest.testmod(ledger).failed == 0 and doctest.testmod(ledger).attempted > 2
