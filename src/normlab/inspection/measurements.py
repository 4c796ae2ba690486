"""What one traced run shows of norms, streams, attention, loss and gradients: numbers, no judgement."""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normlab.inspection.norm_probe import EpsPlace, Formula, Gain, NormReport, formula
from normlab.inspection.observe import AttentionReading, attention_reading, parameter_owners, sublayer_streams
from normlab.inspection.subject import LossFunction, Subject, default_loss
from normlab.inspection.sublayers import Norm, Sublayer, is_handed_through
from normlab.inspection.trace import Call, FunctionalNorm, Node, users
from normlab.inspection.wiring import Wiring
from normlab.norms import NormKind

_SUMS = {"pow", "mul", "square", "sum", "mean", "mm", "bmm", "add", "linalg_vector_norm", "norm", "var", "var_mean"}


def rms(x: Tensor) -> float:
    """Root mean square of all entries."""
    return x.detach().double().square().mean().sqrt().item()


@dataclass(eq=False)
class NormReading:
    """A norm at work on the batch.

    Attributes:
        name: of the module in the model, or where the norm is written out.
        role: where it stands ("input of attention", "query", "final norm", ...); norms of one role are compared.
        on_stream: it reads the residual stream itself.
        gains: the parameters that hold its gain, as the model stores them.
        parameters: all that it uses.
        eps_share: eps / (mean square + eps), mean over the real tokens that are not zero.
        error: rms difference to the formula in float64 over its rms, in units of the output type's eps.
        dead: share of the tokens that are not zero but come out as zero.
        overflow: share of the tokens whose squares are infinite inside of the norm.
        zero: what a vector of zeros gives: "", or "forward" or "backward" where NaN or infinity appears.
        input_size: largest entry of what it reads.
        after_rotation: it norms queries or keys behind their rotation by position.
    """

    name: str
    role: str
    on_stream: bool
    norm: Norm
    formula: Formula | None
    gains: list[nn.Parameter] = field(default_factory=list)
    parameters: list[nn.Parameter] = field(default_factory=list)
    eps_share: float | None = None
    error: float | None = None
    dead: float = 0.0
    overflow: float = 0.0
    zero: str = ""
    input_size: float = 0.0
    after_rotation: bool = False

    @property
    def report(self) -> NormReport:
        return self.norm.report

    @property
    def gain(self) -> Tensor | None:
        """The factor per feature, 1 + w where so stored; None for norms that have none or a gain of unknown kind."""
        return self.formula.gain if self.formula and self.report.gain is not Gain.NONE else None


@dataclass
class Depth:
    """A residual sublayer: sizes (rms over real tokens) of the stream before it, of what F reads and what is added."""

    layer: int
    kind: str
    stream: float
    read: float
    increment: float
    after: float


@dataclass
class Measurements:
    """What the run showed; None and empty where it showed nothing, with the reason in ``missing``.

    ``causal``: no token sees a later one; ``torn_mask``: tokens see later ones, but not as in an encoder or a prefix.
    """

    norms: list[NormReading] = field(default_factory=list)
    depth: list[Depth] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    attention: list[AttentionReading] = field(default_factory=list)
    bounds: list[float | None] = field(default_factory=list)
    causal: bool | None = None
    torn_mask: bool = False
    entropy: float | None = None
    entropy_share: float | None = None
    loss: float | None = None
    loss_name: str = ""
    vocabulary: int | None = None
    context_share: float | None = None
    head_spread: float | None = None
    gradients: dict[nn.Parameter, Tensor] = field(default_factory=dict)
    gradient_norm: float | None = None
    by_layer: list[tuple[int, float]] = field(default_factory=list)
    finite_output: bool = True
    finite_gradient: bool = True
    twice: list[tuple[str, str]] = field(default_factory=list)
    largest: float = 0.0
    dtypes: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def fresh(self) -> bool:
        """True if no gain has been trained: every one has the same number in all of its entries."""
        gains = [reading.gain for reading in self.norms if reading.gain is not None]
        return all(bool((gain == gain.flatten()[0]).all()) for gain in gains)


def measured(subject: Subject, wiring: Wiring, loss: LossFunction | None) -> Measurements:
    """Everything that the traced run of the batch shows."""
    found = Measurements()
    found.dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in subject.model.parameters()})
    found.norms = list(_norm_readings(subject, wiring))
    found.twice = list(_twice(wiring, found.norms))
    _sizes(subject, wiring, found)
    _attention(subject, wiring, found)
    _answer(subject, wiring, found)
    _gradients(subject, wiring, loss, found)
    return found


