"""What is dropped from the theme's files is unused, and nothing else is dropped."""

import re

from course.offline import _slim_icons, _slim_style
from pages import parsed


def test_style_rules_that_can_match_are_kept():
    style = (
        '.used{a:b}.unused{c:d}.used .unused{e:f}.unused,.used{g:h}p:not(.unused){i:j}'
        ".bs-tooltip-auto{k:l}@media print{.unused{m:n}}@media (x){.used{o:p}.unused{q:r}}"
        "@font-face{s:t}@keyframes turn{from{u:v}to{w:x}}/*! note */.unused:hover{y:z}"
    )
    assert _slim_style(style, {"used"}) == (
        ".used{a:b}.unused,.used{g:h}p:not(.unused){i:j}.bs-tooltip-auto{k:l}@media (x){.used{o:p}}"
        "@font-face{s:t}@keyframes turn{from{u:v}to{w:x}}/*! note */"
    )


def test_icons_are_kept_by_name_or_alias():
    script = 'var a={bars:[448,512,["navicon"],"f0c9","M0"],"far-away":[1,2,[],"e1",["M1","M2"]],x:[3,4,[128,"y"],"e2","M3"]};'
    assert _slim_icons(script, {"fa-navicon", "fa-x"}) == (
        'var a={bars:[448,512,["navicon"],"f0c9","M0"],x:[3,4,[128,"y"],"e2","M3"]};'
    )


def test_every_icon_on_a_page_is_in_the_slim_script(html):
    script = (html / "_static" / "scripts" / "fontawesome.js").read_text(encoding="utf-8")
    assert len(script) < 150_000
    known = set(re.findall(r'[{,]"?([a-z][a-z0-9-]*)"?:\[\d+,\d+,\[', script))
    for page in html.rglob("*.html"):
        if "_static" in page.parts:
            continue
        for icon in parsed(page).select("i[class*='fa-'], span[class*='fa-']"):
            names = {name[3:] for name in icon["class"] if name.startswith("fa-")}
            assert names & known, f"{page.name}: {icon}"
