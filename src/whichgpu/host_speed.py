"""How fast this machine's processor launches operators, against the host that the constants of the speed model were fitted on.

A step is as slow as its host where that takes longer than the GPU, and hosts differ by factors. `calibrate` times a small step on
the CPU (bench_worker/host_probe.py, in a process of its own, without a GPU), and keeps the result in the user's data folder; from
then on predicted speeds are for this host. The speed is the geometric mean, over forward, backward and optimizer, of how many
times as long the reference host took for the same phase. So it is one number for all that a host does: Python, dispatcher,
autograd and driver are taken to scale alike, and so are the random numbers of steps that make their data on the host.

Does not cover: hosts whose processors are busy with something else while a step runs.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from functools import cache
from importlib import resources
from math import exp, log
from pathlib import Path

import msgspec
import platformdirs

from whichgpu.errors import BenchError, InputError
from whichgpu.output_file import replace_whole

PROBE = (sys.executable, "-P", "-m", "whichgpu.bench_worker.host_probe")
TIMEOUT_S = 120.0
REFERENCE_SPEED = 1.0
_LEAST, _MOST = 0.01, 100.0


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """What the probe measured of a host."""

    launches_us: dict[str, float]  # microseconds of its processor, by phase of the small step
    normal_ns: float  # of an element
    uniform_ns: float
    integer_ns: float
    copy_ns_per_byte: float
    processor: str
    processors: int
    load: float  # processes that ran or waited beside it, a minute's mean
    torch: str
    python: str
    date: str
    seconds: float


class HostSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `whichgpu bench --calibrate-host`, as it is kept."""

    host: str  # its name in the network
    host_speed: float  # times the reference's
    probe: Probe
    reference: Probe
    file: str  # where it is kept


@cache
def reference() -> Probe:
    """The host of the H200 that the constants were fitted on."""
    return msgspec.json.decode(resources.files("whichgpu").joinpath("data", "host.json").read_bytes(), type=Probe)


def against(probe: Probe, other: Probe) -> float:
    """How many times as fast a host is as another."""
    logs = [log(other.launches_us[phase] / probe.launches_us[phase]) for phase in other.launches_us]
    return float(f"{exp(sum(logs) / len(logs)):.3g}")


def default_path() -> Path:
    """Where this host's speed is kept."""
    return Path(platformdirs.user_data_dir("whichgpu")) / "host.json"


def calibrate(path: Path | None = None, command: tuple[str, ...] = PROBE) -> HostSpeed:
    """Measure this host and keep the result; BenchError where it cannot be measured or kept."""
    where = path or default_path()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise BenchError(
            f"the host could not be timed within {TIMEOUT_S:g} s; try again when it is less busy"
        ) from None
    except OSError as error:
        raise BenchError(f"the process that times the host cannot be started ({error})") from error
    try:
        probe = msgspec.json.decode(done.stdout.strip().rpartition("\n")[2], type=Probe)
    except msgspec.MsgspecError:
        said = (done.stderr.strip() or "it said nothing").rpartition("\n")[2]
        raise BenchError(f"the host could not be timed: {said}") from None
    found = HostSpeed(
        host=platform.node(),
        host_speed=against(probe, reference()),
        probe=probe,
        reference=reference(),
        file=str(where),
    )
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        replace_whole(where, lambda file: file.write(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"))
    except OSError as error:
        raise BenchError(f"the host's speed cannot be kept in {where} ({error}); make the folder writable") from error
    return found


def kept(path: Path | None = None) -> HostSpeed | None:
    """What was measured of this very host; None where nothing was, or the file is of another host or cannot be read."""
    try:
        found = msgspec.json.decode((path or default_path()).read_bytes(), type=HostSpeed)
    except (OSError, msgspec.MsgspecError):
        return None
    return found if found.host == platform.node() and found.host_speed > 0 else None


def check(host_speed: float | None) -> None:
    """InputError for a speed that no host has."""
    if host_speed is not None and not _LEAST <= host_speed <= _MOST:
        raise InputError(f"host speed {host_speed:g}: between {_LEAST:g} and {_MOST:g} times the reference, please")


def chosen(host_speed: float | None) -> tuple[float, str]:
    """The speed to predict with, and what is said of it: that asked for, or this host's, or the reference's."""
    if host_speed is not None:
        return (
            host_speed,
            f"speeds are for a host {host_speed:g} times as fast as the reference ({_words(reference())})",
        )
    own = kept()
    if own is None:
        return REFERENCE_SPEED, ""
    speed = own.host_speed
    return speed, (
        f"speeds are for this host, {speed:g} times as fast as the reference "
        f"(calibrated {own.probe.date}; --host-speed 1 for the reference)"
    )


def _words(probe: Probe) -> str:
    return f"{probe.processor}, torch {probe.torch}"
