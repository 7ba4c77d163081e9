"""Matrix products: the workspaces that PyTorch keeps for cuBLAS."""

from __future__ import annotations

from whichgpu.trace import Op
from whichgpu.workspaces.records import Capability, Rule, Temporary, facts


def cublas_workspace_bytes(capability: Capability) -> int:
    """Size of the workspace that PyTorch gives each cuBLAS handle."""
    cublas = facts()["cublas"]
    return int(cublas["large_bytes" if capability[0] in cublas["large_majors"] else "default_bytes"])


def _matrix_product(op: Op, capability: Capability) -> list[Temporary]:
    # The autograd engine runs backward in its own thread, which has its own handle.
    thread = "backward" if op.phase == "backward" else "forward"
    return [Temporary(cublas_workspace_bytes(capability), key=f"cublas:{thread}")]


_PRODUCTS = (
    "mm.default", "addmm.default", "bmm.default", "baddbmm.default", "addbmm.default", "mv.default",
    "addmv.default", "dot.default", "_addmm_activation.default", "addmm_.default", "baddbmm_.default",
    "linear.default", "mm.out", "addmm.out", "bmm.out",
)  # fmt: skip

RULES: dict[str, Rule] = {f"aten.{name}": _matrix_product for name in _PRODUCTS}
