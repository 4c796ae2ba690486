"""Runs on changed inputs, and steps of a copied optimizer: what depends on what, and what can move."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from normlab.inspection.measurements import Measurements, NormReading
from normlab.inspection.norm_probe import Gain
from normlab.inspection.subject import Subject, padding_ids
from normlab.inspection.wiring import Wiring

STEPS = 20  # of the copied optimizer


class NotMeasured(Exception):
    """The message says why."""


@dataclass
class Trials:
    """Largest changes of logits in standard deviations of the logits; None where not tried, the reason in ``missing``.

    Attributes:
        future: at the first half of the places, when the ids of the second half change.
        rows: in the first row, when the ids of the others change.
        padding: at real tokens, when the ids under a left padding change.
        first_token: at later real tokens, when the first real token changes under a left padding.
        shift: when all position_ids rise by 7.
        moved: for each gain in the optimizer, the share of its entries that a copy of it moved in STEPS steps.
        decayed: names of norms whose gain (stored as w) the optimizer decays, and the largest decay among them.
        decayed_offset: the same for gains that are stored as 1 + w.
    """

    future: float | None = None
    rows: float | None = None
    padding: float | None = None
    first_token: float | None = None
    shift: float | None = None
    moved: dict[str, float] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)
    decayed: list[str] = field(default_factory=list)
    decayed_offset: list[str] = field(default_factory=list)
    decay: float = 0.0
    gains_in_optimizer: int | None = None
    inverted_batch: bool = False
    missing: dict[str, str] = field(default_factory=dict)


def tried(
    subject: Subject, wiring: Wiring, seen: Measurements, optimizer: torch.optim.Optimizer | None
) -> Trials:
    """All trials that the model, the batch and the optimizer allow."""
    found = Trials()
    trials: dict[str, Callable[[], None]] = {
        "influence of later tokens": lambda: _future(subject, seen, found),
        "influence of other rows": lambda: _rows(subject, seen, found),
        "influence of padding": lambda: _padding(subject, wiring, found),
        "shift of all positions": lambda: _shift(subject, wiring, found),
        "decay on gains": lambda: _decay(seen, found, optimizer),
        "gains that cannot move": lambda: _moves(seen, found, optimizer),
    }
    for name, trial in trials.items():
        try:
            trial()
        except NotMeasured as reason:
            found.missing[name] = str(reason)
        except Exception as error:  # whatever the reader's model or optimizer raises on an input of ours
            found.missing[name] = f"the trial failed with {type(error).__name__}: {_one_line(error)}"
    found.inverted_batch = _is_inverted(subject)
    return found


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _ids(subject: Subject, tokens: int = 1, rows: int = 1) -> Tensor:
    ids = subject.ids
    if ids is None:
        raise NotMeasured("the batch has no token ids [B, T]")
    if ids.shape[1] < tokens:
        raise NotMeasured(f"the batch has {ids.shape[1]} tokens a row, fewer than {tokens}")
    if ids.shape[0] < rows:
        raise NotMeasured(f"the batch has {ids.shape[0]} rows, fewer than {rows}")
    return ids


def _others(ids: Tensor) -> Tensor:
    """At every place another id, out of those of the batch."""
    known = ids.unique()
    if len(known) < 2:
        raise NotMeasured("all tokens of the batch are the same")
    return known[(torch.searchsorted(known, ids.contiguous()) + 1) % len(known)]


def _without_padding(subject: Subject, ids: Tensor) -> Tensor:
    """The ids with another one for each that stands for padding: models that count positions from the ids skip those,
    so that exchanging one for a word moves every later token, hidden or not."""
    padding = padding_ids(subject.model)
    words = [i for i in ids.unique().tolist() if i not in padding]
    if len(words) < 2:
        raise NotMeasured("all tokens of the batch are the same, or padding")
    return ids.masked_fill(~torch.isin(ids, ids.new_tensor(words)), words[0])


def _norms_that_learn_statistics(seen: Measurements) -> set[nn.Module]:
    modules = {reading.norm.call.module for reading in seen.norms if not reading.norm.written}
    return {part for module in modules for part in module.modules() if next(module.buffers(), None) is not None}


def _change(before: Tensor, after: Tensor, like: Tensor) -> float:
    """The largest change, in standard deviations."""
    std = like.std(correction=0) if like.numel() else like.new_zeros(())
    if not (before.isfinite().all() and after.isfinite().all()) or not std > 0:
        raise NotMeasured("the logits are not finite, or all the same")
    return ((after - before).abs().max() / std).item()


def _future(subject: Subject, seen: Measurements, found: Trials) -> None:
    ids = _ids(subject, tokens=4)
    if seen.causal is None:
        raise NotMeasured("no attention was recognized, so that it is unknown whether tokens may see later ones")
    if not seen.causal:
        raise NotMeasured(
            "its attention sees later tokens: right in an encoder, a missing causal mask where the next token is to be "
            "predicted"
        )
    half = ids.shape[1] // 2
    other = torch.cat([ids[:, :half], _others(ids)[:, half:]], 1)
    training = _norms_that_learn_statistics(seen)
    before, after = (subject.answer({"ids": i}, training)[:, :half] for i in (ids, other))
    if subject.mask is not None:
        real = subject.mask[:, :half]
        before, after = before[real], after[real]
    found.future = _change(before, after, before)


def _rows(subject: Subject, seen: Measurements, found: Trials) -> None:
    ids = _ids(subject, rows=2)
    other = torch.cat([ids[:1], _others(ids)[1:]])
    training = _norms_that_learn_statistics(seen)
    before, after = (subject.answer({"ids": i}, training)[0] for i in (ids, other))
    if subject.mask is not None:
        before, after = before[subject.mask[0]], after[subject.mask[0]]
    found.rows = _change(before, after, before)


def _padding(subject: Subject, wiring: Wiring, found: Trials) -> None:
    ids = _ids(subject, tokens=6)
    name = "attention_mask" if subject.name_of_ids != "decoder_input_ids" else "decoder_attention_mask"
    if not subject.takes(name):
        raise NotMeasured(f"the model's call has no argument {name}")
    given = subject.arguments.get(name)
    if isinstance(given, Tensor) and given.shape != ids.shape:
        raise NotMeasured(f"the batch's {name} has shape {tuple(given.shape)}, not [B, T]")
    if _meet_elsewhere(wiring):
        raise NotMeasured("tokens do not meet in attention alone (a recurrent or convolutional mixer may know no mask)")
    ids = _without_padding(subject, ids)
    padding = ids.shape[1] // 3
    mask = torch.ones_like(ids)
    mask[:, :padding] = 0
    others = _others(ids)
    under = torch.cat([others[:, :padding], ids[:, padding:]], 1)
    first = ids.clone()
    first[:, padding] = others[:, padding]
    later = padding + 1
    before = subject.answer({"ids": ids, name: mask})
    after = subject.answer({"ids": under, name: mask})
    found.padding = _change(before[:, padding:], after[:, padding:], before[:, padding:])
    changed = subject.answer({"ids": first, name: mask})
    found.first_token = _change(before[:, later:], changed[:, later:], before[:, later:])
    if found.first_token < 1e-3:  # does it count where nothing is hidden?
        bare, moved = (subject.answer({"ids": i, name: None})[:, later:] for i in (ids, first))
        if _change(bare, moved, bare) < 1e-3:
            found.first_token = None
            raise NotMeasured("a token has no influence on later ones even without a mask")


def _is_inverted(subject: Subject) -> bool:
    """True if the batch's own mask shows one token only and hides several."""
    if subject.mask is None or subject.ids is None or subject.mask.all():
        return False
    shown, hidden = subject.ids[subject.mask], subject.ids[~subject.mask]
    return len(shown.unique()) <= 1 < len(hidden.unique())