# --- norms --------------------------------------------------------------------------------------------------------


def _norm_readings(subject: Subject, wiring: Wiring) -> Iterator[NormReading]:
    roles = dict(_roles(wiring))
    names = {module: name for name, module in subject.model.named_modules()}
    formulas: dict[nn.Module, Formula | None] = {}
    attentions = [s.attention for stack in wiring.stacks for block in stack.blocks for s in block.sublayers]
    rotated = {n for a in attentions if a and a.after_rotation for name in ("query", "key") for n in a.norms[name]}
    for number, norm in enumerate(wiring.norms, 1):
        module = norm.call.module
        if module not in formulas:
            formulas[module] = formula(module, norm.source.value, norm.report)
        name = names.get(module) or f"the norm number {number}, written out"
        role, on_stream = roles.get(norm, (f"elsewhere: {name.rsplit('.', 1)[-1]}", False))
        reading = NormReading(name, role, on_stream, norm, formulas[module])
        _add_parameters(reading, wiring)
        _add_numbers(reading, wiring, subject.mask)
        reading.after_rotation = norm in rotated
        if norm.report.kind is not NormKind.DYT:
            reading.zero = _at_zero(norm)
        yield reading


def _roles(wiring: Wiring) -> Iterator[tuple[Norm, tuple[str, bool]]]:
    """Where a norm stands, and whether it reads the residual stream."""
    for stack in wiring.stacks:
        for block in stack.blocks:
            for sublayer in block.sublayers:
                yield from _roles_in(sublayer)
        if stack.embedding_norm:
            yield stack.embedding_norm, ("embedding norm", True)
        if stack.final_norm:
            yield stack.final_norm, ("final norm", True)


def _roles_in(sublayer: Sublayer) -> Iterator[tuple[Norm, tuple[str, bool]]]:
    kind = sublayer.kind
    for norm in sublayer.inner_norms:
        yield norm, (f"inside of {kind}", False)
    attention = sublayer.attention
    for name, norms in attention.norms.items() if attention else ():
        for norm in norms:
            yield norm, (name, False)
    places = [("input of", sublayer.input_norm, True), ("output of", sublayer.output_norm, False)]
    places += [("behind", sublayer.post_norm, True), ("skip of", sublayer.skip_norm, True)]
    for place, found, on_stream in places:
        if found is not None:
            yield found, (f"{place} {kind}", on_stream)


def _add_parameters(reading: NormReading, wiring: Wiring) -> None:
    norm = reading.norm
    used = [n.value for n in wiring.behind(norm.output, stop={norm.source}) if isinstance(n.value, nn.Parameter)]
    reading.parameters = list(dict.fromkeys(used))
    gain = reading.formula.gain if reading.formula else None
    if gain is None:  # not understood: a shift starts at 0, a gain does not
        reading.gains = [p for p in reading.parameters if p.dim() == 1 and bool(p.detach().any())]
        return
    # Stored as w before stored as 1 + w: else a shift of 0 would pass for a gain of 1 + 0.
    for offset in (0.0, 1.0):
        reading.gains = [p for p in reading.parameters if _holds(p, gain.flatten() - offset)]
        if reading.gains:
            return


def _holds(parameter: nn.Parameter, values: Tensor) -> bool:
    stored = parameter.detach().double().flatten()
    return stored.numel() == values.numel() and torch.allclose(stored, values, 1e-3, 1e-3)


def _real(x: Tensor, mask: Tensor | None) -> Tensor:
    """The vectors [n, ...] of real tokens."""
    if mask is not None and x.dim() > 2 and x.shape[:2] == mask.shape:
        return x[mask]
    return x


def _add_numbers(reading: NormReading, wiring: Wiring, mask: Tensor | None) -> None:
    source, output = reading.norm.source.value, reading.norm.output.value
    if source.shape != output.shape:
        return
    x, y = (_real(t.detach(), mask).double() for t in (source, output))
    reading.input_size = x.abs().max().item()
    if not x.isfinite().all():
        return
    there = x.ne(0).any(-1)
    reading.overflow = _overflow(reading.norm, wiring)
    exact = reading.formula
    if exact is None:
        reading.error, reading.dead = _against_a_guess(x, y, there)
    elif there.any():
        _add_eps_share(reading, exact, x, there)
        expected = exact(x)
        size = expected.square().mean().sqrt()
        if y.isfinite().all() and size > 0:
            reading.error = ((y - expected).square().mean().sqrt() / size).item()
            reading.dead = (y.eq(0).all(-1) & expected.ne(0).any(-1) & there).double().mean().item()
    if reading.error is not None:
        reading.error /= torch.finfo(output.dtype).eps


