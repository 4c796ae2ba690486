"""Chapter 4: what is lost and gained by leaving out the mean?"""

import copy
import importlib
import re
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from normlab import bench, device, fast, functional, optimizers, probes, training
from normlab.attention import SelfAttention
from normlab.conventions import Convention
from normlab.experiments import small_models, tiny_transformers
from normlab.norms import Identity, LayerNorm, NormKind, RMSNorm, ScaleNorm
from normlab.placement import Placement
from normlab.record import Recipe, grid
from normlab.transformer import MLP, Transformer

# --- small language models that differ in the norm alone ------------------------------------------------------------

TOKENS, BATCH = small_models.TOKENS, small_models.BATCH
SETTINGS = {"layers": 4, "width": 48, "steps": 300, "lr": 3e-3}
NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}


def small_model(norm: str, seed: int, layers: int = 4, width: int = 48, **options) -> Transformer:
    """The chapter's trained model: Pre-Norm, 4 heads, GELU, characters of Hamlet, eps 1e-5 in either norm."""
    return small_models.model(seed, layers=layers, width=width, norm=norm, eps=1e-5, **options)


def train_small_model(
    norm: str, seed: int, layers: int = 4, width: int = 48, steps: int = 300, lr: float = 3e-3, progress: str | None = None
) -> tuple[Transformer, dict]:
    """Train it as :func:`normlab.experiments.small_models.train` does; the model, on the CPU, and what a record keeps of it.

    The same seed means the same first weights and the same batches whichever the norm.

    Returns:
        ``loss``: validation loss. ``before`` and ``after``: :func:`mean_shares` of the stream.
    """
    model = small_model(norm, seed, layers, width)
    before = mean_shares(model)
    with device.single_thread(), fast.enabled():
        small_models.train(model, steps, lr, seed, progress=progress)
        model.cpu()
        loss = small_models.validation_loss(model, count=32)
    return model, {"loss": loss, "before": before, "after": mean_shares(model)}


def passages(sequences: int = BATCH, seed: int = 99) -> Tensor:
    """Token ids [sequences, TOKENS] from the held-out part of Hamlet."""
    return small_models.passages(sequences, TOKENS, seed)[0]


def passage_loss(model: Transformer, ids: Tensor) -> Tensor:
    """Mean loss of predicting ids[:, 1:] from what stands before, in nats per token."""
    return training.next_token_loss(model, ids[:, :-1], ids[:, 1:])


def mean_share(x: Tensor) -> float:
    """Which part of the mean square of vectors x [..., d] is their squared mean; the average over the vectors.

    For a vector of independent entries with mean 0 the expectation is 1/d.
    """
    x = x.double()
    return (x.mean(-1).square() / x.square().mean(-1)).mean().item()


def mean_shares(model: Transformer) -> list[float]:
    """:func:`mean_share` of the stream before the first sublayer and after each one, in float64."""
    with device.single_thread():
        records = probes.readings(copy.deepcopy(model).double(), passages())
    return [mean_share(x) for x in (records[0].stream, *(r.stream_after for r in records))]


# --- an LN model becomes an RMSNorm model, and an RMSNorm model is rotated ------------------------------------------


@dataclass(frozen=True)
class _Read:
    """Linear layers that read the stream behind a norm (times ``scale``), or as it is."""

    layers: list[nn.Linear]
    norm: nn.Module | None = None
    scale: float = 1.0


@dataclass(frozen=True)
class _Write:
    """A linear layer whose output, or the norm of it, is added to the stream."""

    layer: nn.Linear
    norm: nn.Module | None = None


@dataclass(frozen=True)
class _Through:
    """The stream itself goes through a norm."""

    norm: nn.Module


