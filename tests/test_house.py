"""The house: imports run one way, the learner's shelf stays short, and the page about the package is true."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from imports import dotted, imports
from torch.overrides import TorchFunctionMode

import normlab
from normlab import Transformer, TransformerConfig, fast, placement

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "normlab"
PAGE = (ROOT / "book" / "package.md").read_text(encoding="utf-8")
FOLDERS = ("inspection", "training", "page", "experiments")

sys.path.insert(0, str(ROOT / "book" / "_ext"))
from course import api, house  # noqa: E402


def by_name(package: Path) -> dict[str, set[str]]:
    """What each module of a package imports, by dotted names."""
    found = imports(package).items()
    return {dotted(package, path): {dotted(package, other) for other in files} for path, files in found}


IMPORTS = by_name(PACKAGE)
ROOMS = house.read_rooms(ROOT)
SOURCES = {dotted(PACKAGE, path): ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}


def reached(graph: dict[str, set[str]], start: str) -> set[str]:
    found, to_visit = set(), {start}
    while to_visit:
        found |= to_visit
        to_visit = set().union(*(graph[name] for name in to_visit)) - found
    return found - {start}


# --- imports run one way --------------------------------------------------------------------------

# Imports every module of a package and prints who imported what.
WATCH = """
import builtins, importlib, json, pkgutil, sys
from importlib.util import resolve_name
import normlab

seen, before = [], builtins.__import__

def watch(name, globals=None, locals=None, fromlist=(), level=0):
    module = before(name, globals, locals, fromlist, level)
    importer = (globals or {}).get("__name__", "")
    base = resolve_name("." * level + name, globals["__package__"]) if level else name
    for found in (base, *(f"{base}.{part}" for part in fromlist or ())):
        if importer.startswith("normlab") and found in sys.modules and found.startswith("normlab."):
            seen.append([importer, found])
    return module

builtins.__import__ = watch
for info in pkgutil.walk_packages(normlab.__path__, "normlab."):
    if info.name != "normlab.__main__":
        importlib.import_module(info.name)
