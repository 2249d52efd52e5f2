"""`hmrnn bench`: how fast the engines are on this machine, as ratios between things timed in one run, in turn."""

from __future__ import annotations

import json
import multiprocessing
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from hmrnn.baselines import LSTM
from hmrnn.cli.common import matplotlib_figures, write_figure
from hmrnn.cli.flags import FIGURE_ENDINGS
from hmrnn.config import Precision
from hmrnn.domains.text.config import TextModelConfig
from hmrnn.domains.text.data.symbols import Symbols
from hmrnn.domains.text.model import TextModel
from hmrnn.domains.text.task import Objective
from hmrnn.engines.native import Clock
from hmrnn.errors import check_share, check_size
from hmrnn.hmlstm import HMLSTM
from hmrnn.sequence import COPY
from hmrnn.storage.files import make_folders

LAYERS, INPUT_SIZE, SYMBOLS = 3, 128, 50
BFLOAT16 = "native bfloat16"
ENGINES = ("native", BFLOAT16, "events", "reference")
TORCH_LSTM, NORM_LSTM = "torch.nn.LSTM", "layer-norm LSTM"
TORCH_BFLOAT16 = "torch.nn.LSTM autocast"
STREAMED = 500  # symbols of a streaming run

Work = Callable[[], object]


@dataclass(frozen=True)
class Setting:
    """What is measured."""

    hidden: int = 512
    """Units of each of the three layers."""
    batch: int = 64
    """Batch rows."""
    steps: int = 100
    """Time steps."""
    rates: tuple[float, float] = (0.21, 0.03)
    """How often the two detectors fire."""
    layer_norm: bool = False
    """With layer normalisation."""

    def __post_init__(self) -> None:
        for name in ("hidden", "batch", "steps"):
            check_size(name, getattr(self, name))
        for rate in self.rates:
            check_share("each of rates", rate)

    def network(self, engine: str) -> HMLSTM:
        """`bfloat16` is the native engine with products in it."""
        precision: Precision = "bfloat16" if engine == BFLOAT16 else "auto"
        name = "native" if engine == BFLOAT16 else engine
        sizes = [self.hidden] * LAYERS
        return HMLSTM(INPUT_SIZE, sizes, layer_norm=self.layer_norm, precision=precision, engine=name)

    def input(self) -> Tensor:
        return torch.randn(self.steps, self.batch, INPUT_SIZE, generator=torch.Generator().manual_seed(0))


def pinned(setting: Setting, x: Tensor) -> dict[str, Tensor]:
    """Weights with which the detectors fire at the wanted rates on x: the biases are found by bisection."""
    torch.manual_seed(0)
    rnn = setting.network("auto")
    with torch.no_grad():
        for l, rate in enumerate(setting.rates):
            bias = rnn.weights()[l].b_z
            assert bias is not None
            low, high = -8.0, 8.0
            for _ in range(16):
                bias.fill_((low + high) / 2)
                fires_more = rnn(x)[0].z[..., l].mean().item() > rate
                low, high = (low, bias.item()) if fires_more else (bias.item(), high)
    return rnn.state_dict()


def in_turn(work: dict[str, Work], repeats: int, progress: tqdm[Any] | None = None) -> dict[str, float]:
    """Median seconds of each, timed in turn."""
    return {name: statistics.median(values) for name, values in rounds(work, repeats, progress).items()}


