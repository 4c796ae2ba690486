"""A figure with a slider: precomputed frames, no kernel, no network."""

import json
import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from normlab.page import figures
from normlab.page.claims import publish
from normlab.page.panels import NARROW, around, views
from normlab.page.tables import table_html, table_text

# Where scripts may not run (GitHub, a notebook that is not trusted), the start frame and the table remain. Lumino,
# under JupyterLab, would take the arrow keys for its cells; the attribute leaves them to the slider. It looks for it from
# the focused element up and takes the first shortcut that fits, so that the element itself needs it.
_HTML = """\
<div class="normlab-slider" data-lm-suppress-shortcuts="true">\
<img alt="{alt}" style="max-width:100%" src="data:image/svg+xml,{picture}">\
<p class="normlab-slider-line" style="text-align:center;font-size:0.9rem;margin:0.3rem" aria-live="polite">{line}</p>\
<details style="font-size:0.9rem"><summary>All positions of the slider as a table</summary>{table}</details>\
<script type="application/json">{data}</script>\
<script>{program}</script></div>"""

_PROGRAM = """\
(() => {
  const box = document.currentScript && document.currentScript.parentElement;
  if (!box) return;
  const {fixed, frames, positions, lines, alts, label, start, stack} =
    JSON.parse(box.querySelector('script[type="application/json"]').textContent);
  const image = box.querySelector('img'), line = box.querySelector('.normlab-slider-line');
  const input = document.createElement('input'), name = document.createElement('label');
  Object.assign(input, {type: 'range', min: 0, max: frames.length - 1, step: 1, value: start});
  input.setAttribute('data-lm-suppress-shortcuts', 'true');
  input.style.cssText = 'flex:1;min-width:8rem';
  name.style.cssText = 'display:flex;gap:.8rem;align-items:center;max-width:30rem;margin:0 auto;font-size:0.9rem';
  name.append(label, input);
  const narrow = matchMedia('NARROW');
  const show = () => {
    const k = +input.value;
    let svg = fixed.map((part, i) => part + (frames[k][i] || '')).join('');
    if (stack && narrow.matches) {
      svg = stack[0] + svg.slice(svg.indexOf('>') + 1, svg.lastIndexOf('</svg>')) + stack[1];
    }
    image.src = 'data:image/svg+xml,' + encodeURIComponent(svg);
    image.alt = alts[k];
    line.textContent = lines[k];
    input.setAttribute('aria-valuetext', positions[k]);
  };
  input.addEventListener('input', show);
  narrow.addEventListener('change', show);
  line.before(name);
  show();
})()""".replace("NARROW", NARROW)


def slider(
    alt: str,
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    draw: Callable[[Any, int], None],
    *,
    start: int = 0,
    panels: int = 1,
    height: float = 3.4,
) -> None:
    """Show a figure whose frames a slider (mouse, touch, arrow keys) runs through, and all its numbers as a table.

    In a notebook this is one HTML output that needs neither a kernel nor the network; elsewhere the table is printed.
    The output holds the drawing once, and of every frame only the elements that change.

    Args:
        alt: what the figure shows; the numbers of the frame are added to it.
        headers: names of the columns. The first one names the slider.
        rows: one per frame, ready-made strings. The first entry is the position of the slider, the others are the
            numbers shown with it.
        draw: called with the axes (a sequence of them if ``panels`` > 1) and the number of the frame. Titles, labels
            and limits must be the same in all frames: what changes with words stands in ``rows``.
        start: the frame that is shown first, and the only one where scripts do not run.
        panels, height: as in :func:`normlab.page.figures.figure`.

    Raises:
        ValueError: empty alt text, fewer than two frames, a row of the wrong length, a start that is no frame, or
            frames that do not consist of the same elements.
    """
    if not alt.strip():
        raise ValueError("a figure needs an alt text that says what it shows")
    if len(rows) < 2:
        raise ValueError(f"a slider needs at least two frames, got {len(rows)}")
    if not 0 <= start < len(rows):
        raise ValueError(f"start must be one of the frames 0 to {len(rows) - 1}, got {start}")
    text = table_text(headers, rows)
    pictures = [_picture(draw, frame, panels, height) for frame in range(len(rows))]
    fixed, frames = _split([svg for svg, _ in pictures])
    first, found = pictures[start]
    lines = [" · ".join(f"{name} {entry}" for name, entry in zip(headers, row)) for row in rows]
    alts = [f"{alt} Here {line}." for line in lines]
    data = {
        "label": headers[0],
        "positions": [row[0] for row in rows],
        "lines": lines,
        "alts": alts,
        "start": start,
        **({"stack": around(found)} if found else {}),
        "frames": frames,  # before what ends with </svg>: all drawing stands between <svg and the last </svg>
        "fixed": fixed,
    }
    html = _HTML.format(
        alt=escape(alts[start]),
        picture=_address(first),
        line=escape(lines[start]),
        table=table_html(headers, rows),
        data=json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("</script", "<\\/script"),
        program=_PROGRAM,
    )
    text = f"{alt}\n{text}"
    if not publish({"text/plain": text, "text/html": html}):
        print(text)


def _picture(draw: Callable[[Any, int], None], frame: int, panels: int, height: float) -> tuple[str, list[str]]:
    with figures.canvas(panels, height) as (fig, axes):
        draw(axes, frame)
        svg = figures.slim_svg(fig)
        found = views(fig, axes)
    return svg.replace('"', "'"), found  # a double quote would be escaped twice, in JSON and in the notebook file


def _address(svg: str) -> str:
    """The drawing as part of an address inside double quotes."""
    return svg.replace("%", "%25").replace("#", "%23").replace("&", "&amp;")


def _split(pictures: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """What all pictures share, in pieces, and for each picture what stands behind each piece but the last."""
    elements = [re.split(r"(?=<)", picture) for picture in pictures]
    counts = {len(e) for e in elements}
    if len(counts) > 1:
        raise ValueError(f"all frames must consist of the same elements, but they have {sorted(counts)} of them")
    fixed: list[str] = [""]
    frames: list[list[str]] = [[] for _ in pictures]
    for versions in zip(*elements):
        if len(set(versions)) == 1:
            fixed[-1] += versions[0]
        else:
            fixed.append("")
            for frame, version in zip(frames, versions):
                frame.append(version)
    return fixed, frames
