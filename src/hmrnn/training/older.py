"""training.pt, from which runs of older versions go on: a zip archive of one pickle and of the tensors' bytes.

The pickle is read by an unpickler that knows the few operations and names of which those files consist, and makes
nothing that is larger than the file.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch

from hmrnn.storage.files import check_size, open_file
from hmrnn.storage.tensors import checksum_of

MOST_PICKLED = 1 << 22  # bytes: all but the tensors
DTYPES = {
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "ByteStorage": torch.uint8,
    "IntStorage": torch.int32,
    "LongStorage": torch.int64,
    "BoolStorage": torch.bool,
}
OPERATIONS = (
    b"\x80.N\x88\x89KMJ\x8aGX"  # protocol 2, its end; None, True, False, whole numbers, floats, texts
    b")}]\x85\x86\x87t(ause"  # tuples, dictionaries and lists
    b"qrhjcRQb"  # what was seen before; names and calls; the bytes of a tensor; attributes
)


def read_training_pt(path: Path, most: int) -> dict[str, Any]:
    """What a training.pt of at most so many bytes of tensors holds, as it is kept today."""
    with os.fdopen(open_file(path), "rb") as file:
        # More than today: of a part of a tensor, torch kept the whole.
        size = check_size(path, file.fileno(), 4 * most + MOST_PICKLED)
        try:
            with zipfile.ZipFile(file) as archive:
                check_sizes(archive, size)
                state = Unpickler(archive).load()
            expected = state.pop("sha256", None)
            version = {"format_version": state.pop("format_version", None)}
            found = checksum_of_all(state, size)
            optimizer = {str(i): kept for i, kept in state["optimizer"]["state"].items()}
        except Exception as error:  # a flipped bit makes it raise nearly anything
            reason = (str(error).splitlines() or [""])[0] or type(error).__name__
            raise ValueError(f"{path}: damaged, or not written by hmrnn: {reason}") from None
    if expected is not None and found != expected:
        raise ValueError(f"{path}: damaged: its checksum does not fit")
    return {**version, **state, "optimizer": optimizer}


def check_sizes(archive: zipfile.ZipFile, most: int) -> None:
    """Refuses an archive whose parts are larger than the whole: they would be packed, or lie in one another."""
    parts = archive.infolist()
    if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
        raise ValueError("it is packed")
    if sum(max(part.file_size, part.compress_size) for part in parts) > most:
        raise ValueError("its parts are larger than they can be")


class Unpickler(pickle._Unpickler):
    """In Python: the one in C allocates as much as a number in the file says."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        pickled = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
        if archive.getinfo(pickled).file_size > MOST_PICKLED:
            raise ValueError(f"{pickled} is too large")
        super().__init__(io.BytesIO(archive.read(pickled)), encoding="utf-8")
        self.archive, self.folder = archive, pickled.removesuffix(".pkl")
        self.storages: dict[tuple[torch.dtype, str], torch.Tensor] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return rebuilt
        if module == "torch" and name in DTYPES:
            return DTYPES[name]
        raise ValueError(f"it names {module} {name}, which no checkpoint is made of")

    def persistent_load(self, reference: Any) -> torch.Tensor:
        """The bytes of a tensor, each read once."""
        _, dtype, key, _, _ = reference
        assert isinstance(key, str)
        if (dtype, key) not in self.storages:
            content = bytearray(self.archive.read(f"{self.folder}/{key}"))
            # Copied to where torch puts tensors: at odd addresses sums may come out with other last bits.
            own = torch.frombuffer(content, dtype=dtype).clone() if content else torch.empty(0, dtype=dtype)
            self.storages[dtype, key] = own
        return self.storages[dtype, key]

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def call(self) -> None:
        arguments = self.stack.pop()
        self.stack[-1] = rebuilt(*arguments) if self.stack[-1] is rebuilt else {}

    def set_item(self) -> None:
        value, name = self.stack.pop(), self.stack.pop()
        self.set_all([name, value])

    def set_items(self) -> None:
        self.set_all(self.pop_mark())

    def set_all(self, items: list[Any]) -> None:
        """Names and values. A name must cost nothing to look up: a tuple may hold itself in many ways."""
        if not all(isinstance(name, (str, int)) for name in items[::2]):
            raise ValueError("a name in it is no text and no number")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def ignore_attributes(self) -> None:
        self.stack.pop()

    def refuse(self) -> None:
        raise ValueError("it is made of more than numbers, texts and tensors")

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **dict.fromkeys(range(256), refuse),
        **{code: run for code, run in pickle._Unpickler.dispatch.items() if code in OPERATIONS},
        pickle.REDUCE[0]: call,
        pickle.SETITEM[0]: set_item,
        pickle.SETITEMS[0]: set_items,
        pickle.BUILD[0]: ignore_attributes,
    }


def rebuilt(storage: torch.Tensor, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any) -> Any:
    """A part of a tensor's bytes, and not more than those."""
    if torch.Size(shape).numel() > storage.numel():
        raise ValueError("a tensor is larger than its bytes")
    return storage.as_strided(shape, strides, offset)


def checksum_of_all(content: Any, most: int) -> str:
    """Of tensors, numbers and texts in dictionaries and lists. What unfolds to more than `most` bytes, such as lists
    that hold each other, is refused."""
    digest = hashlib.sha256()
    left = most

    def add(value: Any) -> None:
        nonlocal left
        left -= value.nbytes if isinstance(value, torch.Tensor) else len(value) if isinstance(value, str) else 1
        if left < 0:
            raise ValueError("it unfolds to more than its size")
        if isinstance(value, torch.Tensor):
            digest.update(checksum_of({"": value}).encode())
        elif isinstance(value, dict):
            for name, own in value.items():
                add(name)
                add(own)
        elif isinstance(value, (list, tuple)):
            digest.update(str(len(value)).encode())
            for own in value:
                add(own)
        else:
            digest.update(repr(value).encode())

    add(content)
    return digest.hexdigest()
