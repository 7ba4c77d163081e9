"""Measure workloads on the GPU in front of you: the largest batch, its memory, and how fast steps run.

`run.bench` joins, workload by workload (`one`), the search (`bench_search`), the prediction it starts from (`guesses`,
over `predictor`), the measuring process (`bench_worker`), the driver's figures (`gpu_status`, `holders`) and the record
of measurements (`results`, `recording`). Touches no GPU itself.

Every attempt is recorded as soon as it ends, and what is on record for the same workload, environment and limit is not
measured again: after a kill the same call carries on where it was. Data loading is not measured.
"""

from whichgpu.bench.plan import DEFAULT_SPEEDS, DEFAULT_STEPS, DEFAULT_TIME_BUDGET_S, DEFAULT_TIMEOUT_S
from whichgpu.bench.run import bench

__all__ = ["DEFAULT_SPEEDS", "DEFAULT_STEPS", "DEFAULT_TIMEOUT_S", "DEFAULT_TIME_BUDGET_S", "bench"]
