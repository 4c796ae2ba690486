"""tools/myst_to_markdown.py: every construct the chapters use, and a refusal of those that it does not know."""

import pytest
from myst_to_markdown import Entry, References, collect, convert, read_bibliography

PAGE = "notebooks/01_walk"
BIBLIOGRAPHY = r"""
@inproceedings{xiong2020, author = {Xiong, Ruibin and Yang, Yunchang and He, Di}, title = {A}, year = {2020},
  eprint = {2002.04745}}
@article{zhang2019, author = {Zhang, Biao and Sennrich, Rico}, title = {B}, year = {2019}, url = {https://example.org/b}}
@book{erdos1959, author = {Erd{\H o}s, Paul}, title = {C}, year = {1959}, doi = {10.1/x(2)y}}
"""


@pytest.fixture
def references(tmp_path):
    path = tmp_path / "references.bib"
    path.write_text(BIBLIOGRAPHY, encoding="utf-8")
    found = References(bibliography=read_bibliography(path))
    collect("book/conventions", "(masks)=\n# Conventions\n\n(symbols)=\n\n## Symbols\n", found)
    collect(PAGE, "# The walk\n\n$$\na\n$$ (eq-walk)\n\n$$b$$\n\n```{math}\n:label: eq-sum\nc\n```\n", found)
    return found


@pytest.fixture
def plain(references):
    return lambda text: convert(text, PAGE, references)


@pytest.mark.parametrize(
    ("myst", "markdown"),
    [
        ("the {term}`residual stream`", "the residual stream"),
        ("{term}`streams <residual stream>`", "streams"),
        ("broken {term}`residual\nstream` here", "broken residual stream here"),
        ("{cite:t}`xiong2020` show", "[Xiong et al. (2020)](https://arxiv.org/abs/2002.04745) show"),
        ("shown {cite:p}`zhang2019`", "shown ([Zhang and Sennrich, 2019](https://example.org/b))"),
        (
            "{cite:p}`zhang2019, erdos1959`",
            "([Zhang and Sennrich, 2019](https://example.org/b); [Erdős, 1959](https://doi.org/10.1/x(2)y))",
        ),
        ("by {eq}`eq-walk` and {eq}`eq-sum`", "by (1) and (2)"),
        ("settled: {claim}`var-identity`", "settled: `var-identity`"),
        ("{ref}`symbols`, {ref}`here <symbols>`, {doc}`../book/conventions`", "*Symbols*, here, *Conventions*"),
        ("{math}`x^2`, {abbr}`LN (layer norm)`, H{sub}`2`O", "$x^2$, LN, H<sub>2</sub>O"),
        # mathematics
        ("$$\na\n$$ (eq-walk)", "$$\na \\tag{1}\n$$"),
        ("$$a$$ (eq-walk)", "$$a \\tag{1}$$"),
        ("$$b$$", "$$b$$"),
        ("```{math}\n:label: eq-sum\nc\n```", "$$\nc \\tag{2}\n$$"),
        ("```{math}\nc\n```", "$$\nc\n$$"),
        ("$f[x](y)$ and $a$ cost \\$5", "$f[x](y)$ and $a$ cost \\$5"),
        # code is left alone
        ("`` {term}`x` `` and `{eq}`", "`` {term}`x` `` and `{eq}`"),
        ("```python\nx = 1  # {term}`x`\n(label)=\n```", "```python\nx = 1  # {term}`x`\n(label)=\n```"),
        ("```{code-block} python\nx\n```", "```python\nx\n```"),
        # targets, comments, links
        ("(symbols)=\n## Symbols", "## Symbols"),
        ("% a remark\ntext", "text"),
        ("[a paper](https://example.org/a_(b))", "[a paper](https://example.org/a_(b))"),
        ("see [the page](../book/conventions.md#symbols)", "see the page"),
        ("see [](../book/conventions.md)", "see *Conventions*"),
        ("see [](../book/conventions.md#symbols) and [](#symbols)", "see *Symbols* and *Symbols*"),
        ("see [the {term}`walk`](02_next.ipynb)", "see the walk"),
        # tables
        ("| a | {term}`b` |\n| --- | --- |\n| {eq}`eq-walk` | $x$ |", "| a | b |\n| --- | --- |\n| (1) | $x$ |"),
        # boxes
        (":::{note}\nA {term}`word`.\n\nMore.\n:::", "> **Note**\n>\n> A word.\n>\n> More."),
        ("```{tip}\nShort.\n```", "> **Tip**\n>\n> Short."),
        (":::{seealso} Here.\n:::", "> **See also**\n>\n> Here."),
        (":::{admonition} The `eps` trap\n:class: warning\nBody\n:::", "> **The `eps` trap**\n>\n> Body"),
        (
            ":::{admonition} More\n:class: tip dropdown\nBody\n:::",
            "<details>\n<summary>More</summary>\n\nBody\n\n</details>",
        ),
        (
            ":::{dropdown} Why `N` *is* so\n:open:\n```python\nx\n```\n:::",
            "<details open>\n<summary>Why <code>N</code> <em>is</em> so</summary>\n\n```python\nx\n```\n\n</details>",
        ),
        (
            "::::{note}\n:::{dropdown} In\nBody\n:::\n::::",
            "> **Note**\n>\n> <details>\n> <summary>In</summary>\n>\n> Body\n>\n> </details>",
        ),
        ("1. item\n\n   :::{note}\n   Body\n   :::\n\n2. next", "1. item\n\n   > **Note**\n   >\n   > Body\n\n2. next"),
        (":::{note}\n| a | {eq}`eq-sum` |\n:::", "> **Note**\n>\n> | a | (2) |"),
    ],
)
def test_conversion(plain, myst, markdown):
    assert plain(myst) == markdown


@pytest.mark.parametrize(
    ("myst", "problem"),
    [
        ("{download}`x`", r"unknown role \{download}"),
        ("{cite:year}`xiong2020`", r"unknown role \{cite:year}"),
        ("```{tab-set}\n```", r"unknown directive \{tab-set}"),
        ("{eq}`eq-lost`", "unknown equation 'eq-lost'"),
        ("{cite:p}`nobody1999`", "'nobody1999' is not in the bibliography"),
        ("{ref}`lost`", "unknown page or label 'lost'"),
        ("[](../book/lost.md)", "unknown page or label 'book/lost'"),
        ("![alt](../book/picture.png)", "cannot carry the picture"),
        ("a footnote[^1]", "not converted .*footnote"),
        ("[words]{.important}", "not converted .*attributes"),
        ("the {{ version }}", "not converted .*substitution"),
        ("word\n: its definition", "not converted .*definition list"),
        (":::{note}\nno end", "no end of the block"),
        (":::\nno name\n:::", "without a directive"),
        ("```{note}\n---\nclass: tip\n---\nBody\n```", "not between --- lines"),
    ],
)
def test_refuses(plain, myst, problem):
    with pytest.raises(ValueError, match=problem):
        plain(myst)


def test_plain_markdown_is_unchanged(plain):
    text = (
        "# Title\n\n* a **bold** word, `code`, <https://example.org>\n\n> quoted\n\n| a | b |\n| - | - |\n| 1 | 2 |\n"
    )
    assert plain(text) == text


def test_entry_without_address():
    assert Entry("Kolmogorov", "1933", "").textual() == "Kolmogorov (1933)"
