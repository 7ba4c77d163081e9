"""Asks cuDNN which workspace it would take for many convolutions, without running any.

    python tools/query_cudnn.py --out OUT [--ask top|most|dense|chain|full] [--budget-s 100] [--workers 12]
                                [--shapes FILE [--batches 16] [--seed 5]] [--deviceless [--library DIR]]

PyTorch takes the first engine that cuDNN's heuristics name (aten/src/ATen/native/cudnn/Conv_v8.cpp), so its workspace
is known as soon as the heuristics are asked: about a millisecond each. With a GPU they are asked for that GPU. With
--deviceless they are asked for a card described by its published figures, through cuDNN's documented device properties
(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR); engines that use cuBLASLt and a few others are not offered then, so that 1 x 1
convolutions and many weight gradients come out wrong.

Writes OUT/heuristics.jsonl.gz: a header, then a line for each shape and kind of tensors: `n` batch sizes, and for each
direction (forward, data, filter) `bytes` of workspace and `engine` by batch size, null where none was found; for some
`most`, the largest workspace of all engines offered, at the batch size `most_at` (what cudnn.benchmark may try).
`bytes_all`, where TF32 is not allowed: as releases of PyTorch that look at all answers before the fallbacks choose.

`--ask most` writes OUT/most.jsonl.gz instead: `most` for each direction by batch size, nothing else. `--ask dense` writes
OUT/dense.jsonl.gz: `bytes` by many more batch sizes, for the convolutions of networks and training steps only.
`--ask full` writes OUT/full.jsonl.gz, the same by all of these batch sizes for the convolutions of networks alone.
`--ask chain` writes OUT/chain.jsonl.gz: `bytes` are lists, of the workspace that PyTorch takes first, then of each that it
falls back on where there was no room for the one before.
`--shapes` takes the convolutions from a file like workspace_grid/model_convs.json instead of those.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import json
import multiprocessing
import random
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from workspace_grid.conv import KINDS, Conv, model_shapes, randoms, sweeps

STEPS = Path(__file__).parent / "workspace_grid" / "step_convs.json"
BATCHES = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 192, 224, 256, 320,
           384, 448, 512, 640, 768, 1024, 1536, 2048)  # fmt: skip
DENSE = (*range(1, 17), *(step * unit for unit in (2, 4, 8, 16, 32, 64, 128, 256) for step in range(9, 17)))
DENSE_SHARE = 0.7  # of the share below
FILE_BATCHES = 16  # of a share of 1, with --shapes
SCALES = (0.25, 0.4, 0.5, 0.57, 0.6, 0.71, 0.75, 0.8, 0.86, 0.9, 1.14, 1.29, 1.43, 1.6, 1.71, 2.0, 2.29, 2.86)
VARIANTS = {"most": 3, "dense": 6, "chain": 1}  # images of other sizes, for each convolution of a network
SHARE = {  # of the batch sizes asked about
    ("tf32", "contiguous"): 1.0, ("bf16", "contiguous"): 0.7, ("bf16", "channels_last"): 0.7,
    ("fp16", "contiguous"): 0.5, ("fp16", "channels_last"): 0.4, ("tf32", "channels_last"): 0.25,
    ("fp32", "contiguous"): 0.4, ("fp32", "channels_last"): 0.1,
}  # fmt: skip
MOST = {("tf32", "contiguous"), ("fp16", "contiguous"), ("fp16", "channels_last")}
MOST_SHARE = 0.25  # of the batch sizes that the largest workspace is asked for
MOST_AT = 32
LIMIT_BYTES = 1 << 32
RANDOMS = 10000

# cudnn_graph.h of cuDNN 9.19
DATA_TYPES = {"tf32": 0, "fp32": 0, "fp16": 2, "bf16": 9}
FORWARD, FILTER, DATA = 10, 11, 12  # descriptors of the operations
ATTRIBUTES = {  # alpha, beta, convolution, weight, input, output
    FORWARD: (700, 701, 702, 703, 704, 705),
    DATA: (706, 707, 708, 709, 710, 711),
    FILTER: (712, 713, 714, 715, 716, 717),
}
HANDLE, DATA_TYPE, BOOLEAN, INT64, FLOAT, MODE, HEUR_MODE, NOTE, DESCRIPTOR, CHAR = 0, 1, 2, 3, 4, 7, 8, 11, 15, 24
INSTANT, FALLBACK = 0, 2
TOP = ((INSTANT, 1), (FALLBACK, 0))  # PyTorch to 2.11
ALL = ((INSTANT, 0), (FALLBACK, 0))  # later releases, and cudnn.benchmark
TENSOR_CORE, DOWN_CONVERT = 0, 1

# CUDA C++ Programming Guide, "Technical specifications per compute capability", and the card's data sheet
H200 = {
    "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536,
    "multiProcessorCount": 132, "warpSize": 32, "maxSharedMemoryPerBlock": 49152,
    "maxSharedMemoryPerBlockOptin": 232448, "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536,
    "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0,
    "supportCoopLaunch": 1, "totalGlobalMem": 150109880320, "smClockRateKHz": 1980000, "memClockRateKHz": 3201000,
    "l2CacheSize": 62914560, "cudaDeviceId": 0, "deviceVer": 900, "driverVer": 13000, "deviceName": "NVIDIA H200",
}  # fmt: skip


Task = tuple[Conv, list[int], bool]  # convolution, batch sizes, whether the largest workspace is asked for too


class CudnnError(Exception):
    """cuDNN said no."""


class Cudnn:
    """The backend API, as far as it is needed."""

    def __init__(self, library: str, deviceless: bool) -> None:
        self.lib = ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
        self.handle = ctypes.c_void_p()
        self.device: ctypes.c_void_p | None = None
        if deviceless:
            text = json.dumps(H200).encode()
            self.device = self.make(38)
            self.set(self.device, 2702, CHAR, len(text) + 1, ctypes.create_string_buffer(text))
            self.finalize(self.device)
        else:
            self.check(self.lib.cudnnCreate(ctypes.byref(self.handle)), "cudnnCreate")

    def check(self, status: int, what: str) -> None:
        if status:
            raise CudnnError(f"{what}: {status}")

    def make(self, kind: int) -> ctypes.c_void_p:
        descriptor = ctypes.c_void_p()
        self.check(self.lib.cudnnBackendCreateDescriptor(kind, ctypes.byref(descriptor)), f"create {kind}")
        return descriptor

    def destroy(self, descriptor: ctypes.c_void_p) -> None:
        self.lib.cudnnBackendDestroyDescriptor(descriptor)

    def set(self, descriptor: ctypes.c_void_p, name: int, kind: int, count: int, values: Any) -> None:
        status = self.lib.cudnnBackendSetAttribute(descriptor, name, kind, ctypes.c_int64(count), values)
        self.check(status, f"set {name}")

    def finalize(self, descriptor: ctypes.c_void_p) -> None:
        self.check(self.lib.cudnnBackendFinalize(descriptor), "finalize")

    def integers(self, descriptor: ctypes.c_void_p, name: int, values: list[int]) -> None:
        self.set(descriptor, name, INT64, len(values), (ctypes.c_int64 * len(values))(*values))

    def enum(self, descriptor: ctypes.c_void_p, name: int, kind: int, value: int) -> None:
        self.set(descriptor, name, kind, 1, ctypes.byref(ctypes.c_int(value)))

    def number(self, descriptor: ctypes.c_void_p, name: int, value: float) -> None:
        self.set(descriptor, name, FLOAT, 1, ctypes.byref(ctypes.c_float(value)))

    def link(self, descriptor: ctypes.c_void_p, name: int, other: ctypes.c_void_p) -> None:
        self.set(descriptor, name, DESCRIPTOR, 1, ctypes.byref(ctypes.c_void_p(other.value)))

    def get(self, descriptor: ctypes.c_void_p, name: int, kind: int, size: int, values: Any) -> int:
        count = ctypes.c_int64()
        status = self.lib.cudnnBackendGetAttribute(
            descriptor, name, kind, ctypes.c_int64(size), ctypes.byref(count), values
        )
        self.check(status, f"get {name}")
        return count.value

    # ---- one convolution ----------------------------------------------------------------------------------------

    def graph(self, operation: int, conv: Conv, own: ExitStack) -> ctypes.c_void_p:
        """The operation as PyTorch describes it."""

        def make(kind: int) -> ctypes.c_void_p:
            descriptor = self.make(kind)
            own.callback(self.destroy, descriptor)
            return descriptor

        first, second = (conv.output, conv.input) if conv.transposed else (conv.input, conv.output)
        spatial = [list(conv.stride), list(conv.padding), list(conv.dilation)]
        shapes = [list(first), list(conv.weight), list(second)]
        if len(conv.spatial) == 1:  # PyTorch adds a dimension
            shapes = [[*shape[:2], 1, *shape[2:]] for shape in shapes]
            spatial = [[filler, *values] for filler, values in zip((1, 0, 1), spatial, strict=True)]
        last = conv.layout == "channels_last"
        tensors = []
        for name, shape in zip("xwy", shapes, strict=True):
            tensor = make(17)
            self.enum(tensor, 901, DATA_TYPE, DATA_TYPES[conv.dtype])
            self.integers(tensor, 902, shape)
            self.integers(tensor, 903, _strides(shape, last))
            self.integers(tensor, 906, [ord(name)])
            self.integers(tensor, 900, [32])
            self.finalize(tensor)
            tensors.append(tensor)
        how = make(1)
        self.enum(how, 100, DATA_TYPE, 0)
        self.enum(how, 101, MODE, 1)
        self.integers(how, 106, [len(spatial[0])])
        for name, values in ((103, spatial[0]), (105, spatial[1]), (104, spatial[1]), (102, spatial[2])):
            self.integers(how, name, values)
        self.finalize(how)
        alpha, beta, convolution, weight, source, result = ATTRIBUTES[operation]
        node = make(operation)
        for name, value in ((convolution, how), (weight, tensors[1]), (source, tensors[0]), (result, tensors[2])):
            self.link(node, name, value)
        self.number(node, alpha, 1.0)
        self.number(node, beta, 0.0)
        self.finalize(node)
        graph = make(15)
        if self.device is None:
            self.set(graph, 800, HANDLE, 1, ctypes.byref(self.handle))
        self.link(graph, 801, node)
        self.finalize(graph)
        return graph

    def engines(
        self, graph: ctypes.c_void_p, mode: int, most: int, own: ExitStack
    ) -> Iterator[tuple[int, list[int], int]]:
        """Engine, numerical notes and workspace bytes, best first."""
        heuristics = self.make(4)
        own.callback(self.destroy, heuristics)
        self.link(heuristics, 201, graph)
        self.enum(heuristics, 200, HEUR_MODE, mode)
        if self.device is not None:
            self.link(heuristics, 204, self.device)
        self.finalize(heuristics)
        count = self.get(heuristics, 202, DESCRIPTOR, 0, None)
        count = min(count, most) if most else count
        configs = [self.make(3) for _ in range(count)]
        for config in configs:
            own.callback(self.destroy, config)
        array = (ctypes.c_void_p * max(count, 1))(*[config.value for config in configs])
        for config in configs[: self.get(heuristics, 202, DESCRIPTOR, count, array)]:
            engine = self.make(2)
            own.callback(self.destroy, engine)
            self.get(config, 300, DESCRIPTOR, 1, ctypes.byref(ctypes.c_void_p(engine.value)))
            number, size = ctypes.c_int64(), ctypes.c_int64()
            self.get(engine, 1301, INT64, 1, ctypes.byref(number))
            notes = (ctypes.c_int * 16)()
            noted = self.get(engine, 1303, NOTE, 16, notes)
            self.get(config, 303, INT64, 1, ctypes.byref(size))
            yield number.value, list(notes[:noted]), size.value

    def offered(
        self, operation: int, conv: Conv, first_only: bool, stages: tuple[tuple[int, int], ...]
    ) -> list[tuple[int, int]]:
        """Engine and bytes of what PyTorch would try, in its order, but for what its flags and errata exclude.

        A stage is a mode of the heuristics and how many of its answers are taken, 0 for all.
        """
        found = []
        with ExitStack() as own:
            graph = self.graph(operation, conv, own)
            for mode, most in stages:
                for engine, notes, size in self.engines(graph, mode, most, own):
                    excluded = DOWN_CONVERT in notes or (conv.dtype == "fp32" and TENSOR_CORE in notes)
                    if excluded or (len(conv.spatial) == 3 and operation == DATA and engine == 23):
                        continue
                    found.append((engine, size))
                    if first_only:
                        return found
        return found


def _strides(shape: list[int], last: bool) -> list[int]:
    order = [0, *range(2, len(shape)), 1] if last else list(range(len(shape)))
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return strides


# ---- what to ask ----------------------------------------------------------------------------------------------------


def step_shapes() -> list[Conv]:
    """The convolutions of measured training steps that predictions are tuned on."""
    found = []
    for x, w, bias, stride, padding, dilation, transposed, more, groups, _ in json.loads(STEPS.read_text()):
        out = w[1] * groups if transposed else w[0]
        found.append(Conv(1, x[0], tuple(x[1:]), out, tuple(w[2:]), tuple(stride), tuple(padding), tuple(dilation),
                          groups, transposed, tuple(more), bias))  # fmt: skip
    return found


def tasks(only: int, ask: str, shapes: Path | None = None, batches: int = FILE_BATCHES, seed: int = 5) -> list[Task]:
    """Convolutions with the batch sizes to ask about, most wanted first, in the same order every time."""
    draw = random.Random(seed)
    if shapes is not None:
        return tasks_of(shapes, batches, draw)[: only or None]
    listed: list[Task] = []
    models = [conv for conv, _ in model_shapes()]
    if ask == "full":
        listed = [
            (replace(conv, dtype=one, layout=other), list(DENSE), False) for conv in models for one, other in KINDS
        ]
        draw.shuffle(listed)
        return [task for task in listed if _usable(task[0])][: only or None]
    for dtype, layout in KINDS:
        share = {
            "top": SHARE[dtype, layout],
            "most": MOST_SHARE,
            "chain": MOST_SHARE,
            "dense": DENSE_SHARE * SHARE[dtype, layout],
        }[ask]
        for conv in (*step_shapes(), *models):
            batches = [size for size in (DENSE if ask == "dense" else BATCHES) if draw.random() < share]
            most = ask == "top" and (dtype, layout) in MOST
            listed.append((replace(conv, dtype=dtype, layout=layout), batches, most))
        for conv in dict.fromkeys(sweeps()):
            listed.append((replace(conv, dtype=dtype, layout=layout), [conv.batch], False))
    for conv in randoms(RANDOMS, 12):
        listed.append((conv, [conv.batch], False))
    if ask == "dense":
        listed = [one for one in listed if len(one[1]) > 1]
    if ask != "top":
        listed += [(conv, [conv.batch], False) for conv in variants(models, VARIANTS[ask], seed)]
    draw.shuffle(listed)
    return [one for one in listed if _usable(one[0])][: only or None]


def tasks_of(shapes: Path, batches: int, draw: random.Random) -> list[Task]:
    """The convolutions of a file, in every kind of tensors, at so many of the batch sizes where the share is 1."""
    listed = []
    for conv, _ in model_shapes(shapes):
        for dtype, layout in KINDS:
            count = max(round(batches * SHARE[dtype, layout]), 1)
            listed.append((replace(conv, dtype=dtype, layout=layout), sorted(draw.sample(DENSE, count)), False))
    draw.shuffle(listed)
    return [one for one in listed if _usable(one[0])]


def variants(models: list[Conv], count: int, seed: int) -> Iterator[Conv]:
    """Convolutions of networks on images of other sizes, with a batch size for each."""
    draw = random.Random(15 + seed + count)
    for conv in models:
        for dtype, layout in KINDS:
            for scale in draw.sample(SCALES, count):
                spatial = tuple(max(round(size * scale), 1) for size in conv.spatial)
                batch = draw.choice(BATCHES)
                yield replace(conv, batch=batch, spatial=spatial, dtype=dtype, layout=layout)


def _usable(conv: Conv) -> bool:
    if min(conv.output) < 1 or conv.channels_in % conv.groups or conv.channels_out % conv.groups:
        return False
    return conv.layout == "contiguous" or len(conv.spatial) > 1


def answer(task: Task) -> str:
    """One line of the file of --ask top."""
    conv, batches, most = task
    largest, row = _described(conv, batches)
    row["engine"] = []
    for operation in _operations(conv):
        found = [_ask(operation, replace(conv, batch=size)) for size in row["n"]]
        row["bytes"].append([bytes_ for _, bytes_ in found])
        row["engine"].append([engine for engine, _ in found])
        if conv.dtype == "fp32":  # where the top answer, on tensor cores, is not allowed
            others = [_ask(operation, replace(conv, batch=size), ALL) for size in row["n"]]
            row.setdefault("bytes_all", []).append([bytes_ for _, bytes_ in others])
    if most and MOST_AT * largest <= LIMIT_BYTES:
        row["most_at"] = MOST_AT
        row["most"] = [_most(operation, replace(conv, batch=MOST_AT)) for operation in _operations(conv)]
    return json.dumps(row, separators=(",", ":"))


def answer_most(task: Task) -> str:
    """One line of the file of --ask most."""
    _, row = _described(task[0], task[1])
    row["most"] = [[_most(one, replace(task[0], batch=size)) for size in row["n"]] for one in _operations(task[0])]
    del row["bytes"]
    return json.dumps(row, separators=(",", ":"))


def answer_dense(task: Task) -> str:
    """One line of the file of --ask dense."""
    conv = task[0]
    _, row = _described(conv, task[1])
    stages = ALL if conv.dtype == "fp32" else TOP
    for operation in _operations(conv):
        row["bytes"].append([_ask(operation, replace(conv, batch=size), stages)[1] for size in row["n"]])
    return json.dumps(row, separators=(",", ":"))


def answer_chain(task: Task) -> str:
    """One line of the file of --ask chain."""
    conv = task[0]
    _, row = _described(conv, task[1])
    for operation in _operations(conv):
        row["bytes"].append([_chain(operation, replace(conv, batch=size)) for size in row["n"]])
    return json.dumps(row, separators=(",", ":"))


ANSWERS = {
    "top": ("heuristics", answer), "most": ("most", answer_most), "dense": ("dense", answer_dense),
    "chain": ("chain", answer_chain), "full": ("full", answer_dense),
}  # fmt: skip


def _operations(conv: Conv) -> tuple[int, int, int]:
    return (DATA if conv.transposed else FORWARD, FORWARD if conv.transposed else DATA, FILTER)


def _described(conv: Conv, batches: list[int]) -> tuple[int, dict[str, Any]]:
    """Bytes of the larger tensor with one sample, and a line without its answers."""
    item = 4 if conv.dtype in ("tf32", "fp32") else 2
    largest = max(prod(conv.input[1:]), prod(conv.output[1:])) * item
    row: dict[str, Any] = {
        "dtype": conv.dtype, "last": conv.layout == "channels_last", "x": conv.input[1:], "w": conv.weight,
        "y": conv.output[1:], "s": conv.stride, "p": conv.padding, "d": conv.dilation, "g": conv.groups,
        "t": conv.transposed, "n": [size for size in batches if size * largest <= LIMIT_BYTES], "bytes": [],
    }  # fmt: skip
    return largest, row


def _ask(operation: int, conv: Conv, stages: tuple[tuple[int, int], ...] = TOP) -> tuple[int | None, int | None]:
    try:
        found = _CUDNN[0].offered(operation, conv, True, stages)
    except CudnnError:
        return None, None
    return found[0] if found else (None, None)


def _most(operation: int, conv: Conv) -> int | None:
    try:
        return max((size for _, size in _CUDNN[0].offered(operation, conv, False, ALL)), default=None)
    except CudnnError:
        return None


def _chain(operation: int, conv: Conv) -> list[int] | None:
    """The workspaces of the engines that PyTorch would end up with as ever less memory is there, falling."""
    try:
        found = _CUDNN[0].offered(operation, conv, False, ALL)
    except CudnnError:
        return None
    chain: list[int] = []
    for _, size in found:
        if not chain or size < chain[-1]:
            chain.append(size)
    return chain


_CUDNN: list[Cudnn] = []


def start(library: str, deviceless: bool) -> None:
    """In each process."""
    import torch

    if deviceless:
        torch.backends.cudnn.version()
    else:
        torch.zeros(1, device="cuda")
        torch.nn.functional.conv2d(torch.zeros(1, 1, 3, 3, device="cuda"), torch.zeros(1, 1, 3, 3, device="cuda"))
    _CUDNN.append(Cudnn(library, deviceless))


def header(deviceless: bool, library: str) -> dict[str, Any]:
    """Where the answers come from."""
    import torch

    found: dict[str, Any] = {"torch": torch.__version__, "date": time.strftime("%Y-%m-%d"), "deviceless": deviceless}
    torch.backends.cudnn.version()
    lib = ctypes.CDLL(library)
    lib.cudnnGetVersion.restype = ctypes.c_size_t
    found["cudnn"] = lib.cudnnGetVersion()
    found["card"] = H200["deviceName"] if deviceless else torch.cuda.get_device_name(0)
    if not deviceless:
        found["device"] = described(Cudnn(library, deviceless=False))
    return found


def described(cudnn: Cudnn) -> str:
    """The GPU as cuDNN's device properties have it; what --deviceless needs of another card."""
    device = cudnn.make(38)
    try:
        cudnn.set(device, 2700, 23, 1, ctypes.byref(ctypes.c_int32(0)))
        cudnn.finalize(device)
        size = cudnn.get(device, 2702, CHAR, 0, None)
        text = ctypes.create_string_buffer(size + 1)
        cudnn.get(device, 2702, CHAR, size, text)
        return text.value.decode()
    except CudnnError as error:
        return str(error)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ask", choices=ANSWERS, default="top")
    parser.add_argument("--budget-s", type=float, default=100.0)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--only", type=int, default=0, help="so many tasks")
    parser.add_argument("--shapes", type=Path, help="convolutions to ask about instead")
    parser.add_argument("--batches", type=int, default=FILE_BATCHES, help="batch sizes of each, with --shapes")
    parser.add_argument("--seed", type=int, default=5, help="which batch sizes and images")
    parser.add_argument("--deviceless", action="store_true")
    parser.add_argument("--library", default="libcudnn.so.9", help="cuDNN, by default the one that PyTorch loads")
    options = parser.parse_args()
    began = time.monotonic()
    start(options.library, options.deviceless)
    name, ask = ANSWERS[options.ask]
    listed = tasks(options.only, options.ask, options.shapes, options.batches, options.seed)
    ask(listed[0])  # in this process first: what goes wrong here would go wrong without end in a pool
    options.out.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    initial = (options.library, options.deviceless)
    lines = 0
    with gzip.open(options.out / f"{name}.jsonl.gz", "wt", compresslevel=9) as file:
        file.write(json.dumps(header(options.deviceless, options.library)) + "\n")
        with context.Pool(options.workers, start, initial) as pool:
            for line in pool.imap_unordered(ask, listed, chunksize=4):
                file.write(line + "\n")
                lines += 1
                if time.monotonic() - began > options.budget_s:
                    pool.terminate()
                    break
    size = (options.out / f"{name}.jsonl.gz").stat().st_size
    print(lines, "lines", round(time.monotonic() - began, 1), "s", size, "bytes")


if __name__ == "__main__":
    main()
