"""``python -m normlab``: the same as the console script ``normlab``."""

import sys

from normlab.cli import main

sys.exit(main())
