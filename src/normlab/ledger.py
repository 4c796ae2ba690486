"""The bill of a decoder-only Transformer: parameters, operations, attention scores, KV cache and what its norms cost.

Plain Python, nothing is run: every number is a formula over a :class:`Config`. (The book's ledger of claims,
`book/claims.md`, is another thing: it lists sentences and what came out when they were checked.)

The sizes L, d, H, H_kv, d_h, m, V are layers, width, heads, kv_heads, head_dim, mlp_width, vocab_size; T is a number
of tokens, s the bytes of one number. GiB is 2^30 bytes, GB is 10^9; :func:`size` prints both.

>>> llama = PRESETS["Llama-2-7B"]
>>> parameters(llama).total
6738415616
>>> size(kv_cache(llama, 16384).total)
'8.000 GiB (8.590 GB)'
"""

from dataclasses import dataclass, fields

DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1, "int8": 1}  # bytes of one number
NORMS = ("rmsnorm", "layernorm")
PLACEMENTS = ("pre", "post", "peri", "output", "parallel")
QK_NORMS = ("none", "head", "joint")
_NORMS_PER_BLOCK = {"pre": 2, "post": 2, "peri": 4, "output": 2, "parallel": 1}


@dataclass(frozen=True)
class Config:
    """The sizes that decide what a decoder-only Transformer costs.

    Args:
        vocab_size: rows of the embedding, padding included.
        layers, width, heads, mlp_width: blocks, features of the stream, query heads, hidden features of the MLP.
        kv_heads: key and value heads; None for as many as heads.
        head_dim: features per head; None for width / heads.
        gated: the MLP has three matrices (gate, up, down) instead of two.
        tied_head: head and embedding are one matrix.
        positions: rows of a learned table of positions; 0 for none (RoPE has no parameters).
        norm: "rmsnorm" (a gain) or "layernorm" (a gain and a bias).
        placement: "pre", "post", "peri" (input and output), "output", or "parallel" (one norm for both sublayers).
        qk_norm: "none", "head" (one gain of head_dim for all heads) or "joint" (over the whole projection).
        final_norm: before the head; None means: unless the placement is "post".
        bias: all linear layers of the blocks have biases (GPT-2).
        windows: for each layer how many positions a token sees, itself included, or None for all; None: no windows.

    Raises:
        TypeError, ValueError: naming the field, what was given and what was expected.
    """

    vocab_size: int
    layers: int
    width: int
    heads: int
    mlp_width: int
    kv_heads: int = None  # type: ignore[assignment]  # never None after __post_init__
    head_dim: int = None  # type: ignore[assignment]
    gated: bool = True
    tied_head: bool = False
    positions: int = 0
    norm: str = "rmsnorm"
    placement: str = "pre"
    qk_norm: str = "none"
    final_norm: bool = None  # type: ignore[assignment]
    bias: bool = False
    windows: tuple[int | None, ...] | None = None

    def __post_init__(self):
        for name in ("vocab_size", "layers", "width", "heads", "mlp_width"):
            _check_count(name, getattr(self, name))
        for name, known in (("norm", NORMS), ("placement", PLACEMENTS), ("qk_norm", QK_NORMS)):
            _check_choice(name, getattr(self, name), known)
        if self.head_dim is None and self.width % self.heads:
            raise ValueError(
                f"head_dim must be given where heads do not divide width, got width={self.width}, heads={self.heads}"
            )
        defaults = {
            "kv_heads": self.heads,
            "head_dim": self.width // self.heads,
            "final_norm": self.placement != "post",
        }
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        for name in ("kv_heads", "head_dim"):
            _check_count(name, getattr(self, name))
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads must divide heads, got heads={self.heads}, kv_heads={self.kv_heads}")
        _check_count("positions", self.positions, least=0)
        for name in ("gated", "tied_head", "final_norm", "bias"):
            _check_bool(name, getattr(self, name))
        self._check_windows()

    def _check_windows(self) -> None:
        if self.windows is None:
            return
        if not isinstance(self.windows, tuple | list):
            raise TypeError(f"windows must be a tuple with one entry per layer, or None, got {self.windows!r}")
        object.__setattr__(self, "windows", tuple(self.windows))
        if len(self.windows) != self.layers:
            raise ValueError(f"windows must have one entry per layer ({self.layers}), got {len(self.windows)}")
        for i, window in enumerate(self.windows):
            if window is not None:
                _check_count(f"windows[{i}]", window)

    @property
    def query_width(self) -> int:
        """Features of all query heads, H·d_h."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Features of all key heads, H_kv·d_h; the values have as many."""
        return self.kv_heads * self.head_dim

    def window(self, layer: int) -> int | None:
        """Window of a layer, counted from 0; None if it sees everything."""
        return self.windows[layer] if self.windows else None


