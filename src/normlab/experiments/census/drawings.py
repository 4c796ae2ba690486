"""Drawings of the census. Every function draws recorded data on the given axes, or as SVG."""

import re
from collections.abc import Mapping, Sequence
from html import escape

from matplotlib.axes import Axes

from normlab.experiments.census.rows import Design, Row, is_standard, is_untold
from normlab.experiments.census.stored import unpacked
from normlab.inspection.diagram import LINE, Diagram, wiring_diagram
from normlab.page.claims import publish
from normlab.page.figures import BLUE, INK, ORANGE

STANDARD = "Pre-RMSNorm\n+ final norm"


def shares(ax: Axes, types: Mapping[str, int], kinds: Mapping[str, int]) -> None:
    """Share of every setting, in percent: of all model types, and of the designs that differ."""
    names = list(types)
    for offset, counts, color, name in ((-0.19, types, BLUE, "model types"), (0.19, kinds, ORANGE, "designs")):
        total = sum(counts.values())
        values = [100 * counts.get(n, 0) / total for n in names]
        places = [i + offset for i in range(len(names))]
        ax.barh(places, values, height=0.36, color=color, label=f"{total} {name}")
        for place, value, n in zip(places, values, names):
            ax.text(value + 0.8, place, str(counts.get(n, 0)), color=INK, va="center")
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    ax.set(title="Counted by type and by design", xlabel="percent of the decoders", xlim=(0, 66))
    ax.legend(loc="lower right")


def years(ax: Axes, rows: Sequence[Row], first: int) -> None:
    """By year of the code, from ``first`` on: the standard among the decoders, and QK-norm."""
    found = range(first, max(row["year"] or 0 for row in rows) + 1)
    of = {year: [row for row in rows if row["year"] == year] for year in found}
    standard = [100 * sum(map(is_standard, of[y])) / len(of[y]) for y in found]
    normed = [100 * sum(row["qk_norm"] not in ("–", "unknown") for row in of[y]) / len(of[y]) for y in found]
    ax.plot(found, standard, "o-", color=BLUE)
    ax.plot(found, normed, "s--", color=ORANGE)
    ax.text(found[-1] + 0.1, standard[-1], "Pre-RMSNorm,\nfinal norm", color=BLUE, va="center")
    ax.text(found[-1] + 0.1, normed[-1], "QK-norm", color=ORANGE, va="center")
    labels = [f"{year}\n({len(of[year])})" for year in found]
    ax.set(title="Two shares by year", ylabel="percent of the decoders", ylim=(0, 100), xlim=(first - 0.3, found[-1] + 1.4))
    ax.set_xticks(list(found), labels)
    ax.set_xlabel("year of the code (decoders)")


def diagram(row: Row) -> Diagram:
    """The wiring that was measured for a row."""
    return wiring_diagram(unpacked(row["report"]))


