"""Parameters of tests of which `make test` takes some, and `make test-all` all (see whole_run.py)."""

from collections.abc import Collection, Iterable

import pytest


def some(values: Iterable, chosen: Collection) -> list:
    """The values as parameters; those that are not ``chosen`` run only with ``--all``."""
    values = list(values)
    assert chosen and all(value in values for value in chosen), "a choice that is not there would leave all out"
    return [value if value in chosen else pytest.param(value, marks=pytest.mark.every) for value in values]


def third(values: Iterable) -> list:
    """Every third of the values without ``--all``."""
    values = list(values)
    return some(values, values[::3])
