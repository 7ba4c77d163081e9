"""Records on a GPU what steps take from PyTorch's allocator, operator by operator, to find where a prediction is off.

    python3 tools/record_steps.py --out DIR [--budget-s 150] [--steps NAME=BATCH[@GIB] ...] [--searched-s 45]

DIR/events.jsonl.xz has a line for each step of STEPS (zoo or truth set): the allocator's history of three steps as
tools/truth/measuring.py encodes it, and of the first two what each operator took and gave back (`ops`). With @GIB the
allocator may take so much and no more; where it runs out (`out_of_memory`), the history ends there. Steps with
cudnn.benchmark run alone, since what else runs decides which engine is fastest; the others share the GPU.

DIR/chosen.jsonl.gz has a line for each convolution run with cudnn.benchmark: requests of its first run (the search among
them) and of its second, in which the fastest engine alone takes its workspace. What may be tuned on is asked first:
convolutions of networks and random ones, never those of a held-out step alone.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import measure_truth
from measure_truth import Children, Job, Output, Session

# name, batch size, room on the GPU in GiB
STEPS = (
    ("resnet34_benchmark_bf16amp", 96, 12), ("unet2d_benchmark_fp32", 4, 12), ("resnet34_benchmark_bf16amp", 96, 12),
    ("resnet34_benchmark_bf16amp", 32, 12), ("mobilenet_v2_benchmark_channels_last_fp16", 48, 12),
    ("llama3-8b", 1, 76), ("stylegan", 4, 18), ("mamba2-370m", 2, 32), ("segformer-b5", 1, 16),
    ("llava-7b-lora", 2, 30), ("olmoe-1b-7b", 1, 86), ("rt-detr", 4, 10), ("deeplabv3", 1, 8), ("yolo-v3", 4, 12),
    ("cuda_literal_resnet18_fp16", 96, 6), ("sdxl-unet", 1, 56),
)  # fmt: skip
RUNS, PROFILED = 3, 2
HISTORY = 800  # events of the allocator that are kept while convolutions run
SHAPES = Path(__file__).parent / "workspace_grid"
BATCHES = (2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256)
KINDS = (("bf16", "contiguous"), ("tf32", "contiguous"), ("fp16", "contiguous"), ("bf16", "channels_last"),
         ("fp16", "channels_last"), ("tf32", "channels_last"))  # fmt: skip


# ---- a child ----------------------------------------------------------------------------------------------------


def record(
    name: str, batch_size: int, device_name: str, tiny: bool, limit_bytes: int | None = None
) -> tuple[dict[str, Any], bytes]:
    """The history of a step of the zoo or of the truth set in this process."""
    import torch

    from truth import measuring

    device, on_gpu = torch.device(device_name), device_name == "cuda"
    if on_gpu:
        torch.cuda.init()
        torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python", max_entries=10_000_000)
        if limit_bytes is not None:
            measuring.limit_allocator(limit_bytes)
    step = _setup(name, device_name, tiny)(device)
    boundaries, found, after = [], [], []

    def mark() -> None:
        if on_gpu:
            torch.cuda.synchronize()
            boundaries.append(len(torch.cuda.memory._snapshot()["device_traces"][device.index or 0]))
            after.append((torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()))

    mark()
    failed = ""
    for number in range(RUNS):
        profiled = number < PROFILED
        try:
            with _profile(torch) if profiled else nullcontext() as profile:
                step(batch_size)
                mark()
        except torch.cuda.OutOfMemoryError as error:
            failed = str(error)[:200]
            break
        if profiled:
            roots = profile.profiler.kineto_results.experimental_event_tree()
            kinds, order = measuring._by_operator(roots, device.type)
            found.append({"kinds": kinds, "order": order})
    history: dict[str, Any] = {}
    if on_gpu:
        trace = torch.cuda.memory._snapshot()["device_traces"][device.index or 0]
        history = measuring._encode(trace, boundaries)
    told = {"limit_bytes": limit_bytes, "out_of_memory": failed} if limit_bytes is not None else {}
    row = {"after": after, "rows": [len(one["order"]) for one in found], **told}
    return row, measuring._packed({"name": name, "batch_size": batch_size, "ops": found, **told, **history})


def _profile(torch: Any) -> Any:
    return torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, profile_memory=True
    )


def _setup(name: str, device: str, tiny: bool) -> Any:
    import truth

    if any(case.name == name for case in truth.CASES):
        return truth.find([name])[0].setup(tiny=tiny)
    from measure_zoo import recipe_of

    return recipe_of(name, device).setup


def chosen(out: str, budget_s: float, device: str) -> dict[str, Any]:
    """Run convolutions with cudnn.benchmark until the time is up; a line for each goes into the file."""
    import torch

    torch.backends.cudnn.benchmark = True
    began, lines, failed = time.monotonic(), 0, 0
    if device == "cuda":
        torch.cuda.init()
        torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python", max_entries=HISTORY)
    with gzip.open(out, "wt", compresslevel=6) as file:
        for conv, names in convolutions():
            if time.monotonic() - began > budget_s:
                break
            started = time.monotonic()
            row: dict[str, Any] = {
                "dtype": conv.dtype, "last": conv.layout == "channels_last", "x": conv.input, "w": conv.weight,
                "y": conv.output, "s": conv.stride, "p": conv.padding, "d": conv.dilation, "g": conv.groups,
                "t": conv.transposed, "names": names[:3],
            }  # fmt: skip
            try:
                row.update(_searched(conv, device))
            except Exception as error:
                failed += 1
                row["failed"] = f"{type(error).__name__}: {str(error)[:200]}"
            row["took_s"] = round(time.monotonic() - started, 3)
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
            lines += 1
            if not lines % 50:
                file.flush()
    return {"lines": lines, "failed": failed, "searched_s": round(time.monotonic() - began, 1)}


def _searched(conv: Any, device: str) -> dict[str, list[list[int]]]:
    """Requests by direction (forward, input's gradient, weight's gradient) of the first and of the second run.

    A request is its bytes, -k gives back the k-th; the first is the result.
    """
    import torch

    from workspace_grid.points import ATEN, DTYPES, to_layout

    def random_tensor(shape: tuple[int, ...]) -> Any:
        return to_layout(torch.randn(shape, device=device, dtype=DTYPES[conv.dtype]), conv.layout)

    x, weight, gradient = random_tensor(conv.input), random_tensor(conv.weight), random_tensor(conv.output)
    rest = [
        list(conv.stride),
        list(conv.padding),
        list(conv.dilation),
        conv.transposed,
        [0] * len(conv.spatial),
        conv.groups,
    ]
    torch.backends.cudnn.allow_tf32 = conv.dtype != "fp32"
    found: dict[str, list[list[int]]] = {"first": [], "second": []}
    for run in found.values():
        for mask in (None, [True, False, False], [False, True, False]):
            before = _trace(device)
            if mask is None:
                ATEN.convolution.default(x, weight, None, *rest)
            else:
                ATEN.convolution_backward.default(gradient, x, weight, None, *rest, mask)
            run.append(_requests(_trace(device)[-(HISTORY // 2) :], before[-1]["time_us"] if before else 0))
    return found


def _trace(device: str) -> list[dict[str, Any]]:
    """The allocator's last events."""
    import torch

    if device != "cuda":
        return []
    torch.cuda.synchronize()
    return torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]


