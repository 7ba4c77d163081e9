"""Record what PyTorch's CUDA caching allocator does in real training loops, as test data for the model of it.

Needs torch and a CUDA GPU, nothing else:

    python3 tools/record_allocator.py --out tests/data/allocator

Each case runs in a fresh process that turns on the allocator's history before the first allocation. One
`CASE.json.gz` comes of each: the program of allocations and frees in whichgpu.allocator's form, and what
torch itself reported. Trace entries carry requested sizes for `alloc` and the rounded size for `oom`
(c10/cuda/CUDACachingAllocator.cpp, alloc_found_block and malloc, torch 2.11 to 2.14).
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

MAX_FILE_BYTES = 300_000
MAX_TRACE_ENTRIES = 1_000_000


def mlp_and_conv_adam(torch: Any) -> None:
    nn = torch.nn
    conv = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
    )  # fmt: skip
    mlp = nn.Sequential(nn.Flatten(), nn.Linear(128 * 16, 2048), nn.GELU(), nn.Dropout(0.1), nn.Linear(2048, 1000))
    model = nn.Sequential(conv, mlp).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(6):
        images = torch.randn(48, 3, 64, 64, device="cuda")
        labels = torch.randint(0, 1000, (48,), device="cuda")
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()


def transformer_bf16(torch: Any) -> None:
    nn = torch.nn
    layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.1, batch_first=True, norm_first=True)
    embedding, head = nn.Embedding(8000, 512), nn.Linear(512, 8000)
    encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    model = nn.Sequential(embedding, encoder, head).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(5):
        tokens = torch.randint(0, 8000, (12, 160), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(tokens)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()


def _conv_step(torch: Any, model: Any, optimizer: Any, batch_size: int) -> None:
    images = torch.randn(batch_size, 3, 128, 128, device="cuda")
    loss = model(images).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss.item()


def _conv_net(torch: Any) -> tuple[Any, Any]:
    nn = torch.nn
    layers: list[Any] = []
    for width_in, width_out, stride in ((3, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1)):
        convolution = nn.Conv2d(width_in, width_out, 3, stride=stride, padding=1)
        layers += [convolution, nn.BatchNorm2d(width_out), nn.ReLU()]
    model = nn.Sequential(*layers).cuda()
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def varying_batches(torch: Any) -> None:
    model, optimizer = _conv_net(torch)
    for batch_size in (40, 51, 37, 62, 45, 70, 33, 57, 76, 41, 66, 29, 74, 48):
        _conv_step(torch, model, optimizer, batch_size)


def growing_batches_until_oom(torch: Any) -> None:
    model, optimizer = _conv_net(torch)
    batch_size = 24
    while True:
        _conv_step(torch, model, optimizer, batch_size)
        batch_size = batch_size * 5 // 4


class Case(NamedTuple):
    """A training loop to record; `limited_by` names the case from whose peaks the memory limit follows."""

    loop: Callable[[Any], None]
    description: str
    limited_by: str | None = None
    expandable: bool = False


CASES = {
    "mlp_conv_adam": Case(mlp_and_conv_adam, "convolutions and an MLP, Adam, fp32, 6 steps"),
    "transformer_bf16": Case(transformer_bf16, "4-layer encoder, bf16 autocast, AdamW, 5 steps"),
    "varying_batches": Case(varying_batches, "convolutions, another batch size in each of 14 steps"),
    "varying_batches_limited": Case(
        varying_batches, "the same under a limit that makes it release cached segments", "varying_batches"
    ),
    "varying_batches_expandable": Case(
        varying_batches, "the same limit with expandable segments", "varying_batches", True
    ),
    "growing_batches_oom": Case(
        growing_batches_until_oom, "convolutions, the batch grows until out of memory", "varying_batches"
    ),
}


def program_of(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """A device trace as program, sizes and driver calls; raises SystemExit where the model does not apply."""
    streams = {entry["stream"] for entry in entries if entry["action"] in ("alloc", "free_completed")}
    if len(streams) > 1:
        raise SystemExit(f"allocations on {len(streams)} streams; the model covers one")
    program: list[int] = []
    sizes: list[int] = []
    slot_at: dict[int, int] = {}
    driver: dict[str, list[Any]] = {"segment_allocs": [], "segment_addresses": [], "segment_frees": []}
    for entry in entries:
        action = entry["action"]
        if action == "alloc":
            sizes.append(entry["size"])
            slot_at[entry["addr"]] = len(sizes)
            program.append(len(sizes))
        elif action == "free_completed":
            program.append(-slot_at.pop(entry["addr"]))
        elif action in ("segment_alloc", "segment_map"):
            driver["segment_allocs"].append(entry["size"])
            driver["segment_addresses"].append(entry["addr"])
        elif action in ("segment_free", "segment_unmap"):
            driver["segment_frees"].append(entry["size"])
        elif action == "oom":
            sizes.append(entry["size"])
            program.append(len(sizes))
            break
        elif action not in ("free_requested", "snapshot", "annotate", "user_defined"):
            raise SystemExit(f"unknown trace entry {action!r}")
    return {"program": program, "sizes": sizes, "oom": any(e["action"] == "oom" for e in entries), **driver}


def record(name: str, out: Path, limit_bytes: int | None) -> None:
    """Run one case in this process and write its file."""
    import torch

    case = CASES[name]
    torch.cuda.init()
    total_bytes = torch.cuda.mem_get_info()[1]
    if limit_bytes is not None:
        fraction = limit_bytes / total_bytes
        torch.cuda.set_per_process_memory_fraction(fraction)
        limit_bytes = int(fraction * total_bytes)  # as setMemoryFraction computes it
    if torch.cuda.memory_reserved() or torch.cuda.max_memory_allocated():
        raise SystemExit("memory was allocated before recording began")
    at_oom: list[dict[str, int]] = []  # a library may catch the exception and go on, so the first one counts
    torch._C._cuda_attach_out_of_memory_observer(lambda *_: at_oom.append(torch.cuda.memory_stats()))
    torch.cuda.memory._record_memory_history("all", context=None, stacks="python", max_entries=MAX_TRACE_ENTRIES)
    torch.manual_seed(0)
    with contextlib.suppress(torch.cuda.OutOfMemoryError):
        case.loop(torch)
    torch.cuda.synchronize()
    stats = at_oom[0] if at_oom else torch.cuda.memory_stats()
    entries = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    if len(entries) >= MAX_TRACE_ENTRIES:
        raise SystemExit("the history was cut short")
    trace = program_of(entries)
    if trace["oom"] != bool(at_oom):
        raise SystemExit("the history and the observer disagree about running out of memory")
    result = {
        "format": 1,
        "description": case.description,
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(),
        "driver": _driver_version(),
        "total_bytes": total_bytes,
        "limit_bytes": limit_bytes,
        "expandable_segments": case.expandable,
        "peak_reserved_bytes": stats["reserved_bytes.all.peak"],
        "peak_allocated_bytes": stats["allocated_bytes.all.peak"],
        "peak_requested_bytes": stats["requested_bytes.all.peak"],
        "num_alloc_retries": stats["num_alloc_retries"],
        **trace,
    }
    path = out / f"{name}.json.gz"
    text = json.dumps(result, separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(text, 9, mtime=0))
    if path.stat().st_size > MAX_FILE_BYTES:
        raise SystemExit(f"{path} is {path.stat().st_size} bytes, more than {MAX_FILE_BYTES}: use fewer steps")
    addresses = trace["segment_addresses"]
    order = "ascending" if addresses == sorted(addresses) else "mixed"
    print(
        f"{name}: {len(trace['program'])} events, limit {limit_bytes}, "
        f"peak allocated {result['peak_allocated_bytes']}, reserved {result['peak_reserved_bytes']}, "
        f"{len(addresses)} segments at {order} addresses, "
        f"{result['num_alloc_retries']} retries, oom {trace['oom']}, file {path.stat().st_size} bytes"
    )


def _driver_version() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.splitlines()[0].strip()


def _limit(out: Path, name: str) -> int:
    """A limit between a case's allocated and reserved peaks, so that it must release its cache."""
    recorded = json.loads(gzip.decompress((out / f"{name}.json.gz").read_bytes()))
    allocated, reserved = recorded["peak_allocated_bytes"], recorded["peak_reserved_bytes"]
    return int(allocated + (reserved - allocated) // 3)


def run_all(out: Path) -> int:
    """Record every case in a process of its own, those that others depend on first; returns the failures."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")}
    failures = 0
    for limited in (False, True):
        running = {}
        for name, case in CASES.items():
            if (case.limited_by is not None) != limited:
                continue
            command = [sys.executable, __file__, "--out", str(out), "--case", name]
            if case.limited_by is not None:
                if not (out / f"{case.limited_by}.json.gz").exists():
                    print(f"{name}: FAILED, {case.limited_by} was not recorded", flush=True)
                    failures += 1
                    continue
                command += ["--limit-bytes", str(_limit(out, case.limited_by))]
            environment = clean | ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if case.expandable else {})
            running[name] = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        for name, process in running.items():
            output, errors = process.communicate(timeout=300)
            print(output, end="", flush=True)
            if process.returncode:
                failures += 1
                print(f"{name}: FAILED\n{errors[-2000:]}", flush=True)
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    parser.add_argument("--case", choices=CASES, help="record this one, in this process")
    parser.add_argument("--limit-bytes", type=int, help="with --case: memory that the allocator may reserve")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.case:
        record(arguments.case, arguments.out, arguments.limit_bytes)
        return 0
    return min(1, run_all(arguments.out))


if __name__ == "__main__":
    sys.exit(main())
