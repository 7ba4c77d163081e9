"""Workspaces of cuDNN's recurrent layers, and the copies that `batch_first` costs.

Fitted to layers measured on an H200 with cuDNN 9.19, not derived: data/workspaces.toml has the figures and how well
they fit. A packed sequence takes less than a padded one, which is copied. Projections (`proj_size`) were not measured. The
reserve is an output and so in the trace.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from whichgpu.trace import Op
from whichgpu.workspaces.records import ITEM_BYTES, Capability, Rule, Temporary, bytes_of, facts
from whichgpu.workspaces.reductions import accumulator_bytes, reduction

_KINDS = {0: "plain", 1: "plain", 2: "lstm", 3: "gru"}  # cudnnRNNMode_t


class _Layers(NamedTuple):
    """What the workspace of recurrent layers depends on."""

    kind: str
    dtype: str
    rows: int  # steps of all samples together
    samples: int
    width: int
    hidden: int
    layers: int
    ways: int
    packed: bool
    dropout: bool = False  # between layers

    @property
    def figures(self) -> dict[str, Any]:
        """What was measured of its kind."""
        found: dict[str, Any] = facts()["cudnn_rnn"][self.kind]
        return found

    @property
    def weights(self) -> int:
        """Elements of all weights, without biases."""
        widths = (self.hidden * self.ways if layer else self.width for layer in range(self.layers))
        return int(self.figures["gates"]) * self.hidden * self.ways * sum(width + self.hidden for width in widths)


def _layers(op: Op) -> _Layers:
    tensor = op.inputs[0]
    layers, ways = int(op.attributes["num_layers"]), 2 if op.attributes.get("bidirectional") else 1
    return _Layers(
        kind=_KINDS[int(op.attributes["mode"])],
        dtype=tensor.dtype,
        rows=prod(tensor.shape[:-1]),
        samples=_samples(op, layers * ways),
        width=tensor.shape[-1],
        hidden=int(op.attributes["hidden_size"]),
        layers=layers,
        ways=ways,
        packed=len(tensor.shape) == 2,
        dropout=float(op.attributes.get("dropout") or 0) > 0 and int(op.attributes["num_layers"]) > 1,
    )


def workspace_bytes(op: Op) -> int:
    """Workspace of `_cudnn_rnn` when training, and of its backward pass."""
    of = _layers(op)
    elements = of.weights + (_plain(of) if of.kind == "plain" else max(_steps(of), _gradients(of)))
    figures = facts()["cudnn_rnn"]
    fixed = int(figures["layer_bytes"]) * of.layers * of.ways + int(figures["bytes"])
    lengths = 0 if of.packed else int(figures["sample_bytes"]) * of.samples
    return fixed + lengths + int(ITEM_BYTES[of.dtype] * elements)


def _plain(of: _Layers) -> float:
    of_hidden, of_input = of.figures["both_ways" if of.ways == 2 else "one_way"]
    by_sample = of.figures["rows_per_layer"] * of.samples * of.hidden * of.layers * of.ways
    return float(of.rows * (of_hidden * of.hidden + of_input * of.width) + by_sample)


def _steps(of: _Layers) -> int:
    """Elements for the steps of an LSTM or a GRU: the gates, and what is copied of input that is not packed."""
    figures, all_layers = of.figures["both_ways" if of.ways == 2 else "one_way"], of.layers * of.ways
    of_hidden, of_input = of.figures["gates"] * of.ways + (4 if of.ways == 2 else 0), 0
    of_sample = figures["steps" if of.packed else "padded_steps"] * all_layers
    if not of.packed:
        of_input, of_hidden = 1, of_hidden + of.ways
    if _is_small(of):
        alone, deeper, once, by_layer = figures["small"]
        of_hidden, of_sample = (
            of_hidden + (alone if of.layers == 1 else deeper),
            of_sample + once + by_layer * all_layers,
        )
    of_hidden += of.dropout and of.ways == 1  # what is left of a layer's result is one more copy
    return int(of.rows * (of_hidden * of.hidden + of_input * of.width) + of.samples * of_sample * of.hidden)


def _gradients(of: _Layers) -> int:
    """Elements for the gradients of the weights of an LSTM or a GRU: inputs and outputs of layers, laid out anew."""
    figures, small = of.figures["both_ways" if of.ways == 2 else "one_way"], _is_small(of)
    kernel = "gradients" if of.packed else "small_gradients" if small else "padded_gradients"
    of_sample = figures[kernel] * of.layers * of.ways
    if of.ways == 2:
        of_input, of_hidden = 4, 2 * min(of.layers, 2)
    elif small:
        of_input, of_hidden = 1, min(of.layers, 2)
    else:
        of_input, of_hidden = 1, 1 if of.layers == 1 else 0
        deeper = 2 * of.layers + 8 if of.packed else 8
        of_sample += deeper if of.layers > 1 else 0 if of.packed else -4
    if not of.packed:
        of_input, of_hidden = of_input + 2, of_hidden + 2 * of.ways
    if small:
        of_hidden += of.figures["small_rows"]
    return int(of.rows * (of_hidden * of.hidden + of_input * of.width) + of.samples * of_sample * of.hidden)


def _is_small(of: _Layers) -> bool:
    """Whether cuDNN takes its kernel for few hidden units."""
    figures = facts()["cudnn_rnn"]
    alone = of.kind == "lstm" and of.dtype == "float16" and of.layers == of.ways == 1
    border = figures["small_hidden_of_one_float16_layer" if alone else "small_hidden"]
    return not of.packed and bool(of.hidden <= border)


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