def _add_eps_share(reading: NormReading, exact: Formula, x: Tensor, there: Tensor) -> None:
    eps, square = exact.report.eps or 0.0, exact.mean_square(x)[there]
    if exact.report.eps_place is EpsPlace.INSIDE:
        share = eps / (square + eps)
    elif exact.report.eps_place is EpsPlace.OUTSIDE:
        share = eps / (square.sqrt() + eps)
    else:
        share = (square.sqrt() < eps).double()
    reading.eps_share = share.mean().item()


def _against_a_guess(x: Tensor, y: Tensor, there: Tensor) -> tuple[float | None, float]:
    """Relative error and share of dead tokens of a norm that was not understood.

    Of RMSNorm and LayerNorm, with the gain that the median token shows, the one that fits most tokens is taken. Its eps
    is not known, so that only large tokens are compared, and only large errors count.
    """
    x, y = x.flatten(0, -2), y.flatten(0, -2)
    dead = (y.eq(0).all(-1) & there.flatten()).double().mean().item()
    alive = y.ne(0).any(-1) & (x.square().mean(-1) > 1)
    if not y.isfinite().all() or not alive.any():
        return None, dead
    x, y = x[alive], y[alive]
    misses = []
    for center in (False, True):
        scores = x - x.mean(-1, keepdim=True) if center else x
        scores = scores / scores.square().mean(-1, keepdim=True).sqrt()
        expected = (y / scores).nan_to_num().median(0).values * scores
        misses.append((y - expected).square().mean(-1).sqrt() / expected.square().mean(-1).sqrt())
    best = min(misses, key=lambda miss: miss.median().item())
    if not best.median() < 0.05:
        return None, dead
    error = best.square().mean().sqrt().item()
    return (error if error > 1e-4 else None), dead


def _overflow(norm: Norm, wiring: Wiring) -> float:
    """The largest share of infinite entries among the squares and sums inside of a norm; its input is finite."""
    if norm.written:
        inside = [n for n in norm.written if n.op]
    else:
        inside = [n for n in wiring.run.made if norm.call.start <= n.index < norm.call.end]
    sums = [n.value for n in inside if n.op in _SUMS and n.value.is_floating_point()]
    return max((value.isinf().double().mean().item() for value in sums), default=0.0)


def _at_zero(norm: Norm) -> str:
    """Where a vector of zeros makes NaN or infinity: "forward", "backward" or "" for nowhere."""
    x = norm.source.value
    try:
        zeros = torch.zeros_like(x[:1] if x.dim() > 1 else x, dtype=torch.float32 if norm.written else x.dtype)
        zeros = zeros.detach().requires_grad_()
        with torch.enable_grad():
            y = copy.deepcopy(norm.call.module).eval()(zeros)  # a copy: some keep running statistics
            if not y.isfinite().all():
                return "forward"
            weights = torch.linspace(-1, 2, y.numel(), dtype=y.dtype, device=y.device).view(y.shape)
            (slope,) = torch.autograd.grad((y * weights).sum(), zeros)
    except Exception:  # a module that takes no input of this shape, or has no backward pass
        return ""
    return "" if slope.isfinite().all() else "backward"


def _twice(wiring: Wiring, readings: list[NormReading]) -> Iterator[tuple[str, str]]:
    """Pairs of norms of which the second reads just what the first gave out, and nothing else does.

    A norm on the embeddings has the skip as its second reader. A final norm behind Post-Norm blocks is left out:
    published models have one (torch.nn.Transformer).
    """
    by_output = {reading.norm.output: reading for reading in readings}
    final = {stack.final_norm for stack in wiring.stacks}
    post = {s.post_norm for stack in wiring.stacks for block in stack.blocks for s in block.sublayers}
    readers = users(wiring.run.made)
    for reading in readings:
        first = by_output.get(wiring.root(reading.norm.source))
        if first is None or first is reading or (first.norm in post and reading.norm in final):
            continue
        waiting, alone = [first.norm.output], True
        while waiting and alone:
            for user in readers.get(waiting.pop(), ()):
                if is_handed_through(user) and not reading.norm.covers(user):
                    waiting.append(user)
                else:
                    alone = alone and reading.norm.covers(user)
        if alone:
            yield first.name, reading.name


# --- streams, attention -------------------------------------------------------------------------------------------


