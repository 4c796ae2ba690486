"""Nothing stays in the built site that no page needs any more: pages of removed sources, pictures of former outputs."""

import re
from pathlib import Path

OWN = {"index", "search", "genindex", "py-modindex"}  # pages that no source has


def _sweep(app, exception):
    if exception is not None or app.builder.format != "html":
        return
    site, wanted = Path(app.outdir), app.env.found_docs | OWN | set(app.config.html_additional_pages)
    used = set()
    for path in [path for path in site.rglob("*.html") if path.relative_to(site).parts[0] != "_static"]:
        if path.relative_to(site).with_suffix("").as_posix() in wanted:
            used.update(re.findall(r'_images/([^"#?]+)', path.read_text(encoding="utf-8")))
        else:
            path.unlink()
    for picture in (site / "_images").glob("*"):
        if picture.name not in used:
            picture.unlink()


def setup(app):
    app.connect("build-finished", _sweep, priority=100)  # before the style sheets are cut down to what pages use
