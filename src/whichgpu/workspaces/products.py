"""Matrix products: the workspaces that PyTorch keeps for cuBLAS and cuBLASLt, and copies of operands.

A handle of cuBLAS, one for each thread and stream, keeps a workspace; products with a bias, which run through
cuBLASLt, keep a small one of their own. An operand whose rows and columns both have gaps (or that is expanded) is
copied first. Measured on an H200; the rule for copies is `prepare_matrix_for_cublas` of PyTorch's
aten/src/ATen/native/cuda/Blas.cpp and agrees with every measured product.
"""

from __future__ import annotations

from whichgpu.trace import Op, Tensor
from whichgpu.workspaces.records import Capability, Rule, Temporary, bytes_of, facts

CUBLAS = "cublas:"  # how the keys of the workspaces of its handles begin


def cublas_workspace_bytes(capability: Capability) -> int:
    """Size of the workspace that PyTorch gives each cuBLAS handle."""
    cublas = facts()["cublas"]
    return int(cublas["large_bytes" if capability[0] in cublas["large_majors"] else "default_bytes"])


def _thread(op: Op) -> str:
    # The autograd engine runs backward in its own thread, which has its own handle.
    return "backward" if op.phase == "backward" else "forward"


def _matrix_product(op: Op, capability: Capability) -> list[Temporary]:
    found = [Temporary(bytes_of(tensor)) for tensor in op.inputs[-2:] if _needs_copy(tensor)]
    found.append(Temporary(cublas_workspace_bytes(capability), key=f"{CUBLAS}{_thread(op)}"))
    if _adds_a_bias(op):
        found.append(Temporary(facts()["cublaslt"]["bytes"], key=f"cublaslt:{_thread(op)}"))
    return found


def _needs_copy(tensor: Tensor) -> bool:
    if not tensor.stride or len(tensor.shape) < 2:
        return False
    (rows, columns), (row_stride, column_stride) = tensor.shape[-2:], tensor.stride[-2:]
    by_columns = row_stride == 1 and column_stride >= max(1, rows)
    by_rows = column_stride == 1 and row_stride >= max(1, columns)
    return not (by_columns or by_rows)


def _adds_a_bias(op: Op) -> bool:
    """Whether the bias of a linear layer is added by cuBLASLt itself."""
    if op.name not in _WITH_BIAS or len(op.inputs) < 3:
        return False
    bias = op.inputs[0]
    return len(bias.shape) == 1 and not bias.stride and bias.dtype in ("float32", "float16", "bfloat16", "float64")


def _grouped(op: Op, capability: Capability) -> list[Temporary]:
    if op.inputs[0].dtype != "bfloat16" or len(op.inputs) < 3:
        return []
    figures = facts()["grouped_mm"]
    return [Temporary(op.inputs[2].shape[0] * figures["bytes_per_group"]), Temporary(figures["workspace_bytes"])]


_WITH_BIAS = ("aten.addmm.default", "aten._addmm_activation.default")
_PRODUCTS = (
    "mm.default", "addmm.default", "bmm.default", "baddbmm.default", "addbmm.default", "mv.default",
    "addmv.default", "dot.default", "_addmm_activation.default", "addmm_.default", "baddbmm_.default",
    "linear.default", "mm.out", "addmm.out", "bmm.out", "mm.dtype", "bmm.dtype", "addmm.dtype", "baddbmm.dtype",
)  # fmt: skip

RULES: dict[str, Rule] = {
    **{f"aten.{name}": _matrix_product for name in _PRODUCTS},
    "aten._grouped_mm.default": _grouped,
}
