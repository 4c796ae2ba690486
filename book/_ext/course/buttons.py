"""The links in a page's header: download, Colab, repository.

Download and Colab offer the *standalone copy* of a notebook, which carries the package sources
and runs anywhere; `tools/standalone.py` makes it when the build is done.
"""

from pathlib import Path, PurePosixPath

from sphinx.errors import ExtensionError

from . import depends, repository, tools

FOLDER = "standalone"
SOURCES = ("notebooks/**/*.ipynb", "book/**/*.md", "book/references.bib", "src/normlab/**/*.*", "tools/*.py")


def _header_links(app, pagename, templatename, context, doctree):
    """Give the template `course-header.html` the links of this page."""
    where: repository.Repository = app.config.course_repository
    context["course_repository"] = where.url
    if not _is_notebook(app, pagename):
        return
    name = PurePosixPath(pagename).name + ".ipynb"
    context["course_download"] = context["pathto"](f"{FOLDER}/{name}", 1)
    if where.colab:
        context["course_colab"] = f"{where.colab}/{name}"


def _is_notebook(app, pagename: str) -> bool:
    return pagename in app.env.found_docs and app.env.doc2path(pagename).endswith(".ipynb")


def _write_copies(app, exception):
    """Put the standalone copies next to the pages that link to them."""
    if exception is None and app.builder.format == "html":
        root, out = Path(app.srcdir), Path(app.outdir) / FOLDER
        out.mkdir(exist_ok=True)
        made_from = depends.digest_of_files(root, *SOURCES)
        made = {path.name for path in out.iterdir()}
        if not depends.unchanged(app, FOLDER, made_from):
            made = {path.name for path in tools.load(root, "standalone").write_copies(root, out)}
        for path in out.iterdir():
            if path.name not in made:
                path.unlink()
        wanted = {
            PurePosixPath(page).name + ".ipynb" for page in app.env.found_docs if _is_notebook(app, page)
        }
        if wanted - made:
            raise ExtensionError(f"no standalone copy was made of {sorted(wanted - made)}")
        depends.settle(app, FOLDER, made_from)


def _find_repository(app, config):
    config.course_repository = repository.find(Path(app.srcdir))


def setup(app):
    # A configuration value, so that pages are written anew when the answer changes.
    app.add_config_value("course_repository", None, "html")
    app.connect("config-inited", _find_repository)
    app.connect("html-page-context", _header_links)
    app.connect("build-finished", _write_copies)
