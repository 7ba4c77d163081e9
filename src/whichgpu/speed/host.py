"""What the host takes for a step: Python, the dispatcher, autograd and the driver, operator by operator and module by module, and
what it does itself.

Microseconds by kind of launch are constants, those of the machine that was measured (speed 1); `host_speed` of `step_time` scales
them. The optimizer's operators on lists of tensors cost for each tensor too. Data that the step makes on the host takes time for
each element, and its copy to the GPU for each byte.

Where the host waits for the GPU, to read a value or to copy memory that is not pinned, it launches nothing ahead: such places
cut a step into parts, of which each takes as long as the GPU or the host, whichever is slower. The trace says where a value was
read or copied; that operators whose result has a size that depends on values wait follows from their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from whichgpu.speed.asked import tensor_bytes
from whichgpu.trace import Op, Trace

PASSES = ("forward", "backward")
# what PyTorch, cuBLAS or cuDNN do much or little for before they launch a kernel -> beginnings of operators' names
_SORTS = (
    ("copy", ("_to_copy", "copy_", "clone", "convert_element_type")),
    ("product", ("mm", "addmm", "bmm", "baddbmm")),
    ("convolution", ("convolution",)),
    ("norm", ("native_", "cudnn_batch_norm", "_fused_rms_norm")),
    ("attention", ("_scaled_dot_product",)),
)
KINDS = (
    *PASSES, *(f"{phase}_{sort}" for phase in PASSES for sort, _ in _SORTS), "module", "optimizer", "other", "many", "tensor",
    "cell", "wait", "made", "made_elements", "random_elements", "uploaded_bytes",
)  # fmt: skip
_COPIES = frozenset({"_to_copy", "copy_", "clone", "convert_element_type"})
# the sizes of their results are values that the host has to read
_WAITING = frozenset({"nonzero", "masked_select", "_unique", "_unique2", "unique_consecutive", "unique_dim", "nms"})
_MASKED = frozenset({"index", "index_put", "index_put_", "_index_put_impl_"})
THOUSAND = 1000  # elements and bytes are counted in thousands
_STAGED_BYTES = 65536  # up to which a copy that nobody waits for is taken by the driver at once


class Work(NamedTuple):
    """An entry of a trace's `host_work` (see capture/host_work.py): what the host does before an operator on the GPU."""

    place: int
    kind: str
    times: int
    elements: float


def work_of(low: Trace, high: Trace, batch_size: int) -> list[Work]:
    """What the host does itself in the last step at a batch size, from traces at two; nothing where traces do not say it."""
    first, last = ([Work(*entry) for entry in trace.facts.get("host_work", ())] for trace in (low, high))
    alike = [entry[:3] for entry in first] == [entry[:3] for entry in last]
    if not alike or low.batch_size == high.batch_size:
        return first
    share = (batch_size - low.batch_size) / (high.batch_size - low.batch_size)
    return [
        one._replace(elements=max(one.elements + share * (other.elements - one.elements), 0.0))
        for one, other in zip(first, last, strict=True)
    ]


def cuts(ops: Iterable[tuple[int, Op]], work: Sequence[Work]) -> list[int]:
    """Before which operators of a step, by index, the host has waited for the GPU."""
    found = {entry.place for entry in work if entry.kind == "wait"}
    uploads = {entry.place: entry.kind for entry in work if entry.kind.startswith("upload")}
    for index, op in ops:
        asynchronous = uploads.get(index) == "upload_async" and uploaded_bytes(op) <= _STAGED_BYTES
        if _waits(op) or (index in uploads and not asynchronous):
            found.add(index + 1)
    return sorted(found)


def _waits(op: Op) -> bool:
    base = op.name.split(".")[1] if "." in op.name else op.name
    if base in _MASKED:
        return any(tensor.dtype in ("bool", "uint8") for tensor in op.inputs[1:])
    return base in _WAITING


def uploaded_bytes(op: Op) -> int:
    """Bytes that an operator copies from the host; 0 for all but such copies."""
    base = op.name.split(".")[1] if "." in op.name else op.name
    if base not in _COPIES or not op.inputs or op.inputs[-1].storage >= 0 or not op.inputs[-1].shape:
        return 0
    return tensor_bytes(op.inputs[-1]) if any(t.storage >= 0 for t in (*op.outputs, *op.inputs[:-1])) else 0


def launches(ops: Iterable[Op]) -> dict[str, float]:
    """How often the host launches what: operators by phase, operators on many tensors, the tensors of these, and the cells that
    cuDNN launches one by one for each position and layer of a recurrent layer.
    """
    found: dict[str, float] = dict.fromkeys(KINDS, 0)
    for op in ops:
        if ".is_coalesced." in op.name:
            continue
        if "_foreach_" in op.name or "_fused_" in op.name:
            found["many"] += 1
            found["tensor"] += len(op.inputs)
            continue
        found[_kind(op)] += 1
        found["wait"] += _waits(op)
        found["uploaded_bytes"] += uploaded_bytes(op) / THOUSAND
        if "_cudnn_rnn" in op.name:
            found["cell"] += _cells(op)
    return found


def add_work(found: dict[str, float], work: Iterable[Work]) -> None:
    """Count what the host does itself."""
    for entry in work:
        if entry.kind in ("made", "random"):
            found["made"] += entry.times
            found[f"{entry.kind}_elements"] += entry.elements / THOUSAND
        else:
            found["wait"] += entry.times


def modules(ops: Iterable[tuple[int, Op]]) -> list[int]:
    """Operators by index, each the first of its module in the forward pass: as many modules as Python calls."""
    first: dict[int, int] = {}
    for index, op in ops:
        if op.phase == "forward" and op.module >= 0:
            first.setdefault(op.module, index)
    return list(first.values())


def _kind(op: Op) -> str:
    if op.phase not in PASSES:
        return op.phase if op.phase in KINDS else "other"
    base = op.name.split(".")[1] if "." in op.name else op.name
    sort = next((sort for sort, starts in _SORTS if base.startswith(starts) and base != "native_dropout_backward"), "")
    return f"{op.phase}_{sort}" if sort else op.phase


def _cells(op: Op) -> int:
    """Positions times layers and directions: two matrices of weights each."""
    data = op.inputs[0]
    positions = data.shape[1 if op.attributes.get("batch_first") else 0]
    return positions * max(sum(len(tensor.shape) == 2 for tensor in op.inputs[1:]) // 2, 1)


def host_seconds(launched: Mapping[str, float], constants: Mapping[str, float]) -> float:
    """Seconds of the host for what it launches and does, at speed 1."""
    return 1e-6 * sum(count * constants.get(f"host.{kind}", 0.0) for kind, count in launched.items())
