import json
import re

import pytest

from normlab.page import sliders
from normlab.page.sliders import slider

HEADERS = ["α", "size"]
ROWS = [["0.1", "0.50"], ["1", "0.71"], ["10", "1.00"]]


def line(ax, frame):
    ax.plot([0, 1], [0, frame + 1])
    ax.set(title="A line that turns", xlim=(0, 1), ylim=(0, 4))


@pytest.fixture
def shown(monkeypatch):
    """What slider() hands to the notebook."""
    seen = []
    monkeypatch.setattr(sliders, "publish", lambda data, metadata=None: seen.append(data) or True)
    return seen


def data_of(html):
    return json.loads(re.search(r'<script type="application/json">(.*?)</script>', html, re.S)[1])


def test_every_frame_can_be_put_together_again(shown):
    slider("A line.", HEADERS, ROWS, line, start=1)
    data = data_of(shown[0]["text/html"])
    for frame in range(3):
        parts = [*data["frames"][frame], ""]
        svg = "".join(fixed + part for fixed, part in zip(data["fixed"], parts, strict=True))
        assert svg == sliders._picture(line, frame, 1, 3.4)[0]
    assert len(data["frames"][0]) == 1, "of a line that turns only one element changes"


def test_start_frame_and_table_are_there_without_scripts(shown):
    slider("A line.", HEADERS, ROWS, line, start=1)
    html = re.sub(r"<script.*?</script>", "", shown[0]["text/html"], flags=re.S)
    assert 'alt="A line. Here α 1 · size 0.71."' in html and "data:image/svg+xml,<svg" in html
    assert all(entry in html for row in ROWS for entry in row)
    assert "#" not in re.search(r'src="([^"]*)"', html)[1], "a data address ends at a #"
    assert "<input" not in html, "a slider that moves nothing misleads"
    assert "0.50" in shown[0]["text/plain"] and "A line." in shown[0]["text/plain"]


def test_same_bytes_every_time_and_no_foreign_address(shown):
    for _ in range(2):
        slider("A line.", HEADERS, ROWS, line)
    assert shown[0] == shown[1]
    addresses = set(re.findall(r"https?://[\w./]+", shown[0]["text/html"]))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}  # names, never fetched


def test_only_words_are_compared_between_machines(shown):
    """nbval takes away what stands between <svg and the last </svg>: last digits of coordinates may differ."""
    slider("A line.", HEADERS, ROWS, line)
    rest = re.sub(r"(?s)<svg.*</svg>", "", shown[0]["text/html"])
    assert "<path" not in rest and " d='" not in rest


def test_words_of_the_reader_are_escaped(shown):
    rows = [["<b>", "</script>"], ["2", '"'], ["3", "&"]]
    slider("A < B", HEADERS, rows, line)
    html = shown[0]["text/html"]
    assert html.count("</script>") == 2 and "<b>" not in html.split("<script")[0]
    assert data_of(html)["lines"][0] == "α <b> · size </script>"


def test_printed_where_there_is_no_notebook(capsys):
    slider("A line.", HEADERS, ROWS, line)
    assert "A line.\n" in capsys.readouterr().out


def test_panels(shown):
    slider("Two.", HEADERS, ROWS, lambda axes, k: [line(ax, k) for ax in axes], panels=2)
    assert len(data_of(shown[0]["text/html"])["frames"][0]) == 2


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"alt": " "}, "alt text"),
        ({"rows": ROWS[:1]}, "at least two frames"),
        ({"rows": [["1"], ["2"]]}, "2 columns"),
        ({"start": 3}, "frames 0 to 2"),
        ({"draw": lambda ax, k: [line(ax, k) for _ in range(k + 1)]}, "same elements"),
    ],
)
def test_errors(changes, problem):
    arguments = {"alt": "A line.", "headers": HEADERS, "rows": ROWS, "draw": line} | changes
    with pytest.raises(ValueError, match=problem):
        slider(**arguments)
