"""The small SVG of a figure, its panels under one another, its colors. (The browser tests compare the pictures.)"""

import io
import re
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import pyplot as plt

from normlab.page import figures, panels

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def drawing():
    with plt.rc_context(figures.STYLE):
        fig, (left, right) = plt.subplots(1, 2, figsize=(6.4, 3), layout="constrained")
        left.semilogy([1, 2, 3], [0.01, -1e-5 + 0.5, 7], "o--", label="−1.5 × Öl")
        left.set(title="Σ and σ: √(2L)", xlabel="a value, with (signs) & “quotes”")
        left.legend()
        right.fill_between([0, 1, 2], [0, 1, 0], [1, 2, 3], alpha=0.3)
        right.text(0.5, 0.5, "-1 ✗ 0.5", rotation=30)
        yield fig
        plt.close(fig)


def original(fig):
    file = io.StringIO()
    fig.savefig(file, format="svg")
    return file.getvalue()


def test_every_letter_and_mark_is_defined(drawing):
    svg = figures.slim_svg(drawing)
    used = set(re.findall(r'(?:href="|url\()#([\w-]+)', svg))
    assert len(used) > 30 and used <= set(re.findall(r' id="([\w-]+)"', svg))
    assert len(re.findall("<use", svg)) == len(re.findall("<use", original(drawing)))


def test_it_is_much_less_than_matplotlib_writes(drawing):
    assert len(figures.slim_svg(drawing)) < 0.6 * len(original(drawing))



def test_numbers_of_a_logarithmic_axis_are_as_in_code():
    with figures.canvas() as (fig, ax):
        ax.semilogy([1, 2], [1e-12, 1e15])
        figures.plain_log(ax.yaxis, (1e-12, 1e-5, 0.001, 0.1, 1, 300, 1e9, 1e15))
        fig.draw_without_rendering()
        shown = [label.get_text() for label in ax.get_yticklabels()]
    assert shown == ["1e-12", "1e-5", "0.001", "0.1", "1", "300", "1e9", "1e15"]


# --- panels on a phone ----------------------------------------------------------------------------


def shown_panels(count, draw):
    with figures.canvas(count) as (fig, axes):
        draw(axes)
        svg = figures.slim_svg(fig)
        return svg, panels.views(fig, axes)


def boxes(views):
    return [[[int(number) for number in box.split()] for box in view.split(",")] for view in views]


@pytest.mark.parametrize("count", [2, 3])
def test_panels_share_the_whole_drawing(count):
    _, views = shown_panels(count, lambda axes: [ax.plot([1, 2]) for ax in axes])
    assert all(len(view) == 1 for view in boxes(views)), "each has names of its own"
    edges = [(x, x + width) for ((x, _, width, _),) in boxes(views)]
    assert edges[0][0] == 0 and edges[-1][1] == 461
    assert all(left[1] == right[0] for left, right in zip(edges, edges[1:]))


def test_a_panel_without_names_of_its_rows_is_shown_with_those_of_the_first():
    def draw(axes):
        axes[0].barh([0, 1], [1, 2], tick_label=["a long name of a row", "another"])
        axes[1].barh([0, 1], [1, 2], tick_label=["", ""])

    (first,), (names, second) = boxes(shown_panels(2, draw)[1])
    assert names[0] == 0 and 100 < names[2] < first[2] and second[0] == first[2]


def test_a_panel_with_rows_of_its_own_is_shown_without_those_of_the_first():
    def draw(axes):
        axes[0].barh([0, 1], [1, 2], tick_label=["a long name of a row", "another"])
        axes[1].hist([1, 2, 2, 3])
        axes[1].set_yticks([])

    assert [len(view) for view in boxes(shown_panels(2, draw)[1])] == [1, 1]


def test_what_cannot_be_cut_is_left_whole():
    assert shown_panels(1, lambda ax: ax.plot([1, 2]))[1] == []

    def crossing(axes):
        axes[0].text(0, 0.5, "words that go on and on, over into the panel to the right")

    def one_legend(axes):
        axes[0].plot([1, 2], label="a long name for a line that both panels have")
        axes[0].figure.legend(loc="outside lower center")

    assert shown_panels(2, crossing)[1] == shown_panels(2, one_legend)[1] == []


