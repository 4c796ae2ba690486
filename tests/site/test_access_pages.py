"""What the build mends on pages for those who do not look at them."""

from course import access


def test_mending_twice_changes_nothing():
    page = """<div class="sidebar-primary-item"> <a class="navbar-brand logo">B</a></div>
        <a href="x">Drills <i>a</i></a><details><summary><span class="toctree-toggle"></span></summary></details>
        <div style="overflow-x:auto" tabindex="0"><table><tr><th class="head"><p></p></th><th class="head">b</th></tr>"""
    once = access.mended(page)
    assert access.mended(once) == once
    assert 'aria-label="Pages below “Drills a”"' in once and '<td></td><th scope="col" class="head">' in once


def test_a_formula_is_named_by_its_symbols():
    assert access.spoken(r"B \cdot T") == "B ⋅ T"
    assert access.spoken(r"\frac{\sigma}{\sqrt{2L}}") == "frac σ√2L"
