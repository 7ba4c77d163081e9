"""Workspaces of cuDNN's recurrent layers, and the copies that `batch_first` costs.

Fitted to layers measured on an H200 with cuDNN 9.19, not derived: data/workspaces.toml has the figures and how well
they fit. Projections (`proj_size`) were not measured. The reserve is an output and so in the trace.
"""

from __future__ import annotations

from math import prod

from whichgpu.trace import Op
from whichgpu.workspaces.records import ITEM_BYTES, Capability, Rule, Temporary, bytes_of, facts
from whichgpu.workspaces.reductions import accumulator_bytes, reduction

_KINDS = {0: ("plain", 1), 1: ("plain", 1), 2: ("lstm", 4), 3: ("gru", 3)}  # cudnnRNNMode_t: figures, gates


def workspace_bytes(op: Op) -> int:
    """Workspace of `_cudnn_rnn` when training, and of its backward pass."""
    figures = facts()["cudnn_rnn"]
    kind, gates = _KINDS[int(op.attributes["mode"])]
    hidden, layers = int(op.attributes["hidden_size"]), int(op.attributes["num_layers"])
    ways = 2 if op.attributes.get("bidirectional") else 1
    tensor = op.inputs[0]
    item, width = ITEM_BYTES[tensor.dtype], tensor.shape[-1]
    steps = prod(tensor.shape[:-1])  # of all samples together
    weights = gates * hidden * ways * sum((hidden * ways if layer else width) + hidden for layer in range(layers))
    rows_of_hidden, rows_of_input = figures[kind]["both_ways" if ways == 2 else "one_way"]
    kept = figures["rows_per_layer"] * _samples(op, layers * ways) * hidden * layers * ways
    by_step = steps * (rows_of_hidden * hidden + rows_of_input * width)
    return int(figures["layer_bytes"]) * layers * ways + int(item * (weights + by_step + kept))


def _samples(op: Op, states: int) -> int:
    """Samples in the batch, from the hidden state."""
    for tensor in op.inputs[1:]:
        if len(tensor.shape) == 3 and tensor.shape[0] == states:
            return tensor.shape[1]
    return 0


def _forward(op: Op, capability: Capability) -> list[Temporary]:
    if not op.attributes.get("train", True):
        return []
    copied = [Temporary(bytes_of(op.inputs[0]), 0)] if op.attributes.get("batch_first") else []
    before_reserve = 3 if int(op.attributes["mode"]) == 2 else 2  # after the result and the last states
    return [*copied, Temporary(workspace_bytes(op), before_reserve)]


def _backward(op: Op, capability: Capability) -> list[Temporary]:
    """`_cudnn_rnn_backward` of RNN.cpp: the gradients of input and states, then that of the weights, each with a workspace."""
    lstm = int(op.attributes["mode"]) == 2
    weights = (
        3 if lstm else 2
    )  # the own allocation that is the gradient of the weights, after those of input and states
    found = [Temporary(size, 0) for size in _missing_gradients(op, 2 if lstm else 1)]
    if op.attributes.get("batch_first"):
        ways = 2 if op.attributes.get("bidirectional") else 1
        steps, item = prod(op.inputs[0].shape[:-1]), ITEM_BYTES[op.inputs[0].dtype]
        result = steps * ways * int(op.attributes["hidden_size"]) * item
        found += [Temporary(bytes_of(op.inputs[0]), 0), Temporary(result, 0, freed_before=weights)]
    workspace = workspace_bytes(op)
    found.append(Temporary(workspace, weights, freed_before=weights))
    if op.attributes.get("output_mask", [True] * 4)[3]:
        found.append(Temporary(workspace))
    return found


def _missing_gradients(op: Op, states: int) -> list[int]:
    """Bytes of the zeros that stand in for the gradients of the last states, which a step seldom uses."""
    ways = 2 if op.attributes.get("bidirectional") else 1
    layers = int(op.attributes["num_layers"]) * ways
    found = [tensor for tensor in op.inputs[1:] if len(tensor.shape) == 3 and tensor.shape[0] == layers]
    alike = [
        tensor for tensor in found if tensor.shape == found[0].shape
    ]  # the states, then the gradients that there are
    return [bytes_of(alike[0])] * max(2 * states - len(alike), 0)


def _cell_backward(op: Op, capability: Capability) -> list[Temporary]:
    """Partial results of the sum over the batch that is the bias's gradient."""
    gates = op.outputs[:1]
    return [one for tensor in gates for one in reduction(tensor, (0,), accumulator_bytes(tensor.dtype), capability)]


RULES: dict[str, Rule] = {
    "aten._thnn_fused_lstm_cell_backward_impl.default": _cell_backward,
    "aten._cudnn_rnn.default": _forward,
    "aten._cudnn_rnn_backward.default": _backward,
}