def _check_count(name: str, value: int, least: int = 1) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def _check_bool(name: str, value: bool) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")


def _check_choice(name: str, value: str, known) -> None:
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")


def _check_run(config: Config, tokens: int, batch: int, dtype: str = "float32") -> int:
    """Checks what most functions take, and returns the bytes of one number."""
    if not isinstance(config, Config):
        raise TypeError(f"config must be a ledger.Config, got {type(config).__name__}")
    _check_count("tokens", tokens)
    _check_count("batch", batch)
    _check_choice("dtype", dtype, DTYPES)
    return DTYPES[dtype]


# --- units ----------------------------------------------------------------------------------------


def gib(count: float) -> float:
    """Bytes in GiB, 2^30 bytes."""
    return count / 2**30


def gb(count: float) -> float:
    """Bytes in GB, 10^9 bytes."""
    return count / 1e9


def size(count: float, digits: int = 3) -> str:
    """Bytes in both units, for example "8.000 GiB (8.590 GB)"."""
    return f"{gib(count):.{digits}f} GiB ({gb(count):.{digits}f} GB)"


# --- parameters -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parameters:
    """Parameters by kind; biases of linear layers count with their layer, biases of norms with the norms."""

    embedding: int
    positions: int
    attention: int
    mlp: int
    norms: int
    head: int

    @property
    def total(self) -> int:
        """All of them; a tied head has none of its own."""
        return sum(getattr(self, field.name) for field in fields(self))


def parameters(config: Config) -> Parameters:
    """Parameters by kind.

    Attention has L·(2·d·H·d_h + 2·d·H_kv·d_h), the MLP L·3·d·m (gated) or L·2·d·m, the embedding V·d.
    """
    c = config
    attention = 2 * c.width * c.query_width + 2 * c.width * c.kv_width
    mlp = (3 if c.gated else 2) * c.width * c.mlp_width
    if c.bias:
        attention += c.query_width + 2 * c.kv_width + c.width
        mlp += (2 if c.gated else 1) * c.mlp_width + c.width
    embedding = c.vocab_size * c.width
    return Parameters(
        embedding=embedding,
        positions=c.positions * c.width,
        attention=c.layers * attention,
        mlp=c.layers * mlp,
        norms=_norm_parameters(c),
        head=0 if c.tied_head else embedding,
    )


# --- operations -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of one forward pass; a multiplication and an addition are two.

    Softmax, activations, residual additions and RoPE are not counted.
    """

    linear: int  #: projections and MLP
    attention: int  #: scores and weighted sums of values
    head: int  #: logits
    norms: int  #: all norms, by :func:`norm_flops`

    @property
    def matrices(self) -> int:
        """All matrix products."""
        return self.linear + self.attention + self.head

    @property
    def attention_share(self) -> float:
        """Attention's part of the matrix products."""
        return self.attention / self.matrices

    @property
    def norm_share(self) -> float:
        """The norms' operations over those of the matrix products."""
        return self.norms / self.matrices


