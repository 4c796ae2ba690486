"""Coding drills whose checker names the mistake: ``drill("rms_norm").check(my_function)``.

How it works, and how to add a mistake, stands in :mod:`normlab.drills.checking`.
"""

from normlab.drills import (
    add_rms_norm,
    batch_norm_running_stats,
    chunk_merge,
    deepnorm,
    dyt,
    final_norm_head,
    fold_norm,
    gradient_check,
    kv_cache_bytes,
    layer_norm,
    layer_norm_backward,
    masked_batch_norm,
    norm_ledger,
    peri_norm_block,
    post_norm_block,
    pre_norm_block,
    qk_norm_attention,
    rms_norm,
    rms_norm_backward,
    rms_norm_module,
    sharded_rms_norm,
    weight_decay_groups,
    welford,
)
from normlab.drills.checking import Drill, Report
from normlab.drills.modes import check_test, repair, review

__all__ = ["Drill", "Report", "check_test", "drill", "ladder", "repair", "review"]

_LADDER = {
    1: (rms_norm, layer_norm, rms_norm_module, add_rms_norm, pre_norm_block, post_norm_block),
    2: (
        rms_norm_backward,
        layer_norm_backward,
        gradient_check,
        welford,
        chunk_merge,
        masked_batch_norm,
        batch_norm_running_stats,
    ),
    3: (fold_norm, weight_decay_groups, kv_cache_bytes, norm_ledger, final_norm_head, peri_norm_block, deepnorm),
    4: (qk_norm_attention, dyt, sharded_rms_norm),
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
