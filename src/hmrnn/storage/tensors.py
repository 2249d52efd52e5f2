"""Tensors on disk: safetensors with a checksum and, on request, a text beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from hmrnn.storage.files import read_bytes, write_atomically

MOST_HEADER = 1 << 24  # bytes: names, types and shapes, and the text
# What a header that is none makes safetensors, torch and json raise.
WRONG = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, AssertionError, RuntimeError)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], text: str | None = None) -> None:
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    notes = {"sha256": checksum_of(whole, text or "")} | ({} if text is None else {"text": text})
    write_atomically(path, save(whole, notes))


def read_tensors(path: Path, most: int) -> tuple[dict[str, Tensor], str]:
    """The tensors and the text of a file that may have this many bytes of tensors. Nothing in it is executed."""
    content = read_bytes(path, most + MOST_HEADER)
    try:
        size = int.from_bytes(content[:8], "little")
        if size > MOST_HEADER:
            raise ValueError(f"its header has {size:,} bytes")
        notes = json.loads(content[8 : 8 + size]).get("__metadata__") or {}
        # Copied to where torch would put them: tensors at odd addresses take other paths through the matrix library,
        # and give other last bits, than those that were saved.
        tensors = {name: tensor.clone() for name, tensor in load(content).items()}
        text, expected = str(notes.get("text", "")), notes.get("sha256")
    except (SafetensorError, *WRONG) as error:
        raise ValueError(f"{path}: damaged, or not a file of tensors: {error}") from None
    if expected is not None and checksum_of(tensors, text) != expected:  # other tools write none
        raise ValueError(f"{path}: damaged: its checksum does not fit")
    return tensors, text


def checksum_of(tensors: Mapping[str, Tensor], text: str = "") -> str:
    digest = sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        if tensor.numel() > 0:  # torch can't view one without elements as bytes
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
