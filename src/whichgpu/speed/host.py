"""What the host takes to launch a step: Python, the dispatcher, autograd and the driver, operator by operator.

Microseconds by kind of launch are constants, those of the machine that was measured (speed 1); `host_speed` of `step_time` scales
them. The optimizer's operators on lists of tensors cost for each tensor too. A step that reads values back waits for the GPU, which
is not covered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from whichgpu.trace import Op

KINDS = ("forward", "backward", "optimizer", "other", "many", "tensor")


def launches(ops: Iterable[Op]) -> dict[str, int]:
    """How often the host launches what: operators by phase, operators on many tensors, and the tensors of these."""
    found = dict.fromkeys(KINDS, 0)
    for op in ops:
        if ".is_coalesced." in op.name:
            continue
        if "_foreach_" in op.name or "_fused_" in op.name:
            found["many"] += 1
            found["tensor"] += len(op.inputs)
        else:
            found[op.phase if op.phase in KINDS else "other"] += 1
    return found


def host_seconds(launched: Mapping[str, int], constants: Mapping[str, float]) -> float:
    """Seconds of the host for what it launches, at speed 1."""
    return 1e-6 * sum(count * constants[f"host.{kind}"] for kind, count in launched.items())
