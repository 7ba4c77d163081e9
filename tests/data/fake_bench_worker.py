"""A measuring process without torch or GPU, for the tests of its client: the workload's text says how it behaves.

Speaks as `whichgpu.bench_worker` does, over a card of 8 GiB. "N fit" runs at batch sizes up to N. Tells each attempt,
one line each, to the file $FAKE_BENCH_ATTEMPTS.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

GIB = 1 << 30
CARD = {
    "name": "Made-up GPU",
    "uuid": "1234",
    "memory_bytes": 8 * GIB,
    "compute_capability": "9.0",
    "cuda": "13.0",
    "torch": "2.14.1",
    "cudnn": "91000",
    "python": "3.12.0",
    "flags": {"allocator": ""},
}


def main() -> None:
    """Serve until standard input closes."""
    answers = int(sys.argv[sys.argv.index("--answers") + 1])

    def say(**fields: object) -> None:
        os.write(answers, json.dumps(fields).encode() + b"\n")

    target = Path(json.loads(sys.stdin.readline())["workload"]["target"])
    behaviour = target.read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()
    if behaviour == "bad workload":
        say(ok=False, error="WorkloadError", message="no such function")
        return
    say(ok=True, unit="images", items_per_sample=2, workload_hash="hash of " + behaviour, libraries={"timm": "1.0"})
    for line in sys.stdin:
        attempt = json.loads(line)
        with open(os.environ["FAKE_BENCH_ATTEMPTS"], "a", encoding="utf-8") as told:
            told.write(json.dumps({**attempt, "pid": os.getpid()}) + "\n")
        say(event="started", pid=None)
        if attempt["kind"] == "probe":
            say(event="done", **probe(behaviour, attempt))
            continue
        say(progress="step 1 of 3")
        if "takes a while" in behaviour:
            time.sleep(0.2)
        if misbehave(behaviour, answers, attempt["batch_size"]):
            continue
        if attempt["kind"] == "time":
            say(event="timing")
            say(event="timed")
        say(event="done", attempt_s=0.5, flags={"allocator": "", "tf32_cudnn": True}, **outcome(behaviour, attempt))


def probe(behaviour: str, attempt: dict) -> dict:
    """The card, or why there is none."""
    if behaviour == "no driver":
        return {"outcome": "driver", "message": "Found no NVIDIA driver on your system. Please check that it is there."}
    if behaviour == "one card" and attempt["gpu_index"] > 0:
        return {"outcome": "no_gpu", "message": "1"}
    if behaviour == "full card":
        return {"outcome": "out_of_memory", "message": "CUDA error: out of memory"}
    return {"outcome": "ok", "card": CARD}


def outcome(behaviour: str, attempt: dict) -> dict:
    """How an attempt ends."""
    size = attempt["batch_size"]
    limit = attempt["memory_limit_bytes"] or 8 * GIB
    largest = int(re.search(r"(\d+) fit", behaviour)[1]) * limit // (8 * GIB)
    if behaviour.endswith("cuda error"):
        return {"outcome": "cuda_error", "message": "CUDA error: device-side assert triggered"}
    if behaviour.endswith("refuses"):
        return {"outcome": "step_error", "message": "ValueError: no"}
    if behaviour.endswith("fit, fewer for long") and attempt["kind"] == "time":
        largest -= 1
    if size > largest:
        return {"outcome": "out_of_memory", "message": "CUDA out of memory"}
    peak = limit // 10 + limit * 9 // 10 * size // max(largest, 1)
    answer = {"peak_allocated_bytes": peak, "peak_reserved_bytes": peak, "outside_bytes": GIB // 2, "outcome": "ok"}
    if attempt["kind"] == "fit":
        return {**answer, "steps": attempt["steps"]}
    step_s = 0.01 * size
    return {**answer, "step_s": [step_s, 0.995 * step_s, 1.005 * step_s], "steps": 20, "converged": True}


def misbehave(behaviour: str, answers: int, batch_size: int) -> bool:
    """What happens when the measuring process itself is hit; batch sizes above 100 only."""
    if batch_size <= 100:
        return False
    if "crashes" in behaviour:
        os.kill(os.getpid(), signal.SIGSEGV)
    if "partial line" in behaviour:
        os.write(answers, b'{"event": "do')
        os._exit(0)
    if "garbage" in behaviour:
        os.write(answers, b"Segmentation fault\n")
        return True
    if "hangs" in behaviour:
        subprocess.Popen(["sleep", "600"])
        time.sleep(600)
    return False


if __name__ == "__main__":
    main()
