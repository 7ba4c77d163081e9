#!/usr/bin/env bash
# Measure on a machine with a GPU that has PyTorch but not whichgpu's own dependencies, which are brought along as wheels:
#
#   mkdir wheels && pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
#     --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux2014_x86_64 \
#     -d wheels msgspec rapidfuzz platformdirs batch-probe
#   bash tools/bench_on_gpu.sh WHEELS OUT STEP...
#
# Steps, in the order given:
#   warm        trace the zoo in the background, so that later steps find the traces in the cache
#   test        the tests with a GPU: those that may share the card at once, then those that may not
#   compare@S   tools/compare_batch_finders.py; starts no search later than S seconds after the beginning of all
#   sweep@S     tools/bench_sweep.py, ended S seconds after the beginning of all
# Into OUT go results.sqlite, sweep.jsonl, comparison.json and the logs. What an earlier call left, in a folder that the
# variable PREVIOUS names, is taken as the beginning: nothing is measured twice on the same card, and no pair of workload
# and limit again on another one. WORKLOADS names what to sweep, instead of the whole zoo.
#
# typer, rich, psutil, pytest, pytest-timeout, nvidia-ml-py, lightning and accelerate are taken from the
# machine; add those that it lacks to the wheels. With pytest-xdist tests run at once.
set -euo pipefail
cd "$(dirname "$0")/.."
began=$SECONDS
wheels=$1 out=$2
shift 2
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
python3 -m pip install -q --no-index --no-deps --no-compile --target "$site" "$wheels"/*.whl
export PYTHONPATH="$PWD/src:$site${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export WHICHGPU_CACHE="${WHICHGPU_CACHE:-/tmp/whichgpu-cache}"
if [ -n "${PREVIOUS:-}" ]; then cp "$PREVIOUS"/* "$out"/; fi
sweep=(python3 tools/bench_sweep.py --results "$out/results.sqlite" --log "$out/sweep.jsonl")
tests=(python3 -m pytest -m gpu -p no:cacheprovider -p no:benchmark -q -rP tests/gpu)
together=()
if python3 -c 'import xdist' 2>/dev/null; then together=(-n 8); fi

left() { echo $((${1#*@} - SECONDS + began)); }

for step in "$@"; do
  echo "== $step, after $((SECONDS - began)) s"
  case $step in
  warm) "${sweep[@]}" --warm H200 --only-warm & ;;
  test)
    "${tests[@]}" "${together[@]}" -k 'not left_on_the_card' 2>&1 | tee "$out/tests.log" || echo "tests failed"
    "${tests[@]}" -k left_on_the_card 2>&1 | tee -a "$out/tests.log" || echo "tests failed"
    ;;
  compare@*)
    python3 tools/compare_batch_finders.py --out "$out/comparison.json" --seconds "$(left "$step")" 2>&1 |
      tee "$out/compare.log" || echo "compare failed"
    ;;
  sweep@*)
    wait # for the traces
    "${sweep[@]}" --seconds "$(left "$step")" ${WORKLOADS:-} 2>&1 | tee "$out/sweep.log" || echo "sweep failed"
    ;;
  *) echo "unknown: $step" >&2 && exit 2 ;;
  esac
done
echo "== done, after $((SECONDS - began)) s"
