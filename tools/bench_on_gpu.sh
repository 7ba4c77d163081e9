#!/usr/bin/env bash
# Run the tests of `whichgpu bench` and the comparison of batch finders on a machine with a GPU that has PyTorch but not
# whichgpu's own dependencies, which are brought along as wheels:
#
#   mkdir wheels && pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
#     --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 \
#     -d wheels msgspec rapidfuzz platformdirs batch-probe
#   bash tools/bench_on_gpu.sh test wheels            # under four minutes
#   bash tools/bench_on_gpu.sh compare wheels OUT     # OUT/comparison.json, written after each run
#   bash tools/bench_on_gpu.sh bench wheels OUT WORKLOAD... [OPTIONS]   # OUT/results.sqlite and OUT/report.json
#
# typer, rich, psutil, pytest, pytest-timeout, nvidia-ml-py, lightning and accelerate are taken from the machine; add
# those that it lacks to the wheels.
set -euo pipefail
cd "$(dirname "$0")/.."
what=$1 wheels=$2
shift 2
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
python3 -m pip install -q --no-index --no-deps --no-compile --target "$site" "$wheels"/*.whl
export PYTHONPATH="$PWD/src:$site${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
case $what in
test) python3 -m pytest -m gpu -p no:cacheprovider -q -s tests/gpu/test_bench_gpu.py "$@" ;;
compare) out=$1 && shift && python3 tools/compare_batch_finders.py --out "$out/comparison.json" "$@" ;;
bench) out=$1 && shift && python3 -m whichgpu bench --results "$out/results.sqlite" --json "$@" >"$out/report.json" ;;
*) echo "unknown: $what; say test, compare or bench" >&2 && exit 2 ;;
esac