print(json.dumps(seen))
"""


class WithoutFunctions(ast.NodeTransformer):
    def visit_FunctionDef(self, node):
        node.body = [ast.Pass()]
        return node


def test_the_imports_that_we_read_are_those_that_python_runs(tmp_path):
    result = subprocess.run([sys.executable, "-c", WATCH], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    ran = {name: set() for name in IMPORTS}
    for importer, imported in json.loads(result.stdout):
        parts = imported.split(".")
        ran[importer] |= {".".join(parts[:n]) for n in range(2, len(parts) + 1)}
    for path in PACKAGE.rglob("*.py"):  # importing runs no function
        copy = tmp_path / "normlab" / path.relative_to(PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(ast.unparse(WithoutFunctions().visit(ast.parse(path.read_text(encoding="utf-8")))))
    read = by_name(tmp_path / "normlab")
    del read["normlab.__main__"], ran["normlab.__main__"]
    folders = {name: {other for other in read if f"{name}.".startswith(f"{other}.")} for name in read}
    assert read == {name: imported - folders[name] for name, imported in ran.items()}
    assert sum(map(len, read.values())) > 50


def small_package(folder: Path, **modules: str) -> Path:
    for name, text in {"__init__": "", **modules}.items():
        path = folder.joinpath("src", "normlab", *name.split("__in__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "src" / "normlab"


def test_imports_inside_of_functions_and_of_folders_are_read(tmp_path):
    package = small_package(
        tmp_path,
        a="def f():\n    from normlab.folder.b import g\n",
        folder__in____init__="from .b import g\n",
        folder__in__b="from .. import c\nfrom . import d\n",
        folder__in__d="",
        c="import torch\n",
    )
    assert by_name(package) == {
        "normlab": set(),
        "normlab.a": {"normlab.folder", "normlab.folder.b"},
        "normlab.c": set(),
        "normlab.folder": {"normlab.folder.b"},
        "normlab.folder.b": {"normlab.c", "normlab.folder.d"},
        "normlab.folder.d": set(),
    }


@pytest.mark.parametrize("graph", [IMPORTS, ROOMS], ids=["modules", "rooms"])
def test_no_imports_in_a_circle(graph):
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as problem:
        pytest.fail(" imports ".join(reversed(problem.args[1])), pytrace=False)


def test_the_one_way_back_is_there():
    """An exception that nobody needs any more would hide a circle."""
    assert {("record", "experiments/")} == house.LATE
    assert "normlab.experiments" in IMPORTS["normlab.record"]


@pytest.mark.parametrize("room", house.SHELF)
def test_the_shelf_reaches_none_of_the_outer_folders(room):
    found = reached(IMPORTS, f"normlab.{room}")
    assert {name for name in found if name.split(".")[1] in FOLDERS} == set()


BY_STRING = {
    "normlab.__getattr__": "the table of lazy names",
    "normlab.record.recipes": "walks the folder of the experiments",
    "normlab.inspection.command._from_function": "a reader's own module, named on the command line",
    "normlab.experiments.rmsnorm.published_norms": "modules of transformers, by the model's name",
}


def calls_by_string(node: ast.AST, where: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        inside = isinstance(child, ast.FunctionDef | ast.ClassDef)
        if isinstance(child, ast.Call) and re.search(r"\b(import_module|__import__)$", ast.unparse(child.func)):
            yield where
        yield from calls_by_string(child, f"{where}.{child.name}" if inside else where)


def test_no_imports_by_string():
    assert {where for module in SOURCES for where in calls_by_string(SOURCES[module], module)} == set(BY_STRING)


# --- names ----------------------------------------------------------------------------------------


def test_no_module_bears_the_name_of_something_that_its_package_exports():
    both = []
    for init in PACKAGE.rglob("__init__.py"):
        exported = set(normlab._NAMES) if init.parent == PACKAGE else set()
        for node in SOURCES[dotted(PACKAGE, init)].body:
            if isinstance(node, ast.ImportFrom) and node.module != dotted(PACKAGE, init):  # else: a module of its own
                exported |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                exported.add(node.name)
        modules = {path.stem for path in init.parent.glob("*.py")} | {p.parent.name for p in init.parent.glob("*/*.py")}
        both += [f"{dotted(PACKAGE, init)}.{name}" for name in sorted(exported & modules)]
    assert both == []


def test_every_room_is_an_attribute_of_the_package():
    assert {room.rstrip("/") for room in ROOMS} == set(normlab._MODULES)


# --- the shelf stays short ------------------------------------------------------------------------


def function(module: str, name: str) -> ast.FunctionDef:
    return next(node for node in SOURCES[module].body if isinstance(node, ast.FunctionDef) and node.name == name)


def code_lines(module: str, name: str) -> int:
    """The lines of a function after its docstring; a statement over several lines counts as many."""
    _, *body = function(module, name).body
    return sum(statement.end_lineno - statement.lineno + 1 for statement in body)


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_a_formula_has_at_most_fifteen_lines(name):
    assert 1 <= code_lines("normlab.functional", name) <= 15


def test_a_wiring_is_one_line():
    lines = {kind.value: code_lines("normlab.placement", wiring.__name__) for kind, wiring in placement.WIRING.items()}
    assert lines == {kind.value: 2 if kind.value == "hybrid" else 1 for kind in placement.Placement}


# --- the page -------------------------------------------------------------------------------------


def test_the_page_names_every_room():
    assert {room for room in [*ROOMS, "records/"] if f"`{room}`" not in PAGE} == set()


def test_the_reference_describes_everything_public():
    """But for the experiments, which belong to the chapters. A function may stand where another module offers it."""
    shown = {
        (node.name, ast.get_docstring(node))
        for page in api.pages(ROOT)
        for node in api._documented(PACKAGE.parent, page.module)
    }
    missing = [
        f"{module}.{node.name}"
        for module, source in SOURCES.items()
        for node in source.body
        if api._public(node) and (node.name, ast.get_docstring(node)) not in shown
    ]
    assert [name for name in missing if not name.startswith("normlab.experiments.")] == []


def section(title: str) -> str:
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]


def test_the_steps_name_files_and_what_stands_in_them():
    steps = re.findall(r"^\d\. (.*?)(?=^\d\. |^\n|\Z)", section("To add something"), re.MULTILINE | re.DOTALL)
    checked = 0
    for step in steps:
        path = ROOT
        for word in re.findall(r"`([^`]+)`", step):
            if re.fullmatch(r"[\w./]*(/|\.py|\.yml)", word):
                path = next(p for p in (ROOT / word, path.parent / word, PACKAGE / "page" / word) if p.exists())
                checked += 1
            elif re.fullmatch(r"[\w.]+", word) and path.suffix == ".py":
                for part in word.split("."):
                    assert re.search(rf"\b{part}\b", path.read_text(encoding="utf-8")), f"{word} in {path}"
                    checked += 1
    assert len(steps) == 21 and checked > 15


class Divisions(TorchFunctionMode):
    """Keeps our own frames at every division, outermost first."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function.__name__ in ("div", "rsqrt_"):
            frame, frames = sys._getframe(), []
            while frame := frame.f_back:
                module = frame.f_globals["__name__"]
                if module.startswith("normlab."):
                    frames.insert(0, f"{module}.{frame.f_code.co_qualname}")
            self.seen.append(frames)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("quick, ending", [(True, "by default"), (False, "inside")])
