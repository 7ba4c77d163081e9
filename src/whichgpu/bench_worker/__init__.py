"""The measuring process: loads one workload and runs it on the GPU, every attempt in a process of its own.

Needs Python's own library, PyTorch and what the workload imports: it runs on machines where whichgpu's other
dependencies are missing. Started as `python -m whichgpu.bench_worker --answers FD`; requests come as JSON lines on
standard input, answers go as JSON lines to the descriptor FD. The first request names the workload, each further one
is an attempt. `server` is the process that stays, `children` are its attempts, seen from it; `loading`, `attempt`,
`timing`, `failures` and `card` are what happens inside them.

This process imports everything and never touches CUDA; an attempt is a forked child, so that neither fragmented
memory nor a broken context reaches the next one and no attempt waits for imports. A ready workload's model is built here
too, on the CPU and while nobody asks for anything, so that attempts begin by moving it to the card. Where the workload's
import touched CUDA or started threads, forking is not safe, and an attempt is a fresh Python instead. A child has a process
group of its own, which is killed at the end, at the time limit, and when the client goes; on Linux it also dies with this
process, however that comes about.

Data loading is not measured: a step makes its own batch.
"""
