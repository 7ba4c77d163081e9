"""The probe of the host, as the process that `whichgpu bench --calibrate-host` starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from whichgpu import host_speed
from whichgpu.bench_worker import host_probe


def test_the_probe_measures_every_phase_of_the_reference(tmp_path: Path) -> None:
    """A real run: this host's speed is known and kept, and no GPU was asked for."""
    found = host_speed.calibrate(tmp_path / "host.json")

    assert set(host_speed.reference().launches_us) == set(found.probe.launches_us)
    assert 0.01 < found.host_speed < 100
    assert host_speed.kept(tmp_path / "host.json") == found


def test_seconds_are_those_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other processes take of it does not count."""
    monkeypatch.setattr(host_probe, "_now", iter(range(100)).__next__)

    assert 1.0 == host_probe._least(lambda: None)
