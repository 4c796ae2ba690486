"""What is dropped from the theme's files is unused, and nothing else is dropped."""

import re

from course.offline import _plain_tokens, _slim_code, _slim_icons, _slim_style
from pages import NOTEBOOKS, parsed


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


def test_tokens_without_a_look_of_their_own_lose_their_element():
    style = "".join(
        f'html[data-theme="{theme}"] .highlight {{ background: #fff; color: {color} }}\n'
        f'html[data-theme="{theme}"] .highlight .n {{ color: {color} }} /* Name */\n'
        f'html[data-theme="{theme}"] .highlight .k {{ color: #123456 }}\n'
        f'html[data-theme="{theme}"] .highlight .p {{ color: #080808 }}\n'
        f'html[data-theme="{theme}"] .highlight .g {{ color: {color}; font-style: italic }}\n'
        for theme, color in (("light", "#080808"), ("dark", "#f8f8f2"))
    )
    assert _plain_tokens(style) == {"n"}
    code = '<pre><span></span><span class="k">def</span> <span class="n">f</span><span class="p">(</span></pre>'
    other = '<p><span class="n">not code</span></p>'
    expected = '<pre><span></span><span class="k">def</span> f<span class="p">(</span></pre>'
    assert _slim_code(code + other, {"n"}) == expected + other
    assert _slim_code(code, set()) == code


def test_only_the_search_page_loads_the_index(html):
    pages = [path for path in html.rglob("*.html") if "_static" not in path.parts]
    loading = [p.name for p in pages if any("searchindex" in s.get("src", "") for s in parsed(p).select("script"))]
    assert loading == ["search.html"] and len(pages) > 50
    assert all("search_as_you_type = false" in p.read_text(encoding="utf-8") for p in pages if p.name != "index.html")


def test_the_code_of_a_page_is_slim(html):
    code = [str(block) for name in NOTEBOOKS for block in parsed(html / f"{name}.html").select("div.highlight pre")]
    assert len(code) > 50 and any('class="k"' in block for block in code)
    assert not [block for block in code if '<span class="n">' in block or '<span class="p">' in block]


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
