"""How long `whichgpu fit` takes from an empty cache and again, as a user would run it, and how much memory it needs.

    python tools/bench_fit.py [WORKLOAD...]

Each run is a process of its own with a cache of its own, also for what Numba compiles; the time has the import of PyTorch in it. The memory is that of
the largest of its processes, as the system counts it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time

WORKLOADS = ["bert-base", "nasnet-large", "llama3-8b"]
RUN = """
import resource, subprocess, sys
code = subprocess.run([sys.executable, "-m", "whichgpu", "fit", sys.argv[1]], stdout=subprocess.DEVNULL).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def run(workload: str, cache: str) -> tuple[float, float]:
    """Seconds of one `whichgpu fit`, and MiB of the largest process."""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", RUN, workload],
        env={**os.environ, "WHICHGPU_CACHE": cache, "NUMBA_CACHE_DIR": cache},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    seconds = time.monotonic() - started
    code, largest_kib = map(int, done.stdout.split())
    if code:
        raise SystemExit(f"whichgpu fit {workload} ended with exit code {code}")
    return seconds, largest_kib / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=WORKLOADS)
    for workload in parser.parse_args().workloads:
        with tempfile.TemporaryDirectory() as cache:
            (first, largest), (again, _) = run(workload, cache), run(workload, cache)
        print(f"{workload:30} {first:6.1f} s from an empty cache, {largest:,.0f} MiB; again {again:.2f} s", flush=True)


if __name__ == "__main__":
    main()
