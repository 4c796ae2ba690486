"""The package's reference, against the package itself."""

import importlib
import inspect

import pytest
from pages import ROOT, parsed

PAGE = (ROOT / "book" / "api.md").read_text(encoding="utf-8")
MODULES = [line.split()[1] for line in PAGE.splitlines() if line.startswith("```{api}")]


def public(module) -> set[str]:
    """Functions and classes of the package that the module offers and documents."""
    names = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
    return {
        name
        for name in names
        if (inspect.isfunction(thing := getattr(module, name)) or inspect.isclass(thing))
        and (thing.__module__ == module.__name__ or hasattr(module, "__all__"))
        and thing.__module__.startswith("normlab")
        and thing.__name__ == name  # not an alias
        and vars(thing).get("__doc__", thing.__doc__)
    }


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_has_an_entry(name, html):
    shown = {tag["id"].removeprefix(f"{name}.") for tag in parsed(html / "book" / "api.html").select("dt.sig[id]")}
    assert public(importlib.import_module(name)) <= shown


def test_references_between_docstrings_are_links(html):
    page = parsed(html / "book" / "api.html")
    assert page.select('a.reference.internal[href$="normlab.functional.layer_norm"]')