def _sizes(subject: Subject, wiring: Wiring, found: Measurements) -> None:
    blocks = [block for stack in wiring.stacks for block in stack.blocks]
    what = "sizes of stream, inputs and increments"
    if not blocks:
        found.missing[what] = "no stack of residual blocks was recognized"
    mask = subject.mask
    for layer, block in enumerate(blocks, 1):
        before, after = (_real(node.value.detach().double(), mask) for node in (block.x, block.y))
        found.steps.append(((after - before).norm() / before.norm()).item() if before.any() else math.nan)
        found.largest = max(found.largest, before.abs().max().item(), after.abs().max().item())
        if block.unknown:
            found.missing[what] = f"block {layer} is not understood: {block.unknown}"
            continue
        for sublayer, seen in sublayer_streams(block):
            sizes = [rms(_real(seen[name], mask)) for name in ("stream", "sublayer_input", "increment", "stream_after")]
            found.depth.append(Depth(layer, sublayer.kind, *sizes))


def _attention(subject: Subject, wiring: Wiring, found: Measurements) -> None:
    layer = 0
    last: list[AttentionReading] = []
    for stack in wiring.stacks:
        last = []
        for block in stack.blocks:
            layer += 1
            for sublayer in block.sublayers:
                if sublayer.attention is not None:
                    found.attention.append(attention_reading(layer, sublayer.attention, subject.mask))
                    found.bounds.append(_bound(sublayer, found.attention[-1]))
                    last += [found.attention[-1]] if sublayer.kind == "attention" else []
    if not found.attention:
        found.missing["attention logits and entropy"] = "no attention was recognized"
        return
    found.causal = all(_is_causal(reading.logits) for reading in last) if last else None
    found.torn_mask = any(_is_torn(reading.logits, subject.mask) for reading in last)
    entropies, spreads = [], []
    for reading in found.attention:
        seen = reading.logits.isfinite().sum(-1)
        rows = seen > 1
        if not reading.logits.isnan().any() and rows.any():
            logits = reading.logits.masked_fill(~rows[..., None], 0.0)
            entropy = torch.special.entr(logits.softmax(-1)).sum(-1)
            entropies.append(entropy[rows].mean().item())
            spreads.append(seen[rows].double().log().mean().item())
    if entropies:
        found.entropy = sum(entropies) / len(entropies)
        found.entropy_share = sum(entropies) / sum(spreads)


def _is_causal(logits: Tensor) -> bool:
    T = logits.shape[-2]
    if logits.shape[-1] < T or T < 2:
        return False
    later = torch.ones(T, T, dtype=torch.bool).triu(1)
    return not logits[..., :T][..., later].isfinite().any()  # behind them attention sinks may stand


def _is_torn(logits: Tensor, mask: Tensor | None) -> bool:
    """Whether tokens see later ones in a way that neither an encoder nor a prefix explains.

    Encoders see both ways; who sees a later token in a prefix sees what that one sees. A causal mask that is off by one
    or the wrong way round does neither.
    """
    T = logits.shape[-2]
    if logits.dim() != 4 or logits.shape[-1] < T or T < 3 or logits.isnan().any() or _is_causal(logits):
        return False
    sees = logits[..., :T].isfinite()
    if mask is not None and mask.shape == (sees.shape[0], T):
        real = mask.to(sees.device)
        sees = sees & real[:, None, :, None] & real[:, None, None, :]
    if torch.equal(sees, sees.transpose(-1, -2)):
        return False
    only_later = not sees[..., torch.ones(T, T, dtype=torch.bool).tril(-1)].any()
    through_others = (sees.float() @ sees.float()) > 0
    return only_later or bool((through_others & ~sees).any())


def _bound(sublayer: Sublayer, reading: AttentionReading) -> float | None:
    """Longest query times longest key, times the scale: no logit can be larger.

    None where the logits are something else than a multiple of the products of queries and keys.
    """
    attention = sublayer.attention
    assert attention is not None
    q, k = (node.value.detach().double().cpu() for node in (attention.query, attention.key))
    logits = reading.logits
    try:
        q, k = (t.view(*logits.shape[:2], *t.shape[1:]) if t.dim() == 3 else t for t in (q, k))
        if k.shape[-1] != q.shape[-1]:
            k = k.transpose(-1, -2)
        products, seen = q @ k.transpose(-1, -2), logits.isfinite()
        products, logits = products.expand_as(logits)[seen], logits[seen]
    except RuntimeError:  # shapes of another kind of attention
        return None
    scale = (products * logits).sum() / products.square().sum()
    if not scale.isfinite() or (scale * products - logits).norm() > 1e-2 * logits.norm():
        return None
    return (scale.abs() * q.norm(dim=-1).max() * k.norm(dim=-1).max()).item()


