"""What the host takes to launch a step: Python, the dispatcher, autograd and the driver, operator by operator.

Seconds by phase of an operator, as a fast core of a server takes them (`REFERENCE`); `speed` scales them, 1.0 being that core. The
optimizer's operators on lists of tensors cost for each tensor too. A step that reads values back waits for the GPU, which is not
covered.
"""

from __future__ import annotations

from collections.abc import Mapping

from whichgpu.trace import Op

Constants = Mapping[str, float]
_NO_WORK = ("is_coalesced",)


def host_seconds(op: Op, constants: Constants) -> float:
    """Seconds of the host for one operator of a trace at speed 1."""
    if op.name.split(".")[1] in _NO_WORK:
        return 0.0
    if "_foreach_" in op.name or "_fused_" in op.name:
        return (constants["host.many"] + constants["host.tensor"] * len(op.inputs)) * 1e-6
    phase = op.phase if op.phase in ("forward", "backward", "optimizer") else "other"
    return constants[f"host.{phase}"] * 1e-6
