"""A tracing worker without torch, for the tests of its client: the workload's text says how it behaves.

Speaks as `whichgpu.capture.worker` does. Writes one line per start to $FAKE_WORKER_STARTS, so that a test can
count the processes, and what it was asked to the file `requests` beside it where it "tells requests".
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from whichgpu.trace import Trace, save


def main() -> None:
    """Serve until standard input closes."""
    answers = int(sys.argv[sys.argv.index("--answers") + 1])
    with open(os.environ["FAKE_WORKER_STARTS"], "a", encoding="utf-8") as starts:
        starts.write(f"{os.getpid()}\n")

    def answer(**fields: object) -> None:
        os.write(answers, json.dumps(fields).encode() + b"\n")

    first = json.loads(sys.stdin.readline())
    behaviour = first["workload"]["text"]
    if behaviour == "bad workload":
        answer(ok=False, error="WorkloadError", message="no such function;\n  name one of: a, b")
        return
    answer(ok=True, sources=[first["workload"]["target"]], distributions={"msgspec": version("msgspec")})
    for line in sys.stdin:
        request = json.loads(line)
        misbehave(behaviour, answers, request["batch_size"])
        if behaviour == "raises at batch 7" and request["batch_size"] == 7:
            answer(ok=False, error="WorkloadError", message="the step failed at batch 7")
            continue
        if behaviour == "unknown error":
            answer(ok=False, error="SystemExit", message="what")
            continue
        if behaviour == "tells requests":
            requests = Path(os.environ["FAKE_WORKER_STARTS"]).with_name("requests")
            with requests.open("a", encoding="utf-8") as told:
                told.write(json.dumps({"first": first, **request}) + "\n")
        answer(progress=f"tracing batch {request['batch_size']}: step 1 of 3")
        capability = "8.0" if behaviour == "another class" else request["capability"]
        save(trace(request["batch_size"], capability, first["kind"]), Path(request["out"]))
        if behaviour == "damaged trace":
            Path(request["out"]).write_bytes(b"no trace")
        answer(ok=True)


def misbehave(behaviour: str, answers: int, batch_size: int) -> None:
    """What a worker does when the user's code takes the process along."""
    print("user code prints", batch_size)
    print('{"ok": true}', flush=True)
    if behaviour == "exits":
        os._exit(3)
    if behaviour == "partial line":
        os.write(answers, b'{"ok": tr')
        os._exit(0)
    if behaviour == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    if behaviour == "out of memory":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "nonsense":
        os.write(answers, b"Segmentation fault\n")
    if behaviour == "closes":
        os.close(answers)
        time.sleep(600)
    if behaviour in ("hangs", "hangs with a child"):
        if behaviour == "hangs with a child":
            child = subprocess.Popen(["sleep", "600"])
            with open(os.environ["FAKE_WORKER_STARTS"], "a", encoding="utf-8") as starts:
                starts.write(f"{child.pid}\n")
        time.sleep(600)
    if behaviour == "will not leave":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)


def trace(batch_size: int, capability: str, kind: Any) -> Trace:
    """An empty trace."""
    return Trace(
        workload="fake",
        batch_size=batch_size,
        capability=capability,
        kind=kind,
        torch_version="0",
        steps=3,
        names=(),
        ops=(),
        storages=(),
        events=(),
    )


def version(name: str) -> str:
    """The version of an installed distribution."""
    from importlib import metadata

    return metadata.version(name)


if __name__ == "__main__":
    main()
