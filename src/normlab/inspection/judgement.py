"""From numbers to findings.

Thresholds come from some 150 healthy models, fresh and trained ones, of 2 to 24 blocks and widths 32 to 128. No large
pretrained model was among them: for such the thresholds are a first guess.
"""

import math
from collections.abc import Iterator
from statistics import median

from normlab.inspection.findings import KINDS, Finding, Severity
from normlab.inspection.measurements import Measurements, NormReading
from normlab.inspection.norm_probe import EpsPlace, Gain
from normlab.inspection.trials import STEPS, Trials
from normlab.inspection.wiring import Wiring
from normlab.norms import NormKind

ERROR_OF_NORMS = 2.0  # in units of the output type's eps; healthy: up to 0.8
EPS_SHARE = 0.3  # healthy, of norms on the stream: below 0.1
GAIN_RANGE = (0.5, 1.5)  # median over norms of their rms gain; healthy: about 1 (fresh Nemotron: 2)
GAIN_RATIO = (0.3, 3.0)  # of a norm's gain to the median of its role; healthy: 0.91 to 1.13
LOGIT_FRESH, LOGIT_TRAINED = 60.0, 20.0  # largest attention logit; healthy: up to 59 fresh, 16 trained
ENTROPY_SHARE = 0.22  # of the entropy of even attention; healthy: from 0.32
CONTEXT_SHARE = 1e-4  # healthy: from 0.23, but a dip to 6e-5 within the first 50 steps
LEAK = 1e-4  # change in standard deviations of the logits; healthy: 0
FIRST_TOKEN = 1e-3  # healthy: from 0.013
SHIFT = 1e-3  # healthy: up to 4e-6
HEAD_SPREAD = 0.05  # healthy: up to 0.023
LOSS_ABOVE = 2.0  # nats above ln V; healthy: up to 1.14


def judged(seen: Measurements, trials: Trials, wiring: Wiring, culprits: dict[str, str]) -> tuple[Finding, ...]:
    """The findings, errors first. ``culprits``: what first was not finite, "forward" and "backward"."""
    found = [Finding(id, text) for id, text in _all(seen, trials, wiring, culprits)]
    return tuple(sorted(found, key=lambda f: (f.severity is not Severity.ERROR, list(KINDS).index(f.id))))


def _all(
    seen: Measurements, trials: Trials, wiring: Wiring, culprits: dict[str, str]
) -> Iterator[tuple[str, str]]:
    if "forward" in culprits:
        yield "nonfinite-forward", f"the first NaN or infinity on the way forward is {culprits['forward']}."
    if "backward" in culprits:
        yield "nonfinite-backward", f"the first NaN or infinity on the way back is {culprits['backward']}."
    yield from _arithmetic(seen)
    yield from _eps(seen)
    yield from _gains(seen)
    yield from _optimizer(trials)
    yield from _attention(seen)
    yield from _tokens(seen, trials, wiring)
    yield from _structure(seen, wiring)
    yield from _logits(seen)


def listed(names: list[str], most: int = 3) -> str:
    """A few names, and how many more."""
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def number(value: float) -> str:
    """Two digits that say enough."""
    return f"{value:.2g}" if abs(value) < 100 or not math.isfinite(value) else f"{value:.0f}"


def _worst(readings: list[NormReading], key: str) -> NormReading:
    return max(readings, key=lambda reading: getattr(reading, key) or 0.0)


def _arithmetic(seen: Measurements) -> Iterator[tuple[str, str]]:
    overflow = [r for r in seen.norms if r.overflow > 0 or (r.dead > 0 and r.gain is None)]
    overflow += [r for r in seen.norms if r not in overflow and r.dead > 0 and (r.error or 0) > ERROR_OF_NORMS]
    if overflow:
        worst = _worst(overflow, "dead")
        yield (
            "norm-overflow",
            f"in {len(overflow)} of {len(seen.norms)} norms squares become infinite although the input is finite, and "
            f"the result 0: in {worst.name} for {worst.dead:.0%} of the tokens, with entries up to "
            f"{number(worst.input_size)}.",
        )
    inexact = [r for r in seen.norms if r not in overflow and (r.error or 0) > ERROR_OF_NORMS]
    if inexact:
        worst = _worst(inexact, "error")
        yield (
            "norm-inexact",
            f"{len(inexact)} of {len(seen.norms)} norms differ from their formula in float64 by up to "
            f"{number(worst.error or 0)} units of the output's rounding ({worst.name}; healthy: up to 0.8).",
        )


