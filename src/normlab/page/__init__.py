"""What a cell shows on the page: claims, numbers, tables, figures, sliders, source code, answers to exercises.

Plain Python at import: neither torch nor matplotlib is loaded before something is drawn.
"""

from normlab.page.claims import claim, show
from normlab.page.exercises import check
from normlab.page.figures import figure
from normlab.page.sliders import slider
from normlab.page.sources import source
from normlab.page.tables import table

__all__ = ["check", "claim", "figure", "show", "slider", "source", "table"]
