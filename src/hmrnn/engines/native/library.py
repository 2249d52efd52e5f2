"""The compiled library as Python sees it: the structs of csrc/hmrnn.h, and checked pointers to tensors."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_char_p, c_double, c_int, c_int32, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from hmrnn.engines.native import build
from hmrnn.engines.native.build import Unavailable
from hmrnn.equations import LayerWeights

ABI = 3
FLOAT32, FLOAT64, BFLOAT16 = range(3)  # precisions

logger = logging.getLogger("hmrnn")
_loaded: ctypes.CDLL | None = None
_failure: str | None = None


class Weights(Structure):
    _fields_ = [(name, c_void_p) for name in LayerWeights._fields]


class Call(Structure):
    _fields_ = [
        ("precision", c_int32),
        ("threads", c_int32),
        ("hold", c_int32),
        ("training", c_int32),
        ("steps", c_int64),
        ("rows", c_int64),
        ("layers", c_int64),
        ("input_size", c_int64),
        ("slope", c_double),
        ("hidden", POINTER(c_int64)),
        ("weights", POINTER(Weights)),
        ("x", c_void_p),
        ("symbols", c_void_p),
        ("table", c_void_p),
        ("table_z", c_void_p),
        ("table_size", c_int64),
        ("h", POINTER(c_void_p)),
        ("c", POINTER(c_void_p)),
        ("z", c_void_p),
        ("lengths", c_void_p),
        ("given", c_void_p),
        ("uniforms", c_void_p),
        ("masks", POINTER(c_void_p)),
    ]


class Forward(Structure):
    _fields_ = [
        ("values", POINTER(c_void_p)),
        ("tangents", POINTER(c_void_p)),
        ("index", POINTER(c_void_p)),
        ("c_last", POINTER(c_void_p)),
        ("z", c_void_p),
        ("z_last", c_void_p),
        ("counts", POINTER(c_int64)),
        ("seconds", c_double * 2),
    ]


class Backward(Structure):
    _fields_ = [
        ("values", POINTER(c_void_p)),
        ("repeats", POINTER(c_void_p)),
        ("z", c_void_p),
        ("c_last", POINTER(c_void_p)),
        ("z_last", c_void_p),
        ("d_x", c_void_p),
        ("d_table", c_void_p),
        ("d_table_z", c_void_p),
        ("d_h", POINTER(c_void_p)),
        ("d_c", POINTER(c_void_p)),
        ("d_z", c_void_p),
        ("d_weights", POINTER(Weights)),
        ("seconds", c_double * 2),
    ]


class Product(Structure):
    _fields_ = [
        ("a", c_void_p),
        ("b", c_void_p),
        ("c", c_void_p),
        ("rows", c_int64),
        ("columns", c_int64),
        ("depth", c_int64),
        ("transposed", c_int32),
        ("sums", c_int32),
        ("threads", c_int32),
    ]


class Expansion(Structure):
    _fields_ = [
        ("precision", c_int32),
        ("threads", c_int32),
        ("steps", c_int64),
        ("values", c_int64),
        ("width", c_int64),
        ("grad", c_void_p),
        ("index", c_void_p),
        ("tangents", c_void_p),
        ("d_values", c_void_p),
        ("d_repeats", c_void_p),
    ]


class Stream(Structure):
    _fields_ = [
        ("precision", c_int32),
        ("hold", c_int32),
        ("layers", c_int64),
        ("input_size", c_int64),
        ("hidden", POINTER(c_int64)),
        ("weights", POINTER(Weights)),
        ("table", c_void_p),
        ("table_z", c_void_p),
        ("output_size", c_int64),
        ("symbols", c_int64),
        ("gates", POINTER(c_void_p)),
        ("embeddings", POINTER(c_void_p)),
        ("head", c_void_p),
        ("head_bias", c_void_p),
    ]


class Step(Structure):
    _fields_ = [
        ("rows", c_int64),
        ("threads", c_int32),
        ("slope", c_double),
        ("x", c_void_p),
        ("symbols", c_void_p),
        ("h", POINTER(c_void_p)),
        ("c", POINTER(c_void_p)),
        ("z", c_void_p),
        ("new_h", POINTER(c_void_p)),
        ("new_c", POINTER(c_void_p)),
        ("new_z", c_void_p),
        ("new_z_too", c_void_p),
        ("operations", c_void_p),
        ("given", c_void_p),
        ("uniforms", c_void_p),
    ]


def library() -> ctypes.CDLL:
    """The library, built if need be. Raises Unavailable, and the same again if asked again."""
    global _loaded, _failure
    if _loaded is None and _failure is None:
        try:
            _loaded = _load()
        except Unavailable as error:
            _failure = str(error)
            logger.warning("the native engine is not available: %s", error)
    if _loaded is None:
        raise Unavailable(_failure)
    return _loaded


def is_loaded() -> bool:
    """Whether something has used the library in this process."""
    return _loaded is not None


def _load() -> ctypes.CDLL:
    path = build.find()
    try:
        lib = ctypes.CDLL(str(path))
        abi = lib.hmrnn_abi()
    except (OSError, AttributeError) as error:
        raise Unavailable(f"{path} can't be loaded ({error}); delete it to build it anew") from None
    if abi != ABI:
        raise Unavailable(f"{path} is of another version ({abi}, and this is {ABI}); delete it to build it anew")
    arrays = [POINTER(c_void_p)] * 2
    declare(lib, c_char_p, "forward", POINTER(Call), POINTER(Forward), POINTER(c_void_p))
    declare(lib, c_char_p, "backward", c_void_p, POINTER(Backward))
    declare(lib, None, "free", c_void_p)
    declare(lib, c_char_p, "product", POINTER(Product))
    declare(lib, c_char_p, "expansion_backward", POINTER(Expansion))
    declare(lib, c_char_p, "stream_new", POINTER(Stream), POINTER(c_void_p))
    declare(lib, c_char_p, "stream_step", c_void_p, c_void_p)
    declare(lib, None, "stream_free", c_void_p)
    declare(lib, c_char_p, "stream_set", c_void_p, *arrays, c_void_p)
    declare(lib, c_char_p, "stream_get", c_void_p, *arrays, c_void_p)
    declare(lib, c_char_p, "stream_next", c_void_p, c_int64, c_double, c_int, c_void_p, c_void_p, c_void_p)
    declare(lib, c_char_p, "bfloat16_kernel")
    declare(lib, c_int, "bfloat16_use", c_char_p)
    return lib


def declare(lib: ctypes.CDLL, result: Any, name: str, *arguments: Any) -> None:
    function = getattr(lib, f"hmrnn_{name}")
    function.restype, function.argtypes = result, list(arguments)


def precision_of(dtype: torch.dtype, bfloat16: bool) -> int:
    return FLOAT64 if dtype == torch.float64 else BFLOAT16 if bfloat16 else FLOAT32


def bfloat16_kernel() -> str:
    """What computes products in bfloat16 here: amx, dot or widen."""
    return str(library().hmrnn_bfloat16_kernel().decode())


def multiplies_bfloat16_fast() -> bool:
    """Whether products in bfloat16 are faster than in float32 here."""
    try:
        return bfloat16_kernel() != "widen"
    except Unavailable:
        return False


def plain(name: str, tensor: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """The tensor as C++ can read it: numbers one after the other, on the CPU. Raises if it is not what is expected."""
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        raise ValueError(f"{name} must be a dense tensor on the CPU; got {tensor.layout} on {tensor.device}")
    if tensor.dtype != dtype:
        raise TypeError(f"{name} must be {dtype}; got {tensor.dtype}")
    if tensor.shape != tuple(shape):
        raise ValueError(f"{name} must have shape {tuple(shape)}; got {tuple(tensor.shape)}")
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        raise TypeError(f"{name} is a {type(tensor).__name__}, which has no memory of its own: use engine='reference'")
    count, in_order = tensor.numel(), tensor.is_contiguous()  # every call of a tiny network comes here 20 times
    if not in_order:
        count = min(count, 1) + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.untyped_storage().nbytes() < (tensor.storage_offset() + count) * tensor.element_size() and tensor.numel():
        raise ValueError(f"{name} has no memory any more: its storage was freed")
    if in_order and not (tensor.is_neg() or tensor.is_conj()):
        return tensor
    return tensor.resolve_conj().resolve_neg().contiguous()


def plain_weights(
    layer: LayerWeights, sizes: Sequence[int], l: int, input_size: int, dtype: torch.dtype, *, table: bool = False
) -> LayerWeights:
    """The weights of layer l as C++ can read them. `table`: of a first layer that is fed from a table of products."""
    H, below, above = sizes[l], sizes[l - 1] if l else input_size, sizes[l + 1] if l + 1 < len(sizes) else 0
    shapes: dict[str, tuple[int, ...]] = {"U": (4 * H, H), "b": (4 * H,)}
    if not table:
        shapes["W"] = (4 * H, below)
    if above:
        shapes |= {"V": (4 * H, above), "U_z": (H,), "V_z": (above,), "b_z": ()}
        if not table:
            shapes["W_z"] = (below,)
    if layer.gain is not None:
        shapes["gain"] = (4 * H,)
    if layer.gain_c is not None:
        shapes |= {"gain_c": (H,), "bias_c": (H,)}
    checked: dict[str, Any] = {}
    for name, tensor in layer._asdict().items():
        if (tensor is None) is (name in shapes):
            raise ValueError(f"layers[{l}].{name} {'is missing' if tensor is None else 'must be None in this layer'}")
        checked[name] = None if tensor is None else plain(f"layers[{l}].{name}", tensor, shapes[name], dtype)
    return LayerWeights(**checked)


def pointers(tensors: Sequence[Tensor | None]) -> Any:
    """A C array of the tensors' addresses. The tensors must outlive it."""
    return (c_void_p * len(tensors))(*(address(tensor) for tensor in tensors))


def address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def weights_array(layers: Sequence[LayerWeights]) -> Any:
    return (Weights * len(layers))(*(Weights(*map(address, layer)) for layer in layers))


def check(error: bytes | None) -> None:
    if error is not None:
        text = error.decode()
        raise MemoryError(text) if "memory" in text else RuntimeError(text)
