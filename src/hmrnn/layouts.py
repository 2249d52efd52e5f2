"""Batches as callers lay them out, and as networks compute them: time first, padded."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from hmrnn.sequence import HMLSTMOutput, PackedOutput, Piecewise


def transposed(output: HMLSTMOutput) -> HMLSTMOutput:
    """Time first to batch first."""
    steps = tuple(steps.transpose() for steps in output.steps)
    return HMLSTMOutput(steps, output.z.transpose(0, 1), output.operations.transpose(0, 1))


def padded(sequence: PackedSequence) -> tuple[Tensor, Tensor]:
    """(T, B, …) with the longest row first, and the lengths, (B,)."""
    return pad_packed_sequence(PackedSequence(sequence.data, sequence.batch_sizes))


def packed(output: HMLSTMOutput, lengths: Tensor, like: PackedSequence) -> PackedOutput:
    """What rows of these lengths gave, the longest first, packed as `like` is."""

    places = torch.arange(output.operations[..., 0].numel()).view(output.operations.shape[:2])
    where = pack_padded_sequence(places, lengths).data.to(output.z.device, non_blocking=True)

    def data(padded: Tensor) -> Tensor:
        return padded.flatten(0, 1).index_select(0, where)

    def steps(layer: Piecewise) -> Piecewise:
        repeats = None if layer.repeats is None else data(layer.repeats)
        return Piecewise(layer.values, data(layer.index), layer.tangents, repeats)

    z, operations = (like._replace(data=data(own)) for own in (output.z, output.operations))
    return PackedOutput(tuple(map(steps, output.steps)), z, operations)