def _way(model: Transformer) -> list[_Read | _Write | _Through]:
    """What happens to the stream between embedding and head, in order."""

    def through(norm: nn.Module | None) -> list[_Through]:
        return [] if norm is None or isinstance(norm, Identity) else [_Through(norm)]

    def read(layers: list[nn.Linear], norm: nn.Module | None = None, scale: float = 1.0) -> _Read:
        return _Read(layers, None if isinstance(norm, Identity) else norm, scale)

    steps: list = through(model.embedding_norm)
    for residual in (residual for block in model.blocks for residual in block.residuals):
        sublayer, norm, scale = residual.sublayer, residual.norm, residual.norm_scale
        if isinstance(sublayer, MLP):
            inner, last = [sublayer.up] if sublayer.gate is None else [sublayer.up, sublayer.gate], sublayer.down
        else:
            inner, last = [sublayer.query, sublayer.key, sublayer.value], sublayer.out
        write = _Write(last, None if isinstance(residual.output_norm, Identity) else residual.output_norm)
        match residual.placement:
            case Placement.PARALLEL if norm is None:  # the block's one norm serves this sublayer too
                next(step for step in reversed(steps) if isinstance(step, _Read)).layers.extend(inner)
                steps += [write]
            case Placement.PRE | Placement.PERI | Placement.PARALLEL:
                steps += [read(inner, norm, scale), write]
            case Placement.OUTPUT | Placement.NONE:
                steps += [read(inner), write]
            case Placement.POST | Placement.DEEPNORM:
                steps += [read(inner), write, *through(norm)]
            case Placement.HYBRID:
                steps += [*through(norm), read(inner), write]
    top = model.head if model.head_transform is None else model.head_transform.linear
    return [*steps, read([top], model.final_norm)]


def _writers(model: Transformer) -> list[nn.Linear]:
    return [step.layer for step in _way(model) if isinstance(step, _Write)]


def to_rmsnorm(model: Transformer, center: bool = True) -> Transformer:
    """The LayerNorm model as an RMSNorm model that computes the same function, in float64; a tied head is untied.

    1. Everything that writes to the stream (embeddings, attention's output, the MLP's last matrix) loses its mean
       over the features, so that the stream has mean 0 everywhere. LayerNorm never saw that mean.
    2. On such a stream LayerNorm is RMSNorm plus its shift, which moves into the layers that read: their bias grows
       by W beta. Where queries and keys are normed, their projections lose the mean likewise.

    ``center=False`` leaves out the first step, and then it is not the same function.

    Raises:
        ValueError: the norms are not LayerNorms, or RMSNorm would see a mean that nothing takes out: where layers read
            the stream without a norm (output, none, hybrid's attention; post and deepnorm before their first norm; no
            final norm), where a norm writes to the stream (post, deepnorm, peri, hybrid's MLP, an embedding norm)
            and its gains, or its shifts, are not all the same, behind the activation of a head transform, and in norms
            of queries and keys behind a rotation. Norms of queries, keys and values must have no shift.

    Source: Jiang et al. 2023, arXiv:2305.14858, for Pre-LN.
    """
    config = model.config
    if config.norm is not NormKind.LAYERNORM:
        raise ValueError(f"only a model with norm=layernorm becomes an RMSNorm model, got norm={config.norm.value}")
    if config.head_transform:
        raise ValueError("head_transform=True: its norm stands behind an activation, whose mean nothing takes out")
    old = copy.deepcopy(model).double()
    config = config.replace(
        norm=NormKind.RMSNORM,
        convention=Convention.BARE if config.convention is Convention.BARE else Convention.DEFAULT,
        eps=1e-5 if config.eps is None else config.eps,
        attention_bias=True,
        mlp_bias=True,
        head_bias=True,
        tied_head=False,
    )
    new = Transformer(config, seed=None).to(old.head.weight).train(old.training)
    left = new.load_state_dict(old.state_dict(), strict=False)
    with torch.no_grad():
        for name in left.missing_keys:  # biases that the linear layers did not have
            new.get_parameter(name).zero_()
        for before, after in zip(old.modules(), new.modules(), strict=True):
            if isinstance(before, LayerNorm):
                _set_gain(after, _gain(before))
            elif isinstance(before, SelfAttention):
                _center_heads(old, before, after)
        passed: nn.Module | None = None  # the norm that the stream comes from, if nothing was added since
        for before, after in zip(_way(old), _way(new), strict=True):
            match before:
                case _Through(norm):
                    _check_writes_no_mean(old, norm)
                    passed = norm
                case _Write(_, norm):
                    if norm is not None:
                        _check_writes_no_mean(old, norm)
                    passed = None
                case _Read(layers, norm, scale):
                    norm = norm or passed
                    if norm is None:
                        raise _refusal(old, layers[0], "reads the stream without a norm, so that its mean counts")
                    for layer in after.layers if norm.bias is not None else ():
                        layer.bias += scale * layer.weight @ norm.bias
        for table in new.embedding_tables() if center else ():
            table.weight -= table.weight.mean(1, keepdim=True)
        for writer in _writers(new) if center else ():
            writer.weight -= writer.weight.mean(0, keepdim=True)
            writer.bias -= writer.bias.mean()
    return new


