"""Operators of several whose C++ fills a new tensor "where the input is": on the CPU, as hollow tensors have it.

The same steps as in aten/src/ATen/native/Onehot.cpp, PadSequence.cpp and PackedSequence.cpp (torch 2.11 to 2.14), with the
device as the user's code sees it.
"""

from __future__ import annotations

from typing import Any

import torch

Tensor = torch.Tensor


def one_hot(self: Tensor, num_classes: int = -1) -> Tensor:
    """`one_hot`; CUDA leaves it to the kernel to complain about a class that is out of range."""
    if self.dtype != torch.int64:
        raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
    if not self.numel():
        if num_classes <= 0:
            raise RuntimeError("Can not infer total number of classes from empty tensor.")
        return self.new_empty((*self.shape, num_classes))
    if self.device.type == "cpu" and self.min() < 0:
        raise RuntimeError("Class values must be non-negative.")
    if num_classes == -1:
        num_classes = int(self.max().item()) + 1
    elif self.device.type == "cpu" and self.max() >= num_classes:
        raise RuntimeError("Class values must be smaller than num_classes.")
    filled = torch.zeros((*self.shape, num_classes), dtype=self.dtype, device=self.device)
    return filled.scatter_(-1, self.unsqueeze(-1), 1)


def pad_sequence(
    sequences: list[Tensor], batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> Tensor:
    """`pad_sequence`: padding everywhere, and each sequence copied over it."""
    if not sequences:
        raise RuntimeError("received an empty list of sequences")
    if padding_side not in ("left", "right"):
        raise RuntimeError(f"Expected padding_side to be one of left or right, but got {padding_side}.")
    first, longest = sequences[0], max(one.size(0) for one in sequences)
    shape = (len(sequences), longest) if batch_first else (longest, len(sequences))
    filled = torch.full((*shape, *first.shape[1:]), padding_value, dtype=first.dtype, device=first.device)
    for place, one in enumerate(sequences):
        start = longest - one.size(0) if padding_side == "left" else 0
        filled.select(0 if batch_first else 1, place).narrow(0, start, one.size(0)).copy_(one)
    return filled


def pad_packed_sequence(
    data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: Any, total_length: int
) -> tuple[Tensor, Tensor]:
    """`_pad_packed_sequence`: padding everywhere, and each run of steps with as many rows copied over it."""
    rows = batch_sizes.tolist()
    if 0 < total_length < len(rows):
        raise RuntimeError(
            "Expected total_length to be at least the length of the longest sequence in input, but got "
            f"total_length={total_length} and max sequence length being {len(rows)}"
        )
    shape = (total_length if total_length > 0 else len(rows), rows[0], *data.shape[1:])
    filled = torch.full(shape, padding_value, dtype=data.dtype, device=data.device)
    lengths: list[int] = []
    begun = taken = 0
    for step, (before, after) in enumerate(zip(rows, [*rows[1:], 0], strict=True), 1):
        if before != after:
            steps = step - begun
            run = data.narrow(0, taken, before * steps).view(steps, before, *data.shape[1:])
            filled.narrow(0, begun, steps).narrow(1, 0, before).copy_(run)
            lengths = [step] * (before - after) + lengths
            begun, taken = step, taken + before * steps
    return filled.transpose(0, 1) if batch_first else filled, torch.tensor(lengths, dtype=torch.int64)