def rounds(work: dict[str, Work], repeats: int, progress: tqdm[Any] | None = None) -> dict[str, list[float]]:
    """Seconds of each, timed one after the other in every round, after a round to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for round_ in range(repeats + 1):
        for name, function in work.items():
            if progress is not None:
                progress.set_postfix_str(name)
                progress.update()
            start = time.perf_counter()
            function()
            if round_:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def training_work(setting: Setting, engines: Sequence[str] = ENGINES, norm_lstm: bool = True) -> dict[str, Work]:
    """Training steps: forward, and backward from a gradient by every hidden state that the network puts out."""
    x = setting.input()
    weights = pinned(setting, x)
    x.requires_grad_()
    gradient = torch.randn(setting.steps, setting.batch, setting.hidden)

    def step(rnn: nn.Module, hidden: Callable[[Any], Sequence[Tensor]]) -> Work:
        def work() -> None:
            rnn.zero_grad()
            x.grad = None
            outputs = hidden(rnn(x)[0])
            torch.autograd.backward(outputs, [gradient] * len(outputs))

        return work

    rival = nn.LSTM(INPUT_SIZE, setting.hidden, LAYERS)
    work: dict[str, Work] = {TORCH_LSTM: step(rival, lambda out: [out])}
    if TORCH_BFLOAT16 in engines:

        def autocast() -> None:
            rival.zero_grad()
            x.grad = None
            with torch.autocast("cpu", torch.bfloat16):
                out = rival(x)[0]
            out.backward(gradient.to(out.dtype))

        work[TORCH_BFLOAT16] = autocast
    if norm_lstm:
        work[NORM_LSTM] = step(LSTM(INPUT_SIZE, [setting.hidden] * LAYERS), lambda out: [out.h[-1]])
    for engine in engines:
        if engine != TORCH_BFLOAT16:
            rnn = setting.network(engine)
            rnn.load_state_dict(weights)
            work[engine] = step(rnn, lambda out: out.h)
    return work


def evaluation_work(setting: Setting) -> dict[str, Work]:
    """The forward pass alone, without a graph."""
    x = setting.input()
    weights = pinned(setting, x)
    networks: dict[str, nn.Module] = {
        TORCH_LSTM: nn.LSTM(INPUT_SIZE, setting.hidden, LAYERS),
        NORM_LSTM: LSTM(INPUT_SIZE, [setting.hidden] * LAYERS),
    }
    for engine in ENGINES:
        networks[engine] = setting.network(engine)
        networks[engine].load_state_dict(weights)

    def forward(rnn: nn.Module) -> Work:
        return torch.no_grad()(lambda: rnn(x))

    return {name: forward(rnn) for name, rnn in networks.items()}


def streaming_work(setting: Setting) -> dict[str, Work]:
    """One symbol at a time, batch 1, without a graph: STREAMED symbols."""
    x = replace(setting, batch=1, steps=STREAMED).input()
    weights = pinned(setting, x)
    networks = {name: setting.network(name) for name in ("native", BFLOAT16)}
    for network in networks.values():
        network.load_state_dict(weights)
    norm_lstm = LSTM(INPUT_SIZE, [setting.hidden] * LAYERS)
    stacked = nn.LSTM(INPUT_SIZE, setting.hidden, LAYERS)
    cells = [nn.LSTMCell(INPUT_SIZE if l == 0 else setting.hidden, setting.hidden) for l in range(LAYERS)]

    @torch.no_grad()
    def ours(network: HMLSTM | LSTM) -> None:
        state = None
        for symbol in x:
            _, state = network.step(symbol, state)

    @torch.no_grad()
    def with_cells() -> None:
        states = [(torch.zeros(1, setting.hidden), torch.zeros(1, setting.hidden)) for _ in cells]
        for h in x:
            for l, cell in enumerate(cells):
                states[l] = cell(h, states[l])
                h = states[l][0]

    @torch.no_grad()
    def with_lstm() -> None:
        state = None
        onednn = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)  # with oneDNN, the weights are repacked at every call
        for symbol in x:
            _, state = stacked(symbol.unsqueeze(0), state)
        torch._C._set_mkldnn_enabled(onednn)

    return {
        "torch.nn.LSTMCell": with_cells,
        "torch.nn.LSTM stepped": with_lstm,
        NORM_LSTM: lambda: ours(norm_lstm),
        **{name: partial(ours, network) for name, network in networks.items()},
    }


def model_work(setting: Setting) -> dict[str, Work]:
    """Training steps of whole text models, without the optimiser: embedding, network, output module, loss, and back.

    With layer normalisation, whatever the setting: so text models are trained.
    """
    symbols = torch.randint(SYMBOLS, (setting.steps + 1, setting.batch), generator=torch.Generator().manual_seed(0))
    work: dict[str, Work] = {}
    size, sizes = setting.hidden, (setting.hidden,) * LAYERS
    lstm = TextModelConfig("lstm", INPUT_SIZE, sizes, size)
    ours = replace(lstm, model="hm-lstm")
    for name, config in ((NORM_LSTM, lstm), ("native", ours), (BFLOAT16, replace(ours, precision="bfloat16"))):
        model = TextModel(Symbols(tuple(map(chr, range(SYMBOLS)))), config, engine="native")
        if config.model == "hm-lstm":
            model.rnn.load_state_dict(
                pinned(replace(setting, layer_norm=True), model.embed(symbols[:-1]).dense().detach())
            )
        objective = Objective(model)

        def step(objective: Objective = objective) -> None:
            objective.zero_grad()
            objective(symbols, None, None, torch.Generator())[0].backward()

        work[name] = step
    return work


def products_ratio(setting: Setting, repeats: int) -> float:
    """The native engine's time over that of its own matrix products: median over training steps."""
    step = training_work(setting, ("native",), norm_lstm=False)["native"]
    ratios = []
    for _ in range(repeats + 2):
        total, products = Clock.total, Clock.products
        step()
        ratios.append((Clock.total - total) / (Clock.products - products))
    return statistics.median(ratios[2:])


