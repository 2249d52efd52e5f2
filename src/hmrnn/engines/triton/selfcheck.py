"""Before the engine is first used on a GPU: does it compute there what `reference` computes?

Nobody can test every GPU. So each one is tested where it is: some small random networks, once for each GPU and version
of what is involved. That it passed is kept in the cache; that it failed is not, and is found again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from hmrnn.engines import reference
from hmrnn.engines.types import Rules, Trace
from hmrnn.equations import LayerWeights
from hmrnn.recurrent import Call
from hmrnn.sequence import HMLSTMState
from hmrnn.storage.cache import cache_directory, can_be_trusted, own_cache_directory
from hmrnn.storage.files import write_atomically

CACHE = "triton"  # its folder there
T, B, INPUTS, SIZES = 4, 3, 7, (33, 20, 140)


class Case(NamedTuple):
    """A network, and how far from `reference` in float64 its numbers may be, as a share of the largest."""

    dtype: torch.dtype
    rules: Rules
    given: bool
    norm: bool
    tolerance: float


def cases() -> Iterator[Case]:
    """Boundaries are given where rounding could turn one over."""
    for hold in (True, False):
        yield Case(torch.float64, Rules("step", hold, None), False, hold, 1e-10)
        yield Case(torch.float64, Rules("sample", hold, torch.rand(T, B, len(SIZES) - 1)), False, not hold, 1e-10)
    yield Case(torch.float32, Rules("step", True, None), True, True, 1e-3)
    yield Case(torch.float32, Rules("step", True, None, bfloat16=True), True, False, 5e-2)


@cache
def failure(device: torch.device) -> str:
    """What is wrong with the engine on a device, in one line. Empty if nothing is."""
    try:
        if was_passed(device):
            return ""
        found = disagreement(device)
    except Exception as error:
        # Whatever goes wrong in a compiler or a driver must not end the program that asked for an engine.
        found = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    if found:
        return f"the triton engine failed its self-check on {device}: {found}"
    with suppress(OSError):  # without a place to keep it, every process checks for itself
        own_cache_directory(CACHE)
        write_atomically(note(device), json.dumps(versions(device)) + "\n")
        note(device).chmod(0o600)
    return ""


def was_passed(device: torch.device) -> bool:
    try:
        return can_be_trusted(note(device))
    except OSError:
        return False


def note(device: torch.device) -> Path:
    """The file whose being there says that this device passed with these versions."""
    return cache_directory(CACHE) / f"{hashlib.sha256(json.dumps(versions(device)).encode()).hexdigest()[:32]}.json"


def versions(device: torch.device) -> dict[str, str]:
    import triton

    source = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        "device": name,
        "torch": str(torch.__version__),
        "triton": str(triton.__version__),
        "driver": str(torch.version.cuda or torch.version.hip),
        "engine": hashlib.sha256(source).hexdigest(),
    }


def disagreement(device: torch.device) -> str:
    """The first result that is not that of `reference`, in one line. Empty if there is none."""
    from hmrnn.engines.triton import launched

    with torch.random.fork_rng(devices=[]), whole_float32():
        torch.manual_seed(0)
        for case in cases():
            tensors = inputs(case)
            expected = results(reference.run, case, tensors, torch.device("cpu"), torch.float64)
            found = results(launched, case, tensors, device, case.dtype)
            for name, value in expected.items():
                off = float((found[name].double().cpu() - value).abs().max()) / max(1.0, float(value.abs().max()))
                if not off <= case.tolerance:
                    return f"{name} is off by {off:.1e} in {case.dtype}{', bfloat16' * case.rules.bfloat16}"
    return ""


@contextmanager
def whole_float32() -> Iterator[None]:
    """Products of float32 are not rounded to TF32 meanwhile, whatever was asked for."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def inputs(case: Case) -> dict[str, Tensor]:
    """Random, on the CPU, in float64; weights by the names of `LayerWeights` and the layer."""
    sizes, last = (INPUTS, *SIZES), len(SIZES) - 1
    tensors = {"x": torch.randn(T, B, INPUTS), "z": torch.randint(0, 2, (B, last)).double()}
    for l, H in enumerate(SIZES):
        tensors |= {f"h{l}": torch.randn(B, H), f"c{l}": torch.randn(B, H)}
        above = sizes[l + 2] if l < last else 0
        shapes: dict[str, tuple[int, ...]] = {"W": (4 * H, sizes[l]), "U": (4 * H, H), "b": (4 * H,)}
        if above:
            shapes |= {"V": (4 * H, above), "W_z": (sizes[l],), "U_z": (H,), "V_z": (above,), "b_z": ()}
        if case.norm:
            shapes |= {"gain": (4 * H,), "gain_c": (H,), "bias_c": (H,)}
        for name, shape in shapes.items():
            tensors[f"{name} {l}"] = torch.randn(shape) / (shape[-1] if shape else 1) ** 0.5
    return {name: tensor.double() for name, tensor in tensors.items()}


def results(
    run: Callable[..., Trace], case: Case, tensors: dict[str, Tensor], device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Outputs, and the gradients of a weighted sum of them by everything that went in."""
    leaves = {name: tensor.to(device, dtype).requires_grad_() for name, tensor in tensors.items()}
    weights = [LayerWeights(*(leaves.get(f"{name} {l}") for name in LayerWeights._fields)) for l in range(len(SIZES))]  # type: ignore[arg-type]
    h, c = (tuple(leaves[f"{name}{l}"] for l in range(len(SIZES))) for name in "hc")
    steps = torch.arange(T).unsqueeze(1)
    given = ((steps + torch.arange(B).unsqueeze(0)).unsqueeze(-1) % torch.tensor([2, 3]) == 0) if case.given else None
    call = Call(
        leaves["x"],
        HMLSTMState(h, c, leaves["z"]),
        (steps < torch.arange(T - B + 1, T + 1)).to(device),  # rows of different lengths
        None if given is None else given.to(device, dtype),
        1.5,
        None,
    )
    uniforms = case.rules.uniforms
    moved = None if uniforms is None else uniforms.to(device)
    rules = Rules(case.rules.boundary, case.rules.hold, moved, case.rules.bfloat16 and dtype == torch.float32)
    trace = run(weights, call, rules)
    found = {f"h of layer {l}": part.dense() for l, part in enumerate(trace.steps)} | {"z": trace.z}
    found |= {f"c of layer {l}": part for l, part in enumerate(trace.state.c)} | {"z at the end": trace.state.z}
    loss = sum((value * value.detach().cos()).sum() for value in found.values())
    assert isinstance(loss, Tensor)
    names = [name for name in leaves if not (case.given and name.split()[0] in ("W_z", "U_z", "V_z", "b_z"))]
    gradients = torch.autograd.grad(loss, [leaves[name] for name in names])
    found = {name: value.detach() for name, value in found.items()}
    return found | {f"the gradient by {name}": grad for name, grad in zip(names, gradients, strict=True)}
