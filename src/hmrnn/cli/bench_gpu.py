"""`hmrnn bench --device cuda`: the engines on a GPU, beside torch.nn.LSTM (cuDNN): a report to paste into an issue."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from hmrnn.cli.bench import INPUT_SIZE, LAYERS, TORCH_LSTM, Setting, Work, in_turn, pinned
from hmrnn.devices import description
from hmrnn.hmlstm import HMLSTM

GRAPHS = "HMRNN_CUDA_GRAPHS"
# name -> engine, precision, by CUDA graphs
ENGINES = {
    "reference": ("reference", "float32", False),
    "triton": ("triton", "float32", False),
    "triton bfloat16": ("triton", "bfloat16", False),
    "triton graph": ("triton", "float32", True),
    "triton graph bfloat16": ("triton", "bfloat16", True),
}


@contextmanager
def graphs(used: bool) -> Iterator[None]:
    before = os.environ.get(GRAPHS)
    os.environ[GRAPHS] = "1" if used else "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[GRAPHS]
        else:
            os.environ[GRAPHS] = before


def networks(setting: Setting, device: torch.device) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """Those that can be measured here; and of the others, why not."""
    weights = pinned(setting, setting.input())  # on the CPU, where finding them is quick
    found: dict[str, nn.Module] = {TORCH_LSTM: nn.LSTM(INPUT_SIZE, setting.hidden, LAYERS).to(device)}
    missing: dict[str, str] = {}
    for name, (engine, precision, captured) in ENGINES.items():
        rnn = HMLSTM(
            INPUT_SIZE,
            [setting.hidden] * LAYERS,
            layer_norm=setting.layer_norm,
            precision="bfloat16" if precision == "bfloat16" else "float32",
            engine=engine,
        )
        rnn.load_state_dict(weights)
        rnn.to(device)
        if rnn.engine != engine:
            missing[name] = rnn.engine_reason
        elif captured and device.type != "cuda":
            missing[name] = "CUDA graphs need a CUDA device"
        else:
            found[name] = rnn
    return found, missing


def work(setting: Setting, device: torch.device, found: dict[str, nn.Module], training: bool) -> dict[str, Work]:
    """A training step (forward, and backward from a gradient by every hidden state that is put out), or a forward pass.
    Each ends when the device has done it."""
    x = setting.input().to(device).requires_grad_(training)
    gradient = torch.randn(setting.steps, setting.batch, setting.hidden, device=device)

    def timed(name: str, rnn: nn.Module) -> Work:
        def run() -> None:
            with graphs(ENGINES[name][2] if name in ENGINES else False), torch.set_grad_enabled(training):
                rnn.zero_grad()
                x.grad = None
                out = rnn(x)[0]
                hidden: list[Tensor] = [out] if isinstance(out, Tensor) else list(out.h)
                if training:
                    torch.autograd.backward(hidden, [gradient] * len(hidden))
                wait(device)

        return run

    return {name: timed(name, rnn) for name, rnn in found.items()}


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def peak(device: torch.device, run: Callable[[], object]) -> int | None:
    """Bytes that a step takes at its peak, beyond what was there before; None where torch does not tell."""
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    return int(torch.cuda.max_memory_allocated(device)) - before


def versions(device: torch.device) -> dict[str, Any]:
    try:
        import triton

        has = str(triton.__version__)
    except ImportError:
        has = "none"
    about: dict[str, Any] = {"device": description(device), "torch": torch.__version__, "triton": has}
    about |= {"cuda": torch.version.cuda, "hip": torch.version.hip, "python": platform.python_version()}
    if device.type == "cuda":
        about["capability"] = ".".join(map(str, torch.cuda.get_device_capability(device)))
    return {**about, "float32_products": torch.get_float32_matmul_precision()}


def measure(setting: Setting, device: torch.device, repeats: int) -> dict[str, Any]:
    found, missing = networks(setting, device)
    result: dict[str, Any] = {"machine": versions(device), "setting": asdict(setting), "missing": missing}
    with tqdm(unit="run", leave=False, disable=not sys.stderr.isatty()) as progress:
        for kind in ("training", "evaluation"):
            progress.set_description(kind)
            result[kind] = in_turn(work(setting, device, found, kind == "training"), repeats, progress)
    steps = work(setting, device, found, True)
    result["peak_bytes"] = {name: peak(device, run) for name, run in steps.items()}
    return result


def table(result: dict[str, Any]) -> str:
    lines = [", ".join(f"{name} {value}" for name, value in result["machine"].items() if value is not None)]
    lines.append(
        "3 layers of {hidden}, batch {batch}, {steps} steps, layer_norm={layer_norm}".format(**result["setting"])
    )
    for kind, unit in (("training", "s a step"), ("evaluation", "s a pass")):
        seconds = result[kind]
        lines += ["", f"{kind:<24}{unit:>14}{'speed of torch.nn':>20}{'peak MB' if kind == 'training' else '':>12}"]
        for name, value in seconds.items():
            memory = result["peak_bytes"][name] if kind == "training" else None
            shown = "" if memory is None else f"{memory / 1e6:,.0f}"
            lines.append(f"  {name:<22}{value:>14.5f}{seconds[TORCH_LSTM] / value:>19.2f}x{shown:>12}")
    lines += [f"not measured: {name}: {reason}" for name, reason in result["missing"].items()]
    return "\n".join(lines)


def main(setting: Setting, device: torch.device, repeats: int) -> None:
    result = measure(setting, device, repeats)
    print(table(result))
    print(json.dumps(result))