def flops(
    config: Config, tokens: int, phase: str = "prefill", causal: bool = False, head: str = "last", batch: int = 1
) -> Flops:
    """Operations of one forward pass.

    A matrix with P entries costs 2·P per token; a pair of query and key costs 4·H·d_h per layer (score and sum).

    Args:
        tokens: T. In the phase "prefill" T tokens are read at once; in "decode" one token is read, and it sees T
            positions, itself included.
        causal: count only the pairs that the masks leave, T(T + 1)/2 without windows. False counts all T² pairs, as a
            kernel does that computes them and masks afterwards. Decoding computes no masked pair in either case.
        head: logits at the "last" position, at "all", or "none".
        batch: sequences.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    _check_run(config, tokens, batch)
    _check_choice("phase", phase, ("prefill", "decode"))
    _check_choice("head", head, ("last", "all", "none"))
    _check_bool("causal", causal)
    c, own = config, parameters(config)
    rows = batch * (tokens if phase == "prefill" else 1)
    positions = {"last": batch, "all": rows, "none": 0}[head]
    biases = c.layers * (c.query_width + 2 * c.kv_width + 2 * c.width + (2 if c.gated else 1) * c.mlp_width)
    matrices = own.attention + own.mlp - (biases if c.bias else 0)
    pairs = sum(_pairs(tokens, c.window(layer), phase, causal) for layer in range(c.layers))
    return Flops(
        linear=2 * rows * matrices,
        attention=4 * batch * pairs * c.query_width,
        head=2 * positions * c.vocab_size * c.width,
        norms=sum(rows * rows_each * norm_flops(c.norm, features) for rows_each, features in _norm_shapes(c)),
    )


def _pairs(tokens: int, window: int | None, phase: str, causal: bool) -> int:
    """Pairs of query and key in one head of one layer."""
    seen = tokens if window is None else min(tokens, window)
    if phase == "decode":
        return seen
    if not causal:
        return tokens * tokens
    return seen * (seen + 1) // 2 + (tokens - seen) * seen


def norm_flops(norm: str, features: int) -> int:
    """Operations of one norm of one vector of d features.

    RMSNorm: d squares, d − 1 additions, one division, ε, a reciprocal root, d products for the scale and d for the
    gain, in all 4d + 2. LayerNorm adds a mean (d operations), a subtraction and a bias for each feature: 7d + 2.
    """
    _check_choice("norm", norm, NORMS)
    _check_count("features", features)
    return (4 if norm == "rmsnorm" else 7) * features + 2


# --- attention's memory ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Scores:
    """Attention scores if they are stored: entries and bytes."""

    head: int  #: entries of one head of one sequence
    layer: int  #: entries of one layer, all heads, whole batch
    model: int  #: entries of all layers
    layer_bytes: int
    model_bytes: int  #: only training without recomputation keeps all layers at once


def scores(
    config: Config,
    tokens: int,
    batch: int = 1,
    dtype: str = "bfloat16",
    causal: bool = False,
    softmax_copy: bool = False,
) -> Scores:
    """Size of the score matrices: T² entries per head and layer, T(T + 1)/2 if only causal pairs are stored.

    A kernel of the flash kind stores none of them.

    Args:
        softmax_copy: the softmax writes its output to a second array of the same size, so that the bytes double.
            The entries do not.
    """
    each = _check_run(config, tokens, batch, dtype)
    _check_bool("causal", causal)
    _check_bool("softmax_copy", softmax_copy)
    head = tokens * (tokens + 1) // 2 if causal else tokens * tokens
    layer = batch * config.heads * head
    each *= 2 if softmax_copy else 1
    return Scores(head, layer, config.layers * layer, each * layer, each * config.layers * layer)


@dataclass(frozen=True)
class KVCache:
    """Keys and values that decoding keeps."""

    per_token: int  #: bytes that one more token adds to one sequence while no window is full
    total: int  #: bytes


def kv_cache(config: Config, tokens: int, batch: int = 1, dtype: str = "bfloat16") -> KVCache:
    """Bytes of the KV cache after T tokens: 2·L·H_kv·d_h·s for each token that is kept.

    A layer with window w keeps w − 1 tokens at most: the next token sees them and itself.
    """
    each = _check_run(config, tokens, batch, dtype)
    per_layer = 2 * config.kv_width * each
    limits = [tokens if w is None else w - 1 for w in map(config.window, range(config.layers))]
    total = batch * per_layer * sum(min(tokens, limit) for limit in limits)
    return KVCache(config.layers * per_layer, total)


# --- norms ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """What goes over the memory bus, and how many kernels are started."""

    bytes: int
    launches: int


@dataclass(frozen=True)
class Norms:
    """What all norms of a model cost in one forward pass."""

    count: int  #: norms on the stream and on what sublayers return
    qk_count: int  #: norms on queries and on keys
    parameters: int
    eager: Work  #: one kernel for each step of the formula
    fused: Work  #: one kernel for each norm
    adds: Work  #: the residual additions, each a kernel of its own; add them to ``eager`` or ``fused`` to compare
    fused_add: Work  #: norms and residual additions together, each addition in one kernel with a norm beside it
    kept_inputs: int  #: bytes of inputs that the backward passes of fused norms need
    kept_statistics: int  #: bytes of statistics that they need: 4 per vector, with LayerNorm's mean 8


def norms(config: Config, tokens: int, batch: int = 1, dtype: str = "bfloat16") -> Norms:
    """Parameters, memory traffic, launches and kept activations of all norms over T tokens.

    Each kernel reads its inputs and writes its output once. Fused, a norm moves 2·s bytes per feature; an addition
    moves 3·s. In one kernel with the addition it is 4·s where the sum is kept as the stream ("pre", "parallel": 5·s
    with two increments) and 3·s where it is not ("post", "peri", "output"). Statistics of the eager steps take 4 bytes
    each; 16-bit input is widened to float32 and rounded back before the gain, as Llama does. Gains and biases are read
    once per kernel. For decoding take T = 1.
    """
    s = _check_run(config, tokens, batch, dtype)
    c, rows = config, batch * tokens
    shapes = _norm_shapes(c)
    qk_count = 0 if c.qk_norm == "none" else 2 * c.layers
    weights = _norm_parameters(c) * s
    eager = _eager(c.norm, s)
    elements = rows * sum(each * features for each, features in shapes)
    vectors = rows * sum(each for each, _ in shapes)
    stream = rows * c.width * s  # bytes of one tensor of the stream's shape
    fused = Work(2 * elements * s + weights, len(shapes))
    adds = Work(2 * c.layers * 3 * stream, 2 * c.layers)
    # With the addition inside, a kernel saves a trip of the sum: written and read again.
    saved = {"pre": 1, "parallel": 3, "post": 2, "peri": 2, "output": 2}[c.placement]
    # An addition can join the norm behind it; without a final norm the last one has none behind it in Pre-Norm.
    joined = c.layers if c.placement == "parallel" else 2 * c.layers
    if c.placement in ("pre", "parallel") and not c.final_norm:
        joined -= 1
    removed = joined * (2 if c.placement == "parallel" else 1)
    return Norms(
        count=len(shapes) - qk_count,
        qk_count=qk_count,
        parameters=_norm_parameters(c),
        eager=Work(eager.feature_bytes * elements + eager.row_bytes * vectors + weights, eager.launches * len(shapes)),
        fused=fused,
        adds=adds,
        fused_add=Work(fused.bytes + adds.bytes - joined * saved * stream, fused.launches + adds.launches - removed),
        kept_inputs=elements * s,
        kept_statistics=vectors * (4 if c.norm == "rmsnorm" else 8),
    )


def _norm_shapes(c: Config) -> list[tuple[int, int]]:
    """For each norm of the model how many vectors of one token it normalizes, and their features."""
    count = c.layers * _NORMS_PER_BLOCK[c.placement] + c.final_norm
    qk = {
        "none": [],
        "head": [(c.heads, c.head_dim), (c.kv_heads, c.head_dim)],
        "joint": [(1, c.query_width), (1, c.kv_width)],
    }[c.qk_norm]
    return [(1, c.width)] * count + qk * c.layers


def _norm_parameters(c: Config) -> int:
    return (1 if c.norm == "rmsnorm" else 2) * sum(features for _, features in _norm_shapes(c))


@dataclass(frozen=True)
class _Steps:
    """A norm step by step: bytes per feature and per vector, kernels."""

    feature_bytes: int
    row_bytes: int
    launches: int


def _eager(norm: str, s: int) -> _Steps:
    """Steps in float32: (bytes per feature, bytes per vector), then widening and rounding, then gain and bias."""
    steps = [(8, 0), (4, 4), (0, 8), (0, 8), (8, 4)]  # square, mean, + ε, reciprocal root, scale
    if norm == "layernorm":
        steps += [(4, 4), (8, 4)]  # mean, subtract it
    if s != 4:
        steps += [(s + 4, 0), (4 + s, 0)]
    steps += [(2 * s, 0)] * (1 if norm == "rmsnorm" else 2)
    return _Steps(sum(step[0] for step in steps), sum(step[1] for step in steps), len(steps))


# --- models ---------------------------------------------------------------------------------------

PRESETS = {
    "GPT-2": Config(
        vocab_size=50257,
        layers=12,
        width=768,
        heads=12,
        mlp_width=3072,
        gated=False,
        tied_head=True,
        positions=1024,
        norm="layernorm",
        bias=True,
    ),
    "Llama-2-7B": Config(vocab_size=32000, layers=32, width=4096, heads=32, mlp_width=11008),
    "Llama-2-70B": Config(vocab_size=32000, layers=80, width=8192, heads=64, kv_heads=8, mlp_width=28672),
    "Llama-3-8B": Config(vocab_size=128256, layers=32, width=4096, heads=32, kv_heads=8, mlp_width=14336),
    "Mistral-7B": Config(
        vocab_size=32000, layers=32, width=4096, heads=32, kv_heads=8, mlp_width=14336, windows=(4096,) * 32
    ),
    "Qwen3-0.6B": Config(
        vocab_size=151936,
        layers=28,
        width=1024,
        heads=16,
        kv_heads=8,
        head_dim=128,
        mlp_width=3072,
        tied_head=True,
        qk_norm="head",
    ),
    "Gemma-2-2B": Config(
        vocab_size=256000,
        layers=26,
        width=2304,
        heads=8,
        kv_heads=4,
        head_dim=256,
        mlp_width=9216,
        tied_head=True,
        placement="peri",
        windows=(4096, None) * 13,
    ),
    "OLMo-2-7B": Config(
        vocab_size=100352,
        layers=32,
        width=4096,
        heads=32,
        mlp_width=11008,
        placement="output",
        qk_norm="joint",
    ),
}
"""Sizes of published models. They are those of the checkpoints, not a library's defaults; see :func:`source`."""