def _shift(subject: Subject, wiring: Wiring, found: Trials) -> None:
    ids = _ids(subject, tokens=2)
    if not subject.takes("position_ids"):
        raise NotMeasured("the model's call has no argument position_ids")
    if _meet_elsewhere(wiring):
        raise NotMeasured("tokens do not meet in attention alone, and other mixers may count positions")
    if not _turns(wiring):
        raise NotMeasured("queries are not turned by their position (no RoPE was seen)")
    if next(subject.model.parameters()).dtype in (torch.float16, torch.bfloat16):
        raise NotMeasured("in a half type rounding hides it; try the model in float32")
    positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    before, after = (subject.answer({"position_ids": p}) for p in (positions, positions + 7))
    if subject.mask is not None:
        before, after = before[subject.mask], after[subject.mask]
    found.shift = _change(before, after, before)


def _meet_elsewhere(wiring: Wiring) -> bool:
    """Whether tokens meet, or may meet, in something else than attention, which alone has to look at masks."""
    blocks = [block for stack in wiring.stacks for block in stack.blocks]
    kinds = {sublayer.kind for block in blocks for sublayer in block.sublayers}
    return not blocks or any(block.unknown for block in blocks) or not kinds <= {"attention", "cross-attention", "mlp"}


def _turns(wiring: Wiring) -> bool:
    """Whether queries depend on a sine or cosine that the stream before the first block does not depend on."""
    for stack in wiring.stacks:
        stream = wiring.behind(stack.blocks[0].x, ())
        for block in stack.blocks:
            for sublayer in block.sublayers:
                if sublayer.attention is not None:
                    behind = wiring.behind(sublayer.attention.query, {sublayer.read})
                    return any(n.op in ("cos", "sin") and n not in stream for n in behind)
    return False


