"""A report of :func:`normlab.inspect` as JSON and back, so that a record can be drawn without running the model."""

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from normlab.inspection.norm_probe import NormReport
from normlab.inspection.report import BlockReport, ModelReport

_SHARED = {"blocks": BlockReport, "norms": NormReport}  # what occurs more than once in a report; blocks hold norms


def packed(report: ModelReport) -> dict[str, Any]:
    """The report as JSON-ready data: norms and blocks once each, then by number; fields at their defaults left out."""
    tables: dict[type, list[Any]] = {kind: [] for kind in _SHARED.values()}

    def plain(value: Any) -> Any:
        table = tables.get(type(value))
        if table is None:
            return _plain(value, plain)
        if value not in table:
            table.append(value)
        return table.index(value)

    body = plain(report)
    return {"report": body} | {name: [_plain(v, plain) for v in tables[kind]] for name, kind in _SHARED.items()}


def _plain(value: Any, inner: Callable[[Any], Any]) -> Any:
    if is_dataclass(value):
        pairs = [(f, getattr(value, f.name)) for f in fields(value)]
        return {f.name: inner(v) for f, v in pairs if f.default is MISSING or v != f.default}
    if isinstance(value, Enum):
        return value.value
    return [inner(item) for item in value] if isinstance(value, tuple) else value


def unpacked(stored: dict[str, Any]) -> ModelReport:
    """The report that :func:`packed` made ``stored`` of."""
    tables: dict[Any, list[Any]] = {}
    for name, kind in reversed(_SHARED.items()):
        tables[kind] = [_typed(value, kind, tables) for value in stored[name]]
    return _typed(stored["report"], ModelReport, tables)


def _typed(value: Any, kind: Any, tables: dict[Any, list[Any]]) -> Any:
    if value is None:
        return None
    if isinstance(kind, UnionType):
        (kind,) = (k for k in get_args(kind) if k is not type(None))
    if kind in tables:
        return tables[kind][value]
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{name: _typed(v, hints[name], tables) for name, v in value.items()})
    if get_origin(kind) is tuple:
        return tuple(_typed(item, get_args(kind)[0], tables) for item in value)
    return kind(value)
