"""What the NVIDIA driver says of a card without touching CUDA: memory, who holds it, power, clocks, temperature.

Through nvidia-ml-py, which comes with the extra `bench`. Where it or the driver is missing `connect` gives None and why,
and measuring goes on without these figures. A driver may refuse single figures (a laptop's power, processes outside a
container): each is None then.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

# What slows a card down, by bit (NVML_CLOCKS_EVENT_REASON_*, nvml.h 12): idling and user settings are no slowdown.
_THROTTLES = {
    0x04: "power limit",
    0x08: "hardware slowdown",
    0x20: "temperature (driver)",
    0x40: "temperature (hardware)",
    0x80: "power supply",
}
_GRAPHICS = "graphics"


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process that holds memory of the card."""

    pid: int
    name: str | None  # None where it cannot be seen, as from inside a container
    memory_bytes: int | None
    graphics: bool  # a screen's: there all the time


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Means over a stretch of work."""

    power_w: float | None = None
    sm_clock_mhz: float | None = None
    temperature_c: float | None = None  # the highest
    throttled: tuple[str, ...] = ()


class GpuStatus:
    """One card, as the driver shows it."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    @property
    def capability(self) -> tuple[int, int] | None:
        """CUDA compute capability."""
        found = self._ask("nvmlDeviceGetCudaComputeCapability")
        return (int(found[0]), int(found[1])) if found is not None else None

    @property
    def uuid(self) -> str | None:
        """The card's own identifier."""
        return _text(self._ask("nvmlDeviceGetUUID"))

    @property
    def driver(self) -> str | None:
        """The driver's version."""
        with contextlib.suppress(self._nvml.NVMLError):
            return _text(self._nvml.nvmlSystemGetDriverVersion())
        return None

    def memory(self) -> tuple[int, int, int] | None:
        """Total, free and used bytes; what the driver keeps for itself is neither free nor used."""
        found = self._ask("nvmlDeviceGetMemoryInfo", getattr(self._nvml, "nvmlMemory_v2", None))
        found = found or self._ask("nvmlDeviceGetMemoryInfo")
        return (int(found.total), int(found.free), int(found.used)) if found is not None else None

    def holders(self) -> list[Holder]:
        """Processes that hold memory, the largest first; empty where the driver does not tell."""
        found: dict[int, Holder] = {}
        for kind in (_GRAPHICS, "compute"):  # a process may be both: then it computes
            query = f"nvmlDeviceGet{kind.capitalize()}RunningProcesses"
            for process in self._ask(query) or ():
                held = process.usedGpuMemory
                found[process.pid] = Holder(
                    pid=process.pid,
                    name=self._process_name(process.pid),
                    memory_bytes=int(held) if held is not None else None,
                    graphics=kind == _GRAPHICS,
                )
        return sorted(found.values(), key=lambda holder: -(holder.memory_bytes or 0))

    def energy_j(self) -> float | None:
        """Energy taken since the driver was loaded (Volta and later)."""
        found = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        return found / 1000 if found is not None else None

    def power_w(self) -> float | None:
        """Power now; a mean over the last second on newer cards."""
        found = self._ask("nvmlDeviceGetPowerUsage")
        return found / 1000 if found is not None else None

    def sm_clock_mhz(self) -> float | None:
        """Clock of the multiprocessors now."""
        return self._figure("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM)

    def temperature_c(self) -> float | None:
        """Temperature of the chip now."""
        return self._figure("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU)

    def throttled(self) -> tuple[str, ...]:
        """What holds the clocks down now."""
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # its name before 12.2
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        return tuple(reason for bit, reason in _THROTTLES.items() if bits & bit)

    def _figure(self, query: str, *arguments: Any) -> float | None:
        found = self._ask(query, *arguments)
        return float(found) if found is not None else None

    def _ask(self, query: str, *arguments: Any) -> Any:
        function = getattr(self._nvml, query, None)
        if function is None or (arguments and arguments[0] is None):
            return None
        try:
            return function(self._handle, *arguments)
        except (self._nvml.NVMLError, TypeError):  # an older nvidia-ml-py takes fewer arguments
            return None

    def _process_name(self, pid: int) -> str | None:
        try:
            name = _text(self._nvml.nvmlSystemGetProcessName(pid))
        except (self._nvml.NVMLError, UnicodeDecodeError):
            return None
        return os.path.basename(name.partition(" ")[0]) if name else None


@dataclass
class Sampler:
    """Readings over a stretch of work: `start`, then `sample` now and then, then `finish`."""

    status: GpuStatus | None
    clock: Callable[[], float] = time.monotonic
    _began: float = 0.0
    _energy_j: float | None = None
    _powers: list[float] = field(default_factory=list)
    _clocks: list[float] = field(default_factory=list)
    _temperatures: list[float] = field(default_factory=list)
    _throttles: dict[str, None] = field(default_factory=dict)
    running: bool = False

    def start(self) -> None:
        """Begin a stretch."""
        self.running = True
        for kept in (self._powers, self._clocks, self._temperatures, self._throttles):
            kept.clear()
        self._began = self.clock()
        self._energy_j = self.status.energy_j() if self.status is not None else None

    def sample(self) -> None:
        """Look once, while a stretch goes on."""
        if not self.running or self.status is None:
            return
        for kept, figure in (
            (self._powers, self.status.power_w()),
            (self._clocks, self.status.sm_clock_mhz()),
            (self._temperatures, self.status.temperature_c()),
        ):
            if figure is not None:
                kept.append(figure)
        self._throttles.update(dict.fromkeys(self.status.throttled()))

    def finish(self) -> Readings:
        """End the stretch."""
        self.sample()
        self.running = False
        return Readings(
            power_w=self._mean_power_w(),
            sm_clock_mhz=_mean(self._clocks),
            temperature_c=max(self._temperatures, default=None),
            throttled=tuple(self._throttles),
        )

    def _mean_power_w(self) -> float | None:
        """From the energy counter, where the stretch is long against the tenth of a second at which it moves."""
        seconds = self.clock() - self._began
        energy_j = self.status.energy_j() if self.status is not None else None
        if energy_j is not None and self._energy_j is not None and seconds >= 1 and energy_j > self._energy_j:
            return (energy_j - self._energy_j) / seconds
        return _mean(self._powers)


def connect(index: int) -> tuple[GpuStatus | None, str]:
    """The card that CUDA numbers `index`, or None and why there is none to ask."""
    try:
        import pynvml  # noqa: PLC0415  (optional)
    except ImportError:
        return None, "nvidia-ml-py is not installed (pip install 'whichgpu[bench]')"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, f"the NVIDIA driver does not answer ({error})"
    try:
        return GpuStatus(pynvml, _handle(pynvml, index)), ""
    except (pynvml.NVMLError, ValueError, IndexError) as error:
        return None, f"the driver's management library does not show GPU {index} ({error})"


def connect_uuid(uuid: str) -> GpuStatus | None:
    """The card with an identifier, however CUDA numbers it; None where it cannot be asked."""
    status, _ = connect(0)
    if status is None or not uuid:
        return status
    nvml = status._nvml
    with contextlib.suppress(nvml.NVMLError):
        return GpuStatus(nvml, nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}"))
    return None


def _handle(nvml: Any, index: int) -> Any:
    """The handle of CUDA's card `index`: CUDA_VISIBLE_DEVICES hides and reorders cards, which NVML does not follow."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    chosen = visible.split(",")[index].strip()
    if chosen.startswith("GPU-"):
        return nvml.nvmlDeviceGetHandleByUUID(chosen)
    return nvml.nvmlDeviceGetHandleByIndex(int(chosen))


def _mean(figures: list[float]) -> float | None:
    return sum(figures) / len(figures) if figures else None


def _text(words: Any) -> str | None:
    return words.decode(errors="replace") if isinstance(words, bytes) else words
