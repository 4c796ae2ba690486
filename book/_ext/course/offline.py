"""Pages that are light, and silent without a network.

The theme ships every icon of Font Awesome (1.5 MB of script, 0.4 MB of fonts), the style of every
component of Bootstrap, and source maps; our pages use a few. It loads the search index (0.4 MB) on every page for
results while one types, which `_config.yml` leaves off. What no page uses is dropped from the
built site: if the form of those files changes, nothing matches and they stay whole.
"""

import re
import shutil
from pathlib import Path

ICONS = "fontawesome.js"
# Over file:// a page may not fetch the others, so search shows titles only, and no error.
SEARCH_FROM_DISK = """
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
"""


def _quiet_search(app, pagename, templatename, context, doctree):
    if pagename == "search":
        app.add_js_file(None, body=SEARCH_FROM_DISK)


def _names(site: Path) -> set[str]:
    """All words that may be a class name: in the pages' class attributes, anywhere in the scripts but the icons'."""
    names = set()
    for path in site.rglob("*.html"):
        for value in re.findall(r'class="([^"]*)"', path.read_text(encoding="utf-8")):
            names.update(value.split())
    for path in (site / "_static").rglob("*.js"):
        if path.name != ICONS:
            names.update(_words(path))
    return names


def _words(script: Path) -> list[str]:
    return re.findall(r"[A-Za-z_][\w-]*", script.read_text(encoding="utf-8"))


def _slim_icons(script: str, names: set[str]) -> str:
    """fontawesome.js with only the used entries ``name:[width,height,[aliases],code,path]``."""
    entry = (
        r'(?P<name>[a-z0-9]+|"[a-z0-9-]+"):'
        r'\[\d+,\d+,\[(?P<aliases>[^\]]*)\],"[0-9a-f]+",(?:"[^"]*"|\[[^\]]*\])\],?'
    )

    def keep(match: re.Match) -> str:
        icons = re.findall(r"[a-z][a-z0-9-]*", f"{match['name']} {match['aliases']}")
        return match[0] if names.intersection(f"fa-{icon}" for icon in icons) else ""

    return re.sub(entry, keep, script)


def _slim_style(style: str, names: set[str]) -> str:
    """A style sheet without the rules that can match nothing: each selector needs an unknown class."""
    built_by_scripts = ("bs-tooltip",)  # "bs-" + component name: not a word of the script

    def possible(selector: str) -> bool:
        needed = re.findall(r"\.(-?[A-Za-z_][\w-]*)", re.sub(r":not\([^)]*\)", "", selector))
        return all(name in names or name.startswith(built_by_scripts) for name in needed)

    def keep(match: re.Match) -> str:
        selectors = re.sub(r"/\*.*?\*/", "", match[1], flags=re.DOTALL)
        if any(map(possible, selectors.split(","))):
            return match[0]
        return "".join(re.findall(r"/\*!.*?\*/", match[1], flags=re.DOTALL))  # licenses stay

    style = re.sub(r"([^{}]+)\{[^{}]*\}", keep, style)
    return re.sub(r"@(?:media|supports)[^{}]*\{\s*\}", "", style)


def _plain_tokens(style: str) -> set[str]:
    """The classes of highlighted code that look like code without a class, in every theme: names, punctuation, blanks."""
    rules = re.findall(r'(html\[[^\]]*\]) \.highlight(?: \.(\w+))? \{([^}]*)\}', style)
    default = {theme: re.search(r"color: (#\w+)$", body.strip())[1] for theme, name, body in rules if not name}
    looks: dict[str, set[bool]] = {}
    for theme, name, body in rules:
        if name:
            looks.setdefault(name, set()).add(body.strip() == f"color: {default[theme]}")
    return {name for name, plain in looks.items() if plain == {True}}


def _slim_code(page: str, plain: set[str]) -> str:
    """A page whose highlighted code has no element around a token that looks like any other text."""
    token = re.compile(f'<span class="(?:{"|".join(sorted(plain))})">([^<]*)</span>')
    return re.sub(r"<pre>.*?</pre>", lambda code: token.sub(r"\1", code[0]) if plain else code[0], page, flags=re.DOTALL)


def _slim_head(page: str) -> str:
    """A page without the scripts that search while one types; the form leads to the search page, which has its own."""
    scripts = r'\s*<script src="[./]*(?:_static/searchtools\.js|_static/language_data\.js|searchindex\.js)"></script>'
    return re.sub(scripts, "", page)


def _rewrite(path: Path, shorten, names: set[str]) -> None:
    text = shorten(path.read_text(encoding="utf-8"), names)
    path.write_text(re.sub(r"/[/*]# sourceMappingURL=\S+?(?: ?\*/)?\s*$", "", text), encoding="utf-8")


def _slim(app, exception):
    if exception is not None or app.builder.format != "html":
        return
    site = Path(app.outdir)
    static = site / "_static"
    for path in static.rglob("*.map"):
        path.unlink()
    # course.css draws boxes without icons, so no page asks for the icon fonts.
    shutil.rmtree(static / "vendor" / "fontawesome", ignore_errors=True)
    plain = _plain_tokens((static / "pygments.css").read_text(encoding="utf-8"))
    for path in site.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        slim = _slim_code(page, plain)
        if path.name != "search.html":
            slim = _slim_head(slim)
        if slim != page:
            path.write_text(slim, encoding="utf-8")
    names, icons = _names(site), static / "scripts" / ICONS
    _rewrite(icons, _slim_icons, names)
    names.update(_words(icons))  # of what is left, so that a second time changes nothing
    for path in [*(static / "styles").glob("*.css"), *static.glob("sphinx-design*.css"), *static.glob("mystnb*.css")]:
        _rewrite(path, _slim_style, names)


def _forget_style(app):
    """myst-nb writes its style sheet last; an old one would give pages of a warm build another link to it."""
    for path in Path(app.outdir, "_static").glob("mystnb.*.css"):
        path.unlink()


def setup(app):
    app.connect("builder-inited", _forget_style)
    app.connect("html-page-context", _quiet_search)
    app.connect("build-finished", _slim, priority=900)  # after all others have written their files
