"""Batch sizes as numbers: how far one is looked for, and powers of two."""

from __future__ import annotations

# Larger batches are not searched for: a step whose memory hardly grows would have no largest batch.
MAX_BATCH_SIZE = 1 << 20


def power_of_two_below(batch_size: int) -> int:
    """The largest power of two up to a batch size; 0 for 0."""
    return 1 << (batch_size.bit_length() - 1) if batch_size else 0