def rises_of_omissions(model: Transformer, ids: Tensor) -> dict[str, float]:
    """By how much the loss on ids rises when a LayerNorm model becomes one with RMSNorm carelessly, in float64.

    "centering": nothing is centered, the biases of the norms are folded. "biases": they are dropped on top of that.
    """
    swapped = Transformer(model.config.replace(norm=NormKind.RMSNORM), seed=None).double()
    swapped.load_state_dict(model.state_dict(), strict=False)  # the biases find no place
    uncentered = to_rmsnorm(model, center=False)
    with torch.no_grad(), device.single_thread():
        right, folded, dropped = (passage_loss(m, ids).item() for m in (copy.deepcopy(model).double(), uncentered, swapped))
    return {"centering": folded - right, "biases": dropped - folded}


def rotated(model: Transformer, Q: Tensor, fold: bool = True) -> Transformer:
    """The model with its whole stream in other coordinates: x becomes Q x, Q [d, d] orthogonal; the same function, in
    float64; a tied head is untied.

    Everything that writes to the stream is turned along, everything that reads is turned back. The gains of the norms
    first move into the layers that read (``fold``); with them in place, rotating is wrong. A norm whose output is the
    stream or is added to it (post, deepnorm, peri, output, hybrid's MLP, an embedding norm) has no layer behind it:
    its gains G = diag(g) must be turned into Q G Q^T, which is a vector of gains if all are the same, or if Q only
    permutes features that differ.

    Raises:
        ValueError: Q is not orthogonal of the model's width, a norm on the stream is no RMSNorm (nor ScaleNorm, nor
            identity), or a norm that writes to the stream has gains that Q does not turn into gains.
    """
    Q = Q.to(next(model.parameters()).device, torch.float64)
    d = model.config.width
    if Q.shape != (d, d) or (Q @ Q.T - torch.eye(d).to(Q)).abs().max() > 1e-10:
        raise ValueError(f"Q must be an orthogonal matrix of shape ({d}, {d}), to 1e-10, got shape {tuple(Q.shape)}")
    new = copy.deepcopy(model).double()
    if new.config.tied_head:  # the embedding is turned, the head turned back and scaled
        new.config = new.config.replace(tied_head=False)
        new.head.weight = nn.Parameter(new.head.weight.detach().clone())
    with torch.no_grad():
        for step in _way(new):
            norm = step.norm
            if norm is not None and not _commutes_with_rotations(norm):
                raise _refusal(new, norm, "lets no rotation through: only RMSNorm, ScaleNorm and identity do")
            match step:
                case _Read(layers):
                    for layer in layers:
                        gain = _gain(norm) if fold and norm else 1.0
                        layer.weight.copy_((layer.weight * gain) @ Q.T)
                    if fold and norm:
                        _set_gain(norm, 1.0)
                case _Write(layer):
                    layer.weight.copy_(Q @ layer.weight)
                    if layer.bias is not None:
                        layer.bias.copy_(Q @ layer.bias)
            if fold and norm and not isinstance(step, _Read):
                turned = (Q * _gain(norm)) @ Q.T
                if (turned - turned.diag().diag()).abs().max() > 1e-10 * turned.abs().max():
                    raise _refusal(new, norm, "writes to the stream, and Q does not turn its gains into gains")
                _set_gain(norm, turned.diag())
        for table in new.embedding_tables():
            table.weight.copy_(table.weight @ Q.T)
    return new


