"""The directive ``{api}``: reference pages of the package, read from its sources without importing it.

Every public function and class of a module becomes an entry with its signature and docstring. The
sources are parsed by ``ast`` and the docstrings by Sphinx's own napoleon, so the book needs no torch,
and a reference that leads nowhere fails the strict build like any other.
"""

import ast
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Parser
from docutils.utils import new_document
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

from . import depends

INDENT = "   "


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


class Api(SphinxDirective):
    """``{api} normlab.functional``: everything public in one module."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        (name,) = self.arguments
        package = Path(self.env.srcdir, "src")
        path = _source(package, name)
        if not path.exists():
            raise self.error(f"there is no module {name} below src")
        depends.uses(self.env, "files src/normlab/**/*.py")  # a name may come from another module
        entries = [f".. py:module:: {name}", ""]
        for node in _documented(package, name):
            entries += _entry(node)
        texts = ast.get_docstring(_parsed(package, name)) or "", "\n".join(entries)
        return [node for text in texts for node in self._parse(path, text)]

    def _parse(self, path: Path, text: str) -> list[nodes.Node]:
        document = new_document(str(path), self.state.document.settings)
        document.reporter = self.state.document.reporter
        Parser().parse(text, document)
        return document.children


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
    app.connect("missing-reference", _by_last_name)
