"""A content security policy in every page: it runs the book's own scripts and no other, and loads nothing from elsewhere.

Inline scripts are named by their hashes, which are known when a page is complete. A policy in the page works from disk
as well, where no server could send it. Formulas and figures carry inline styles, small pictures are ``data:``.
"""

import base64
import hashlib
import re
from pathlib import Path

SCRIPT = re.compile(r"<script\b(?P<attributes>[^>]*)>(?P<text>.*?)</script>", re.DOTALL)
OLD = re.compile(r'<meta http-equiv="Content-Security-Policy" content="[^"]*">\n?')
FIRST = re.compile(r"<head>\s*<meta charset=[^>]*>\s*")  # whatever stands before a policy is not held to it


def runs(attributes: str) -> bool:
    """Whether a browser takes the text of a script element with these attributes for a program."""
    kind = re.search(r'\btype="([^"]*)"', attributes)
    return "src=" not in attributes and (kind is None or kind[1] in ("text/javascript", "module"))


def hashes(page: str) -> list[str]:
    """The inline scripts of a page as the policy names them."""
    texts = {match["text"] for match in SCRIPT.finditer(page) if runs(match["attributes"])}
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return sorted(f"'sha256-{digest}'" for digest in digests)


def policy(page: str) -> str:
    """The policy of one page."""
    rules = {
        "default-src": ["'self'"],
        "script-src": ["'self'", *hashes(page)],
        "style-src": ["'self'", "'unsafe-inline'"],
        "img-src": ["'self'", "data:"],
        "font-src": ["'self'", "data:"],
        "object-src": ["'none'"],
        "base-uri": ["'none'"],
        "form-action": ["'self'"],
    }
    return "; ".join(f"{name} {' '.join(sources)}" for name, sources in rules.items())


def secured(page: str) -> str:
    """A page with its policy as the first thing after the character set. Raises ValueError if it has no such place."""
    page = OLD.sub("", page)
    found = FIRST.search(page)
    if found is None:
        raise ValueError("the page does not begin with <head> and a character set")
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy(page)}">\n'
    return page[: found.end()] + meta + page[found.end() :]


def _secure(app, exception):
    if exception is not None or app.builder.format != "html":
        return
    site = Path(app.outdir)
    for path in site.rglob("*.html"):
        if "_static" not in path.relative_to(site).parts:  # the theme's templates
            page = path.read_text(encoding="utf-8")
            if (safe := secured(page)) != page:
                path.write_text(safe, encoding="utf-8")


def setup(app):
    app.connect("build-finished", _secure, priority=950)  # after all that changes pages
