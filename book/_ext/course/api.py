"""The package's reference: the directives ``{api}``, a list of modules, and ``{api-module}``, the page of one.

`book/api.md` names the modules in groups, ``Title: normlab.functional``. Before a build a page is written for each into
`book/api/`, which git ignores, and put into the table of contents in that order.

Every public function and class of a module becomes an entry with its signature and docstring. The
sources are parsed by ``ast`` and the docstrings by Sphinx's own napoleon, so the book needs no torch,
and a reference that leads nowhere fails the strict build like any other.
"""

import ast
import re
from pathlib import Path
from typing import NamedTuple

from docutils import nodes
from docutils.parsers.rst import Parser
from docutils.utils import new_document
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode
from sphinx_external_toc.api import Document, FileItem

from . import depends

INDENT = "   "
INDEX = "book/api"


class Page(NamedTuple):
    """The page of a module."""

    title: str
    module: str

    @property
    def name(self) -> str:
        """The module within the package."""
        return self.module.removeprefix("normlab.")

    @property
    def docname(self) -> str:
        return f"{INDEX}/{self.name}"


def pages(root: Path) -> list[Page]:
    """The modules that the reference describes, in order; none in a book without it."""
    index = root / f"{INDEX}.md"
    text = index.read_text(encoding="utf-8") if index.exists() else ""
    lists = re.findall(r"^```\{api\}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [_page(line) for found in lists for line in found.splitlines()]


def _page(line: str) -> Page:
    title, _, module = line.rpartition(": ")
    return Page(title, module)


def _signature(function: ast.FunctionDef, method: bool) -> str:
    """Names and defaults; what a parameter may be stands in the docstring."""
    arguments = ast.parse(ast.unparse(function)).body[0].args
    for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]:
        if argument is not None:
            argument.annotation = None
    if method and arguments.args and arguments.args[0].arg in ("self", "cls"):
        arguments.args.pop(0)
    return f"({ast.unparse(arguments)})"


