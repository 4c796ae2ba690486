"""A sound book builds; each planted fault fails the build with a message that names it."""

from types import SimpleNamespace

import pytest
from course import buttons
from small_book import build, claim_output, make_book
from sphinx.errors import ExtensionError


def test_a_sound_book_builds(tmp_path):
    text = "A formula $x_1$, a claim {claim}`first`, another {claim}`second`.\n\n$$ x = y \\\\ y = z $$ (eq-a)\n\nSee {eq}`eq-a`."
    make_book(tmp_path, text, [claim_output("first")])
    code, said = build(tmp_path)
    assert code == 0, said
    intro = (tmp_path / "_build" / "html" / "book" / "intro.html").read_text(encoding="utf-8")
    assert 'href="../notebooks/01_small.html#claim-first"' in intro
    assert '<abbr class="claim-id" title="not yet checked">second</abbr>' in intro
    assert intro.count('class="katex"') == 2 and "katex.min.css" in intro


def test_faults_in_pages_fail_the_build(tmp_path):
    text = r"Bad $\frac{1}$, bad $\nosuchcommand$, {claim}`nobody`."
    make_book(tmp_path, text, [claim_output(n) for n in ("first", "first", "stranger")])
    code, said = build(tmp_path)
    assert code != 0
    assert "intro.md:3: WARNING: formula: KaTeX parse error" in said
    assert r"Undefined control sequence: \nosuchcommand" in said
    assert "WARNING: claim 'nobody' is not in book/claims.yml" in said
    assert "WARNING: claim 'stranger' is not in book/claims.yml" in said
    assert "WARNING: claim 'first' is already settled" in said


def test_a_failing_copy_fails_the_build(tmp_path):
    make_book(tmp_path, copies="def write_copies(root, out):\n    raise ValueError('too large')\n")
    code, said = build(tmp_path)
    assert code != 0 and "too large" in said


def test_a_missing_copy_is_an_error(tmp_path):
    make_book(tmp_path, copies="def write_copies(root, out):\n    return []\n")
    page = "notebooks/01_small"
    env = SimpleNamespace(found_docs={page}, doc2path=lambda name: f"{name}.ipynb")
    app = SimpleNamespace(srcdir=tmp_path, outdir=tmp_path, env=env, builder=SimpleNamespace(format="html"))
    with pytest.raises(ExtensionError, match="no standalone copy was made of .*01_small.ipynb"):
        buttons._write_copies(app, None)
