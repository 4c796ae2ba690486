"""A wiring diagram of a report: the stream as a line upwards, its norms, and the branches that are added to it.

Only what :func:`normlab.inspect` found is drawn; what it could not tell is dashed, with a question mark.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap
from typing import Any

from normlab.attention import QKNorm
from normlab.inspection.norm_probe import Gain, NormReport
from normlab.inspection.report import BlockReport, LastHidden, ModelReport, StackReport, SublayerReport
from normlab.norms import NormKind
from normlab.page.figures import BLUE, INK, ORANGE

# Sizes in the picture's units, each about a pixel on a phone that is 375 wide.
WIDTH = 340
STREAM = 36  # where the line of the stream stands
LEFT, RIGHT = 78, 326  # the edges of branches
LINE, LETTER = 17, 6.7  # of text, the width on the safe side
STEP = 14  # of line between two boxes

# The page's colors where the picture stands in it, else gray that reads on white and black, as in page.figures.
_INK = f"color:var(--pst-color-text-base,{INK})"
_NAMES = {
    NormKind.LAYERNORM: "LayerNorm",
    NormKind.RMSNORM: "RMSNorm",
    NormKind.BATCHNORM: "BatchNorm",
    NormKind.GROUPNORM: "GroupNorm",
    NormKind.POWERNORM: "PowerNorm",
    NormKind.SCALENORM: "ScaleNorm",
    NormKind.DYT: "DyT",
    NormKind.IDENTITY: "no norm",
    None: "norm ?",
}
_KINDS = {"mlp": "MLP", "unknown": "?"}


@dataclass(frozen=True)
class Diagram:
    """A drawing as SVG, and the same in words. As the value of a cell it is shown as a figure with that text."""

    svg: str
    alt: str

    def __str__(self) -> str:
        return self.alt

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, str], dict[str, Any]]:
        shown = {"image/svg+xml": self.svg, "text/plain": self.alt}
        return shown, {"image/svg+xml": {"alt": self.alt}, "normlab": {"alt": self.alt}}


def wiring_diagram(report: ModelReport) -> Diagram:
    """Draw a report: every different block once, with the numbers of those that are like it.

    Input below, output above. On the line of the stream stand its norms, scales and sums; beside it the branches, with
    their norms, scales and what is normed inside of them. Norms have the numbers of ``print(report)`` and are described
    under the picture. Nothing stands there that is not in the report: embeddings and the head are not drawn.
    """
    drawing = _Drawing()
    more = f" and {len(report.cut) - 1} other sizes" if len(report.cut) > 1 else ""
    cut = [f"cut: {report.cut[0]}{more}"] if report.cut else []
    drawing.legend(cut + list(report.notes), list(_norms(report)))
    if not report.stacks:
        drawing.unknown("structure unknown: no stack of residual blocks was recognized")
    for number, stack in enumerate(report.stacks, 1):
        title = f"stack {number}" if len(report.stacks) > 1 else ""
        last = report.last_hidden if number == len(report.stacks) else LastHidden.NOT_RETURNED
        drawing.stack(stack, title, last)
    drawing.text(WIDTH / 2, drawing.up(LINE - 10) + LINE - 4, report.model, "middle", bold=True)
    alt = _in_words(report)
    return Diagram(drawing.svg(f"Wiring of {report.model}", alt), alt)


def kinds_of_blocks(blocks: Sequence[BlockReport]) -> dict[BlockReport, list[int]]:
    """Every different block, in order, with the numbers, from 1, of the blocks that are like it."""
    found: dict[BlockReport, list[int]] = {}
    for number, block in enumerate(blocks, 1):
        found.setdefault(block, []).append(number)
    return found


def as_ranges(numbers: Sequence[int]) -> str:
    """[1, 2, 3, 7] as "1–3, 7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _title(numbers: list[int]) -> str:
    return f"blocks {as_ranges(numbers)} · × {len(numbers)}" if len(numbers) > 1 else f"block {numbers[0]}"


