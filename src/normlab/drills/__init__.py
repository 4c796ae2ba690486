"""Coding drills whose checker names the mistake: ``drill("rms_norm").check(my_function)``."""

from normlab.drills import layer_norm, rms_norm, rms_norm_backward
from normlab.drills.checking import Drill

_LADDER = {
    1: (rms_norm, layer_norm),
    2: (rms_norm_backward,),
}
_DRILLS = {module.DRILL.slug: module.DRILL for week in _LADDER.values() for module in week}


def drill(slug: str) -> Drill:
    """The drill with this slug.

    Raises:
        KeyError: there is none; names all.
    """
    if slug not in _DRILLS:
        raise KeyError(f"there is no drill {slug!r}, but {', '.join(_DRILLS)}")
    return _DRILLS[slug]


def ladder() -> dict[int, tuple[str, ...]]:
    """The order of the drills: the slugs of each week."""
    return {week: tuple(module.DRILL.slug for module in modules) for week, modules in _LADDER.items()}
