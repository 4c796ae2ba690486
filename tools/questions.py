"""The question bank, from book/interview/questions.yml to texts with numbers.

    python tools/questions.py

evaluates the expressions in its texts, checks every question and writes what comes out into the package. The Sphinx
extension calls `read_questions`, `read_marked` and `read_quiz`. Needs PyYAML, not torch.
"""

import importlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import whole
import yaml

ROOT = Path(__file__).resolve().parent.parent
MIME = "application/vnd.normlab.claim+json"
# libyaml's loader, where PyYAML has it, is ten times as fast as the one in Python.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_source(root: Path, file: str = "questions.yml") -> list[dict]:
    """The items of a file in book/interview as they are written."""
    return yaml.load((root / "book" / "interview" / file).read_text(encoding="utf-8"), LOADER)


def read_lines(root: Path) -> dict[str, str]:
    """What the notebooks' cells recorded, by the claim's id."""
    lines = {}
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for output in cell.get("outputs", ()):
                if found := output.get("data", {}).get(MIME):
                    lines[found["id"]] = found["line"]
    return lines


def package(root: Path, name: str):
    """The module normlab.NAME of the sources at ``root``."""
    sys.path.insert(0, str(root / "src"))
    try:
        return importlib.import_module(f"normlab.{name}")
    finally:
        sys.path.remove(str(root / "src"))


def read_sentences(root: Path) -> dict[str, str]:
    """The claims' sentences by id."""
    claims = yaml.load((root / "book" / "claims.yml").read_text(encoding="utf-8"), LOADER)
    return {claim["id"]: claim["sentence"] for claim in claims}


def evaluator(root: Path) -> Callable[[str], str]:
    """What puts numbers into a text. Raises ValueError for an expression that fails."""
    expressions, lines, sentences = package(root, "interview.expressions"), read_lines(root), read_sentences(root)
    return lambda text: expressions.evaluate(text, lines, sentences)


def read_evaluated(root: Path, file: str, kind: str) -> list[dict]:
    """The items of a file in book/interview with their numbers; ``kind`` is what an item is called in errors."""
    evaluate = evaluator(root)

    def evaluated(value, where: str):
        if isinstance(value, dict):
            return {key: evaluated(item, f"{where}.{key}") for key, item in value.items()}
        if isinstance(value, list):
            return [evaluated(item, f"{where}[{i}]") for i, item in enumerate(value)]
        try:
            return evaluate(value) if isinstance(value, str) else value
        except ValueError as problem:
            raise ValueError(f"{where}: {problem}") from None

    return [evaluated(item, f"{kind} {item.get('id')!r}") for item in read_source(root, file)]


def read_questions(root: Path) -> list[dict]:
    """The questions with their numbers. Raises ValueError for one that does not fit the schema."""
    items = read_evaluated(root, "questions.yml", "question")
    for item in items:  # a line of Chinese ends without a space
        if isinstance(item.get("zh"), str):
            item["zh"] = re.sub(r"(?<=[，。；：、？！）”])\s+", "", item["zh"])
    package(root, "interview").validate(items, read_sentences(root).keys())
    return items


def read_marked(root: Path) -> list[dict]:
    """The marked answers with their numbers. Raises ValueError for one that does not fit the schema."""
    items = read_evaluated(root, "marked.yml", "marked answer")
    package(root, "interview.practice").validate_marked(items, read_sentences(root).keys())
    return items


def read_quiz(root: Path) -> list[dict]:
    """The quiz with its numbers. Raises ValueError for a question that does not fit the schema."""
    items = read_evaluated(root, "quiz.yml", "quiz question")
    package(root, "interview.practice").validate_quiz(items, read_sentences(root).keys())
    return items


def as_json(items: list[dict]) -> str:
    """The file that the package carries."""
    return json.dumps(items, ensure_ascii=False, indent=1) + "\n"


def main() -> None:
    """Write the package's copy."""
    path = ROOT / "src" / "normlab" / "interview" / "questions.json"
    with whole.told():
        whole.write_text(path, as_json(read_questions(ROOT)))
    print(f"{path.relative_to(ROOT)}: {len(json.loads(path.read_text(encoding='utf-8')))} questions")


if __name__ == "__main__":
    main()
