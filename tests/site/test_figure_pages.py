"""Figures on the pages: on a phone their panels stand under one another and their words are large enough; their ink reads
in both themes."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from bs4 import BeautifulSoup
from chromium import until
from pages import CHAPTERS, ROOT, notebook, one_of_a_kind, outputs

PHONE, DESKTOP = {"width": 375, "height": 800}, {"width": 1280, "height": 900}
LEAST = 9  # CSS pixels of the smallest word in a figure on a phone
DARK = re.search(
    r'data-theme="dark"\].*?--pst-color-background: (#\w{6})',
    (ROOT / "book" / "_static" / "course.css").read_text(encoding="utf-8"),
    re.DOTALL,
)[1]

# --- what the notebooks hold ----------------------------------------------------------------------


def drawings(name: str) -> list[str]:
    """The figures of a chapter as SVG, of a slider the first frame."""
    found = []
    for output in outputs(name):
        svg = "".join(output["data"].get("image/svg+xml", ""))
        if not svg:
            html = BeautifulSoup("".join(output["data"].get("text/html", "")), "html.parser")
            svg = "".join(unquote(image["src"].split(",", 1)[1]) for image in html.select(".normlab-slider img"))
        found += [svg.replace("'", '"')] if svg else []
    return found


def with_panels(name: str) -> int:
    """How many figures of a chapter its cells draw with more than one panel."""
    sources = ["".join(cell["source"]) for cell in notebook(name)["cells"] if cell["cell_type"] == "code"]
    return sum(len(re.findall(r"\bpanels=[2-9]", source)) for source in sources)


def letters(svg: str) -> list[float]:
    """Sizes of the words of a figure, in its units; raised and lowered ones have their own."""
    sizes = [float(size) for size in re.findall(r'<(?:svg|text) [^>]*font-size="([\d.]+)"', svg)]
    for scale, word in re.findall(r'<g [^>]*scale\(([\d.]+) -[\d.]+\)"[^>]*>(.*?)</g>', svg):
        inner = re.findall(r"<use [^>]*scale\(([\d.]+)\)", word)
        sizes.append(100 * float(scale) * min(map(float, [*inner, 1])))
    return sizes


def inks(svg: str) -> set[tuple[str, float]]:
    """Colors of lines, areas and words with their opacity."""
    found = set()
    for style in re.findall(r'<(?:path|g|use)\b[^>]* style="([^"]*)"', svg):
        rules = dict(re.split(r": ?", rule.strip(), maxsplit=1) for rule in style.split(";") if rule.strip())
        for part in ("fill", "stroke"):
            opacity = float(rules.get("opacity", 1)) * float(rules.get(f"{part}-opacity", 1))
            if rules.get(part, "none") != "none":
                found.add((rules[part], opacity))
    without = [word for word in re.findall(r"<g ([^>]*scale\([\d.]+ -[^>]*)>", svg) if "fill:" not in word]
    return found | ({("#000000", 1.0)} if without else set())


def lightness(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((lightness(one) + 0.05, lightness(other) + 0.05))
    return high / low


def mixed(color: str, opacity: float, ground: str) -> str:
    pairs = [(int(color[i : i + 2], 16), int(ground[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(opacity * over + (1 - opacity) * under):02x}" for over, under in pairs)


# Black or white stands only on an area of one of the colors: failed runs, a sum on the stream.
ON_AN_AREA = {"notebooks/05_placement": "#000000", "notebooks/09_census": "#ffffff"}


@pytest.mark.parametrize("name", CHAPTERS)
def test_ink_reads_in_both_themes(name):
    """Pale areas and single runs stand behind what is meant, and are left out; dots that show through each other are not."""
    found = {ink for svg in drawings(name) for ink in inks(svg)}
    colors = {color for color, opacity in found if opacity == 1}
    known = colors - {ON_AN_AREA.get(name)}
    assert len(known) >= 2
    veiled = [(mixed(*ink, ground), ground) for ink in found if 0.6 <= ink[1] < 1 for ground in ("#ffffff", DARK)]
    assert all(contrast(*pair) >= 3 for pair in veiled)
    assert [color for color in known if min(contrast(color, "#ffffff"), contrast(color, DARK)) < 4.3] == []
    assert all(contrast(color, area) >= 4.3 for color in colors - known for area in known)


def test_ink_that_does_not_read_is_found():
    svg = '<g style="fill: #797979" transform="scale(0.12 -0.12)"><use/></g><path d="" style="stroke: #d9822b; opacity: 0.5"/>'
    assert inks(svg) == {("#797979", 1.0), ("#d9822b", 0.5)}
    assert inks('<g transform="translate(1 2) scale(0.12 -0.12)"> <use/></g>') == {("#000000", 1.0)}
    assert contrast("#797979", "#ffffff") == pytest.approx(4.35, abs=0.01) and contrast("#d9822b", "#ffffff") < 3
    assert mixed("#000000", 0.75, "#ffffff") == "#404040"


def test_sizes_of_letters_are_read():
    word = '<g style="" transform="translate(1 2) scale(0.12 -0.12)"><use/><use x="1" transform="translate(0 3) scale(0.7)"/></g>'
    assert letters(word) == [pytest.approx(8.4)] and letters('<text x="1" font-size="12">') == [12]


# --- what a reader sees ---------------------------------------------------------------------------

IMAGES = """() => [...document.querySelectorAll("article .cell_output img")].map(image =>
    [image.currentSrc, image.clientWidth])"""
# Words of drawings that stand in the page itself.
WORDS = """() => [...document.querySelectorAll("article svg text")].map(word =>
    parseFloat(getComputedStyle(word).fontSize) * word.getScreenCTM().a)"""


def svg_at(address: str) -> str:
    if address.startswith("data:"):
        return unquote(address.split(",", 1)[1]).replace("'", '"')
    return Path(unquote(address.removeprefix("file://"))).read_text(encoding="utf-8")


def shown(browser, html, name: str, size: dict) -> tuple[list[tuple[str, float]], list[float]]:
    """The figures of a page as SVG, with the pixels that a unit has; the sizes of words in drawings of the page itself."""
    page = browser.new_page(viewport=size)
    page.goto((html / f"{name}.html").as_uri(), wait_until="load")
    page.evaluate("document.querySelectorAll('article details').forEach(box => box.open = true)")
    images, words = page.evaluate(IMAGES), page.evaluate(WORDS)
    page.close()
    found = []
    for address, width in images:
        svg = svg_at(address)
        found.append((svg, width / float(re.search(r'viewBox="\S+ \S+ (\S+)', svg)[1])))
    return found, words


@pytest.mark.parametrize("name", one_of_a_kind(CHAPTERS))
def test_on_a_phone_panels_are_stacked_and_words_are_legible(browser, html, name):
    figures, words = shown(browser, html, name, PHONE)
    assert len(figures) == len(drawings(name))
    sizes = [(round(unit * min(letters(svg)), 1), svg[:90]) for svg, unit in figures]
    print(name, sorted(size for size, _ in sizes), f"{min(words):.1f}" if words else "")
    assert [entry for entry in sizes if entry[0] < LEAST] == [] and all(size >= LEAST for size in words)
    stacks = [rows for svg, _ in figures if (rows := re.findall(r'<svg x="\d+" y="(\d+)"', svg))]
    assert len(stacks) == with_panels(name)
    assert all(len(set(rows)) > 1 for rows in stacks)


@pytest.mark.parametrize("name", CHAPTERS)
def test_captions_count_panels(name):
    """On a phone none is left or right of another."""
    texts = ["".join(cell["source"]) for cell in notebook(name)["cells"] if cell["cell_type"] == "markdown"]
    assert re.findall(r"\b(?:Left|Right)[:,].*", "\n".join(texts)) == []


def test_where_there_is_room_panels_stand_side_by_side(browser, html):
    figures, _ = shown(browser, html, CHAPTERS[1], DESKTOP)
    assert with_panels(CHAPTERS[1]) >= 2 and len(figures) == len(drawings(CHAPTERS[1]))
    assert not any("<svg x=" in svg for svg, _ in figures)


def test_the_package_page_has_legible_words(browser, html):
    _, words = shown(browser, html, "book/package", PHONE)
    assert len(words) > 10 and min(words) >= LEAST


def test_a_slider_stays_stacked_and_follows_the_window(browser, html):
    page = browser.new_page(viewport=PHONE)
    page.goto((html / f"{CHAPTERS[1]}.html").as_uri(), wait_until="load")
    image, slider = page.locator(".normlab-slider img"), page.locator(".normlab-slider input")
    before = svg_at(image.get_attribute("src"))
    slider.focus()
    page.keyboard.press("ArrowRight")
    after = svg_at(image.get_attribute("src"))
    assert before != after and "<svg x=" in before and "<svg x=" in after
    page.set_viewport_size(DESKTOP)
    until(page, "!document.querySelector('.normlab-slider img').src.includes(encodeURIComponent('<svg x='))")
    page.close()


def test_the_slider_of_a_figure_taller_than_a_phone_stays_in_view(browser, html):
    page = browser.new_page(viewport={"width": 375, "height": 667})
    page.goto((html / "notebooks/05_placement.html").as_uri(), wait_until="load")
    image, slider = page.locator(".normlab-slider img"), page.locator(".normlab-slider input")
    assert image.bounding_box()["height"] > 667
    for top in (80, 400):  # of the figure, in the window
        page.evaluate("by => scrollBy({ top: by, behavior: 'instant' })", image.bounding_box()["y"] - top)
        box = slider.bounding_box()
        assert 0 < box["y"] and box["y"] + box["height"] <= 667
        slider.click(position={"x": box["width"] - 3, "y": box["height"] / 2})
    assert slider.input_value() == slider.get_attribute("max")
    page.close()


# The opaque and half-opaque points of a drawing in the columns at which it is cut.
INK_AT_CUTS = """async ([svg, cuts]) => {
    const image = new Image();
    image.src = "data:image/svg+xml," + encodeURIComponent(svg);
    await image.decode();
    const canvas = document.createElement("canvas"), pen = canvas.getContext("2d");
    [canvas.width, canvas.height] = [461, image.naturalHeight * 461 / image.naturalWidth];
    pen.drawImage(image, 0, 0, canvas.width, canvas.height);
    return cuts.map(x => pen.getImageData(x, 0, 1, canvas.height).data.filter((part, i) => i % 4 === 3 && part > 0).length);
}"""


def test_no_cut_goes_through_ink(browser):
    page = browser.new_page()
    cut = 0
    for name in CHAPTERS:
        for output in outputs(name):
            views = output["metadata"].get("normlab", {}).get("panels", [])
            cuts = [int(view.split(",")[-1].split()[0]) for view in views[1:]]
            if cuts:
                svg = "".join(output["data"]["image/svg+xml"])
                assert page.evaluate(INK_AT_CUTS, [svg, cuts]) == [0] * len(cuts), (name, views)
                cut += 1
    page.close()
    assert cut > 15