# --- loss and gradients -------------------------------------------------------------------------------------------


def _answer(subject: Subject, wiring: Wiring, found: Measurements) -> None:
    answer = subject.find_answer(wiring.run.output)
    if answer is None:
        found.missing["share of the context in the logits"] = "the model returned nothing of shape [B, T, features]"
    else:
        real = _real(answer.detach(), subject.mask).double().flatten(0, -2)
        found.finite_output = bool(real.isfinite().all())
        _add_context_share(subject, real, found)
    for stack in wiring.stacks[-1:]:
        if stack.final_norm is None and stack.final_unknown is None:
            x = _real(stack.blocks[-1].y.value.detach(), subject.mask).double()
            sizes = x.square().mean(-1).sqrt()
            if sizes.numel() > 1 and sizes.isfinite().all() and sizes.any():
                found.head_spread = (sizes.std(correction=0) / sizes.mean()).item()


def _add_context_share(subject: Subject, logits: Tensor, found: Measurements) -> None:
    what = "share of the context in the logits"
    assert subject.ids is not None
    ids = subject.ids if subject.mask is None else subject.ids[subject.mask]
    if len(ids.unique()) < 2 or ids.numel() < 8:
        found.missing[what] = "the batch has fewer than 8 tokens, or all are the same"
        return
    centered = logits - logits.mean(-1, keepdim=True)
    alone = centered - centered.mean(0)
    total = centered.square().sum()
    if found.finite_output and total > 0:
        found.context_share = (alone.square().sum() / total).item()
    else:
        found.missing[what] = "the logits are not finite" if not found.finite_output else "all logits are the same"


def _gradients(subject: Subject, wiring: Wiring, loss: LossFunction | None, found: Measurements) -> None:
    named = {name or "batch": value for name, value in subject.arguments.items()}
    with torch.enable_grad():
        if loss is None:
            value, found.loss_name = default_loss(subject, wiring.run.output)
        else:
            value, found.loss_name = _checked(loss(wiring.run.output, named)), "the one given"
    if value is None:
        found.missing["loss and gradients"] = found.loss_name
        return
    found.loss = value.item()
    answer = subject.find_answer(wiring.run.output)
    if loss is None and answer is not None:
        found.vocabulary = answer.shape[-1]
    parameters = [p for p in subject.model.parameters() if p.requires_grad]
    if not parameters or not value.requires_grad:
        found.missing["gradients"] = "no parameter takes part in the gradient (requires_grad is False)"
        return
    try:
        slopes = torch.autograd.grad(value, parameters, allow_unused=True, retain_graph=True)
    except (RuntimeError, NotImplementedError) as error:
        found.missing["gradients"] = f"the backward pass failed: {error}"
        return
    found.gradients = {p: slope for p, slope in zip(parameters, slopes) if slope is not None}
    found.finite_gradient = all(bool(slope.isfinite().all()) for slope in found.gradients.values())
    found.gradient_norm = sum(s.double().square().sum().item() for s in found.gradients.values()) ** 0.5
    try:
        owners = parameter_owners(wiring)
    except ValueError as error:
        found.missing["gradients by layer"] = str(error)
        return
    squares: dict[int, list[float]] = {}
    for parameter, slope in found.gradients.items():
        layer = owners.get(parameter, (-1, ""))[0]
        entry = squares.setdefault(layer, [0.0, 0.0])
        entry[0] += slope.double().square().sum().item()
        entry[1] += slope.numel()
    found.by_layer = [(layer, (s / n) ** 0.5) for layer, (s, n) in sorted(squares.items()) if layer >= 0]


def _checked(value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"loss(output, batch) must return a scalar tensor, got {what}")
    return value.reshape(())


def first_not_finite(subject: Subject, wiring: Wiring) -> str | None:
    """The first operation of the run that made NaN of finite numbers, and the module in which it stands."""
    names = {module: name for name, module in subject.model.named_modules()}
    for node in wiring.run.made:
        if node.value.is_floating_point() and node.value.isnan().any():
            if all(not p.value.is_floating_point() or not p.value.isnan().any() for p in node.parents):
                return f"'{node.op}' in {_where(wiring.run.root, node, names)}"
    return None


def _where(call: Call, node: Node, names: dict[nn.Module, str]) -> str:
    """The innermost module that was running when the node was made."""
    for child in call.children:
        if child.start <= node.index < child.end and not isinstance(child.module, FunctionalNorm):
            return _where(child, node, names)
    return f"{names.get(call.module) or 'the model'} ({type(call.module).__name__})"
