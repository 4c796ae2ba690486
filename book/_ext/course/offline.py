"""Pages that are light, and silent without a network.

The theme ships every icon of Font Awesome (1.5 MB of script, 0.4 MB of style and fonts) and source
maps; the pages use about twenty icons. What is unused is dropped from the built site.
"""

import re
import shutil
from pathlib import Path

# Over file:// a page may not fetch the others, so search shows titles only, and no error.
SEARCH_FROM_DISK = """
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
"""


def _quiet_search(app, pagename, templatename, context, doctree):
    if pagename == "search":
        app.add_js_file(None, body=SEARCH_FROM_DISK)


def _used_icons(site: Path) -> set[str]:
    """Names of the icons that occur in pages and in the theme's scripts."""
    files = [*site.rglob("*.html"), *(site / "_static").rglob("*.js")]
    text = "".join(p.read_text(encoding="utf-8") for p in files if p.name != "fontawesome.js")
    return set(re.findall(r"\bfa-([a-z][a-z0-9-]*)", text))


def _slim_script(script: str, used: set[str]) -> str:
    """fontawesome.js with only the used entries ``name:[width,height,[aliases],code,path]``."""
    entry = r'(?P<name>[a-z0-9]+|"[a-z0-9-]+"):\[\d+,\d+,\[(?P<aliases>[^\]]*)\],"[0-9a-f]+",(?:"[^"]*"|\[[^\]]*\])\],?'

    def keep(match: re.Match) -> str:
        names = set(re.findall(r"[a-z][a-z0-9-]*", f"{match['name']} {match['aliases']}"))
        return match[0] if names & used else ""

    return re.sub(entry, keep, script)


def _slim_style(style: str, used: set[str]) -> str:
    """The theme's style sheet without the rules that only give an unused icon's code point."""
    rule = r'((?:\.fa-[a-z0-9-]+:before,?)+)\{content:"[^"]*"\}'

    def keep(match: re.Match) -> str:
        return match[0] if used & set(re.findall(r"fa-([a-z0-9-]+)", match[1])) else ""

    return re.sub(rule, keep, style)


def _slim(app, exception):
    if exception is not None or app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    for path in static.rglob("*.map"):
        path.unlink()
    # course.css draws boxes without icons, so no page asks for the icon fonts.
    shutil.rmtree(static / "vendor" / "fontawesome", ignore_errors=True)
    used = _used_icons(Path(app.outdir))
    for name, shorten in {
        "scripts/fontawesome.js": _slim_script,
        "styles/pydata-sphinx-theme.css": _slim_style,
    }.items():
        path = static / name
        text = shorten(path.read_text(encoding="utf-8"), used)
        path.write_text(re.sub(r"\n?/[/*]# sourceMappingURL=\S+(?: \*/)?\s*$", "\n", text), encoding="utf-8")


def setup(app):
    app.connect("html-page-context", _quiet_search)
    app.connect("build-finished", _slim)
