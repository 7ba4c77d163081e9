"""Take what tools/bench_on_gpu.sh measured into the package, and write the page anew.

    python tools/import_measurements.py FOLDER

FOLDER holds results.sqlite, comparison.json of the batch finders, or both. Of each workload under each
limit the package has one search, on one card, with one source of the workload: one whose largest batch is timed before
one that only knows it, and the newest of these. Other searches under limits are left out, and so are those without
proof (the next larger batch was not seen to fail). What FOLDER has nothing of stays as it is, and a second run
changes nothing.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

import bench_sweep
import write_measurements
from whichgpu import results_exchange
from whichgpu.results import LOCAL, Measurement, Store, environment_key

PACKAGED = Path(results_exchange.__file__).parent / "data" / "measurements" / "h200-2026-12.jsonl"


def merge(kept: Iterable[Measurement], new: Iterable[Measurement]) -> list[Measurement]:
    """One search of each workload and limit, in the order in which these were first measured."""
    pairs: dict[tuple[str, int], dict[tuple[str, str], list[Measurement]]] = {}
    for one in (*kept, *new):
        if one.memory_limit_bytes is not None:
            # switches that the workload sets are known only after an attempt, and not after each failure
            place = one.workload_hash, environment_key(msgspec.structs.replace(one.environment, flags={}))
            searches = pairs.setdefault((one.workload, one.memory_limit_bytes), {})
            rows = searches.setdefault(place, [])
            if one not in rows:
                rows.append(one)
    best = [max(searches.values(), key=_rank) for searches in pairs.values()]
    return [one for rows in best if write_measurements.findings(rows)[0].proved for one in rows]


def _rank(rows: Sequence[Measurement]) -> tuple[bool, bool, str]:
    limit = rows[0].memory_limit_bytes
    assert limit is not None
    return (
        bench_sweep.is_answered(rows, limit),
        write_measurements.findings(rows)[0].proved,
        max(one.measured_at for one in rows),
    )


def read(results: Path) -> list[Measurement]:
    """The measurements of a file that may still have its log beside it, in a folder that may not be written."""
    with tempfile.TemporaryDirectory() as folder:
        for part in results.parent.glob(f"{results.name}*"):
            shutil.copyfile(part, Path(folder) / part.name)
        with Store(Path(folder) / results.name, read_only=True) as store:
            return store.find(origin=LOCAL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    kept = [msgspec.structs.replace(one, origin=LOCAL) for one in results_exchange.packaged()]
    merged = merge(kept, read(folder / "results.sqlite") if (folder / "results.sqlite").exists() else [])
    results_exchange.export_file(merged, PACKAGED)
    if (folder / "comparison.json").exists():
        write_measurements.FINDERS.parent.mkdir(exist_ok=True)
        shutil.copyfile(folder / "comparison.json", write_measurements.FINDERS)
    results_exchange.packaged.cache_clear()
    write_measurements.main()
    added = len([one for one in merged if one not in kept])
    print(f"{len(merged)} measurements: {added} new, {len(kept) + added - len(merged)} replaced")


if __name__ == "__main__":
    main()
