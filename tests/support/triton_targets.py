"""Compiles the row kernels for GPUs that need not be there, as the engine would launch them.

    python tests/support/triton_targets.py UNITS[,UNITS...] TARGET[,TARGET...]

prints one line of JSON for each kernel: registers, bytes that do not fit into them (spills), seconds.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from hmrnn import HMLSTM
from hmrnn.engines import Rules
from hmrnn.engines.triton import buffers, launched

TARGETS = {
    "sm_75": GPUTarget("cuda", 75, 32),
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
    "gfx1100": GPUTarget("hip", "gfx1100", 32),
}
TYPES = {torch.float32: "*fp32", torch.float64: "*fp64", torch.int8: "*i8"}
OPERANDS = ("operand", "operand_above", "operand_below", "ds")  # in bfloat16 where products are
NO_CONSTANTS = ("num_warps", "enable_fp_fusion")


def launched_kernels(units: int) -> Iterator[tuple[Any, list[torch.Tensor], dict[str, Any]]]:
    """The kernels of the middle one of three layers, with everything that a call may ask for."""
    seen: list[Any] = []
    buffers.launch = lambda kernel, rows, t, tensors, constants: seen.append((kernel, tensors, constants))
    rnn = HMLSTM(8, [units] * 3, boundary="sample")
    lengths = torch.tensor([1, 0])
    call = rnn._check(torch.randn(1, 2, 8), None, lengths, None, None, None)
    rules = Rules("sample", True, torch.rand(1, 2, 2), masks=tuple(torch.ones(2, units) for _ in range(2)))
    trace = launched(rnn.weights(), call, rules)
    trace.steps[2].dense().sum().backward()
    return (launch for launch in seen if launch[2]["l"] == 1)


def compiled(kernel: Any, tensors: list[torch.Tensor], constants: dict[str, Any], target: GPUTarget) -> Any:
    names = [parameter.name for parameter in kernel.params]
    signature = {"t": "i32", "B": "i32"}
    signature |= {name: TYPES[tensor.dtype] for name, tensor in zip(names[2:], tensors, strict=False)}
    signature |= dict.fromkeys(set(OPERANDS) & set(names), "*bf16")
    fixed = {name: value for name, value in constants.items() if name not in NO_CONSTANTS}
    signature |= dict.fromkeys(fixed, "constexpr")
    options = {name: constants[name] for name in NO_CONSTANTS}
    return triton.compile(ASTSource(kernel, signature, constexprs=fixed), target=target, options=options)


def registers(target: GPUTarget, code: dict[str, str]) -> dict[str, int]:
    """How many registers, and how many bytes had to go to memory."""
    if target.backend == "hip":
        # Of the vector registers. Scalar ones that spill go to lanes of those, not to memory: the segment stays empty.
        spilled = re.findall(r"\.(?:vgpr_spill_count|private_segment_fixed_size): +(\d+)", code["amdgcn"])
        used = re.findall(r"\.vgpr_count: +(\d+)", code["amdgcn"])
    else:
        told = ptxas(target, code["ptx"])
        spilled, used = re.findall(r"(\d+) bytes spill", told), re.findall(r"Used (\d+) registers", told)
    assert spilled
    assert used
    return {"registers": max(map(int, used)), "spilled": sum(map(int, spilled))}


def ptxas(target: GPUTarget, code: str) -> str:
    """What the assembler that comes with triton says of a kernel."""
    assembler = get_ptxas(target.arch).path
    architecture = re.search(r"\.target ([\w]+)", code)
    assert architecture
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernel.ptx").write_text(code)
        command = [assembler, "-v", f"-arch={architecture[1]}", f"{folder}/kernel.ptx", "-o", f"{folder}/out"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stderr


def main(sizes: list[int], targets: list[str]) -> None:
    for units in sizes:
        for kernel, tensors, constants in launched_kernels(units):
            for name in targets:
                start = time.monotonic()
                found = registers(TARGETS[name], compiled(kernel, tensors, constants, TARGETS[name]).asm)
                seconds = round(time.monotonic() - start, 1)
                told = {"target": name, "kernel": kernel.__name__, "units": units, **found, "seconds": seconds}
                print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main([int(units) for units in sys.argv[1].split(",")], sys.argv[2].split(","))
