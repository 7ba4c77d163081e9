"""Counts the zoo: parameters and FLOPs of each ready workload, into src/whichgpu/data/zoo.json.

    python tools/count_zoo.py            what is not in the file yet
    python tools/count_zoo.py NAME...    these, again
    python tools/count_zoo.py --all      everything, again
    python tools/count_zoo.py --times    how long tracing takes for every card, on a machine with two idle cores

Each workload is built and stepped at full size, at its own batch size, in whichgpu's tracing worker: tensors have a
size and no memory, and operators are those that CUDA runs. PyTorch's FlopCounterMode counts the last of the traced
steps, with two formulas of our own. A workload that looks at values is stepped for real on the CPU instead. Parameters are those of all modules that the set-up made. `settings` are the `SETTINGS` of the entry's file.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import importlib.metadata
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from whichgpu import api
from whichgpu.errors import DataDependentError
from whichgpu.tracing import Tracer
from whichgpu.workload import load, parse
from whichgpu.zoo import ENTRIES

DATA = Path(__file__).parents[1] / "src" / "whichgpu" / "data" / "zoo.json"
CAPABILITY = "9.0"
COUNTED = """
import json
import weakref

import torch
from torch.utils.flop_counter import FlopCounterMode
from count_zoo import formulas
from whichgpu.workload import load, parse

FORMULAS = formulas()


class Whole:  # stands for the counter's division by module, whose hooks do not go with torch.autograd.grad
    parents = ("Global",)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


made = []
torch.nn.modules.module.register_module_parameter_registration_hook(lambda module, name, value: made.append(weakref.ref(module)))


def setup(device):
    workload = load(parse({name!r}))
    step = workload.setup(device)
    modules = [module for module in (made_one() for made_one in made) if module is not None]
    weights = {{weight for module in modules for weight in module.parameters(recurse=False)}}

    def counted(batch_size):
        counter = FlopCounterMode(display=False, custom_mapping=FORMULAS)
        counter.mod_tracker = Whole()
        with counter:
            step(batch_size)
        facts = {{
            "parameters": sum(weight.numel() for weight in weights),
            "trained_parameters": sum(weight.numel() for weight in weights if weight.requires_grad),
            "unit": workload.unit,
            "items_per_sample": workload.items_per_sample,
            "batch_size": workload.default_batch_size,
            "flops_per_sample": round(counter.get_total_flops() / batch_size),
        }}
        with open({answer!r}, "w") as file:
            json.dump(facts, file)

    return counted
"""


def formulas() -> dict[Any, Callable[..., int]]:
    """What PyTorch's counter lacks or gets wrong (torch 2.14), by operator, as functions of shapes.

    It takes convolutions in groups for full ones in the backward pass, and knows no grouped products.
    """
    import torch

    return {
        torch.ops.aten.convolution_backward: convolution_backward,
        torch.ops.aten._grouped_mm: grouped_product,
    }


def convolution_backward(
    gradient: Sequence[int],
    inputs: Sequence[int],
    weight: Sequence[int],
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    wanted: Sequence[bool],
    **_: Any,
) -> int:
    """The gradients of the inputs and of the weight, where they are wanted, each as much as the forward pass."""
    places = math.prod(inputs if transposed else gradient)
    return 2 * places * math.prod(weight[1:]) * (wanted[0] + wanted[1])


def grouped_product(one: Sequence[int], other: Sequence[int], *_: Any, **__: Any) -> int:
    """Rows (or columns, or what is summed over) are shared out among the groups: each takes part once."""
    return 2 * one[-2] * one[-1] * other[-1]


def count(name: str) -> dict[str, Any]:
    """The figures of one workload."""
    batch_size = load(parse(name)).default_batch_size
    with tempfile.TemporaryDirectory() as folder:
        file, answer = Path(folder) / "counted.py", Path(folder) / "answer.json"
        file.write_text(COUNTED.format(name=name, answer=str(answer)), encoding="utf-8")
        try:
            with Tracer(parse(f"{file}:setup")) as tracer:
                tracer.trace_at(batch_size, CAPABILITY)
        except DataDependentError:
            _run(file, batch_size)
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    module = importlib.import_module(ENTRIES[name].target.partition(":")[0])
    counted = f"torch {importlib.metadata.version('torch')}, {datetime.datetime.now(datetime.UTC).date()}"
    return {**found, "settings": module.SETTINGS, "counted": counted}


def trace_seconds(name: str) -> float:
    """How long it takes to trace a workload for every card of the catalogue."""
    return round(api.rank([name], cache=False).traces[name].seconds, 1)


def _run(file: Path, batch_size: int) -> None:
    """A step for real, with attention as the products that it is made of."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    step = load(parse(f"{file}:setup")).setup(torch.device("cpu"))
    with sdpa_kernel(SDPBackend.MATH):
        step(batch_size)


def main() -> None:
    """Counts what was asked for; the file is written anew after each workload."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path[1:]])  # for the tracing worker
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *ENTRIES], metavar="NAME")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--times", action="store_true")
    arguments = parser.parse_args()
    found = json.loads(DATA.read_text(encoding="utf-8"))
    every = arguments.all or arguments.times
    for name in arguments.names or [name for name in ENTRIES if every or name not in found]:
        if arguments.times:
            found[name]["trace_seconds"] = trace_seconds(name)
        else:
            found[name] = {**count(name), "trace_seconds": found.get(name, {}).get("trace_seconds")}
        kept = {name: found[name] for name in ENTRIES if name in found}
        DATA.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        print(name, json.dumps(found[name]), flush=True)


if __name__ == "__main__":
    main()