def rotation(width: int, seed: int = 0) -> Tensor:
    """A random orthogonal matrix [d, d] in float64."""
    draw = torch.randn(width, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.linalg.qr(draw).Q


def _commutes_with_rotations(norm: nn.Module) -> bool:
    return isinstance(norm, ScaleNorm) or (isinstance(norm, RMSNorm) and norm.fraction == 1.0)


def _gain(norm: nn.Module) -> Tensor | float:
    """The factor on each feature [d]; 1 for ScaleNorm, whose one factor goes through everything."""
    if norm.weight is None or isinstance(norm, ScaleNorm):
        return 1.0
    return norm.weight + 1 if norm.convention in (Convention.GEMMA, Convention.NEMOTRON) else norm.weight


def _set_gain(norm: nn.Module, gain: Tensor | float) -> None:
    if norm.weight is not None and not isinstance(norm, ScaleNorm):
        norm.weight[:] = gain - 1.0 if norm.convention is Convention.GEMMA else gain


def _check_writes_no_mean(model: Transformer, norm: LayerNorm) -> None:
    reasons = {"gains differ, so that what it writes has a mean": norm.weight}
    reasons |= {"shifts differ, and RMSNorm has none": norm.bias}
    for reason, values in reasons.items():
        if values is not None and (values - values.mean()).abs().max() > 1e-12 * values.abs().max():
            raise _refusal(model, norm, f"writes to the stream, and its {reason}")


def _center_heads(model: Transformer, old: SelfAttention, new: SelfAttention) -> None:
    """Take from queries, keys and values the mean that their LayerNorms, now RMSNorms, took out."""
    for name in ("query", "key", "value"):
        norm, projection = getattr(old, f"{name}_norm"), getattr(new, name)
        if isinstance(norm, Identity):
            continue
        if norm.bias is not None and norm.bias.any():
            raise _refusal(model, norm, "has shifts, for which RMSNorm has no place")
        if old.norm_after_rotary and old.rotary is not None and name != "value":
            raise _refusal(model, norm, "stands behind the rotation of positions, which changes the mean of its input")
        for values in (projection.weight, projection.bias):
            by_norm = values.unflatten(0, (-1, norm.width))
            by_norm -= by_norm.mean(1, keepdim=True)


def _refusal(model: Transformer, module: nn.Module, reason: str) -> ValueError:
    name = next(name for name, m in model.named_modules() if m is module)
    layer = name.split(".")[1] if name.startswith("blocks.") else None
    where = f"{name} (placement={model.config.placements[int(layer)].value})" if layer else name
    return ValueError(f"{where} {reason}")


def with_gains_farther(model: Transformer, factor: float) -> Transformer:
    """A copy in which every gain of a norm is ``factor`` times as far from 1."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for norm in filter(optimizers.is_norm, model.modules()):
            norm.weight.copy_(1 + factor * (norm.weight - 1))
    return model


def logit_difference(first: Transformer, second: Transformer) -> float:
    """The largest difference between the logits of two models, as a share of the largest logit; float64."""
    with torch.no_grad(), device.single_thread():
        a, b = (copy.deepcopy(m).double()(passages()) for m in (first, second))
    return ((a - b).abs().max() / a.abs().max()).item()


# --- number formats -------------------------------------------------------------------------------------------------


def size_after(norm: Callable[[Tensor], Tensor], sizes: Iterable[float], dtype: torch.dtype, width: int = 64) -> list[float]:
    """Size of norm(x) for vectors of +s and -s in turn, s in ``sizes``, given in ``dtype``. Correct is 1."""
    signs = torch.tensor([1.0, -1.0]).repeat(width // 2)
    return [probes.size(norm((s * signs).to(dtype))) for s in sizes]


BF16_GAINS = {  # how a gain is stored in a model whose other weights are all bfloat16: convention, dtype of the gains
    "w, bfloat16": (Convention.LLAMA, torch.bfloat16),
    "1 + w, bfloat16": (Convention.GEMMA, torch.bfloat16),
    "w, float32": (Convention.DEFAULT, torch.float32),
}


def gains_moved(stored: str, seed: int, lr: float = 6e-4, steps: int = 100, width: int = 16) -> dict:
    """What AdamW does to the gains of a one-block model in pure bfloat16, without float32 copies of its weights.

    ``stored`` is a key of ``BF16_GAINS``; in the last one the gains alone are float32. The rate warms up to ``lr``.

    Returns:
        ``gains``: how many there are; ``moved``: how many differ from their start; ``largest``: the largest difference.
    """
    convention, dtype = BF16_GAINS[stored]
    model = small_models.model(seed, layers=1, width=width, heads=2, norm="rmsnorm", convention=convention).bfloat16()
    gains = [module.to(dtype).weight for module in model.modules() if optimizers.is_norm(module)]
    before = [gain.detach().clone() for gain in gains]
    with warnings.catch_warnings(action="ignore"):  # the package warns of what is measured here
        small_models.train(model, steps, lr, seed, batch=4, tokens=16)
    change = torch.cat([(g.detach() - b).float().abs().cpu() for g, b in zip(gains, before)])
    return {"gains": len(change), "moved": int((change > 0).sum()), "largest": change.max().item()}


# --- what a norm does to memory -------------------------------------------------------------------------------------


def article_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """LayerNorm as one writes it down from the formula, for inputs that are not half types."""
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    return weight * (x - mean) / (variance + eps).sqrt() + bias


def layer_norm_centered_once(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """The same with x - mean computed once and used twice."""
    centered = x - x.mean(-1, keepdim=True)
    return weight * centered / (centered.square().mean(-1, keepdim=True) + eps).sqrt() + bias


def layer_norm_var_mean(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """The same with mean and variance from one call, torch.var_mean."""
    variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    return weight * (x - mean) / (variance + eps).sqrt() + bias


def article_rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """RMSNorm as one writes it down from the formula, for inputs that are not half types."""
    return weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def implementations(width: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """Six ways to compute a norm over float32 features, with random gains and biases, by name."""
    weight, bias = (torch.randn(width, generator=torch.Generator().manual_seed(s)).requires_grad_() for s in (1, 2))
    return {
        "LayerNorm, by hand": lambda x: article_layer_norm(x, weight, bias),
        "RMSNorm, by hand": lambda x: article_rms_norm(x, weight),
        "F.layer_norm": lambda x: F.layer_norm(x, (width,), weight, bias),
        "F.rms_norm": lambda x: F.rms_norm(x, (width,), weight, 1e-6),
        "normlab.fast LayerNorm": lambda x: fast.layer_norm(x, weight, bias),
        "normlab.fast RMSNorm": lambda x: fast.rms_norm(x, weight),
    }


def thriftier_layer_norms(width: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """LayerNorm by hand with less traffic than the formula as written, by name; gain and bias as in the others."""
    weight, bias = (torch.randn(width, generator=torch.Generator().manual_seed(s)).requires_grad_() for s in (1, 2))
    return {
        "… x − μ once": lambda x: layer_norm_centered_once(x, weight, bias),
        "… with var_mean": lambda x: layer_norm_var_mean(x, weight, bias),
    }


class Traffic(TorchDispatchMode):
    """Counts, inside ``with Traffic(x) as count:``, the kernels that touch tensors as large as x and what they move.

    ``read`` and ``written`` are in units of the size of x, operands and results as the kernel is called; what a cache
    or the inside of a kernel does is not seen. ``reductions`` counts kernels whose results are all smaller than
    their largest operand. Views cost nothing and are left out, as is what works on one number per token.
    """

    def __init__(self, x: Tensor):
        super().__init__()
        self.numel, self.names = x.numel(), []
        self.read = self.written = self.reductions = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        results = operation(*args, **(kwargs or {}))
        named = {name: value for name, value in (kwargs or {}).items() if name != "out"}  # that is written, not read
        inputs, outputs = (_tensors(t) for t in ((args, named), results))
        large = [sum(_numbers(t) == self.numel for t in ts) for ts in (inputs, outputs)]
        name = operation.__name__.partition(".")[0]
        if any(large) and not operation.is_view and name not in ("detach", "empty_like", "new_empty"):  # move nothing
            self.names.append(name)
            self.read += large[0]
            self.written += large[1]
            self.reductions += not large[1]
        return results


def _tensors(tree) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor)]


def _numbers(t: Tensor) -> int:
    return min(t.numel(), t.untyped_storage().nbytes() // t.element_size())


def traffic(norm: Callable[[Tensor], Tensor], x: Tensor) -> Traffic:
    """What one forward pass of the norm moves, without gradients.

    Counted with two threads. The fast path works in blocks of 2^18 numbers a thread: between that and twice as many
    numbers, x is one block; below, the arithmetic is cheaper than the calls, and it saves calls instead of traffic.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with torch.no_grad(), Traffic(x) as count:
            norm(x)
    finally:
        torch.set_num_threads(threads)
    return count


def backward_traffic(norm: Callable[[Tensor], Tensor], x: Tensor) -> Traffic:
    """What the backward pass moves, to the gradients of x and of the parameters."""
    x = x.clone().requires_grad_()
    y, grad = norm(x), torch.ones_like(x)
    with Traffic(x) as count:
        y.backward(grad)
    return count


def kept_for_backward(norm: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """Numbers that autograd keeps until the backward pass, per number in x; x itself counts, parameters do not."""
    kept: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        if t.dim() > 1:
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = norm(x.clone().requires_grad_())
    del y
    return sum(kept.values()) / x.nbytes


def graph_nodes(norm: Callable[..., Tensor]) -> list[str]:
    """The operations of the graph that torch.fx traces from plain code, in order."""
    nodes = torch.fx.symbolic_trace(norm).graph.nodes
    return [getattr(n.target, "__name__", n.target) for n in nodes if n.op in ("call_function", "call_method")]


def compiled_kernels(norm: str, backward: bool) -> dict:
    """How many kernels torch.compile makes of the hand-written norm on the CPU, for one thread. Needs a C++ compiler.

    Returns:
        ``kernels``: their number, for each graph. ``loops``: for each kernel, how often it goes along a row (or a column)
        within each of its outer loops: [3] is one walk over the tokens that passes each row three times, [1, 1, 1] three
        walks over the whole tensor.
    """
    from torch._inductor.utils import run_and_get_code

    width = 1024
    x = torch.randn(256, width, generator=torch.Generator().manual_seed(0)).requires_grad_(backward)
    torch._dynamo.reset()
    compiled = torch.compile(implementations(width)[norm], dynamic=False)

    def call() -> None:
        with torch.set_grad_enabled(backward):
            y = compiled(x)
        if backward:
            y.backward(torch.ones_like(y))

    with device.single_thread():
        _, sources = run_and_get_code(call)
    pattern = re.compile(r"^cpp_fused_\w+ = async_compile.*?'''(.*?)'''", re.MULTILINE | re.DOTALL)
    kernels = [pattern.findall(source) for source in sources]
    return {"kernels": [len(found) for found in kernels], "loops": [_inner_loops(code) for found in kernels for code in found]}


def _inner_loops(code: str) -> list[int]:
    """For each outer loop of generated C++ that has loops inside, how many."""
    counts: list[int] = []
    for variable in re.findall(r"for\(int64_t (x\d)=", code):
        if variable == "x0":
            counts.append(0)
        else:
            counts[-1] += 1
    return [count for count in counts if count]


def time_norms(repeat: int, tokens: int, width: int, rounds: int) -> dict:
    """CPU seconds of the implementations and of their compiled forms, as shares of those of ``x.clone()``.

    One thread. The contenders take turns; of each the best of ``rounds`` counts, which other programs disturb least.

    Returns:
        ``forward`` without gradients, and ``training``: forward and backward pass; by name.
    """
    x, grad = (torch.randn(tokens, width, generator=torch.Generator().manual_seed(s)) for s in (3 + repeat, 40 + repeat))
    torch._dynamo.reset()
    block = torch.empty(31 * 2**18)  # 31 MiB: once it is freed, glibc keeps blocks up to this size for the next call
    del block
    norms = implementations(width)
    norms |= {f"{name}, compiled": torch.compile(norms[name], dynamic=False) for name in list(norms)[:2]}
    leaf = x.clone().requires_grad_()
    forward = {"x.clone()": x.clone} | {name: partial(norm, x) for name, norm in norms.items()}
    training = {"x.clone()": x.clone} | {name: partial(_both_passes, norm, leaf, grad) for name, norm in norms.items()}
    with device.single_thread():
        with torch.no_grad():
            first = bench.race(forward, rounds, clock=time.process_time)
        second = bench.race(training, rounds, clock=time.process_time)
    return {
        kind: {name: race.best(name) / race.best("x.clone()") for name in norms}
        for kind, race in {"forward": first, "training": second}.items()
    }


def _both_passes(norm: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor) -> None:
    x.grad = None
    norm(x).backward(grad)


# --- what others measured and run -----------------------------------------------------------------------------------

_CLASSES = {
    "t5": "T5LayerNorm",
    "llama": "LlamaRMSNorm",
    "mistral": "MistralRMSNorm",
    "qwen2": "Qwen2RMSNorm",
    "qwen3": "Qwen3RMSNorm",
    "gemma": "GemmaRMSNorm",
    "gemma2": "Gemma2RMSNorm",
    "gemma3": "Gemma3RMSNorm",
    "olmo2": "Olmo2RMSNorm",
}


def published_norms(width: int = 256) -> dict[str, nn.Module]:
    """The RMSNorms of the transformers library by the name of the model, fresh; {} where the library is missing."""
    try:
        with warnings.catch_warnings(action="ignore"):  # tqdm misses widgets that nobody asked for
            models = {name: importlib.import_module(f"transformers.models.{name}.modeling_{name}") for name in _CLASSES}
    except ImportError:
        return {}
    return {name: getattr(models[name], kind)(width, eps=1e-6) for name, kind in _CLASSES.items()}


def randomized(norm: nn.Module, seed: int = 11) -> nn.Module:
    """A copy with random stored gains around 1; unit gains hide most differences."""
    norm = copy.deepcopy(norm)
    draw = torch.randn(norm.weight.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    with torch.no_grad():
        norm.weight.copy_(1 + 0.3 * draw)
    return norm


def conventions_of(norm: nn.Module, x: Tensor) -> list[Convention]:
    """Under which conventions :func:`normlab.functional.rms_norm` gives what the norm gives, bit by bit, for x."""
    with torch.no_grad():
        y = norm(x)
        known = (Convention.LLAMA, Convention.GEMMA, Convention.OLMO2, Convention.T5)
        return [c for c in known if torch.equal(y, functional.rms_norm(x, norm.weight, 1e-6, convention=c))]


def tiny_models() -> dict[str, nn.Module]:
    """Three families of the transformers library in miniature; {} where it is missing."""
    return tiny_transformers.tiny_models(("GPT-2", "Llama", "Qwen 3"))


# --- weight decay on gains ------------------------------------------------------------------------------------------


def decayed(named_modules: Iterable[tuple[str, nn.Module]], rule: Callable[[str, nn.Parameter], bool]) -> int:
    """How many norm gains and biases a rule (name, parameter) -> decays lets decay."""
    return sum(
        rule(f"{name}.{key}", parameter)
        for name, module in named_modules
        if optimizers.is_norm(module)
        for key, parameter in module.named_parameters(recurse=False)
    )


def gain_after_decay(start: float, steps: int = 100_000, lr: float = 3e-4, weight_decay: float = 0.1) -> float:
    """What AdamW's decay makes of a stored gain that has no gradient: each step multiplies it by 1 - lr * decay."""
    return start * (1 - lr * weight_decay) ** steps


# --- records --------------------------------------------------------------------------------------------------------


RECORDS = (
    Recipe(
        "layernorm_or_rmsnorm",
        "small Pre-Norm models that differ in LayerNorm or RMSNorm alone, ten paired seeds, float32, one thread",
        [{**setting, **SETTINGS} for setting in grid(seed=range(10), norm=NORMS)],
        lambda **setting: small_models.five_digits(train_small_model(**setting, progress=f"{setting['norm']} {setting['seed']}")[1]),
    ),
    Recipe(
        "bf16_gains",
        "which gains move when one-block models are trained in pure bfloat16, by how the gain is stored, one thread",
        [{"stored": stored, "seed": seed, "lr": 6e-4, "steps": 100} for stored in BF16_GAINS for seed in range(5)],
        lambda **setting: small_models.five_digits(gains_moved(**setting)),
    ),
    Recipe(
        "compiled_norms",
        "kernels that torch.compile makes of hand-written norms on a CPU and the loops in them, forward pass alone and with backward",
        grid(norm=["LayerNorm, by hand", "RMSNorm, by hand"], backward=[False, True]),
        compiled_kernels,
    ),
    Recipe(
        "norm_timings",
        "CPU time of LayerNorm and RMSNorm in several implementations relative to a copy, one thread, float32",
        [{"repeat": n, "tokens": 2048, "width": 1024, "rounds": 31} for n in range(5)],
        lambda **setting: small_models.five_digits(time_norms(**setting)),
    ),
)
