"""Recurrent layers as CUDA runs them: cuDNN's fused kernel over one flat buffer of weights.

Follows PyTorch's aten/src/ATen/native/cudnn/RNN.cpp (`_cudnn_impl`, `copy_weights_to_flat_buf_views`) and, under
autocast, aten/src/ATen/cudnn/AutocastRNN.cpp, read at torch 2.11. The size of cuDNN's reserve (what the forward pass keeps
for the backward one) was measured on an H200 with cuDNN 9.19 and fits these cases to the byte: an LSTM keeps 5 and a GRU 6
arrays of steps x batch x hidden for each layer and direction, one more for each layer and direction that
feeds another, a bit mask for each dropout between layers, and 256 bytes. Plain RNNs are unmeasured and taken like
two arrays.
"""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten
Tensor = torch.Tensor

# cudnnRNNMode_t
RELU, TANH, LSTM, GRU = 0, 1, 2, 3
_KEPT = {RELU: 2, TANH: 2, LSTM: 5, GRU: 6}
_DROPOUT_STATE_BYTES_PER_SM = 49152  # cuDNN's random number states; measured: 6488064 on the 132 SMs of an H200


def reserve_bytes(
    mode: int, steps_times_batch: int, hidden: int, layers: int, directions: int, dropout: float, itemsize: int
) -> int:
    """Size of the reserve that `_cudnn_rnn` returns when training."""
    one = steps_times_batch * hidden
    arrays = _KEPT[mode] * layers * directions + (layers - 1) * directions
    masks = (layers - 1) * directions * ((one + 7) // 8) if dropout else 0
    return one * itemsize * arrays + masks + 256


class Recurrent:
    """Composite kernels for `lstm`, `gru` and plain RNNs; holds the dropout state that PyTorch caches for good."""

    def __init__(self, sm_count: int) -> None:
        self._sm_count = sm_count
        self._dropout_state: Tensor | None = None

    def overrides(self) -> dict[str, Any]:
        """Operator name -> kernel."""
        found: dict[str, Any] = {}
        for name, mode in (("lstm", LSTM), ("gru", GRU), ("rnn_tanh", TANH), ("rnn_relu", RELU)):
            found[f"{name}.input"] = self._padded(mode, getattr(aten, name).input)
            found[f"{name}.data"] = self._packed(mode, getattr(aten, name).data)
        return found

    def _padded(self, mode: int, plain: Any) -> Any:
        decomposed = _plain_kernel(plain)

        def run(
            input: Tensor,
            hx: Any,
            params: list[Tensor],
            has_biases: bool,
            num_layers: int,
            dropout: float,
            train: bool,
            bidirectional: bool,
            batch_first: bool,
        ) -> Any:
            if not input.is_cuda:
                return decomposed(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)
            return self._cudnn(
                mode, input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first, []
            )

        return run

    def _packed(self, mode: int, plain: Any) -> Any:
        decomposed = _plain_kernel(plain)

        def run(
            data: Tensor,
            batch_sizes: Tensor,
            hx: Any,
            params: list[Tensor],
            has_biases: bool,
            num_layers: int,
            dropout: float,
            train: bool,
            bidirectional: bool,
        ) -> Any:
            if not data.is_cuda:
                return decomposed(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional)
            sizes = batch_sizes.tolist()
            return self._cudnn(
                mode, data, hx, params, has_biases, num_layers, dropout, train, bidirectional, False, sizes
            )

        return run

    def _cudnn(
        self,
        mode: int,
        input: Tensor,
        hx: Any,
        params: list[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
        batch_sizes: list[int],
    ) -> Any:
        hidden, cell = (hx[0], hx[1]) if mode == LSTM else (hx, None)
        per_layer = len(params) // (num_layers * (2 if bidirectional else 1))
        stride = 4 if has_biases else 2
        size = int(params[1].size(1)) if mode != LSTM or cell is None else int(cell.size(2))
        projected = int(hidden.size(2)) if per_layer > stride else 0
        buffer = _flat_buffer(params)
        state = self._state(input.device) if dropout and train else None
        lower = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        if lower is not None and params[0].dtype == torch.float32:
            params, buffer = _cast_into_buffer(params, torch.float16)
            hidden = hidden.to(torch.float16)
            cell = cell.to(torch.float16) if cell is not None else None
            input = input.to(torch.float16)
        output, last, last_cell, _, _ = aten._cudnn_rnn(
            input,
            list(params),
            stride,
            buffer,
            hidden,
            cell,
            mode,
            size,
            projected,
            num_layers,
            batch_first,
            dropout,
            train,
            bidirectional,
            batch_sizes,
            state,
        )
        return (output, last, last_cell) if mode == LSTM else (output, last)

    def _state(self, device: torch.device) -> Tensor:
        if self._dropout_state is None:
            size = self._sm_count * _DROPOUT_STATE_BYTES_PER_SM
            self._dropout_state = torch.empty(size, dtype=torch.uint8, device=device)
        return self._dropout_state


def _plain_kernel(packet: Any) -> Any:
    """PyTorch's own decomposition, for tensors of the host."""

    def run(*args: Any) -> Any:
        with torch._C._DisableTorchDispatch():
            return packet.decompose(*args)

    return run


def _flat_buffer(params: list[Tensor]) -> Tensor | None:
    """The weights as one flat tensor when they all are views of one buffer (`try_get_weight_buf`)."""
    storages = {parameter.untyped_storage()._cdata for parameter in params}
    if len(storages) != 1 or len(params) == 1:
        return None
    first = params[0].detach()
    count = first.untyped_storage().nbytes() // first.itemsize
    return first.as_strided((count,), (1,), 0)


def lstm_cell(
    input: Tensor, hx: list[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`lstm_cell` of RNN.cpp: two products and, on CUDA, one fused kernel for the rest."""
    gates, recurrent = torch.matmul(input, w_ih.t()), torch.matmul(hx[0], w_hh.t())
    if input.is_cuda:
        hidden, cell, _ = aten._thnn_fused_lstm_cell(gates, recurrent, hx[1], b_ih, b_hh)
        return hidden, cell
    total = gates + recurrent + (b_ih + b_hh if b_ih is not None and b_hh is not None else 0)
    one, forget, new, out = total.chunk(4, 1)
    cell = forget.sigmoid() * hx[1] + one.sigmoid() * new.tanh()
    return out.sigmoid() * cell.tanh(), cell


def gru_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """`gru_cell` of RNN.cpp, likewise."""
    gates, recurrent = torch.matmul(input, w_ih.t()), torch.matmul(hx, w_hh.t())
    if input.is_cuda:
        return aten._thnn_fused_gru_cell(gates, recurrent, hx, b_ih, b_hh)[0]
    gates = gates + b_ih if b_ih is not None else gates
    recurrent = recurrent + b_hh if b_hh is not None else recurrent
    (r, z, n), (hr, hz, hn) = gates.chunk(3, 1), recurrent.chunk(3, 1)
    reset, update = (r + hr).sigmoid(), (z + hz).sigmoid()
    new = (n + reset * hn).tanh()
    return (hx - new) * update + new


class _CastIntoBuffer(torch.autograd.Function):
    """A weight copied into its place in a buffer of another dtype; the gradient is cast back."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, buffer: Tensor, offset: int) -> Tensor:
        ctx.dtype = weight.dtype
        return buffer.narrow(0, offset, weight.numel()).view(weight.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad.to(ctx.dtype), None, None


def _cast_into_buffer(params: list[Tensor], dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    buffer = torch.empty(sum(p.numel() for p in params), dtype=dtype, device=params[0].device)
    cast = []
    offset = 0
    for parameter in params:
        cast.append(_CastIntoBuffer.apply(parameter, buffer, offset))
        offset += parameter.numel()
    return cast, buffer


# ---- hollow implementations (tensors on the meta device) ----------------------------------------------


def rnn(
    input: Tensor,
    weight: list[Tensor],
    weight_stride0: int,
    weight_buf: Tensor | None,
    hx: Tensor,
    cx: Tensor | None,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: list[int],
    dropout_state: Tensor | None,
) -> Any:
    """`_cudnn_rnn`: output, last hidden state, last cell, reserve, weight buffer."""
    directions = 2 if bidirectional else 1
    width = (proj_size or hidden_size) * directions
    if batch_sizes:
        output = input.new_empty((input.size(0), width))
        count, batch = input.size(0), batch_sizes[0]
    elif batch_first:
        batch, steps = input.size(0), input.size(1)
        output = input.new_empty((steps, batch, width)).transpose(0, 1)
        count = steps * batch
    else:
        steps, batch = input.size(0), input.size(1)
        output = input.new_empty((steps, batch, width))
        count = steps * batch
    layers = num_layers * directions
    last = hx.new_empty((layers, batch, proj_size or hidden_size))
    last_cell = cx.new_empty((layers, batch, hidden_size)) if cx is not None else hx.new_empty(0)
    kept = reserve_bytes(mode, count, hidden_size, num_layers, directions, dropout, input.itemsize) if train else 0
    reserve = input.new_empty(kept, dtype=torch.uint8)
    if weight_buf is None:
        weight_buf = input.new_empty(sum(w.numel() for w in weight))
    return output, last, last_cell, reserve, weight_buf


def rnn_backward(
    input: Tensor,
    weight: list[Tensor],
    weight_stride0: int,
    weight_buf: Tensor,
    hx: Tensor,
    cx: Tensor | None,
    output: Tensor,
    grad_output: Any,
    grad_hy: Any,
    grad_cy: Any,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: list[int],
    dropout_state: Any,
    reserve: Tensor,
    output_mask: list[bool],
) -> Any:
    """`_cudnn_rnn_backward`: gradients of input, hidden state, cell and, as views of one buffer, of the weights."""
    grad_input = None
    if batch_first and not batch_sizes:
        grad_input = input.new_empty((input.size(1), input.size(0), input.size(2))).transpose(0, 1)
    else:
        grad_input = input.new_empty(tuple(input.shape))
    grad_hidden = hx.new_empty(tuple(hx.shape))
    grad_cell = cx.new_empty(tuple(cx.shape)) if cx is not None else None
    grads: list[Tensor] = []
    if output_mask[3]:
        buffer = weight_buf.new_empty(weight_buf.numel())
        offset = 0
        for w in weight:
            grads.append(buffer.narrow(0, offset, w.numel()).view(w.shape))
            offset += w.numel()
    return grad_input, grad_hidden, grad_cell, grads


def gru_cell_kernel(
    input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, input_bias: Any = None, hidden_bias: Any = None
) -> tuple[Tensor, Tensor]:
    """`_thnn_fused_gru_cell`: hidden state and a workspace of five arrays."""
    return torch.empty_like(hx), hx.new_empty((hx.size(0), hx.size(1) * 5))


def gru_cell_kernel_backward(grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> Any:
    """`_thnn_fused_gru_cell_backward`: gradients of both gates, of the hidden state, and of the biases."""
    width = workspace.size(1) // 5
    gates, hidden = (grad_hy.new_empty((grad_hy.size(0), 3 * width)) for _ in range(2))
    biases = tuple(grad_hy.new_empty(3 * width) if has_bias else None for _ in range(2))
    return gates, hidden, torch.empty_like(grad_hy), *biases


def pack_in_steps(input: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """`_pack_padded_sequence` of PackedSequence.cpp: a copy of each run of steps with as many rows, then all in one."""
    if batch_first:
        input = input.transpose(0, 1)
    runs, sizes, done = [], [], 0
    for place, length in enumerate(reversed(lengths.tolist())):
        if length > done:
            rows = input.size(1) - place
            runs.append(input[done:length, :rows].contiguous().view(-1, *input.shape[2:]))
            sizes += [rows] * (length - done)
            done = length
    packed = torch.cat(runs)
    while runs:  # given back in the order in which they were made
        del runs[0]
    return packed, torch.tensor(sizes, dtype=torch.int64)


def pack_padded_sequence(input: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """`_pack_padded_sequence`: the elements that are no padding, and on the host how many rows each step has."""
    counts = lengths.tolist()
    sizes = [sum(length > step for length in counts) for step in range(max(counts))]
    rest = input.shape[2:]
    return input.new_empty((sum(counts), *rest)), torch.tensor(sizes, dtype=torch.int64)