def _eps(seen: Measurements) -> Iterator[tuple[str, str]]:
    # What a young sublayer gives out is as small as eps in healthy models too (OLMo 2); the stream is not.
    large = [r for r in seen.norms if (r.eps_share or 0) > EPS_SHARE and r.on_stream]
    if large:
        worst = _worst(large, "eps_share")
        yield (
            "eps-too-large",
            f"in {len(large)} of {len(seen.norms)} norms eps is a large part of the sum under the root: "
            f"{worst.eps_share:.0%} in {worst.name} (eps {worst.report.eps:g}), so that its output shrinks with its "
            "input.",
        )
    inside = [r for r in seen.norms if r.report.eps_place is not EpsPlace.OUTSIDE]
    for id, where, what in (
        ("eps-vanishes", "forward", "the output for a vector of zeros"),
        ("slope-overflows", "backward", "the gradient at a vector of zeros"),
    ):
        broken = [r for r in inside if r.zero == where]
        if broken:
            dtype = str(broken[0].norm.source.value.dtype).removeprefix("torch.")
            eps = "" if broken[0].report.eps is None else f", eps {broken[0].report.eps:g}"
            names = listed([r.name for r in broken])
            yield id, f"{what} is NaN or infinite in {names} ({dtype}{eps}); padding can have an embedding of zeros."
    outside = [r for r in seen.norms if r.report.eps_place is EpsPlace.OUTSIDE and r.zero]
    if outside:
        yield (
            "eps-outside-root",
            f"eps stands outside of the root ({EpsPlace.OUTSIDE.value}) in {listed([r.name for r in outside])}, and "
            "the gradient at a vector of zeros is not finite; padding can have an embedding of zeros.",
        )


def _gains(seen: Measurements) -> Iterator[tuple[str, str]]:
    sizes = {r: r.gain.square().mean().sqrt().item() for r in seen.norms if r.gain is not None}
    if not sizes:
        return
    middle, (least, most) = median(sizes.values()), GAIN_RANGE
    if not least <= middle <= most:
        yield (
            "gain-convention",
            f"the median gain (rms) of the {len(sizes)} norms is {number(middle)}; healthy small models have about 1"
            + (": gains stored as w near 1 and read as 1 + w give 2." if middle > most else "")
            + (": gains stored as 1 + w and read as w give about 0." if middle < least else ""),
        )
        return
    roles: dict[str, list[NormReading]] = {}
    for reading in sizes:
        roles.setdefault(reading.role, []).append(reading)
    for role, readings in roles.items():
        usual = median(sizes[r] for r in readings)
        if len(readings) > 2 and usual > 0:
            ratios = {r: sizes[r] / usual for r in readings}
            for id, odd in (
                ("gain-dead", [r for r in readings if ratios[r] < GAIN_RATIO[0]]),
                ("gain-large", [r for r in readings if ratios[r] > GAIN_RATIO[1]]),
            ):
                if odd:
                    yield (
                        id,
                        f"the gain of {listed([r.name for r in odd])} ({role}) is {number(ratios[odd[0]])} times that "
                        f"of the {len(readings)} norms of its role (rms {number(sizes[odd[0]])}).",
                    )


def _optimizer(trials: Trials) -> Iterator[tuple[str, str]]:
    stuck = [name for name, share in trials.moved.items() if share == 0]
    if stuck:
        yield (
            "gains-cannot-move",
            f"{len(stuck)} of {len(trials.moved)} gains are the same to the last bit after {STEPS} steps of a copy of "
            f"the optimizer at rate {number(max(trials.rates))}: the steps are lost in rounding ({listed(stuck)}).",
        )
    if trials.decayed:
        yield (
            "decay-on-gains",
            f"weight decay of {number(trials.decay)} pulls {len(set(trials.decayed))} gains, stored as w, to 0 "
            f"({listed(trials.decayed)}).",
        )


def _attention(seen: Measurements) -> Iterator[tuple[str, str]]:
    largest = [reading.largest for reading in seen.attention if not reading.logits.isnan().any()]
    bound = LOGIT_FRESH if seen.fresh else LOGIT_TRAINED
    if largest and max(largest) > bound:
        layer = seen.attention[largest.index(max(largest))].layer if len(largest) == len(seen.attention) else "?"
        fresh = "its gains show no training, and small fresh models stay below 60"
        state = fresh if seen.fresh else "small trained models reach 16"
        yield (
            "attention-logits",
            f"the largest attention logit is {number(max(largest))} in block {layer}; {state}.",
        )
    if seen.entropy_share is not None and seen.entropy_share < ENTROPY_SHARE:
        yield (
            "entropy-collapse",
            f"attention is nearly one-hot: its mean entropy is {number(seen.entropy or 0)} nats, "
            f"{seen.entropy_share:.0%} of that of even attention (healthy: from 32 %).",
        )