def _requests(trace: list[dict[str, Any]], after_us: int) -> list[int]:
    live: dict[int, int] = {}
    found: list[int] = []
    for entry in trace:
        if entry["time_us"] <= after_us:
            continue
        if entry["action"] == "alloc":
            found.append(entry["size"])
            live[entry["addr"]] = sum(size > 0 for size in found)
        elif entry["action"] == "free_completed" and entry["addr"] in live:
            found.append(-live.pop(entry["addr"]))
    return found


def convolutions() -> Any:
    """Convolutions of networks, then random ones as networks have them, each at one batch size of one kind."""
    from workspace_grid.conv import model_shapes

    draw = random.Random(11)
    files = ("model_convs.json", "searched_convs.json")
    # by networks of the truth set that may be tuned on first, then the others in turn
    first, rest = [], []
    for place, file in enumerate(files):
        for conv, names in model_shapes(SHAPES / file):
            if len(conv.spatial) == 2:
                (
                    first if place == 0 and {"resnet18", "resnet50", "unet", "mobilenetv2_100"} & set(names) else rest
                ).append((conv, names))
    draw.shuffle(rest)
    for conv, names in first + rest:
        kinds = KINDS[:3] if (conv, names) in first else draw.sample(KINDS, 1)
        for dtype, layout in kinds:
            sized = replace(conv, batch=draw.choice(BATCHES), dtype=dtype, layout=layout)
            while not sized.fits() and sized.batch > 1:
                sized = replace(sized, batch=sized.batch // 2)
            yield sized, names


# ---- the parent -------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", nargs="*", metavar="NAME=BATCH[@GIB]", help="record these instead")
    parser.add_argument("--searched-s", type=float, default=45, help="seconds for convolutions alone (default 45)")
    measure_truth.add_session_options(parser, jobs=6, budget_s=110, grace_s=35, timeout_s=100)
    parser.add_argument("--tiny", action="store_true", help="steps of the truth set at their small sizes")
    return parser


def _asked(words: str) -> tuple[str, int, float, int | None]:
    """A step's name, batch size, room in GiB and limit, from NAME=BATCH or NAME=BATCH@GIB."""
    name, _, size = words.rpartition("=")
    batch_size, _, limit_gib = size.partition("@")
    if not limit_gib:
        return name, int(batch_size), 16, None
    return name, int(batch_size), float(limit_gib) + 1, round(float(limit_gib) * (1 << 30))


def main() -> None:
    """Record convolutions, then steps that let cuDNN search one at a time, then the others together."""
    begun = time.monotonic()
    arguments = _parser().parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    steps = [_asked(one) for one in arguments.steps or ()] or [(*one, None) for one in STEPS]
    jobs = [
        Job(
            "record",
            name,
            size,
            device=arguments.device,
            tiny=arguments.tiny,
            timeout_s=arguments.timeout_s,
            room_gib=gib,
            limit_bytes=limit_bytes,
        )
        for name, size, gib, limit_bytes in steps
    ]
    alone = [job for job in jobs if "_benchmark_" in job.name]
    with tempfile.TemporaryDirectory() as temporary:
        _, fork = measure_truth.look_at_gpu(arguments, Path(temporary))
        output = Output(arguments.out)
        searches = Job("chosen", str(arguments.out / "chosen.jsonl.gz"), device=arguments.device,
                       timeout_s=arguments.searched_s + 30, limit_bytes=round(arguments.searched_s))  # fmt: skip
        for together, plan in ((1, [searches] if arguments.searched_s else []), (1, alone),
                               (arguments.jobs, [job for job in jobs if job not in alone])):  # fmt: skip
            session = Session(arguments, Children(together, Path(temporary), fork), output, begun)
            session.run([(job, None) for job in plan], {}, None)
    print(f"{time.monotonic() - begun:.0f} s, files {output.written}, left out {output.skipped_bytes} bytes")


if __name__ == "__main__":
    main()
