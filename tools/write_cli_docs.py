"""Write docs/cli.md from the command line itself: `python tools/write_cli_docs.py`.

A test compares the file with what this would write, so the page cannot be stale.
"""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import typer.main

from whichgpu.accuracy import (
    AccuracyReport,
    Bar,
    Errors,
    Group,
    Largest,
    LargestBatch,
    Point,
    Step,
    Worst,
)
from whichgpu.advice import Breakdown, FitReport, FitRow, Price, RankReport, RankRow, TraceInfo
from whichgpu.bench_report import BenchReport, BenchRow, Speed
from whichgpu.catalogue import Gpu, SecondSource
from whichgpu.cli import app
from whichgpu.comparison import ComparedCell, ComparedRow, Comparison
from whichgpu.explanation import ExplainReport, Holder, Others, Span
from whichgpu.host_speed import HostSpeed, Probe
from whichgpu.remedies import LeftOut, Remedy
from whichgpu.results import Environment, Measurement
from whichgpu.runs import Run
from whichgpu.speed.record import PredictedSpeed
from whichgpu.speed_accuracy import SpeedAccuracy, SpeedBar, SpeedErrors
from whichgpu.tables import Cell, Table, TableCard, TableRow, TierRow, TierTable
from whichgpu.zoo_list import ZooEntry

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"

HEAD = """\
# The command line

Written by `tools/write_cli_docs.py` from the command itself; edit the help texts in `src/whichgpu/cli.py`
and `src/whichgpu/cli_results.py`.

Every command answers on standard output; progress and errors go to standard error. The exit code is 0 when
the question was answered (also when nothing fits), 2 for a mistake in the question or an error, of which one
line says what to do, and 130 after Ctrl-C.

| variable | meaning |
|---|---|
| `WHICHGPU_CACHE` | folder of the kept traces; default: the user's cache folder (`~/.cache/whichgpu`) |
| `WHICHGPU_RESULTS` | file of the measurements; default: `results.sqlite` in the user's data folder (`~/.local/share/whichgpu`) |
| `NO_COLOR` | set: no colours |
| `COLUMNS` | width of tables in a pipe; without it, 80 |

At most 512 MiB of traces are kept (in `traces` there), the least recently used go first, and the folder can
be deleted at any time. A trace is made again when the workload's files, the versions of its libraries or
whichgpu's own rules change. Files that a step reads as data are not watched: after changing those, say
`--no-cache`.
"""

JSON_HEAD = """\
## JSON output

`--json` prints the record that the Python functions `whichgpu.fit`, `whichgpu.explain`, `whichgpu.rank` and
`whichgpu.bench.bench` return, with these keys. Sizes are whole bytes, `null` is unknown or not applicable. Keys may be added in later versions; those
listed keep their meaning.
"""