def wirings(designs: Sequence[Design]) -> dict[str, list[str]]:
    """The designs whose drawings are alike but for ε, gains, roundings and names: {the first: all of them}. Multipliers
    outside the blocks, types and roles are not drawn.

    Left out are those whose wiring could not be told.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for design in sorted(designs, key=lambda d: (d.row["year"] or 9999, len(d.name), d.name)):
        if not (is_untold(design.row) or design.row["unknown"]):
            words = diagram(design.row).alt.split(",", 1)[1]
            groups.setdefault((design.row["formula"], words), []).append(design.name)
    return {names[0]: names for names in groups.values()}


def gallery(designs: Sequence[Design]) -> None:
    """Every different wiring once, folded, with the designs that have it."""
    by_name = {design.name: design for design in designs}
    folds, lines = [], []
    for first, names in wirings(designs).items():
        drawn = diagram(by_name[first].row)
        also = f", as {', '.join(names[1:])}" if len(names) > 1 else ""
        told = f"{also}: {_in_short(by_name[first].row)}"
        lines.append(first + told)
        folds.append(
            f"<details><summary><b>{escape(first)}</b>{escape(told)}</summary>{_slim(drawn.svg)}</details>"
        )
    html = f'<div class="census-gallery"><style>{_STYLE}</style>{"".join(folds)}</div>'
    if not publish({"text/plain": "\n".join(lines), "text/html": html}):
        print("\n".join(lines))


_NORM = r", \w+Norm \([^)]*\)( and \w+Norm \([^)]*\))*"  # which norm, in the column of QK-norm


def _in_short(row: Row) -> str:
    """The formula, and what tells rows with the same formula apart."""
    parts = [row["norm"], row["formula"]]
    parts += [row["sublayers"]] if row["sublayers"] != "attention, mlp" else []
    named = {"embedding norm": row["embedding"], "QK-norm": re.sub(_NORM, "", row["qk_norm"]), "inside": row["inner"]}
    return "; ".join(parts + [f"{name} {value}" for name, value in named.items() if value != "–"])


_STYLE = (
    f".census-gallery svg{{color:var(--pst-color-text-base,{INK});max-width:100%;font:12px system-ui,sans-serif;fill:none;"
    "stroke:currentColor;stroke-width:1.5}.census-gallery text{fill:currentColor;stroke:none}"
    f".census-gallery .n{{stroke:{BLUE};fill:{BLUE};fill-opacity:.12}}"
    f".census-gallery .f{{stroke:{ORANGE};fill:{ORANGE};fill-opacity:.12}}"
    ".census-gallery .d{fill:currentColor;stroke:none}"
    ".census-gallery .s{fill:currentColor;fill-opacity:.12}.census-gallery rect{rx:4px}"
    ".census-gallery .m{text-anchor:middle}.census-gallery .b{text-anchor:middle;font-weight:600}"
)


def _without_bare_groups(svg: str) -> str:
    """The drawing without groups that say nothing."""
    kept: list[bool] = []

    def group(tag: re.Match[str]) -> str:
        if tag[0] == "</g>":
            return tag[0] if kept.pop() else ""
        kept.append(tag[0] != "<g>")
        return tag[0] if kept[-1] else ""

    return re.sub(r"<g\b[^>]*>|</g>", group, svg)


def _slim(svg: str) -> str:
    """The drawing for several designs: without what may differ between them (the norms' numbers, their list under the
    picture, how gains are stored), and with the gallery's style in place of attributes."""
    head, body = svg.split("</title>", 1)
    box = re.search(r'viewBox="0 (\S+) (\S+) (\S+)"', head)
    assert box is not None
    top, width, height = (float(number) for number in box.groups())
    height -= LINE * len(re.findall(r'<text x="6"', body))
    title = head.rsplit("<title>", 1)[1]
    for pattern, short in (
        (r"<(title|desc)>.*?</\1>", ""),
        (r'<text x="6".*?</text>', ""),
        (r"(, gain 1 \+ w|, no gain)?( \[\d+\])+(?=</text>)", ""),
        (r' class="[^"]*"', ""),
        (r' text-anchor="start"', ""),
        (r'(<text[^>]*) fill="currentColor" stroke="none"', r"\1"),
        (r' fill="currentColor" stroke="none"', ' class="d"'),
        (f' stroke="{BLUE}" fill="{BLUE}" fill-opacity="0.12"', ' class="n"'),
        (f' stroke="{ORANGE}" fill="{ORANGE}" fill-opacity="0.12"', ' class="f"'),
        (r' fill="currentColor" fill-opacity="0.12"', ' class="s"'),
        (r' rx="4"', ""),
        (r' text-anchor="middle" font-weight="600"', ' class="b"'),
        (r' text-anchor="middle"', ' class="m"'),
    ):
        body = re.sub(pattern, short, body)
    body = _without_bare_groups(body)
    size = f'viewBox="0 {top:g} {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    return f'<svg {size} role="img"><title>{title}</title>{body}'