def test_the_way_from_ids_to_the_division(quick, ending):
    text = section("From ids to logits")
    together = re.search(r"^`Transformer.forward` →.*?\n\n", text, re.MULTILINE | re.DOTALL)[0]
    rest = re.search(rf"^- {ending}.*?(?=^- |^\n|\Z)", text, re.MULTILINE | re.DOTALL)[0]
    told = [re.search("`([^`]+)`", step)[1] for step in together.split("→") + rest.split("→")[1:]]
    model = Transformer(TransformerConfig(vocab_size=5, context=4, layers=1, width=8))
    with torch.no_grad(), fast.enabled(quick), Divisions() as divisions:
        model(torch.tensor([[1, 2, 3]]))
    in_blocks = [frames for frames in divisions.seen if frames[-1].endswith(told[-1]) and "Block.forward" in frames[1]]
    assert len(in_blocks) >= 2
    for frames in in_blocks:
        assert len(told) == len(frames)
        assert all(f"{frame}>".endswith((f".{name}>", name + ">")) for frame, name in zip(frames, told))
    (count,) = re.findall(r"stand (\d+) frames" if quick else r"formula (\d+):", text)
    assert int(count) == len(told)


# --- the picture ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawing():
    return ElementTree.fromstring(house.picture(ROOMS))


def boxes(drawing) -> dict[str, tuple[float, float, float]]:
    """Left edge, right edge and ceiling of each room."""
    found = {}
    for group in drawing.findall("g"):
        box = group.find("rect").attrib
        left = float(box["x"])
        found[group.findtext("text")] = left, left + float(box["width"]), float(box["y"])
    return found


def test_every_import_leads_down(drawing):
    found = boxes(drawing)
    assert set(found) == set(ROOMS)
    assert all(found[room][2] < found[other][2] for room in ROOMS for other in ROOMS[room])
    assert {group.findtext("text") for group in drawing.findall("g[@class='shelf']")} == set(house.SHELF)


def test_rooms_stand_side_by_side_inside_the_picture(drawing):
    found = sorted(boxes(drawing).values(), key=lambda box: (box[2], box[0]))
    width, height = map(float, drawing.get("viewBox").split()[2:])
    assert all(0 <= left < right <= width and 0 < ceiling < height - 20 for left, right, ceiling in found)
    assert all(one[1] < other[0] for one, other in zip(found, found[1:]) if one[2] == other[2])


def test_the_lines_that_are_drawn_imply_all_others(drawing):
    lines = house.drawn(ROOMS)
    assert len(drawing.findall("path")) == len(lines) < sum(map(len, ROOMS.values()))
    fewer = {room: {b for a, b in lines if a == room} for room in ROOMS}
    assert all(reached(fewer, room) == reached(ROOMS, room) for room in ROOMS)
    for a, b in lines:
        assert b not in reached(fewer | {a: fewer[a] - {b}}, a), f"{a} to {b} is implied by a longer way"


def test_the_picture_has_a_text(drawing):
    count = sum(map(len, ROOMS.values()))
    assert drawing.get("role") == "img"
    assert f"{len(ROOMS)} rooms" in drawing.findtext("title") and f"{count} imports" in drawing.findtext("title")
    (norms,) = (g.findtext("title") for g in drawing.findall("g") if g.findtext("text") == "norms")
    assert norms == "norms imports across_tokens, arithmetic, conventions, fast, functional"


WIDE = {f"a_long_name_{i}": set() for i in range(4)}
HOUSES = {
    "one room": {"a": set()},
    "two rooms": {"a": {"b"}, "b": set()},
    "an import that another implies": {"a": {"b", "c"}, "b": {"c"}, "c": set()},
    "a row that is too wide": {"top": set(WIDE), **WIDE},
}


@pytest.mark.parametrize("rooms", HOUSES.values(), ids=HOUSES)
def test_other_houses_can_be_drawn(rooms):
    drawing = ElementTree.fromstring(house.picture(rooms))
    test_rooms_stand_side_by_side_inside_the_picture(drawing)
    found = boxes(drawing)
    assert set(found) == set(rooms)
    assert all(found[room][2] < found[other][2] for room in rooms for other in rooms[room])


def test_no_file_holds_the_marks_of_an_unfinished_merge():
    marks = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    texts = [path for path in map(ROOT.joinpath, listed) if path.suffix not in {".png", ".svg", ".woff2", ".ico", ".gz"}]
    assert len(texts) > 200
    assert [path for path in texts if path.is_file() and marks.search(path.read_text(encoding="utf-8"))] == []