def _public(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_") and ast.get_docstring(node)


def _members(node: ast.ClassDef) -> list[str]:
    """The values of an enum."""
    return [
        f"{target.id} = {ast.unparse(item.value)}"
        for item in node.body
        if isinstance(item, ast.Assign)
        for target in item.targets
        if isinstance(target, ast.Name) and target.id.isupper() and isinstance(item.value, ast.Constant)
    ]


def _entry(node: ast.FunctionDef | ast.ClassDef, depth: int = 0) -> list[str]:
    """One function or class with its documented methods, as reStructuredText."""
    pad = INDENT * depth
    if isinstance(node, ast.ClassDef):
        init = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
        head = f".. py:class:: {node.name}{_signature(init, True) if init else ''}"
    else:
        kind = "method" if depth else "function"
        head = f".. py:{kind}:: {node.name}{_signature(node, bool(depth))}"
    text = str(GoogleDocstring(ast.get_docstring(node), Config(napoleon_use_rtype=False, napoleon_use_param=False)))
    lines = [pad + head, "", *(f"{pad}{INDENT}{line}".rstrip() for line in text.splitlines()), ""]
    if isinstance(node, ast.ClassDef):
        lines += [f"{pad}{INDENT}| ``{member}``" for member in _members(node)] + [""]
        for child in node.body:
            if _public(child):
                lines += _entry(child, depth + 1)
    return lines


def _source(package: Path, name: str) -> Path:
    """The file of module ``normlab`` or ``normlab.x.y`` below the folder that holds the package."""
    base = package.joinpath(*name.split("."))
    return base.with_suffix(".py") if base.with_suffix(".py").exists() else base / "__init__.py"


def _exported(tree: ast.Module) -> set[str]:
    """The names in ``__all__``, if the module has one."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def _parsed(package: Path, module: str) -> ast.Module:
    return ast.parse(_source(package, module).read_text(encoding="utf-8"))


def _definition(package: Path, module: str, name: str) -> ast.AST | None:
    """Where a name that ``module`` has is defined and documented: there, or where it imports it from."""
    tree = _parsed(package, module)
    for node in tree.body:
        if _public(node) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("normlab."):
            if name in {alias.name for alias in node.names}:
                return _definition(package, node.module, name)
    return None


def _documented(package: Path, module: str) -> list[ast.AST]:
    """The module's own public definitions, then those of other modules that it exports."""
    tree = _parsed(package, module)
    own = [node for node in tree.body if _public(node)]
    foreign = sorted(_exported(tree) - {node.name for node in own})
    return own + [node for name in foreign if (node := _definition(package, module, name))]


class _Reference(SphinxDirective):
    """What both directives share."""

    def source(self, module: str) -> Path:
        """The file of a module, on which the page depends."""
        path = _source(Path(self.env.srcdir, "src"), module)
        if not path.exists():
            raise self.error(f"there is no module {module} below src")
        self.env.note_dependency(str(path))
        return path

    def parse(self, path: Path, text: str) -> list[nodes.Node]:
        """reStructuredText, as docstrings are written."""
        document = new_document(str(path), self.state.document.settings)
        document.reporter = self.state.document.reporter
        Parser().parse(text, document)
        return document.children


class Api(_Reference):
    """``{api}``: modules with links to their pages and the first sentence of their docstrings."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        found = nodes.bullet_list("", classes=["api-index"])
        for page in map(_page, self.content):
            path = self.source(page.module)
            doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            sentence = re.match(r".+?[.?](?=\s|$)", doc, re.DOTALL)
            if sentence is None:
                raise self.error(f"the docstring of {page.module} does not begin with a sentence")
            uri = self.env.app.builder.get_relative_uri(self.env.docname, page.docname)
            link = nodes.reference("", "", nodes.literal("", page.name), internal=True, refuri=uri)
            [text] = self.parse(path, sentence[0])
            text.insert(0, [nodes.Text(f"{page.title}: "), link, nodes.Text(". ")])
            found += nodes.list_item("", text)
        return [found]


class ApiModule(_Reference):
    """``{api-module} normlab.functional``: everything public in one module."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        (name,) = self.arguments
        path = self.source(name)
        package = Path(self.env.srcdir, "src")
        depends.uses(self.env, "files src/normlab/**/*.py")  # a name may come from another module
        entries = [f".. py:module:: {name}", ""]
        for node in _documented(package, name):
            entries += _entry(node)
        texts = ast.get_docstring(_parsed(package, name)) or "", "\n".join(entries)
        return [node for text in texts for node in self.parse(path, text)]


def _write_pages(app, config):
    """The sources of the modules' pages, as far as they are not there; those of modules that have gone go as well."""
    root = Path(app.srcdir)
    texts = {
        f"{page.name}.md": f"# {page.title}: `{page.name}`\n\n```{{api-module}} {page.module}\n```\n"
        for page in pages(root)
    }
    folder = root / INDEX
    for path in folder.glob("*.md"):
        if path.name not in texts:
            path.unlink()
    if texts:
        folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            depends.begin(app)  # else the book would be older than its sources


def _order_pages(app, config):
    """In the table of contents the pattern `book/api/*` is these pages, in the order of the index."""
    found, contents = pages(Path(app.srcdir)), config.external_site_map
    if found:
        [tree] = contents[INDEX].subtrees
        tree.items = [FileItem(page.docname) for page in found]
        for page in found:
            contents[page.docname] = Document(docname=page.docname)


def _by_last_name(app, env, node, contnode):
    """A docstring may name a function as its own module sees it: find the entry with that last name."""
    if node.get("refdomain") != "py":
        return None
    domain, last = env.get_domain("py"), node["reftarget"].split(".")[-1]
    wanted = domain.objtypes_for_role(node["reftype"]) or []
    found = [e for name, e in domain.objects.items() if name.split(".")[-1] == last and e.objtype in wanted]
    if not found:
        return None
    entry = found[0]  # a name that two modules export is one thing
    return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, contnode)


def setup(app):
    app.add_directive("api", Api)
    app.add_directive("api-module", ApiModule)
    app.connect("config-inited", _write_pages, priority=501)  # after the start of the build, before others read
    app.connect("config-inited", _order_pages, priority=910)  # after the table of contents was read, at 900
    app.connect("missing-reference", _by_last_name)
