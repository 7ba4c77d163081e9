"""The call: several workloads, each under several limits, as one report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from whichgpu import errors, results, workload
from whichgpu.bench.one import Bench
from whichgpu.bench.plan import (
    DEFAULT_SPEEDS,
    DEFAULT_STEPS,
    DEFAULT_TIME_BUDGET_S,
    DEFAULT_TIMEOUT_S,
    Plan,
    Progress,
    check,
)
from whichgpu.bench.rows import unmeasured
from whichgpu.bench_attempts import WORKER
from whichgpu.bench_report import BenchReport, BenchRow
from whichgpu.errors import BenchError
from whichgpu.results import Environment, Store
from whichgpu.workload import WorkloadRef


def bench(
    names: Sequence[str],
    *,
    gpu_index: int = 0,
    batch_sizes: Sequence[int] = (),
    memory_limits_bytes: Sequence[int] = (),
    power_of_two: bool = False,
    options: Mapping[str, str] | None = None,
    precisions: Sequence[str] = (),
    steps: int = DEFAULT_STEPS,
    time_budget_s: float = DEFAULT_TIME_BUDGET_S,
    speeds: int = DEFAULT_SPEEDS,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    results_file: Path | None = None,
    again: bool = False,
    on_progress: Progress | None = None,
    worker: Sequence[str] = WORKER,
) -> BenchReport:
    """Measure the largest batch of each workload under each memory limit, and the speed at it and at its halves.

    Without limits: on the whole card. With `batch_sizes`: only these. `options` go to each workload, as after a ?, and so
    does each of `precisions`. `timeout_s` bounds each attempt; a `time_budget_s` of 0 leaves speeds out. Raises subclasses
    of WhichGpuError.
    """
    plan = Plan(
        gpu_index=gpu_index,
        batch_sizes=tuple(dict.fromkeys(batch_sizes)),
        power_of_two=power_of_two,
        steps=steps,
        time_budget_s=time_budget_s,
        speeds=speeds,
        timeout_s=timeout_s,
        again=again,
        worker=tuple(worker),
        progress=on_progress or (lambda _: None),
    )
    check(plan, names, memory_limits_bytes)
    refs = _refs(names, options or {}, precisions)
    limits: list[int | None] = list(dict.fromkeys(memory_limits_bytes)) or [None]
    rows: list[BenchRow] = []
    notes: list[str] = []
    environment: Environment | None = None
    with Store(results_file or results.default_path()) as store:
        for ref in refs:
            with Bench(ref, plan, store) as one:
                try:
                    one.prepare()
                except errors.WorkloadError as error:
                    if len(refs) == 1:
                        raise
                    rows += [unmeasured(ref, limit, "step_error", str(error)) for limit in limits]
                    continue
                environment = one.environment
                rows += [row for limit in limits for row in one.rows(limit)]
                notes += one.notes
    if environment is None:
        raise BenchError("; ".join(row.message or row.outcome for row in rows))
    return BenchReport(
        gpu=environment.gpu,
        gpu_memory_bytes=environment.gpu_memory_bytes,
        compute_capability=environment.compute_capability,
        driver=environment.driver,
        torch=environment.torch,
        rows=tuple(rows),
        notes=("data loading is not measured: each step makes its own batch on the GPU", *dict.fromkeys(notes)),
    )


def _refs(names: Sequence[str], options: Mapping[str, str], precisions: Sequence[str]) -> list[WorkloadRef]:
    """The workloads, each once, in each precision that was asked for."""
    variants = [{**options, "precision": precision} for precision in precisions] or [{**options}]
    refs = [workload.with_options(workload.parse(name), variant) for name in names for variant in variants]
    return list({ref.text: ref for ref in refs}.values())
