"""Pages that work without site data: a script ahead of all others, `storage.js`."""

from pathlib import Path

SCRIPT = Path(__file__).with_name("storage.js").read_text(encoding="utf-8")


def _add_script(app, pagename, templatename, context, doctree):
    """Into the page itself: a file would come too late for the theme's first lines, or hold them up."""
    context["metatags"] = f"{context.get('metatags', '')}\n    <script data-cfasync=\"false\">\n{SCRIPT}    </script>\n"


def setup(app):
    app.connect("html-page-context", _add_script)