def _norms(report: ModelReport) -> dict[NormReport, None]:
    """All norms of a report in the order in which its text numbers them, each once."""
    found: list[NormReport | None] = []
    for stack in report.stacks:
        found.append(stack.embedding_norm)
        for sublayer in (s for block in stack.blocks for s in block.sublayers):
            qk = sublayer.qk_norm
            found += [sublayer.norm, sublayer.output_norm]
            found += [qk.query, qk.key, qk.value] if qk else []
            found += sublayer.inner_norms
        found.append(stack.final_norm)
    for stack in report.stacks:  # two different norms in one formula, which the text leaves out
        for sublayer in (s for block in stack.blocks for s in block.sublayers):
            found += [sublayer.input_norm, sublayer.post_norm, sublayer.skip_norm]
    return dict.fromkeys(norm for norm in found if norm)


def _in_words(report: ModelReport) -> str:
    """The diagram for those who do not see it."""

    def name(norm: NormReport | None, unknown: str | None = None) -> str:
        return _NAMES[norm.kind] if norm else "unknown" if unknown else "none"

    sentences = [f"Wiring of {report.model}, drawn from a run", *report.origin]
    if not report.stacks:
        sentences.append("Structure unknown")
    for number, stack in enumerate(report.stacks, 1):
        sentences += [f"Stack {number}"] if len(report.stacks) > 1 else []
        sentences.append(f"Embedding norm: {name(stack.embedding_norm, stack.embedding_unknown)}")
        for block, numbers in kinds_of_blocks(stack.blocks).items():
            parts = [f"{s.kind} {s.formula}{_norms_in_words(s)}" for s in block.sublayers]
            blocks = f"Block{'s' if len(numbers) > 1 else ''} {as_ranges(numbers)}"
            sentences.append(f"{blocks}: {'; '.join(parts) or 'unknown'}")
        sentences.append(f"Final norm: {name(stack.final_norm, stack.final_unknown)}")
    sentences.append(f"Last hidden state: {report.last_hidden.value}")
    return ". ".join(sentences) + "."


def _norms_in_words(found: SublayerReport) -> str:
    parts = [f"N {_NAMES[found.norm.kind]}"] if found.norm else []
    parts += [f"O {_NAMES[found.output_norm.kind]}"] if found.output_norm else []
    parts += [_qk_norm_in_words(found)] if found.qk_norm or found.unknown_qk_norm else []
    parts += [f"{_NAMES[norm.kind]} inside" for norm in found.inner_norms]
    parts += ["norm at its edge ?"] if found.hidden_norm else []
    parts += ["in parallel with the next"] if found.joins_next else []
    return f" ({', '.join(parts)})" if parts else ""


def _qk_norm_in_words(found: SublayerReport) -> str:
    if found.qk_norm is None or found.unknown_qk_norm:
        return "QK-norm ?"
    how = {QKNorm.PER_HEAD: " per head", QKNorm.JOINT: " joint"}.get(found.qk_norm.how or QKNorm.NONE, " ?")
    where = {True: ", after RoPE", False: ", before RoPE", None: ""}[found.qk_norm.after_rope]
    return f"QK-norm{how}{where}"


