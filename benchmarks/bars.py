"""The speed that the engines promise, measured: `python benchmarks/bars.py [--repeats 5]`. Exits with 1 on a miss.

Every ratio is between two things timed in one run, in turn. The median of the rounds counts; beside it stands the worst
round of ours against the median of theirs. Three layers, input size 128, 100 steps, firing rates .21 / .03.
Bars in bfloat16 are for processors that multiply it fast (AMX, or AVX512-BF16 of AMD); elsewhere they are not judged.
`python benchmarks/bars.py --only streaming` measures those whose name contains the word. The last line, JSON, is kept
in benchmarks/bars.json: the record of the tables in docs/engines.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

# Torch's own bfloat16 products end in an illegal instruction on some virtual machines. What we compare with must run.
PROBE = "import torch; a = torch.ones(512, 512, dtype=torch.bfloat16); a @ a"
if "ONEDNN_MAX_CPU_ISA" not in os.environ and subprocess.run([sys.executable, "-c", PROBE], check=False).returncode:
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"
    print("torch's own bfloat16 products die here: measured with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16", flush=True)

import torch  # noqa: E402

from hmrnn import Symbols, TextModel, TextModelConfig  # noqa: E402
from hmrnn.cli import bench  # noqa: E402
from hmrnn.cli.bench import BFLOAT16, Setting  # noqa: E402
from hmrnn.cli.bench import TORCH_BFLOAT16 as AUTOCAST  # noqa: E402
from hmrnn.cli.bench import TORCH_LSTM as LSTM  # noqa: E402
from hmrnn.config import Precision  # noqa: E402
from hmrnn.engines.native import multiplies_bfloat16_fast  # noqa: E402

PAPER = Setting()  # 512 units, batch 64, firing rates .21 / .03 as in the paper's Figure 4
WIDE, SMALLER, SMALL = replace(PAPER, hidden=1024, batch=128), replace(PAPER, hidden=256), replace(PAPER, hidden=128)
NORM, BUSY = replace(PAPER, layer_norm=True), replace(PAPER, rates=(0.6, 0.4))


@dataclass(frozen=True)
class Found:
    ratio: float
    worst: float  # by the worst round of ours


@dataclass(frozen=True)
class Bar:
    name: str
    sign: str
    bar: float
    measure: Callable[[int], Found]
    bfloat16: bool = False

    def met(self, ratio: float) -> bool:
        return ratio >= self.bar if self.sign == ">=" else ratio <= self.bar


def compared(seconds: dict[str, list[float]], ours: str, theirs: list[str]) -> Found:
    """How many times the speed of the faster of theirs ours has."""
    rival = min(statistics.median(seconds[name]) for name in theirs)
    return Found(rival / statistics.median(seconds[ours]), rival / max(seconds[ours]))


def training(setting: Setting, ours: str, theirs: str, neighbour: bool = False) -> Callable[[int], Found]:
    def measure(repeats: int) -> Found:
        work = bench.training_work(setting, [name for name in (ours, theirs) if name != LSTM], norm_lstm=False)
        with busy_neighbour() if neighbour else nullcontext():
            return compared(bench.rounds({name: work[name] for name in (theirs, ours)}, repeats), ours, [theirs])

    return measure


def streaming(setting: Setting, ours: str, neighbour: bool = False) -> Callable[[int], Found]:
    def measure(repeats: int) -> Found:
        work = bench.streaming_work(setting)
        theirs = [name for name in work if name.startswith("torch")]
        with busy_neighbour() if neighbour else nullcontext():
            return compared(bench.rounds({name: work[name] for name in (*theirs, ours)}, repeats), ours, theirs)

    return measure


def whole_training(repeats: int) -> Found:
    work = bench.model_work(PAPER)
    return compared(bench.rounds({name: work[name] for name in ("native", BFLOAT16)}, repeats), BFLOAT16, ["native"])


def generation_work(setting: Setting, precision: Precision) -> Callable[[], object]:
    """A text model writes bench.STREAMED symbols. Untrained, but its detectors fire at the setting's rates."""
    sizes = (setting.hidden,) * bench.LAYERS
    config = TextModelConfig("hm-lstm", bench.INPUT_SIZE, sizes, setting.hidden, precision=precision)
    model = TextModel(Symbols(tuple(map(chr, range(32, 32 + bench.SYMBOLS)))), config, engine="native")
    symbols = torch.randint(bench.SYMBOLS, (bench.STREAMED, 1), generator=torch.Generator().manual_seed(0))
    x = model.embed(symbols).dense().detach()
    model.rnn.load_state_dict(bench.pinned(replace(setting, layer_norm=True), x))
    return lambda: model.generate(" ", bench.STREAMED, seed=0)


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """Another process that never rests, on one core, as long as this one lives."""
    loop = f"import os\nwhile os.getppid() == {os.getpid()}: sum(range(10**5))"
    process = subprocess.Popen([sys.executable, "-c", loop])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def generation(neighbour: bool) -> Callable[[int], Found]:
    """Symbols a second."""

    def measure(repeats: int) -> Found:
        work = generation_work(PAPER, "auto" if not multiplies_bfloat16_fast() else "bfloat16")
        with busy_neighbour() if neighbour else nullcontext():
            seconds = bench.rounds({"ours": work}, repeats)["ours"]
        return Found(bench.STREAMED / statistics.median(seconds), bench.STREAMED / max(seconds))

    return measure