MEANINGS: dict[tuple[str, str], str] = {
    ("FitReport", "workload"): "its name in canonical spelling",
    ("FitReport", "batch_size"): "the batch size asked about",
    ("FitReport", "basis"): "where the figures come from",
    ("FitReport", "trace"): "how the workload was traced",
    ("FitReport", "gpus"): "one entry per card; with `--memory-limit` an entry named `limit` stands first",
    ("FitReport", "notes"): "caveats that hold for every card",
    ("FitReport", "baseline"): "the card whose speed is 1; `null` where none is compared with",
    ("FitRow", "gpu"): "the card's name, or `limit`",
    ("FitRow", "memory_bytes"): "what the driver shows, or the limit",
    ("FitRow", "fits"): "whether the batch size fits: the verdict is `fits`, and the card is supported",
    ("FitRow", "verdict"): "the high end of the peak fits, the likely one does, only the low end does, or none",
    (
        "FitRow",
        "peak_reserved_bytes",
    ): "most that PyTorch takes from the card, the likely figure; `null` where that does not fit",
    ("FitRow", "peak_reserved_low_bytes"): "its low end, also where it does not fit",
    (
        "FitRow",
        "peak_reserved_high_bytes",
    ): "its high end: no more than what is free exactly where the verdict is `fits`",
    ("FitRow", "peak_allocated_bytes"): "most that tensors hold of it; `null` where it does not fit",
    ("FitRow", "context_bytes"): "CUDA context and loaded libraries, outside PyTorch; 0 under a limit",
    ("FitRow", "max_batch_size"): "the largest batch that likely fits; 0 where not even 1 does",
    ("FitRow", "max_batch_size_safe"): "the largest batch whose high end fits, to 1 %; 0 where that of not even 1 does",
    ("FitRow", "max_batch_size_pow2"): "the largest power of two that likely fits",
    (
        "FitRow",
        "max_batch_size_at_least",
    ): "whether larger ones than `max_batch_size` may fit: the search ends at 1,048,576",
    ("FitRow", "breakdown"): "what holds the allocated peak, or would on a card with room for it",
    ("FitRow", "peak_phase"): "phase of the step at that peak",
    ("FitRow", "peak_op"): "operator at that peak",
    (
        "FitRow",
        "supported",
    ): "whether the installed torch has kernels for the card and the card has the dtypes",
    ("FitRow", "notes"): "caveats for this card",
    ("FitRow", "speed"): "predicted at `max_batch_size`; `null` where it is unknown",
    ("FitRow", "speed_missing"): "why it is unknown",
    ("FitRow", "speed_note"): "arithmetic that the card does not have and computes at the speed of another",
    ("FitRow", "relative_speed"): "samples per second as a ratio to `baseline`'s, each at its own largest batch",
    (
        "FitRow",
        "best_speed",
    ): "predicted at the batch size with most samples per second, where that is more than 1 % faster than `max_batch_size`",
    ("FitRow", "known_speeds"): "measured and published speeds of the workload on the card, at any batch size",
    ("FitRow", "run"): "what a run of `samples` takes; `null` where it was not asked about, or no speed is known",
    ("FitReport", "samples"): "of the run that was asked about; `null` without one",
    ("RankReport", "samples"): "of the run that was asked about; `null` without one",
    ("RankReport", "sort"): "the order of cards with equal verdicts",
    ("RankRow", "best_speed"): "by workload, at the batch size with most samples per second, where that is another one",
    ("RankRow", "run"): "by workload, what a run of `samples` takes, and its rent",
    ("Run", "basis"): "of the speed; energy and rent follow from it",
    ("Run", "samples"): "of how many samples",
    ("Run", "batch_size"): "the one with most samples per second",
    ("Run", "seconds"): "of the steps alone",
    ("Run", "seconds_low"): "low end of the interval",
    ("Run", "seconds_high"): "high end of it",
    ("Run", "energy_kwh"): "of the board at its power limit for that time: the most it can be",
    (
        "Run",
        "rent_usd",
    ): "the price of an hour (`rent`, with date and sources) by the time; `null` where none is known, and in `fit`",
    ("Run", "rent_low_usd"): "low end of it",
    ("Run", "rent_high_usd"): "high end of it",
    ("PredictedSpeed", "source"): "of a measurement or a published figure, with its date",
    (
        "PredictedSpeed",
        "basis",
    ): "a measured or published figure of the same workload, card and batch size takes the place of a prediction",
    ("PredictedSpeed", "batch_size"): "samples per step",
    ("PredictedSpeed", "step_s"): "seconds of a step, data loading left out",
    ("PredictedSpeed", "step_low_s"): "low end of the 80 % interval; of a measurement, of the median's 95 % interval",
    ("PredictedSpeed", "step_high_s"): "high end of it",
    ("PredictedSpeed", "samples_per_s"): "from `step_s`",
    ("PredictedSpeed", "samples_per_s_low"): "low end of the 80 % interval",
    ("PredictedSpeed", "samples_per_s_high"): "high end of it",
    (
        "PredictedSpeed",
        "limit",
    ): "what takes longest, as predicted: arithmetic, memory bandwidth, or the host that launches kernels",
    ("HostSpeed", "host"): "name of this host; `fit` and `rank` use the figure on it alone",
    ("HostSpeed", "host_speed"): "times that of the host of the measurements: the geometric mean over the phases",
    ("HostSpeed", "probe"): "what was measured here",
    ("HostSpeed", "reference"): "the same of the host of the measurements",
    ("HostSpeed", "file"): "where it is kept",
    ("Probe", "launches_us"): "microseconds of the processor, by phase of a step of tiny tensors",
    ("Probe", "normal_ns"): "nanoseconds for each random number that is made on the host: normal",
    ("Probe", "uniform_ns"): "uniform",
    ("Probe", "integer_ns"): "whole numbers",
    ("Probe", "copy_ns_per_byte"): "nanoseconds for each byte that is copied on the host",
    ("Probe", "processor"): "its name, where the system says it",
    ("Probe", "processors"): "how many",
    ("Probe", "load"): "processes that ran or waited beside it, a minute's mean",
    ("Probe", "torch"): "version of PyTorch",
    ("Probe", "python"): "version of Python",
    ("Probe", "date"): "when",
    ("Probe", "seconds"): "how long it took",
    ("SpeedAccuracy", "date"): "when the constants were fitted",
    ("SpeedAccuracy", "fitted_on"): "to what",
    ("SpeedAccuracy", "bars"): "what was wanted and what was reached",
    ("SpeedAccuracy", "errors"): "one entry per set of step times",
    ("SpeedBar", "title"): "what it is about",
    ("SpeedBar", "wanted"): "in words",
    ("SpeedBar", "reached"): "in words",
    ("SpeedBar", "met"): "whether it is met",
    ("SpeedErrors", "title"): "which step times",
    ("SpeedErrors", "fitted"): "whether constants were fitted to these very steps",
    ("SpeedErrors", "steps"): "how many",
    ("SpeedErrors", "median"): "of the sizes of the relative errors",
    ("SpeedErrors", "percentile_90"): "of the same",
    ("TraceInfo", "kind"): "fake tensors, or real ones on the CPU where fake ones could not go on",
    ("TraceInfo", "affine"): "whether sizes at every batch size follow from a few traces; `notes` say so if not",
    ("TraceInfo", "seconds"): "time that tracing took; 0 from the cache",
    ("TraceInfo", "cached"): "whether all traces came from the cache",
    ("TraceInfo", "torch_version"): "the torch that was traced",
    (
        "TraceInfo",
        "batch_sizes",
    ): "the batch sizes at which the step was run; what is said of others follows from these",
    ("TraceInfo", "failed_batch_sizes"): "the batch sizes at which it failed",
    ("TraceInfo", "unit"): "what a sample is made of",
    ("TraceInfo", "items_per_sample"): "how many of them",
    ("ExplainReport", "workload"): "its name in canonical spelling",
    ("ExplainReport", "batch_size"): "the batch size asked about",
    ("ExplainReport", "basis"): "where the figures come from",
    ("ExplainReport", "trace"): "how the workload was traced",
    ("ExplainReport", "gpu"): "the card's name; `null` when none was named: then memory has no limit",
    ("ExplainReport", "memory_bytes"): "what the card's driver shows",
    ("ExplainReport", "context_bytes"): "CUDA context and loaded libraries, outside PyTorch",
    ("ExplainReport", "verdict"): "of the batch size on the card, as for `fit`; `null` without a card",
    ("ExplainReport", "max_batch_size"): "the largest batch that likely fits; 0 where not even 1 does",
    ("ExplainReport", "max_batch_size_safe"): "the largest batch whose high end fits; 0 where that of not even 1 does",
    (
        "ExplainReport",
        "max_batch_size_at_least",
    ): "whether larger ones than `max_batch_size` may fit: the search ends at 1,048,576",
    ("ExplainReport", "peak_reserved_bytes"): "most that PyTorch takes, with room for it where the batch does not fit",
    ("ExplainReport", "peak_allocated_bytes"): "most that tensors hold of it",
    ("ExplainReport", "peak_step"): "step of that peak, from 0; `null` in the set-up",
    ("ExplainReport", "peak_phase"): "phase of the step at that peak",
    ("ExplainReport", "peak_op"): "operator at that peak",
    ("ExplainReport", "timeline"): "phases of the set-up, the first step and a later one, in order",
    ("ExplainReport", "holders"): "the ten largest at the allocated peak, the largest first",
    ("ExplainReport", "others"): "the rest; with `holders` it adds up to the allocated peak",
    ("ExplainReport", "remedies"): "what was tried to save memory, each by tracing the changed step",
    ("ExplainReport", "left_out"): "what could not be tried",
    ("ExplainReport", "snapshot"): "the file that `--snapshot` wrote",
    ("ExplainReport", "notes"): "caveats",
    ("Span", "step"): "from 0; `null` in the set-up",
    ("Span", "phase"): "`setup`, `forward`, `backward`, `optimizer`, or `other` between these",
    ("Span", "start_bytes"): "allocated when it begins",
    ("Span", "most_bytes"): "most that is allocated in it",
    ("Span", "end_bytes"): "allocated when it ends",
    ("Span", "has_peak"): "whether the allocated peak of the whole run is first reached in it",
    ("Holder", "category"): "what it is for",
    ("Holder", "bytes"): "all of it, in blocks of the allocator",
    ("Holder", "storages"): "how many tensors with memory of their own",
    ("Holder", "op"): "operator that made them",
    ("Holder", "module"): "path of the module, with `*` for the numbers of repeated layers; `null` outside of modules",
    ("Holder", "modules"): "how many modules that path stands for",
    (
        "Holder",
        "source",
    ): "line that made them, the innermost that is neither torch's nor whichgpu's; of the forward pass for what its gradients need",
    ("Others", "bytes"): "all of it",
    ("Others", "storages"): "how many tensors with memory of their own",
    ("Others", "holders"): "how many holders they would make",
    ("Remedy", "remedy"): "what was tried",
    ("Remedy", "change"): "what was done to the step; `key=value` are options of the workload",
    ("Remedy", "peak_reserved_bytes"): "with the change, as above",
    ("Remedy", "peak_allocated_bytes"): "with the change, as above",
    ("Remedy", "saved_bytes"): "how much lower the reserved peak is; negative when the change takes more",
    ("Remedy", "verdict"): "of the batch size on the card with the change; `null` without a card",
    (
        "Remedy",
        "max_batch_size",
    ): "as above, with the change; `null` also where each batch size would have to be traced",
    ("Remedy", "max_batch_size_safe"): "as above, with the change",
    ("Remedy", "max_batch_size_at_least"): "as above, with the change",
    ("LeftOut", "remedy"): "what was not tried",
    ("LeftOut", "reason"): "why",
    ("RankReport", "workloads"): "names in the order asked for",
    ("RankReport", "basis"): "where the figures come from",
    ("RankReport", "traces"): "by workload, how it was traced",
    ("RankReport", "gpus"): "cards in the order of recommendation",
    ("RankReport", "notes"): "caveats that hold for every card",
    ("RankReport", "baseline"): "the card whose speed is 1; `null` where none is compared with",
    ("RankRow", "gpu"): "the card's name",
    ("RankRow", "memory_bytes"): "what the driver shows",
    ("RankRow", "compute_capability"): "CUDA compute capability",
    ("RankRow", "tier"): "trains all, trains most, or is not a good fit",
    ("RankRow", "trains"): "how many of the workloads likely fit at batch size 1 or more",
    ("RankRow", "max_batch_size"): "by workload, the largest batch that likely fits; 0 where not even 1 does",
    ("RankRow", "max_batch_size_safe"): "by workload, the largest batch whose high end fits, to 1 %",
    ("RankRow", "max_batch_size_pow2"): "by workload, the largest power of two that likely fits",
    ("RankRow", "max_batch_size_at_least"): "by workload, whether larger ones may fit: the search ends at 1,048,576",
    (
        "RankRow",
        "supported",
    ): "whether the installed torch has kernels for the card and the card has the dtypes",
    ("RankRow", "buy"): "price of the card",
    ("RankRow", "rent"): "price of an hour",
    ("RankRow", "notes"): "caveats for this card",
    ("RankRow", "speed"): "by workload, predicted at `max_batch_size`; `null` where it is unknown",
    ("RankRow", "speed_missing"): "by workload, why it is unknown",
    ("RankRow", "relative_speed"): "by workload, samples per second as a ratio to `baseline`'s",
    ("BenchReport", "basis"): "where the figures come from",
    ("BenchReport", "gpu"): "the card, as the driver names it",
    ("BenchReport", "gpu_memory_bytes"): "its memory, as PyTorch sees it",
    ("BenchReport", "compute_capability"): "CUDA compute capability",
    ("BenchReport", "driver"): "version of the driver",
    ("BenchReport", "torch"): "version of PyTorch",
    ("BenchReport", "rows"): "one entry per workload and memory limit",
    ("BenchReport", "notes"): "caveats that hold for every row",
    ("BenchRow", "workload"): "its name in canonical spelling",
    ("BenchRow", "memory_limit_bytes"): "limit of PyTorch's allocator; `null` for the whole card",
    ("BenchRow", "batch_size"): "the batch size that was asked for; `null` where the largest was searched for",
    ("BenchRow", "outcome"): "`out_of_memory`: not even 1 fits, or not the batch asked for; other than `ok`: no answer",
    ("BenchRow", "message"): "what went wrong, or what is missing to the proof",
    (
        "BenchRow",
        "max_batch_size",
    ): "the largest batch that ran; 0 where 1 does not; `null` if not searched for or not found",
    ("BenchRow", "exact"): "whether the next batch size was run too and does not fit, or the maximum was reached",
    ("BenchRow", "stopped_by"): "how the next batch failed",
    ("BenchRow", "multiple"): "the step refuses batch sizes that are no multiple of this",
    ("BenchRow", "predicted_max_batch_size"): "where the search started; `null` without a prediction",
    ("BenchRow", "unit"): "what speeds count",
    ("BenchRow", "attempts"): "attempts of the search made now",
    ("BenchRow", "recorded"): "batch sizes taken from the record instead",
    ("BenchRow", "search_s"): "time that these attempts took",
    ("BenchRow", "seconds"): "time that the row took, speeds included",
    ("BenchRow", "speeds"): "one entry per batch size that was timed, the largest first",
    ("Speed", "batch_size"): "samples per step",
    ("Speed", "step_s"): "median time of a step on the GPU",
    ("Speed", "step_low_s"): "low end of the median's 95 % interval",
    ("Speed", "step_high_s"): "high end of it",
    ("Speed", "steps"): "steps that were timed",
    ("Speed", "converged"): "whether the interval is within 1 % of the median; otherwise the time budget ended first",
    ("Speed", "samples_per_second"): "from the median",
    ("Speed", "units_per_second"): "the same in the workload's unit (a sample may be many tokens)",
    ("Speed", "peak_allocated_bytes"): "most that tensors held",
    ("Speed", "peak_reserved_bytes"): "most that PyTorch took from the card",
    ("Speed", "power_w"): "mean power of the card while timing; `null` without nvidia-ml-py",
    ("Speed", "energy_per_sample_j"): "that power by the rate",
    ("Speed", "sm_clock_mhz"): "mean clock of the multiprocessors",
    ("Speed", "temperature_c"): "highest temperature of the chip",
    ("Speed", "throttled"): "what held the clocks down",
    ("Price", "usd"): "the median",
    ("Price", "unit"): "for the card or for an hour of it",
    ("Price", "condition"): "`new`, `used`, `on-demand` and the like",
    ("Price", "offers"): "how many offers the median is over",
    ("Price", "lowest_usd"): "the lowest of them",
    ("Price", "highest_usd"): "the highest of them",
    ("Price", "oldest"): "date of the oldest of them",
    ("Price", "newest"): "date of the newest of them",
    ("Price", "providers"): "who offered",
    ("Price", "sources"): "where the offers were read",
    ("Table", "table"): "which table it is",
    ("Table", "basis"): "where the figures come from",
    ("Table", "source"): "the same in words, with its date",
    ("Table", "url"): "where it was published; empty if it was not",
    ("Table", "baseline"): "the card that is 1 in `relative`",
    ("Table", "power_of_two"): "whether batches are the power of two below",
    ("Table", "cards"): "columns, the smallest memory first",
    ("Table", "rows"): "one entry per workload",
    ("Table", "means"): "of `relative`: means over the rows of a family",
    ("Table", "notes"): "caveats, and what environments columns stand for",
    ("TableRow", "workload"): "its name, with a number where it was run in several ways",
    ("TableRow", "family"): "rows that means are over; empty: all",
    ("TableRow", "unit"): "what the figures count",
    ("TableRow", "source"): "where the row comes from, if the source says so",
    ("TableRow", "cells"): "one entry per card",
    ("Cell", "value"): "the figure; `null` where it does not fit or is unknown",
    ("Cell", "fits"): "false: not even batch size 1; `null`: unknown",
    ("Cell", "at_least"): "whether a larger batch may fit: it was not tried",
    ("Cell", "batch_size"): "of a throughput or ratio: the batch that was timed",
    ("TableCard", "name"): "title of the column",
    ("TableCard", "gpu"): "the card alone",
    ("TableCard", "gpu_id"): "its id in the catalogue",
    ("TableCard", "memory_bytes"): "what the driver shows",
    ("TableCard", "memory_limit_bytes"): "limit of PyTorch's allocator; `null` for the whole card",
    ("TableCard", "environment"): "versions, driver and origin of measurements",
    ("TableCard", "tier"): "as the source gives it; `null`: follows from the figures",
    ("TableCard", "price_usd"): "to buy",
    ("TableCard", "price_condition"): "`new`, `used`, `launch` and the like",
    ("TableCard", "price_date"): "of the newest offer",
    ("TableCard", "note"): "what the source says of it",
    ("Comparison", "table"): "which table it is",
    ("Comparison", "basis"): "what is compared",
    ("Comparison", "source"): "the same in words",
    ("Comparison", "beside"): "with what",
    ("Comparison", "beside_source"): "the same in words, with its date",
    ("Comparison", "url"): "where that was published",
    ("Comparison", "cards"): "columns, as published",
    ("Comparison", "rows"): "one entry per workload",
    ("Comparison", "compared"): "how many cells there are",
    ("Comparison", "agree"): "how many of them agree",
    (
        "Comparison",
        "open_ended",
    ): "how many of these agree where nothing larger was tried, so that none could be too large",
    ("Comparison", "notes"): "caveats of both",
    ("ComparedRow", "workload"): "as it is predicted",
    ("ComparedRow", "published_as"): "its name where it was published",
    ("ComparedRow", "unit"): "what the figures count",
    ("ComparedRow", "tried"): "the batch sizes that were tried, on any card",
    ("ComparedRow", "source"): "where the published figures come from",
    ("ComparedRow", "cells"): "one entry per card",
    ("ComparedRow", "agree"): "how many of them agree",
    ("ComparedCell", "published"): "the largest batch that ran of those that were tried; 0: none",
    ("ComparedCell", "next_tried"): "the next one that was tried; `null`: nothing larger was",
    ("ComparedCell", "predicted"): "the largest batch that likely fits; 0: not even one sample",
    ("ComparedCell", "agrees"): "whether it is at least `published` and less than `next_tried`",
    ("TierTable", "table"): "which table it is",
    ("TierTable", "basis"): "where the figures come from",
    ("TierTable", "source"): "the same in words, with its date",
    ("TierTable", "url"): "where it was published; empty if it was not",
    ("TierTable", "workloads"): "the workloads that decide",
    ("TierTable", "cards"): "cards in the order of recommendation",
    ("TierTable", "notes"): "caveats",
    ("TierRow", "gpu"): "the card",
    ("TierRow", "tier"): "trains all, most, or is not a good fit; `null`: not tried with every workload",
    ("TierRow", "trains"): "how many workloads fit at batch size 1 or more",
    ("TierRow", "tried"): "of how many that is known",
    ("TierRow", "price_usd"): "to buy",
    ("TierRow", "price_condition"): "`new`, `used`, `launch` and the like",
    ("TierRow", "price_date"): "of the newest offer",
    ("TierRow", "note"): "what the source says of it",
    ("Measurement", "workload"): "its name in canonical spelling",
    ("Measurement", "workload_hash"): "of its source",
    ("Measurement", "batch_size"): "samples per step",
    ("Measurement", "memory_limit_bytes"): "limit of PyTorch's allocator; `null` for the whole card",
    ("Measurement", "outcome"): "how the attempt ended",
    ("Measurement", "message"): "what went wrong",
    ("Measurement", "peak_allocated_bytes"): "most that tensors held",
    ("Measurement", "peak_reserved_bytes"): "most that PyTorch took from the card",
    ("Measurement", "context_bytes"): "CUDA context and libraries, outside PyTorch",
    ("Measurement", "step_s"): "median time of a step, low and high end of its 95 % interval",
    ("Measurement", "steps"): "that were run or, where the time is known, timed",
    ("Measurement", "converged"): "whether the interval is within 1 % of the median",
    ("Measurement", "unit"): "what a sample is made of",
    ("Measurement", "items_per_sample"): "how many of them",
    ("Measurement", "samples_per_second"): "the batch size by the median",
    ("Measurement", "power_w"): "of the card while it was timed",
    ("Measurement", "energy_per_sample_j"): "that power by the rate",
    ("Measurement", "sm_clock_mhz"): "clock of the multiprocessors",
    ("Measurement", "temperature_c"): "of the chip",
    ("Measurement", "throttled"): "what held the clocks down",
    ("Measurement", "attempt_s"): "time that the attempt took",
    ("Measurement", "measured_at"): "UTC, ISO 8601",
    ("Measurement", "origin"): "`local`, or where an imported row was measured",
    ("Measurement", "environment"): "everything else that it depends on",
    ("Environment", "gpu"): "as the driver names it",
    ("Environment", "gpu_id"): "its id in the catalogue",
    ("Environment", "gpu_uuid_hash"): "SHA-256 of the card's UUID, the first 16 digits",
    ("Environment", "gpu_memory_bytes"): "as PyTorch sees it",
    ("Environment", "compute_capability"): "CUDA compute capability",
    ("Environment", "driver"): "version of the driver",
    ("Environment", "cuda"): "version that PyTorch was built with",
    ("Environment", "torch"): "version of PyTorch",
    ("Environment", "cudnn"): "version of cuDNN",
    ("Environment", "python"): "version of Python",
    ("Environment", "libraries"): "versions of timm, transformers, ...",
    ("Environment", "flags"): "TF32, cudnn.benchmark, determinism, allocator settings",
    ("Environment", "whichgpu"): "version of whichgpu",
    ("AccuracyReport", "basis"): "what the figures are: predicted against measured",
    ("AccuracyReport", "gpu"): "the card that was measured",
    ("AccuracyReport", "measured_with"): "the PyTorch that it was measured with",
    ("AccuracyReport", "measured_on"): "day of the measurements",
    ("AccuracyReport", "traced_with"): "the PyTorch that was traced",
    ("AccuracyReport", "bars"): "what must be reached, and what is",
    (
        "AccuracyReport",
        "groups",
    ): "all steps, those that rules were tuned on, those held out, and those through torch.compile",
    ("AccuracyReport", "families"): "the steps by what they train",
    ("AccuracyReport", "evidence"): "the steps by what decides how wide their interval is",
    ("AccuracyReport", "largest"): "what is said of largest batches",
    ("AccuracyReport", "worst"): "steps outside the bar for the worst error or outside their interval, the worst first",
    ("AccuracyReport", "steps"): "every step of the truth set",
    ("Bar", "name"): "what is bounded",
    ("Bar", "bound"): "the bound",
    ("Bar", "found"): "what is reached",
    ("Bar", "unit"): "whether they are shares or counts",
    ("Bar", "least"): "whether the bound is a least value, not a most",
    ("Bar", "met"): "whether it is reached",
    ("Group", "name"): "of the group",
    ("Group", "steps"): "how many steps",
    ("Group", "points"): "how many measurements",
    ("Group", "reserved"): "errors of the reserved peak",
    ("Group", "allocated"): "errors of the allocated peak",
    ("Group", "inside"): "measurements whose reserved peak lies in the predicted interval",
    ("Errors", "median"): "median of the absolute errors, as shares of what was measured",
    ("Errors", "percentile_95"): "their 95th percentile",
    ("Errors", "worst"): "the largest",
    ("Largest", "steps"): "steps whose largest batch was searched for under a limit",
    ("Largest", "exact"): "predicted exactly",
    ("Largest", "good"): "exact or at most 2 % lower",
    ("Largest", "too_high"): "more than 1 % and more than one sample higher",
    ("Largest", "safe_share"): "median of the safe batch, as a share of the measured one",
    ("Largest", "out_of_memory"): "attempts that ran out of memory",
    ("Largest", "said_to_fit"): "of these, attempts said to fit: wrong answers",
    ("Worst", "name"): "of the step",
    ("Worst", "batch_size"): "samples per step",
    ("Worst", "held_out"): "whether no rule was tuned on it",
    ("Worst", "evidence"): "what its interval follows from",
    (
        "Worst",
        "reserved_error",
    ): "of the reserved peak, as a share of what was measured; negative where less was predicted",
    ("Worst", "allocated_error"): "of the allocated peak",
    ("Worst", "inside"): "whether the measured reserved peak lies in the predicted interval",
    ("Step", "name"): "of the step",
    ("Step", "family"): "what it trains",
    ("Step", "precision"): "what it computes in",
    ("Step", "held_out"): "whether no rule was tuned on it",
    ("Step", "compiled"): "whether it goes through torch.compile",
    ("Step", "kind"): "how it was traced: `fake` or `real-cpu`",
    ("Step", "evidence"): "what its interval follows from",
    ("Step", "points"): "one entry per batch size that was measured",
    ("Step", "largest"): "its largest batch under a limit; `null` where it was not searched for",
    ("Point", "batch_size"): "samples per step",
    ("Point", "low_bytes"): "low end of the predicted reserved peak",
    ("Point", "likely_bytes"): "the predicted reserved peak",
    ("Point", "high_bytes"): "its high end",
    ("Point", "measured_bytes"): "the measured one",
    ("Point", "allocated_bytes"): "the predicted allocated peak",
    ("Point", "measured_allocated_bytes"): "the measured one",
    ("LargestBatch", "limit_bytes"): "limit of PyTorch's allocator",
    ("LargestBatch", "predicted"): "the largest batch that likely fits",
    ("LargestBatch", "predicted_safe"): "the safe one: the largest whose high end fits",
    (
        "LargestBatch",
        "measured",
    ): "the largest that ran while the next did not; the lowest such one where there are several",
    ("LargestBatch", "measured_above"): "larger ones that ran while the next did not",
    ("LargestBatch", "out_of_memory"): "batch sizes that ran out of memory",
    ("LargestBatch", "said_to_fit"): "those of them that are said to fit: wrong answers",
    ("Gpu", "name"): "the card",
    ("Gpu", "id"): "the same in lower case with hyphens",
    ("Gpu", "aliases"): "other names of this card alone",
    ("Gpu", "families"): "names that it shares with other cards",
    ("Gpu", "vendor"): "who makes it",
    ("Gpu", "architecture"): "its generation",
    ("Gpu", "compute_capability"): "CUDA compute capability; `null` without CUDA",
    ("Gpu", "release"): "month in which it came out",
    ("Gpu", "form"): "what kind of machine it is for",
    ("Gpu", "memory_gib"): "as sold",
    ("Gpu", "memory_bytes"): "as the driver shows it to PyTorch",
    ("Gpu", "memory_basis"): "whether that figure was seen or worked out",
    ("Gpu", "memory_source"): "where from",
    ("Gpu", "bandwidth_gb_per_s"): "of its memory, in 10^9 bytes per second",
    ("Gpu", "fp32_tflops"): "peak rate, dense",
    ("Gpu", "tf32_tflops"): "peak rate, dense",
    ("Gpu", "fp16_tflops"): "peak rate, dense, accumulating in fp32",
    ("Gpu", "fp16_fp16_accumulate_tflops"): "the same, accumulating in fp16",
    ("Gpu", "bf16_tflops"): "peak rate, dense",
    ("Gpu", "fp8_tflops"): "peak rate, dense",
    ("Gpu", "no"): "dtypes that the hardware lacks",
    ("Gpu", "sm_count"): "streaming multiprocessors",
    ("Gpu", "boost_mhz"): "boost clock",
    ("Gpu", "l2_mib"): "second-level cache",
    ("Gpu", "tdp_w"): "power limit as sold",
    ("Gpu", "nvlink_gb_per_s"): "both directions together; 0: it has none",
    ("Gpu", "pcie_gen"): "generation of PCI Express",
    ("Gpu", "launch_price_usd"): "the maker's price when it came out",
    ("Gpu", "source"): "where the figures are from",
    ("Gpu", "checked"): "day on which the source was read",
    ("Gpu", "second_source"): "another table's figures",
    ("Gpu", "note"): "what else is to be said",
    ("ZooEntry", "name"): "the name to give",
    ("ZooEntry", "description"): "what it is",
    ("ZooEntry", "sets"): "the sets that it belongs to",
    ("ZooEntry", "parameters"): "of everything that the step holds, frozen networks too",
    ("ZooEntry", "trained_parameters"): "those that the optimizer changes",
    ("ZooEntry", "unit"): "what speeds are quoted in",
    ("ZooEntry", "items_per_sample"): "units in one element of the batch",
    ("ZooEntry", "batch_size"): "the batch size unless another is asked for",
    (
        "ZooEntry",
        "flops_per_sample",
    ): "of one training step, for each element of the batch: matrix products, convolutions and attention (in full, causal too), forward and backward; a multiply-add is two, and what checkpointing computes again is counted again",
    ("ZooEntry", "settings"): "its own settings, as options",
    ("ZooEntry", "counted"): "with which torch the figures were counted, and when",
    ("SecondSource", "name"): "of the table",
    ("SecondSource", "url"): "where it is",
    ("SecondSource", "memory_gib"): "its figure",
    ("SecondSource", "bandwidth_gb_per_s"): "its figure",
    ("SecondSource", "sm_count"): "its figure",
    ("SecondSource", "disagrees"): "figures in which it differs from ours",
}
BREAKDOWN_MEANING = "part of the allocated peak; the parts add up to it"
WHERE = {
    FitReport: "`whichgpu fit`",
    FitRow: "each of `gpus` of `fit`",
    Breakdown: "`breakdown`",
    PredictedSpeed: "`speed`, `best_speed` and each of `known_speeds` of `fit`, and each of `speed` and `best_speed` of `rank`",
    Run: "`run` of `fit`, and each of `run` of `rank`",
    TraceInfo: "`trace`, and each of `traces`",
    ExplainReport: "`whichgpu explain`",
    Span: "each of `timeline` of `explain`",
    Holder: "each of `holders` of `explain`",
    Others: "`others` of `explain`",
    Remedy: "each of `remedies` of `explain`",
    LeftOut: "each of `left_out` of `explain`",
    RankReport: "`whichgpu rank`",
    RankRow: "each of `gpus` of `rank`",
    Price: "`buy` and `rent`",
    BenchReport: "`whichgpu bench`",
    BenchRow: "each of `rows` of `bench`",
    Speed: "each of `speeds`",
    Measurement: "each of `whichgpu results`",
    Environment: "`environment`",
    Table: "`whichgpu tables max-batch`, `throughput` and `relative`",
    TableRow: "each of `rows` and `means` of `tables`",
    Cell: "each of `cells`",
    TableCard: "each of `cards` of these tables",
    Comparison: "`whichgpu tables max-batch --beside published`",
    ComparedRow: "each of `rows` of it",
    ComparedCell: "each of `cells` of these",
    TierTable: "`whichgpu tables tiers`",
    TierRow: "each of `cards` of `tables tiers`",
    AccuracyReport: "`whichgpu accuracy`",
    Bar: "each of `bars` of `accuracy`",
    Group: "each of `groups`, `families` and `evidence` of `accuracy`",
    Errors: "`reserved` and `allocated` of these",
    Largest: "`largest` of `accuracy`",
    Worst: "each of `worst` of `accuracy`",
    Step: "each of `steps` of `accuracy`",
    Point: "each of `points` of a step",
    LargestBatch: "`largest` of a step",
    HostSpeed: "`whichgpu bench --calibrate-host`",
    Probe: "`whichgpu bench --calibrate-host`: a probe of a host",
    SpeedAccuracy: "`whichgpu accuracy speed`",
    SpeedBar: "each of `bars` of `accuracy speed`",
    SpeedErrors: "each of `errors` of `accuracy speed`",
    Gpu: "each of `whichgpu gpus`",
    SecondSource: "`second_source`",
    ZooEntry: "each of `whichgpu zoo`",
}


