"""Old addresses keep working: a fragment that has moved to another page leads there.

A server never sees the part of an address behind #, so a script on the old page looks it up. Sections and claims that
stand on a page of ``TO`` under their old name are found by themselves; ``RENAMED`` holds the others.
"""

import json
from pathlib import Path

from docutils import nodes

from . import api

TO = {
    "notebooks/04_rmsnorm": ["notebooks/10_cost"],
    "notebooks/05_placement": ["notebooks/07_why_post_ln_is_hard", "notebooks/08_roads_after", "notebooks/09_census"],
    "notebooks/08_roads_after": ["notebooks/09_census"],
}
RENAMED = {  # page: {old fragment: (page, fragment)}
    "notebooks/04_rmsnorm": {"to-64-faster": ("notebooks/10_cost", "to-64-taken-apart")},
    "notebooks/05_placement": {
        "why-is-post-ln-hard": ("notebooks/07_why_post_ln_is_hard", "the-case-one-setting-two-placements"),
        "what-the-map-says-about-pre-ln-and-ways-out-for-post-ln": ("notebooks/05_placement", "ways-out-for-post-ln"),
        "exercise-3-which-half-must-shrink": ("notebooks/07_why_post_ln_is_hard", "exercise-2-which-half-must-shrink"),
        "qk-norm-a-bound-that-no-weight-can-break": (
            "notebooks/08_roads_after",
            "qk-norm-a-bound-that-no-matrix-can-break",
        ),
        "exercise-4-a-bound-of-your-choice": ("notebooks/08_roads_after", "exercise-2-a-bound-of-your-choice"),
    }
}

SCRIPT = """<script id="moved" type="application/json">%s</script>
<script>
(() => {
  const moved = JSON.parse(document.getElementById("moved").textContent);
  const follow = () => {
    const place = moved[decodeURIComponent(location.hash.slice(1))];
    if (place) location.replace(place);
  };
  addEventListener("hashchange", follow);
  follow();
})();
</script>
"""


def _anchors(app, page: str) -> set[str]:
    return {name for node in app.env.get_doctree(page).findall(nodes.Element) for name in node.get("ids", ())}


def moved(app, page: str) -> dict[str, tuple[str, str]]:
    """For each fragment that left ``page``: the page and the fragment where it stands now."""
    here = _anchors(app, page)
    found = {name: (there, name) for there in reversed(_places(app, page)) for name in _anchors(app, there)}
    return {old: new for old, new in {**found, **RENAMED.get(page, {})}.items() if old not in here}


def _places(app, page: str) -> list[str]:
    """The pages on which to look for what left ``page``: the reference was one page, and is one for each module."""
    return [found.docname for found in api.pages(Path(app.srcdir))] if page == api.INDEX else TO.get(page, [])


def _lead_on(app, pagename, templatename, context, doctree):
    places = _places(app, pagename)
    if not places or not set(places) <= app.env.found_docs:
        return
    uri = app.builder.get_relative_uri
    places = {old: f"{uri(pagename, page)}#{new}" for old, (page, new) in sorted(moved(app, pagename).items())}
    context["body"] += SCRIPT % json.dumps(places, ensure_ascii=True).replace("</", "<\\/")


def _write_again(app, env):
    """The old page, if one was read on which its fragments may stand."""
    return [page for page, places in TO.items() if page in env.found_docs and app.course_read.intersection(places)]


def _keep_read(app, env, docnames):
    app.course_read = set(docnames)


def setup(app):
    app.connect("env-before-read-docs", _keep_read)
    app.connect("env-get-updated", _write_again)
    app.connect("html-page-context", _lead_on)
