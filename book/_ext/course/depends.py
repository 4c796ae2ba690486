"""What pages are made from beyond their own sources: a build reads anew what this changed, and nothing else.

A directive or role says what it used, ``uses(env, name)``: a piece of what the extension loaded and gave a name
(``provide``), or ``files PATTERN`` below the repository. The digest of each piece is kept with the page; where it
differs at the next build, the page is read again. What all pages share (titles, numbers, targets of links) is one more
digest: if it differs, all pages are written again.

A build that was stopped, failed or warned has left no mark that it finished, and the next one starts from nothing. Of
two builds at once the second waits for the first.
"""

import atexit
import errno
import hashlib
import json
import os
import shutil
import time
from contextlib import ExitStack
from pathlib import Path

from sphinx.util import logging

from . import tools

ENVIRONMENT = "environment.pickle"  # Sphinx's own
BUILDINFO = ".buildinfo"  # Sphinx's own, in the site; one that is cut off is a warning
FINISHED = "finished"  # beside it: as old as the start of the last build that went through
GENERATED = {"__pycache__", ".ipynb_checkpoints"}
PICTURES = "jupyter_execute"  # beside the site: of notebooks' outputs; myst-nb keeps what it finds there
PATIENCE = 1800  # seconds that a build waits for another one
SPACE = {"first": 60_000_000, "later": 5_000_000}  # bytes that a build needs on the disk, rather more
SECTIONS = ("titles", "toctree_includes", "toc_secnumbers", "toc_fignumbers")


def digest(value) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def digest_of_files(root: Path, *patterns: str) -> str:
    """Of the names and contents of all files below ``root`` that match one of the patterns."""
    found = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in root.glob(pattern) if path.is_file()}):
        if GENERATED.intersection(path.relative_to(root).parts):
            continue
        content = path.read_bytes()
        found.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    return found.hexdigest()


def provide(app, name: str, value) -> None:
    """Give a piece of what was loaded a name, under which pages may use it."""
    app.course_pieces[name] = digest(value)


def uses(env, *names: str) -> None:
    """Note that the page being read is made from these pieces."""
    used = env.course_uses.setdefault(env.docname, {})
    used.update({name: _now(env.app, name) for name in names})


def unchanged(app, name: str, value) -> bool:
    """Whether the value is that of the last build that called `settle` under this name."""
    note = _note(app, name)
    return note.is_file() and note.read_text() == digest(value)


def settle(app, name: str, value) -> None:
    """What is made from this value stands."""
    _note(app, name).write_text(digest(value))


def _note(app, name: str) -> Path:
    return Path(app.doctreedir, f"{name}.sha256")


def _now(app, name: str) -> str | None:
    kind, _, pattern = name.partition(" ")
    if kind == "files" and name not in app.course_pieces:
        app.course_pieces[name] = digest_of_files(Path(app.srcdir), pattern)
    return app.course_pieces.get(name)


def begin(app) -> None:
    """What is written from now on is newer than this build. Called again by who writes sources of it."""
    app.course_started = time.time()


# --- from build to build --------------------------------------------------------------------------


def _start(app, config):
    """Be alone, and forget a build that did not finish."""
    app.course_pieces = {}
    folder = Path(app.doctreedir)
    _be_alone(Path(app.srcdir), folder)
    begin(app)
    if not (folder / FINISHED).exists():
        folder.mkdir(parents=True, exist_ok=True)
        for path in (folder / ENVIRONMENT, *folder.glob("*.sha256"), Path(app.outdir) / BUILDINFO):
            path.unlink(missing_ok=True)
        shutil.rmtree(Path(app.outdir).parent / PICTURES, ignore_errors=True)
    (folder / FINISHED).unlink(missing_ok=True)


def _be_alone(root: Path, folder: Path) -> None:
    """Wait until no other process builds into ``folder``; this one does until it ends.

    Raises SystemExit: its sentence is then the last that a build says, without the traceback of other exceptions.
    """
    files, place, alone = tools.package(root, "files"), folder.parent / "book", ExitStack()
    try:
        files.check_writable(place, SPACE["later" if (folder / FINISHED).exists() else "first"])
        try:
            alone.enter_context(files.lock(place, patience=0))
        except files.NotWrittenError as problem:
            if problem.errno != errno.EAGAIN:
                raise
            logging.getLogger(__name__).info("Another build of this book is at work; this one waits until it has ended.")
            alone.enter_context(files.lock(place, PATIENCE))
    except files.NotWrittenError as problem:
        raise SystemExit(f"the book cannot be built: {problem}") from None
    atexit.register(alone.close)


def _finish(app, exception):
    if exception is None and not app._warncount:
        mark = Path(app.doctreedir, FINISHED)
        mark.touch()
        os.utime(mark, (app.course_started, app.course_started))


def _prepare(app):
    if not hasattr(app.env, "course_uses"):
        app.env.course_uses, app.env.course_shared = {}, ""


def _purge(app, env, docname):
    env.course_uses.pop(docname, None)


def _outdated(app, env, added, changed, removed):
    return [page for page, used in env.course_uses.items() if any(_now(app, name) != old for name, old in used.items())]


def _use_own_source(app, doctree):
    """Its date says when it was written, not whether it is another one: a file may come back from elsewhere."""
    uses(app.env, f"files {Path(app.env.doc2path(app.env.docname)).relative_to(app.srcdir).as_posix()}")


def _shared(env) -> str:
    """A digest of all that one page may show of others."""
    std, math, py = (env.get_domain(name) for name in ("std", "math", "py"))
    slugs = {
        page: {slug: entry[1:] for slug, entry in meta.get("myst_slugs", {}).items()}  # less the line
        for page, meta in env.metadata.items()
    }
    cited = [(c.citation_id, c.key, c.formatted_entry.label) for c in env.get_domain("cite").citations]
    return digest(
        [
            [repr(sorted(getattr(env, name).items(), key=str)) for name in SECTIONS],
            [repr(sorted(part.items(), key=str)) for part in (std.labels, std.anonlabels, std.objects, py.objects)],
            repr(sorted(math.equations.items())), slugs, cited,
        ]
    )  # fmt: skip


def _write_all(app, env):
    """All pages, if what they share changed."""
    before, env.course_shared = env.course_shared, _shared(env)
    return list(env.found_docs) if before != env.course_shared else []


def setup(app):
    app.connect("config-inited", _start)
    app.connect("builder-inited", _prepare, priority=100)
    app.connect("env-purge-doc", _purge)
    app.connect("env-get-outdated", _outdated)
    app.connect("doctree-read", _use_own_source)
    app.connect("env-get-updated", _write_all, priority=900)  # when sections and figures have their numbers
    app.connect("build-finished", _finish, priority=950)  # after all others
