"""The allocator model against the card in front of you: the same requests to both, the same counters.

Each program runs in a fresh process, so that nothing else is in the allocator. Sizes are whole and odd byte
counts without regard to data types, asked of the allocator itself.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys

import pytest

from whichgpu.allocator import AllocatorConfig, CachingAllocator, replay

pytestmark = pytest.mark.gpu

MIB = 1 << 20

# Reads {"program", "sizes", "fraction"}, prints the counters after each event and where it ran out of memory.
DRIVER = """
import json, sys, torch
from torch.cuda import caching_allocator_alloc, caching_allocator_delete, memory_stats
job = json.load(sys.stdin)
torch.cuda.init()
total = torch.cuda.mem_get_info()[1]
if job["limit_bytes"] is not None:
    torch.cuda.set_per_process_memory_fraction(job["limit_bytes"] / total)
live, failed_at, counters = {}, None, []
for index, entry in enumerate(job["program"]):
    try:
        if entry > 0:
            live[entry] = caching_allocator_alloc(job["sizes"][entry - 1])
        else:
            caching_allocator_delete(live.pop(-entry))
    except torch.cuda.OutOfMemoryError:
        failed_at = index
        break
    counters.append([torch.cuda.memory_allocated(), torch.cuda.memory_reserved()])
stats = memory_stats()
peaks = [stats[f"{name}_bytes.all.peak"] for name in ("allocated", "reserved", "requested")]
print(json.dumps({"failed_at": failed_at, "counters": counters, "peaks": peaks,
                  "retries": stats["num_alloc_retries"], "total": total}))
"""


def random_program(seed: int, length: int) -> tuple[list[int], list[int]]:
    """A program with the mix of sizes of training: tiny, small, odd, large, many of them equal."""
    rng = random.Random(seed)
    sizes: list[int] = []
    program: list[int] = []
    live: list[int] = []
    usual = [rng.randint(1, 64 * MIB) for _ in range(6)]
    for _ in range(length):
        if live and rng.random() < 0.47:
            slot = live.pop(rng.randrange(len(live)))
            program.append(-slot)
            continue
        scale = rng.choice([2000, MIB, 4 * MIB, 12 * MIB, 40 * MIB])
        sizes.append(rng.choice(usual) if rng.random() < 0.3 else rng.randint(1, scale))
        live.append(len(sizes))
        program.append(len(sizes))
    return program, sizes


def on_card(program: list[int], sizes: list[int], limit_bytes: int | None, expandable: bool) -> dict[str, object]:
    """What torch's own allocator says of the program."""
    environment = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=f"expandable_segments:{expandable}")
    job = json.dumps({"program": program, "sizes": sizes, "limit_bytes": limit_bytes})
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        input=job,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def exact_limit(limit_bytes: int | None, total_bytes: int) -> int | None:
    """The limit as torch computes it from a fraction, which loses a byte at times."""
    return None if limit_bytes is None else int(limit_bytes / total_bytes * total_bytes)


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_counters_agree_with_the_card(seed: int, limited: bool, expandable: bool) -> None:
    """Allocated and reserved bytes agree after every event, as do the peaks, the retries and the failure."""
    program, sizes = random_program(seed, 1500)  # the process runs no kernels: it loads none, and no handle of cuBLAS
    config = AllocatorConfig(expandable_segments=expandable)
    unlimited = replay(program, sizes, None, config)
    limit = None
    if limited:
        limit = (unlimited.peak_allocated_bytes + unlimited.peak_reserved_bytes) // 2

    card = on_card(program, sizes, limit, expandable)

    total = card["total"]
    assert isinstance(total, int)
    model = CachingAllocator(exact_limit(limit, total), config)
    result = replay(program, sizes, model.limit_bytes, config)
    live = {}
    counters = []
    for entry in program[: result.failed_at]:
        if entry > 0:
            live[entry] = model.malloc(sizes[entry - 1])
        else:
            model.free(live.pop(-entry))
        counters.append([model.allocated_bytes, model.reserved_bytes])
    assert card["counters"] == counters
    assert card["failed_at"] == result.failed_at
    assert card["retries"] == result.released_cache
    assert card["peaks"] == [
        result.peak_allocated_bytes,
        result.peak_reserved_bytes,
        result.peak_requested_bytes,
    ]