def _peak(setting: Setting, name: str, answer: Connection) -> None:
    work = training_work(setting, ("native",), norm_lstm=False)[name]
    work()  # what is kept for good, as gradients are, does not count

    def memory(field: str) -> int:
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field)) * 1024

    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts again from here
    before = memory("VmRSS")
    work()
    answer.send(memory("VmHWM") - before)


def peak_memory(setting: Setting, name: str) -> int:
    """Bytes that a training step takes at its peak, beyond what was there before it; in a process of its own."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_peak, args=(setting, name, sender))
    process.start()
    sender.close()
    try:
        return int(receiver.recv())
    finally:
        process.join()


def cost(setting: Setting) -> dict[str, Any]:
    """Events of each layer, and the share of multiply-adds that COPY saves against the same layers at every step."""
    x = setting.input()
    rnn = setting.network("auto")
    rnn.load_state_dict(pinned(setting, x))
    with torch.no_grad():
        out, _ = rnn(x)
    events = [int((out.operations[..., l] != COPY).sum()) for l in range(LAYERS)]
    steps = setting.steps * setting.batch
    per_event = [sum(m.numel() for m in (w.W, w.U, w.V) if m is not None) for w in rnn.weights()]
    done = sum(count * size for count, size in zip(events, per_event, strict=True))
    return {
        "rates": [round(rate, 4) for rate in out.z.mean((0, 1)).tolist()],
        "events": events,
        "steps": steps,
        "multiply_adds_saved": round(1 - done / (steps * sum(per_event)), 4),
    }


def machine() -> dict[str, Any]:
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass  # not Linux: the name that Python knows will do
    return {"processor": name, "threads": torch.get_num_threads(), "torch": torch.__version__}


def measure(setting: Setting, repeats: int) -> dict[str, Any]:
    """Everything about one setting."""
    kinds = {
        "training": training_work,
        "model and loss": model_work,
        "evaluation": evaluation_work,
        "streaming": streaming_work,
    }
    result: dict[str, Any] = {"machine": machine(), "setting": asdict(setting), **cost(setting)}
    with tqdm(unit="run", leave=False, disable=not sys.stderr.isatty()) as progress:
        for kind, make in kinds.items():
            progress.set_description(kind)
            result[kind] = in_turn(make(setting), repeats, progress)
    return result


def table(result: dict[str, Any]) -> str:
    """A measurement as text."""
    lines = [
        "{processor}, {threads} threads, torch {torch}".format(**result["machine"]),
        "3 layers of {hidden}, batch {batch}, {steps} steps, layer_norm={layer_norm}".format(**result["setting"]),
        "firing rates {}; events {} of {} steps; {:.0%} of the multiply-adds saved".format(
            " / ".join(f"{rate:.3f}" for rate in result["rates"]),
            " / ".join(f"{count:,}" for count in result["events"]),
            f"{result['steps']:,}",
            result["multiply_adds_saved"],
        ),
    ]
    units = {
        "training": "s a step",
        "model and loss": "symbols/s",
        "evaluation": "s a pass",
        "streaming": "symbols/s, batch 1",
    }
    symbols = {"model and loss": result["steps"], "streaming": STREAMED}
    for kind, unit in units.items():
        seconds = result[kind]
        rivals = {name: value for name, value in seconds.items() if name.startswith("torch")}
        rival = min(rivals.values(), default=seconds[NORM_LSTM])
        lines += ["", f"{kind:<24}{unit:>20}{'speed of ' + ('torch.nn' if rivals else 'the LSTM'):>20}"]
        for name, value in seconds.items():
            shown = f"{symbols[kind] / value:,.0f}" if kind in symbols else f"{value:.4f}"
            lines.append(f"  {name:<22}{shown:>20}{rival / value:>19.2f}x")
    return "\n".join(lines)


def check_to_draw(setting: Setting, plot: Path) -> None:
    """Refuses a figure that could not be drawn after all that is measured for it."""
    if plot.suffix.lower() not in FIGURE_ENDINGS:
        raise ValueError(f"--plot {plot}: its name must end in {', '.join(FIGURE_ENDINGS)}")
    if setting.rates[0] == 0:
        raise ValueError("--plot varies both firing rates in proportion: the first of --rates must be above 0; got 0")


def main(setting: Setting, repeats: int, plot: Path | None) -> None:
    drawing: Any = None
    if plot is not None:  # what fails, fails before the minutes of measuring
        drawing = matplotlib_figures("hmrnn.cli.bench_plot")
        make_folders(plot.parent)
    result = measure(setting, repeats)
    print(table(result))
    if plot is not None:
        result["sweep"] = drawing.sweep(setting, max(2, repeats // 2))
        write_figure(drawing.sweep_figure(result["sweep"]), plot)
        print(f"\nfigure: {plot}")
    print(json.dumps(result))