def test_two_panels_stand_under_one_another_and_small_ones_in_rows():
    svg, views = shown_panels(2, lambda axes: [ax.plot([1, 2]) for ax in axes])
    inner = re.findall(r'<svg x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)"', panels.stacked(svg, views))
    (_, top, _, high), (_, below, _, _) = (map(int, box) for box in inner)
    assert top == 0 and below >= high
    before, _ = panels.around(["0 0 160 90", "160 0 150 90", "0 0 20 80, 310 0 151 90"])
    assert 'viewBox="0 0 310 ' in before
    _, behind = panels.around(["0 0 160 90", "0 0 20 80, 160 0 150 90", "0 0 20 80, 310 0 151 90"])
    places = re.findall(r'y="(\d+)" width="(\d+)"', behind)
    assert [width for _, width in places] == ["150", "20", "151"], "the second panel stands beside the names already"
    assert places[0][0] == "0" < places[1][0] == places[2][0]


def test_the_stacked_drawing_is_well_formed_and_holds_the_drawing_once():
    svg, views = shown_panels(2, lambda axes: [ax.plot([1, 2]) for ax in axes])
    ElementTree.fromstring(panels.stacked(svg, views))
    assert len(panels.stacked(svg, views)) < len(svg) + 600


# --- colors ---------------------------------------------------------------------------------------

# Linear RGB as it is seen without one of the three kinds of cones: Machado, Oliveira & Fernandes, "A physiologically-based
# model for simulation of color vision deficiency", IEEE TVCG 15 (2009), severity 1.0.
SEEN_BY = {
    "all cones": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]])


def linear(color):
    part = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """CIELAB of linear RGB, against white."""
    t = TO_XYZ @ np.clip(rgb, 0, 1) / TO_XYZ.sum(1)
    f = np.where(t > 216 / 24389, np.cbrt(t), (24389 / 27 * t + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def ciede2000(one, other):
    """The difference of two CIELAB colors: Sharma, Wu & Dalal, Color Research & Application 30 (2005)."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    mean = (np.hypot(a1, b1) + np.hypot(a2, b2)) / 2
    g = 1.5 - 0.5 * np.sqrt(mean**7 / (mean**7 + 25**7))
    c1, c2 = np.hypot(g * a1, b1), np.hypot(g * a2, b2)
    h1, h2 = (np.degrees(np.arctan2(b, g * a)) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = (h2 - h1 + 180) % 360 - 180 if c1 * c2 else 0
    light, chroma, hue = (l1 + l2) / 2, (c1 + c2) / 2, h1 + turn / 2 if c1 * c2 else h1 + h2
    t = 1 + sum(k * np.cos(np.radians(n * hue + p)) for k, n, p in ((-0.17, 1, -30), (0.24, 2, 0), (0.32, 3, 6), (-0.2, 4, -63)))
    d_light = (l2 - l1) / (1 + 0.015 * (light - 50) ** 2 / np.sqrt(20 + (light - 50) ** 2))
    d_chroma = (c2 - c1) / (1 + 0.045 * chroma)
    d_hue = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn / 2)) / (1 + 0.015 * chroma * t)
    bend = -2 * np.sqrt(chroma**7 / (chroma**7 + 25**7)) * np.sin(np.radians(60 * np.exp(-(((hue % 360 - 275) / 25) ** 2))))
    return np.sqrt(d_light**2 + d_chroma**2 + d_hue**2 + bend * d_chroma * d_hue)


@pytest.mark.parametrize("one, other, published", [
    ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
    ((50, 2.5, 0), (73, 25, -18), 27.1492),
    ((50, 2.5, 0), (50, 0, -2.5), 4.3065),
    ((22.7233, 20.0904, -46.6940), (23.0331, 14.9730, -42.5619), 2.0373),
    ((2.0776, 0.0795, -1.1350), (0.9033, -0.0636, -0.5514), 0.9082),
])  # fmt: skip
def test_differences_of_colors_are_the_published_ones(one, other, published):
    assert ciede2000(one, other) == pytest.approx(published, abs=5e-5)


@pytest.mark.parametrize("eyes", SEEN_BY)
def test_colors_stay_apart_for_every_reader(eyes):
    """Of the four data colors and the ink; about 1 is the least that a normal eye tells apart side by side."""
    seen = {color: lab(np.array(SEEN_BY[eyes]) @ linear(color)) for color in (*figures.COLORS, figures.INK)}
    apart = {pair: ciede2000(*(seen[color] for color in pair)) for pair in combinations(seen, 2)}
    assert min(apart.values()) > 11, min(apart, key=apart.get)


@pytest.mark.parametrize("color", [*figures.COLORS, figures.INK])
def test_colors_read_on_white_and_on_the_dark_page(color):
    style = (ROOT / "book" / "_static" / "course.css").read_text(encoding="utf-8")
    dark = re.search(r'data-theme="dark"\].*?--pst-color-background: (#\w{6})', style, re.DOTALL)[1]
    lightness, white, black = (TO_XYZ[1] @ linear(c) + 0.05 for c in (color, "#ffffff", dark))
    assert white / lightness >= 4.3 and lightness / black >= 4.3