class _Drawing:
    """Grows upwards from y = 0: ``up`` moves on, everything is drawn where ``y`` stands. Later parts lie on top."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.y = 0.0
        self.numbers: dict[NormReport, int] = {}
        self.covered: list[tuple[float, float]] = []  # where boxes stand on the stream

    def up(self, distance: float) -> float:
        self.y -= distance
        return self.y

    def svg(self, title: str, alt: str) -> str:
        height = 8 - self.y
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 {self.y - 4:g} {WIDTH} {height:g}" width="{WIDTH}" '
            f'height="{height:g}" role="img" style="{_INK};max-width:100%" font-family="system-ui,sans-serif" '
            f'font-size="12" fill="none" stroke="currentColor" stroke-width="1.5"><title>{escape(title)}</title>'
            f"<desc>{escape(alt)}</desc>{''.join(self.parts)}</svg>"
        )

    # --- strokes ------------------------------------------------------------------------------------------------------

    def text(self, x: float, y: float, text: str, anchor: str = "start", bold: bool = False) -> None:
        """A line of text whose middle is about 4 above ``y``."""
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{weight} fill="currentColor" stroke="none">'
            f"{escape(text)}</text>"
        )

    def line(self, *points: tuple[float, float], css: str = "wire") -> None:
        path = "L".join(f"{x:g} {y:g}" for x, y in points)
        self.parts.append(f'<path class="{css}" d="M{path}"/>')

    def box(
        self, x: float, width: float, lines: Sequence[str], css: str, color: str = "currentColor", unknown: bool = False
    ) -> None:
        """A box that stands on ``y`` with lines of text in it; moves on to its upper edge. Unknown: dashed."""
        height = LINE * len(lines) + 6
        top = self.up(height)
        dashes, opacity = ' stroke-dasharray="4 3"' if unknown else "", 0 if css.endswith("inside") else 0.12
        self.parts.append(
            f'<g class="{css}{" unknown" if unknown else ""}"><title>{escape(" ".join(lines))}</title>'
            f'<rect x="{x:g}" y="{top:g}" width="{width:g}" height="{height:g}" rx="4" stroke="{color}" '
            f'fill="{color}" fill-opacity="{opacity}"{dashes}/>'
        )
        for number, line in enumerate(lines):
            self.text(x + width / 2, top + LINE * number + 16, _shortened(line, width), "middle")
        self.parts.append("</g>")

    def unknown(self, reason: str) -> None:
        lines = ["?", *wrap(reason, int((RIGHT - LEFT) / LETTER))]
        self.box(LEFT, RIGHT - LEFT, lines, "reason", unknown=True)

    def norm(self, norm: NormReport, x: float, width: float, role: str = "") -> None:
        """A box with as much of the norm's name as fits."""
        name, number = f"{role}{_NAMES[norm.kind]}", f"[{self.numbers[norm]}]"
        gains = {Gain.NONE: ", no gain", Gain.OFFSET: ", gain 1 + w"}
        long = f"{name}{gains.get(norm.gain, '')} {number}"
        label = long if len(long) * LETTER < width else f"{name} {number}"
        self.box(x, width, [label], "norm", BLUE, norm.kind is None)

    # --- the parts of a picture, from below ---------------------------------------------------------------------------

    def legend(self, origin: list[str], norms: list[NormReport]) -> None:
        self.numbers = {norm: number for number, norm in enumerate(norms, 1)}
        texts = [*(f"[{number}] {norm}" for norm, number in self.numbers.items()), *origin]
        rows = [row for text in texts for row in wrap(text, int((WIDTH - 12) / LETTER), subsequent_indent="\u2003")]
        self.up(LINE * len(rows))
        for number, row in enumerate(rows, 1):
            self.text(6, self.y + LINE * number - 4, row)
        self.up(10 if rows else 0)

    def stack(self, stack: StackReport, title: str, last: LastHidden) -> None:
        bottom = len(self.parts)
        low = self.y
        self.text(STREAM + 12, self.y - 2, f"input{f' of {title}' if title else ''}")
        self.up(LINE)
        self.on_stream(stack.embedding_norm, stack.embedding_unknown, "embedding norm")
        for block, numbers in kinds_of_blocks(stack.blocks).items():
            self.block(block, _title(numbers))
            self.up(STEP)
        if last in (LastHidden.STREAM, LastHidden.BOTH):
            self.mark("last hidden state")
        self.on_stream(stack.final_norm, stack.final_unknown, "final norm")
        if last in (LastHidden.NORMED, LastHidden.BOTH):
            self.mark("last hidden state")
        self.up(STEP)
        self.text(STREAM + 12, self.y + 10, f"output{f' of {title}' if title else ''}")
        self.arrow(STREAM, self.y, "up")
        path = f"M{STREAM} {low:g}"
        for floor, ceiling in self.covered:
            path += f"V{floor:g}M{STREAM} {ceiling:g}"
        self.parts.insert(bottom, f'<path class="stream" d="{path}V{self.y + 6:g}" stroke-width="3"/>')
        self.covered = []
        self.up(30)

    def mark(self, text: str) -> None:
        self.parts.append(f'<circle class="hidden" cx="{STREAM}" cy="{self.up(8):g}" r="4" fill="currentColor"/>')
        self.text(STREAM + 12, self.y + 4, text)
        self.up(12)

    def on_stream(self, norm: NormReport | None, unknown: str | None, role: str) -> None:
        if norm is not None:
            self.covering(lambda: self.norm(norm, 16, 214, f"{role}: " if role else ""))
            self.up(STEP)
        elif unknown:
            lines = [f"{role} ?", *wrap(unknown, int(200 / LETTER))]
            self.covering(lambda: self.box(16, 214, lines, "norm", BLUE, unknown=True))
            self.up(STEP)

    def covering(self, draw: Callable[[], None]) -> None:
        """Draw a box that stands on the stream; the line ends below it and goes on above."""
        floor = self.y
        draw()
        self.covered.append((floor, self.y))

    def block(self, block: BlockReport, title: str) -> None:
        start, low = len(self.parts), self.y
        self.up(10)
        if block.unknown:
            self.unknown(block.unknown)
            self.up(STEP)
        group: list[SublayerReport] = []
        for sublayer in block.sublayers:
            group.append(sublayer)
            if not sublayer.joins_next:
                self.branches(group)
                group = []
        if group:
            self.branches(group)
        self.up(LINE)
        self.text(WIDTH - 14, self.y + LINE - 4, _shortened(title, WIDTH - 70), "end", bold=True)
        dashes = ' stroke-dasharray="4 3"' if block.unknown else ""
        frame = f'<rect x="6" y="{self.y:g}" width="{WIDTH - 12}" height="{low - self.y:g}" rx="8"{dashes}/>'
        css = "block unknown" if block.unknown else "block"
        self.parts.insert(start, f'<g class="{css}" stroke-opacity="0.5"><title>{escape(title)}</title>{frame}</g>')

    def branches(self, group: list[SublayerReport]) -> None:
        """One sublayer, or several side by side, from where they leave the stream to where they are added to it."""
        first = group[0]
        self.on_stream(first.skip_norm, None, "")
        fork, width = self.y, (RIGHT - LEFT - 10 * (len(group) - 1)) / len(group)
        self.parts.append(f'<circle class="fork" cx="{STREAM}" cy="{fork:g}" r="2.5" fill="currentColor"/>')
        middles = [LEFT + (width + 10) * place + width / 2 for place in range(len(group))]
        shared = first.input_norm if all(s.shares_norm and s.input_norm == first.input_norm for s in group) else None
        if shared:
            middle = (LEFT + RIGHT) / 2
            self.line((STREAM, fork), (middle, fork), (middle, self.up(STEP)))
            self.norm(shared, LEFT, RIGHT - LEFT)
            fork = self.y
        else:
            self.line((STREAM, fork), (middles[-1], fork))
        tops = []
        for sublayer, middle in zip(group, middles):
            self.y = fork
            tops.append(self.branch(sublayer, middle, width, not shared))
        self.y = min(tops)
        for middle, top in zip(middles, tops):
            self.line((middle, top), (middle, self.y))
        self.line((middles[-1], self.y), (STREAM + 9, self.y))
        self.arrow(STREAM + 9, self.y, "left")
        formulas = ", ".join(dict.fromkeys(sublayer.formula for sublayer in group))
        self.text(STREAM + 14, self.y - 5, _shortened(formulas, RIGHT - STREAM - 14))
        self.add(first.stream_scale, fork)
        self.up(8 + STEP)
        self.on_stream(group[-1].post_norm, None, "")
        for draw in self.scale(group[-1].sum_scale, STREAM + 2):
            self.covering(draw)
            self.up(STEP)

    def branch(self, found: SublayerReport, middle: float, width: float, own_norm: bool) -> float:
        """The boxes of one branch; returns where its line ends."""
        left = middle - width / 2
        self.parts.append(f'<g class="sublayer"><title>{escape(f"{found.kind}: {found.formula}")}</title>')
        start = self.y
        steps: list[Callable[[], None]] = []
        if own_norm and found.input_norm:
            norm = found.input_norm
            steps.append(lambda: self.norm(norm, left, width))
        steps += self.scale(found.input_scale, middle)
        steps.append(lambda: self.inside(found, left, width))
        if found.output_norm:
            output = found.output_norm
            steps.append(lambda: self.norm(output, left, width))
        steps += self.scale(found.output_scale, middle)
        for draw in steps:
            self.line((middle, start), (middle, self.up(STEP)))
            draw()
            start = self.y
        self.line((middle, start), (middle, self.up(STEP)))
        self.parts.append("</g>")
        return self.y

    def scale(self, factor: float | None, middle: float) -> list[Callable[[], None]]:
        if factor == 1:
            return []
        text = "× g" if factor is None else f"× {factor:.3g}"
        return [lambda: self.box(middle - 26, 52, [text], "scale")]

    def inside(self, found: SublayerReport, left: float, width: float) -> None:
        """The box of F: what it is, and the norms in it."""
        norms = []
        if found.unknown_qk_norm or found.qk_norm:
            qk = found.qk_norm
            numbers = [self.numbers[n] for n in (qk.query, qk.key, qk.value) if n] if qk else []
            listed = " ".join(f"[{number}]" for number in dict.fromkeys(numbers))
            dashed = found.unknown_qk_norm or found.qk_norm is None or found.qk_norm.how is None
            norms.append((f"{_qk_norm_in_words(found)} {listed}".rstrip(), dashed))
        norms += [(f"{_NAMES[n.kind]} inside [{self.numbers[n]}]", n.kind is None) for n in found.inner_norms]
        norms += [("norm at its edge ?", True)] if found.hidden_norm else []
        boxes = [(wrap(label, max(int((width - 16) / LETTER), 8)), unknown) for label, unknown in norms]
        low = self.y
        height = LINE + 8 + sum(LINE * len(lines) + 12 for lines, _ in boxes)
        dashes = ' stroke-dasharray="4 3"' if found.kind == "unknown" else ""
        css = f"branch {found.kind}"
        self.parts.append(
            f'<g class="{css}"><rect x="{left:g}" y="{low - height:g}" width="{width:g}" height="{height:g}" rx="4" '
            f'stroke="{ORANGE}" fill="{ORANGE}" fill-opacity="0.12"{dashes}/>'
        )
        for lines, unknown in boxes:
            self.up(6)
            self.box(left + 8, width - 16, lines, "norm inside", BLUE, unknown)
        self.y = low - height
        label = _KINDS.get(found.kind, found.kind)
        self.text(left + width / 2, self.y + LINE, _shortened(label, width), "middle", bold=True)
        self.parts.append("</g>")

    def add(self, stream_scale: float | None, fork: float) -> None:
        """The sum on the stream at ``y``, and the scale of the stream on its way from the fork."""
        y = self.y
        self.parts.append(
            f'<g class="add"><circle cx="{STREAM}" cy="{y:g}" r="8" fill="currentColor" fill-opacity="0.12"/>'
            f'<path d="M{STREAM - 5} {y:g}h10M{STREAM} {y - 5:g}v10"/></g>'
        )
        for draw in self.scale(stream_scale, STREAM + 2):
            self.y = (fork + y) / 2 + LINE / 2
            self.covering(draw)
        self.y = y

    def arrow(self, x: float, y: float, way: str) -> None:
        path = {"up": "l-6 9h12Z", "left": "l7 -4v8Z"}[way]
        self.parts.append(f'<path d="M{x:g} {y:g}{path}" fill="currentColor" stroke="none"/>')


def _shortened(text: str, width: float) -> str:
    letters = int(width / LETTER)
    return text if len(text) <= letters else text[: max(letters - 1, 1)] + "…"
