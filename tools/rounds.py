"""The round *Name this placement*: six lines of code for each wiring, and what they return when F = 0.

    python tools/rounds.py

takes the wirings of `normlab.placement` apart into one step a line, under names that say nothing, runs the lines with
F = 0, and writes both into the package. The page is made from that file, so that the book needs no torch.
"""

import ast
import inspect
import json
import textwrap
from pathlib import Path

import torch
import whole

from normlab import norms, placement

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "src" / "normlab" / "interview" / "placements.json"
TITLES = {
    "post": "Post-Norm",
    "pre": "Pre-Norm",
    "peri": "Peri-LN",
    "output": "Output norm (OLMo 2)",
    "deepnorm": "DeepNorm",
    "parallel": "Parallel",
    "hybrid": "HybridNorm",
    "none": "No norm",
}
WIDTH, ALPHA = 8, "1.5"
# Two sublayers that read the same normed input: the wiring has only one of them.
PARALLEL = ["h = n1(x)", "a = f(h)", "b = g(h)", "c = x + a", "return c + b"]


class _Steps(ast.NodeTransformer):
    """Calls, products and sums one after the other, each into a letter; ``names`` are renamed."""

    def __init__(self, names: dict[str, str]):
        self.names = names
        self.lines: list[str] = []

    def visit_Call(self, node: ast.Call) -> ast.expr:
        return self._letter(self.generic_visit(node))

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        return self._letter(self.generic_visit(node))

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Name(self.names[node.id])

    def _letter(self, node: ast.AST) -> ast.Name:
        name = "abcdefg"[len(self.lines)]
        self.lines.append(f"{name} = {ast.unparse(node)}")
        return ast.Name(name)


def code(kind: placement.Placement) -> str:
    """The wiring as a function ``block`` of the stream x, one step a line."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(placement.WIRING[kind]))).body[0]
    given = [argument.arg for argument in tree.args.args]
    numbers = iter(("n1", "n2"))
    steps = _Steps({"x": "x", "F": "f", "alpha": ALPHA, "h": "h"} | {n: next(numbers) for n in given if n in "NO"})
    for statement in tree.body[1:]:  # after the docstring
        value = steps.visit(statement.value)
        if isinstance(statement, ast.Assign):
            steps.names |= {statement.targets[0].id: value.id}
    body = [*steps.lines, f"return {ast.unparse(value)}"]
    arguments = [steps.names[name] for name in given if name != "alpha"]
    if kind is placement.Placement.PARALLEL:
        body, arguments = PARALLEL, ["x", "f", "g", "n1"]
    return "\n".join([f"def block({', '.join(arguments)}):", *(f"    {line}" for line in body)])


@torch.no_grad()
def run(text: str, norm: str, bias: bool) -> float:
    """rms(block(x) − x) over rms(x) with sublayers that return 0 and norms with random gains and biases."""
    names: dict = {}
    exec(text, names)  # noqa: S102
    generator = torch.Generator().manual_seed(0)
    x = 3 * torch.randn(4, WIDTH, generator=generator, dtype=torch.float64)

    def made():
        module = norms.make_norm(norm, WIDTH).double()
        module.weight.copy_(torch.rand(WIDTH, generator=generator, dtype=torch.float64) + 0.5)
        if bias:
            module.bias.copy_(torch.randn(WIDTH, generator=generator, dtype=torch.float64))
        return module

    given = {"x": x, "f": torch.zeros_like, "g": torch.zeros_like, "n1": made(), "n2": made()}
    wanted = inspect.signature(names["block"]).parameters
    y = names["block"](**{name: given[name] for name in wanted})
    return ((y - x).pow(2).mean() / x.pow(2).mean()).sqrt().item()


def returns_input(text: str) -> str:
    """"yes", "no", or "only if" the norms have no bias."""
    with_bias, without = run(text, "layernorm", True), run(text, "rmsnorm", False)
    return "yes" if with_bias == 0 else "only if" if without == 0 else "no"


def placements() -> list[dict[str, str]]:
    """For each wiring its name, its formula, six lines or fewer, and whether F = 0 returns x.

    Raises:
        ValueError: a wiring without a title.
    """
    if missing := {kind.value for kind in placement.Placement} - set(TITLES):
        raise ValueError(f"TITLES of tools/rounds.py has no name for {', '.join(sorted(missing))}")
    found = []
    for kind in placement.Placement:
        text = code(kind)
        formula = inspect.getdoc(placement.WIRING[kind]).split(":")[0]
        item = {"id": kind.value, "title": TITLES[kind.value], "formula": formula, "code": text}
        found.append(item | {"zero": returns_input(text)})
    return found


def as_json(items: list[dict[str, str]]) -> str:
    """The file that the package carries."""
    return json.dumps(items, ensure_ascii=False, indent=1) + "\n"


def main() -> None:
    """Write the file."""
    with whole.told():
        whole.write_text(FILE, as_json(placements()))
    print(f"{FILE.relative_to(ROOT)}: {len(json.loads(FILE.read_text(encoding='utf-8')))} wirings")


if __name__ == "__main__":
    main()