# --- the optimizer ------------------------------------------------------------------------------------------------


def _places(seen: Measurements, optimizer: torch.optim.Optimizer | None) -> dict[nn.Parameter, tuple[int, NormReading]]:
    """For every gain that the optimizer holds: number of its group, and a norm that uses it."""
    if optimizer is None:
        raise NotMeasured("no optimizer was given")
    group_of = {id(p): number for number, group in enumerate(optimizer.param_groups) for p in group["params"]}
    gains: dict[nn.Parameter, tuple[int, NormReading]] = {}
    for reading in seen.norms:
        for parameter in reading.gains:
            if id(parameter) in group_of:
                gains.setdefault(parameter, (group_of[id(parameter)], reading))
    if not any(reading.gains for reading in seen.norms):
        raise NotMeasured("no gain of a norm was recognized")
    if not gains:
        raise NotMeasured("the optimizer holds none of the model's gains (copies in float32, or they are frozen)")
    return gains


def _decay(seen: Measurements, found: Trials, optimizer: torch.optim.Optimizer | None) -> None:
    places = _places(seen, optimizer)
    assert optimizer is not None
    found.gains_in_optimizer = len(places)
    for number, reading in places.values():
        decay = float(optimizer.param_groups[number].get("weight_decay", 0.0) or 0.0)
        if decay > 0:
            offset = reading.report.gain is Gain.OFFSET
            (found.decayed_offset if offset else found.decayed).append(reading.name)
            found.decay = max(found.decay, decay)


def _moves(seen: Measurements, found: Trials, optimizer: torch.optim.Optimizer | None) -> None:
    places = _places(seen, optimizer)
    assert optimizer is not None
    if not seen.gradients:
        raise NotMeasured("there is no gradient")
    if not seen.finite_gradient:
        raise NotMeasured("the gradient is not finite")
    rates = [float(optimizer.param_groups[number].get("lr", 1.0)) for number, _ in places.values()]
    if not any(rates):
        raise NotMeasured("the learning rate of the gains is 0 now (as at the start of a warm-up)")
    found.rates = rates
    gains = [p for p in places if p in seen.gradients]
    copied, twins = _copy_with(optimizer, gains)
    before = [twin.detach().clone() for twin in twins]
    for _ in range(STEPS):
        for gain, twin in zip(gains, twins):
            twin.grad = seen.gradients[gain].detach().clone()
        copied.step()
    for gain, twin, old in zip(gains, twins, before):
        pushed = seen.gradients[gain] != 0
        if pushed.any():
            found.moved[places[gain][1].name] = (twin.detach() != old)[pushed].double().mean().item()


def _copy_with(
    optimizer: torch.optim.Optimizer, gains: list[nn.Parameter]
) -> tuple[torch.optim.Optimizer, list[nn.Parameter]]:
    """A copy of the optimizer that holds copies of the gains; in place of all else it holds empty parameters."""
    kept = {id(gain) for gain in gains}
    memo: dict[int, object] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in kept:
                memo[id(parameter)] = nn.Parameter(torch.empty(0))
                if parameter in optimizer.state:
                    memo[id(optimizer.state[parameter])] = {}
    copied = copy.deepcopy(optimizer, memo)
    pairs = [
        (old, new)
        for group, other in zip(optimizer.param_groups, copied.param_groups)
        for old, new in zip(group["params"], other["params"])
    ]
    twin_of = {id(old): new for old, new in pairs}
    return copied, [twin_of[id(gain)] for gain in gains]
