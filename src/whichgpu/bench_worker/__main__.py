"""`python -m whichgpu.bench_worker`."""

from whichgpu.bench_worker.server import main

main()
