"""What the host takes to launch a step: Python, the dispatcher, autograd and the driver, operator by operator.

Microseconds by kind of launch are constants, those of the machine that was measured (speed 1); `host_speed` of `step_time` scales
them. The optimizer's operators on lists of tensors cost for each tensor too. A step that reads values back waits for the GPU, which
is not covered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from whichgpu.trace import Op

KINDS = (
    "forward", "forward_copy", "forward_kernel", "backward", "backward_copy", "backward_kernel", "optimizer", "other",
    "many", "tensor", "cell",
)  # fmt: skip
_COPIES = frozenset({"_to_copy", "copy_", "clone", "convert_element_type"})
# one call, little around it
_KERNELS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "native_", "_scaled_dot_product")


def launches(ops: Iterable[Op]) -> dict[str, int]:
    """How often the host launches what: operators by phase, operators on many tensors, the tensors of these, and the cells that
    cuDNN launches one by one for each position and layer of a recurrent layer.
    """
    found = dict.fromkeys(KINDS, 0)
    for op in ops:
        if ".is_coalesced." in op.name:
            continue
        if "_foreach_" in op.name or "_fused_" in op.name:
            found["many"] += 1
            found["tensor"] += len(op.inputs)
            continue
        found[_kind(op)] += 1
        if "_cudnn_rnn" in op.name:
            found["cell"] += _cells(op)
    return found


def _kind(op: Op) -> str:
    if op.phase not in ("forward", "backward"):
        return op.phase if op.phase in KINDS else "other"
    base = op.name.split(".")[1] if "." in op.name else op.name
    if base in _COPIES:
        return f"{op.phase}_copy"
    return f"{op.phase}_kernel" if base.startswith(_KERNELS) else op.phase


def _cells(op: Op) -> int:
    """Positions times layers and directions: two matrices of weights each."""
    data = op.inputs[0]
    positions = data.shape[1 if op.attributes.get("batch_first") else 0]
    return positions * max(sum(len(tensor.shape) == 2 for tensor in op.inputs[1:]) // 2, 1)


def host_seconds(launched: Mapping[str, int], constants: Mapping[str, float]) -> float:
    """Seconds of the host for what it launches, at speed 1."""
    return 1e-6 * sum(count * constants.get(f"host.{kind}", 0.0) for kind, count in launched.items())
