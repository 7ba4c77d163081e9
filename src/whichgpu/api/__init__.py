"""The questions that whichgpu answers, from Python: `fit`, `explain`, `rank` and `advise`, a module each.

Joins the predictor of each workload with the catalogue into records. Nothing here computes memory or formats numbers.
"""

from __future__ import annotations

from whichgpu.api.advise import advise
from whichgpu.api.explain import explain
from whichgpu.api.fit import fit
from whichgpu.api.rank import rank

__all__ = ["advise", "explain", "fit", "rank"]
