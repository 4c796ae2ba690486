"""claim(), show(), table(), figure(): what they print, what they refuse, what they leave in a notebook."""

import re

import pytest

from normlab.page import tables
from normlab.page.claims import MIME_TYPE, STRICT_VARIABLE, claim, show


def test_a_claim_that_holds_prints_one_line(capsys):
    claim("some-id", True, "measured 3 of 3")
    assert capsys.readouterr().out == "some-id: measured 3 of 3\n"


def test_a_claim_that_fails_raises():
    with pytest.raises(AssertionError, match="'some-id'.*measured 2 of 3"):
        claim("some-id", False, "measured 2 of 3")


@pytest.mark.parametrize("line, verdict", [("fine", "probably"), ("", "holds"), ("two\nlines", "holds")])
def test_sloppy_claims_are_refused(line, verdict):
    with pytest.raises(ValueError):
        claim("some-id", True, line, verdict)


def test_a_condition_is_printed_after_the_line(capsys):
    claim("some-id", True, "3 of 3", "holds only if", only_if="the steps are uncorrelated")
    assert capsys.readouterr().out == "some-id: 3 of 3; only if the steps are uncorrelated\n"


@pytest.mark.parametrize("verdict", ["holds", "refuted here"])
def test_other_verdicts_have_no_condition(verdict):
    with pytest.raises(ValueError, match="only_if goes with.*some-id"):
        claim("some-id", True, "3 of 3", verdict, only_if="the steps are uncorrelated")


@pytest.mark.parametrize("only_if", [" ", "two\nlines", "only if it rains", "Only if it rains", "if it rains"])
def test_a_sloppy_condition_is_refused(only_if):
    with pytest.raises(ValueError, match="some-id.*go on after"):
        claim("some-id", True, "3 of 3", "holds only if", only_if)


def test_a_conditional_claim_names_its_condition():
    with pytest.raises(ValueError, match="only_if goes with.*some-id"):
        claim("some-id", True, "3 of 3", "holds only if")


@pytest.mark.parametrize(
    "value, digits, text",
    [(2.5821, 2, "2.58"), (1e-9, 3, "0.000"), (-1e-9, 3, "0.000"), (-0.04, 1, "0.0"), (-0.2, 0, "0"), (-1.06, 1, "−1.1"), (12.0, 0, "12"), (-10.04, 1, "−10.0")],
)
def test_show_rounds(value, digits, text):
    assert show(value, digits, 1e-6) == text


def test_show_refuses_borders_only_while_re_executing(monkeypatch):
    assert show(0.1249, 2, 1e-4) == "0.12"
    monkeypatch.setenv(STRICT_VARIABLE, "1")
    with pytest.raises(ValueError, match="rounding border"):
        show(0.1249, 2, 1e-4)
    assert show(0.1246, 2, 1e-4) == "0.12"
    with pytest.raises(ValueError, match="rounding border"):
        show(-0.1251, 2, 1e-4)
    assert show(float("inf"), 2, 1e-4) == "inf"


def test_show_refuses_nonsense():
    with pytest.raises(ValueError, match="digits=-1"):
        show(1.0, -1, 0.0)


def test_tables_are_checked_and_aligned(capsys):
    tables.table(["rule", "x"], [["a", "1.0"], ["longer", "12.5"]])
    assert capsys.readouterr().out == "rule       x\na        1.0\nlonger  12.5\n"
    with pytest.raises(ValueError, match="2 columns"):
        tables.table(["rule", "x"], [["a"]])
    assert "&lt;b&gt;" in tables.table_html(["h"], [["<b>"]], "")


def test_a_table_with_filters_marks_their_columns_and_shortens_its_text(capsys):
    headers, rows = ["model", "norm", "ε"], [["gpt", "LayerNorm", "1"], ["llama", "RMSNorm", "2"]]
    tables.table(headers, rows, "All", filters=["norm"])
    assert capsys.readouterr().out.splitlines() == ["All", "model  norm", "gpt    LayerNorm", "llama  RMSNorm"]
    html = tables.table_html(headers, rows, "All", ["norm"])
    assert re.findall(r"<th scope=\"col\"[^>]*data-filter>(\w+)<", html) == ["norm"]
    assert 'class="normlab-table is-searchable"' in html and "is-searchable" not in tables.table_html(headers, rows)
    with pytest.raises(ValueError, match="no column is called 'eps'; there are model, norm, ε"):
        tables.table(headers, rows, filters=["eps"])


def test_columns_of_numbers_are_right_aligned_and_columns_of_text_left(capsys):
    rows = [["1 · mlp", "× 2.5", "−1.0 ± 0.1", "a word"], ["2 · mlp", "× 10.5", "+3", "words"]]
    tables.table(["sublayer", "x", "y", "why"], rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "1 · mlp    × 2.5  −1.0 ± 0.1  a word" and lines[2] == "2 · mlp   × 10.5          +3  words"


NOTEBOOK = """
from normlab.page.claims import claim
from normlab.page.figures import figure
from normlab.page.tables import table
with figure(alt="a line from 0 to 1") as ax:
    _ = ax.plot([0, 1])
claim("some-id", True, "a line", "holds only if", only_if="it rains")
table(["a"], [["<1"]])
try:
    with figure(alt="never shown") as ax:
        raise KeyError
except KeyError:
    pass
"""


def test_what_a_notebook_keeps():
    import nbformat
    from nbclient import NotebookClient

    def run():
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(NOTEBOOK)])
        NotebookClient(notebook, kernel_name="python3").execute()
        return notebook.cells[0].outputs

    drawing, statement, small_table = run()
    assert drawing.metadata["image/svg+xml"]["alt"] == drawing.data["text/plain"] == "a line from 0 to 1"
    assert drawing.data["image/svg+xml"].lstrip().startswith("<svg")
    assert statement.data["text/plain"] == "some-id: a line; only if it rains"
    trace = {"id": "some-id", "line": "a line", "verdict": "holds only if", "only_if": "it rains"}
    assert statement.data[MIME_TYPE] == trace
    assert "&lt;1" in small_table.data["text/html"]
    assert run()[0].data["image/svg+xml"] == drawing.data["image/svg+xml"]  # the same drawing, the same bytes


def test_figures_need_an_alt_text():
    from normlab.page.figures import figure

    with pytest.raises(ValueError, match="alt text"), figure(alt=" "):
        pass