def once(value: Callable[[int], float]) -> Callable[[int], Found]:
    def measure(repeats: int) -> Found:
        ratio = value(repeats)
        return Found(ratio, ratio)

    return measure


def memory(repeats: int) -> float:
    return bench.peak_memory(PAPER, "native") / bench.peak_memory(PAPER, LSTM)


BARS = [
    Bar("training, 512 units: native / torch.nn.LSTM", ">=", 1.6, training(PAPER, "native", LSTM)),
    Bar("training, 128 units: native / torch.nn.LSTM", ">=", 1.4, training(SMALL, "native", LSTM)),
    Bar("training, 256 units: native / torch.nn.LSTM", ">=", 1.4, training(SMALLER, "native", LSTM)),
    Bar("training, 1024 units, batch 128: native / torch.nn.LSTM", ">=", 1.4, training(WIDE, "native", LSTM)),
    Bar("training, 512 units, layer norm: native / torch.nn.LSTM", ">=", 1.25, training(NORM, "native", LSTM)),
    Bar("training, 512, beside a busy loop: native / torch.nn.LSTM", ">=", 1.8, training(PAPER, "native", LSTM, True)),
    Bar("training, 512 units: native / reference", ">=", 4.0, training(PAPER, "native", "reference")),
    Bar("training, 512 units: events / reference", ">=", 2.0, training(PAPER, "events", "reference")),
    Bar("training at rates .6 / .4: native / reference", ">=", 1.7, training(BUSY, "native", "reference")),
    Bar("training, 512 units: bfloat16 / torch.nn.LSTM", ">=", 3.2, training(PAPER, BFLOAT16, LSTM), True),
    Bar("training, 512 units: bfloat16 / torch.nn.LSTM autocast", ">=", 2.0, training(PAPER, BFLOAT16, AUTOCAST), True),
    Bar("training, 1024 units, batch 128: bfloat16 / torch.nn.LSTM", ">=", 3.4, training(WIDE, BFLOAT16, LSTM), True),
    Bar("training, 256 units: bfloat16 / torch.nn.LSTM", ">=", 3.4, training(SMALLER, BFLOAT16, LSTM), True),
    Bar("training, 128 units: bfloat16 / torch.nn.LSTM", ">=", 2.2, training(SMALL, BFLOAT16, LSTM), True),
    Bar("training, 512 units, layer norm: bfloat16 / torch.nn.LSTM", ">=", 3.0, training(NORM, BFLOAT16, LSTM), True),
    Bar("model and loss, 512 units: bfloat16 / float32", ">=", 1.8, whole_training, True),
    Bar("streaming, 512 units: native / the faster torch.nn", ">=", 3.0, streaming(PAPER, "native")),
    Bar("streaming, 512 units: bfloat16 / the faster torch.nn", ">=", 5.0, streaming(PAPER, BFLOAT16), True),
    Bar("streaming, 256 units: bfloat16 / the faster torch.nn", ">=", 3.0, streaming(SMALLER, BFLOAT16), True),
    Bar("streaming, 128 units: bfloat16 / the faster torch.nn", ">=", 2.0, streaming(SMALL, BFLOAT16), True),
    Bar("streaming, 512 units, beside a busy loop: native / torch.nn", ">=", 2.0, streaming(PAPER, "native", True)),
    Bar("streaming, 128 units, beside a busy loop: native / torch.nn", ">=", 1.5, streaming(SMALL, "native", True)),
    Bar("TextModel.generate, 512 units: symbols a second", ">=", 1000, generation(False)),
    Bar("TextModel.generate, 512 units, beside a busy loop: symbols a second", ">=", 600, generation(True)),
    Bar("peak memory of a training step: native / torch.nn.LSTM", "<=", 1.5, once(memory)),
    Bar("time of native / time of its products", "<=", 1.15, once(lambda n: bench.products_ratio(PAPER, 2 * n))),
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="how often each is timed (default 5)")
    parser.add_argument("--only", default="", help="measure only what has this in its name")
    asked = parser.parse_args()
    results = []
    for bar in (bar for bar in BARS if asked.only in bar.name):
        found = bar.measure(asked.repeats)
        judged = not bar.bfloat16 or multiplies_bfloat16_fast()
        met = bar.met(found.ratio) if judged else None
        results.append({"what": bar.name, "ratio": round(found.ratio, 3), "worst": round(found.worst, 3),
                        "bar": f"{bar.sign} {bar.bar}", "met": met})  # fmt: skip
        word = {True: "ok", False: "MISS", None: "-"}[met]
        print(
            f"{word:<5}{found.ratio:8.2f} (worst {found.worst:7.2f})  {bar.sign} {bar.bar:<6}  {bar.name}", flush=True
        )
    print(json.dumps({"machine": bench.machine(), "bars": results}))
    sys.exit(any(result["met"] is False for result in results))


if __name__ == "__main__":
    main()