def _tokens(seen: Measurements, trials: Trials, wiring: Wiring) -> Iterator[tuple[str, str]]:
    across = [r for r in seen.norms if r.report.across_tokens]
    future, rows = trials.future or 0.0, trials.rows or 0.0
    nowhere = trials.rows is None and not seen.attention and not wiring.stacks  # an MLP, say
    if nowhere and all(r.report.kind is NormKind.BATCHNORM for r in across):
        across = []  # there it stands where it belongs
    if across:
        kinds = ", ".join(sorted({r.report.kind.value for r in across if r.report.kind})) or "of unknown kind"
        measured = {"later tokens change earlier logits": trials.future, "other rows change a row": trials.rows}
        changes = {who: by for who, by in measured.items() if by is not None}
        yield (
            "norm-across-tokens",
            f"{len(across)} of {len(seen.norms)} norms take statistics across tokens ({kinds}; "
            f"{listed([r.name for r in across])})" + ("; with these in training mode, " if changes else "")
            + ", ".join(f"{who} by {number(by)} standard deviations" for who, by in changes.items()) + ".",
        )
    elif future > LEAK:
        yield (
            "future-leaks",
            f"later tokens change earlier logits by {number(future)} standard deviations although the attention is "
            "causal.",
        )
    elif seen.torn_mask:
        yield (
            "future-leaks",
            "attention shows tokens some later ones, in a pattern that is neither causal nor that of an encoder or a "
            "prefix.",
        )
    elif rows > LEAK:
        yield "rows-leak", f"other rows of the batch change the logits of a row by {number(rows)} standard deviations."
    if trials.first_token is not None and trials.first_token < FIRST_TOKEN:
        yield (
            "mask-hides-tokens",
            f"behind a left padding the first real token changes later logits by only {number(trials.first_token)} "
            f"standard deviations (healthy: from 0.013), the padding by {number(trials.padding or 0)}: the mask hides "
            "real tokens, as one that is read inverted does.",
        )
    elif (trials.padding or 0.0) > LEAK:
        yield (
            "padding-leaks",
            f"the ids under a left padding change the logits of real tokens by {number(trials.padding or 0)} standard "
            "deviations: the mask does not hide them.",
        )
    if trials.inverted_batch:
        yield "mask-hides-tokens", "the batch's own mask shows one token over and over and hides those that differ."
    behind, shift = _after_rotation(seen), trials.shift
    if behind and (shift is None and not seen.fresh or (shift or 0.0) > SHIFT):
        changed = "" if shift is None else f"; a shift of all positions changes the logits by {number(shift)}"
        yield (
            "qk-norm-after-rope",
            f"queries and keys are normed behind the rotation, with a gain per feature ({listed(behind)}){changed}.",
        )
    elif (shift or 0.0) > SHIFT:
        yield (
            "positions-not-relative",
            f"when all positions rise by 7 the logits change by {number(shift or 0)} standard deviations; with rotary "
            "positions distances alone should count.",
        )


def _after_rotation(seen: Measurements) -> list[str]:
    """Names of the norms on queries behind the rotation that have a gain."""
    return [r.name for r in seen.norms if r.after_rotation and r.report.gain is not Gain.NONE]


def _structure(seen: Measurements, wiring: Wiring) -> Iterator[tuple[str, str]]:
    if wiring.stacks and seen.head_spread is not None and seen.head_spread > HEAD_SPREAD:
        last = wiring.stacks[-1].blocks[-1]
        normed = [s for s in last.sublayers if s.input_norm or s.output_norm]
        if normed and not any(s.post_norm for s in last.sublayers):
            yield (
                "final-norm-missing",
                "no norm stands behind the last block although norms stand in it: the size of what it gives out "
                f"differs from token to token by {seen.head_spread:.0%} (with a final norm: below 3 %).",
            )
    if seen.twice:
        first, second = seen.twice[0]
        yield (
            "norm-twice",
            f"{len(seen.twice)} of {len(seen.norms)} norms read just what another norm gave out "
            f"({second} after {first}).",
        )
    scaled = [
        s
        for stack in wiring.stacks
        for block in stack.blocks
        for s in block.sublayers
        if s.post_norm and s.stream_scale == 1 and s.output_scale is not None and s.output_scale > 1
    ]
    if scaled:
        yield (
            "alpha-on-branch",
            f"{len(scaled)} sublayers compute {scaled[0].formula}: the factor stands on the branch, not on the "
            "stream.",
        )


def _logits(seen: Measurements) -> Iterator[tuple[str, str]]:
    if seen.context_share is not None and seen.context_share < CONTEXT_SHARE:
        yield (
            "context-ignored",
            f"the logits are the same at all places: {number(seen.context_share)} of their variance depends on the "
            "tokens (healthy at the start: from 0.23; in the first 50 steps it can dip to 6e-5).",
        )
    if seen.loss is not None and seen.vocabulary and seen.loss - math.log(seen.vocabulary) > LOSS_ABOVE:
        yield (
            "loss-above-uniform",
            f"the loss is {seen.loss:.2f}, {seen.loss - math.log(seen.vocabulary):.2f} above ln {seen.vocabulary}, "
            "that of equal chances for all tokens: wrong with confidence (healthy at the start: up to 1.14 above)."
            + ("" if seen.fresh else " A batch unlike the training data does the same."),
        )
