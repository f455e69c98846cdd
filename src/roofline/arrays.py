"""The type of every number in a formula."""

from __future__ import annotations

import numpy as np

Array = float | np.ndarray  # a float or an array; formulas broadcast and never ask which