def page() -> str:
    """The whole page."""
    root: Any = typer.main.get_command(app)
    parts = [HEAD, _section(root, "whichgpu")]
    for name, command in root.commands.items():
        parts.append(_section(command, f"whichgpu {name}"))
        parts += [
            _section(inner, f"whichgpu {name} {part}") for part, inner in getattr(command, "commands", {}).items()
        ]
    parts += [JSON_HEAD, *map(_keys, WHERE)]
    return "\n".join(parts)


def _keys(record: type) -> str:
    """The table of one record's keys; KeyError when a key has no meaning here yet."""
    lines = [f"### {WHERE[record]}", "", "| key | value | meaning |", "|---|---|---|"]
    for key, kind in get_type_hints(record).items():
        meaning = BREAKDOWN_MEANING if record is Breakdown else MEANINGS[record.__name__, key]
        lines.append(f"| `{key}` | {_kind(kind)} | {meaning} |")
    return "\n".join([*lines, ""])


def _kind(kind: Any) -> str:
    """A type in the words of JSON."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_kind, inner))
    if origin is tuple:
        return f"list of {_kind(inner[0])}"
    if origin is dict:
        return f"object of {_kind(inner[1])}"
    names = {str: "text", bool: "true or false", int: "whole number", float: "number", types.NoneType: "null"}
    return names.get(kind, "object")


def _section(command: Any, name: str) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    usage = " ".join([name, *(a.metavar for a in arguments), *(["[OPTIONS]"] if options else [])])
    if name == "whichgpu":
        usage = "whichgpu [--version] COMMAND ..."
    lines = [f"## {name}", "", f"    {usage}", "", _plain(command.help), ""]
    rows = [(f"`{a.metavar}`", a.help) for a in arguments]
    rows += [(f"`{' '.join([*o.opts, *([o.metavar] if o.metavar else [])])}`", o.help) for o in options]
    if rows:
        lines += ["| argument or option | meaning |", "|---|---|"]
        lines += [f"| {term} | {_plain(meaning)} |" for term, meaning in rows]
        lines.append("")
    return "\n".join(lines)


def _plain(words: str) -> str:
    """Help text as Markdown: paragraphs kept, lines joined, `*` as it is."""
    return "\n\n".join(" ".join(part.split()) for part in words.split("\n\n")).replace("*", r"\*")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
