"""The small SVG of a figure: nothing that it refers to is missing. (The browser tests compare the pictures.)"""

import io
import re

import pytest
from matplotlib import pyplot as plt

from normlab.page import figures


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