_SIZES = {
    "GPT-2": "openai/gpt-2 src/model.py (default_hparams); nanoGPT model.py, from_pretrained: vocabulary and positions",
    "Llama-2-7B": "meta-llama/Llama-2-7b-hf config.json",
    "Llama-2-70B": "meta-llama/Llama-2-70b-hf config.json",
    "Llama-3-8B": "meta-llama/Meta-Llama-3-8B config.json",
    "Mistral-7B": "mistralai/Mistral-7B-v0.1 config.json",
    "Qwen3-0.6B": "Qwen/Qwen3-0.6B config.json",
    "Gemma-2-2B": "google/gemma-2-2b config.json",
    "OLMo-2-7B": "allenai/OLMo-2-1124-7B config.json",
}
_TRANSCRIBED = ", as transcribed in Lightning-AI/litgpt litgpt/config.py (commit 26857050, 2026-06-29)"
_MODEL_CLASSES = {
    "GPT-2": "GPT2LMHeadModel",
    "Llama-2-7B": "LlamaForCausalLM",
    "Llama-2-70B": "LlamaForCausalLM",
    "Llama-3-8B": "LlamaForCausalLM",
    "Mistral-7B": "MistralForCausalLM",
    "Qwen3-0.6B": "Qwen3ForCausalLM",
    "Gemma-2-2B": "Gemma2ForCausalLM",
    "OLMo-2-7B": "Olmo2ForCausalLM",
}
_STRUCTURE = ("gated", "norm", "placement", "qk_norm", "final_norm", "bias", "tied_head")


def source(preset: str, field: str) -> str:
    """Where the value of a field of a preset was read. Raises ValueError for a preset or a field that does not exist.

    Sizes come from a published configuration. What kind of parts a model has (gate, norm, placement, QK-norm, final
    norm, biases, tied head) was seen in the class of transformers 5.24 that loads it; that the number of parameters
    comes out right is tested against that class.
    """
    _check_choice("preset", preset, PRESETS)
    _check_choice("field", field, [f.name for f in fields(Config)])
    if (preset, field) == ("Qwen3-0.6B", "tied_head"):  # the class's default is False
        return "Qwen/Qwen3-0.6B model card: 0.6B parameters in all, which a head of its own (0.16B) would exceed"
    if field in _STRUCTURE:
        return f"transformers 5.24, {_MODEL_CLASSES[preset]}"
    return _SIZES[preset] + ("" if preset == "GPT-2" else _TRANSCRIBED)
