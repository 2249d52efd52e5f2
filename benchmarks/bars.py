"""The speed that the engines promise, measured: `python benchmarks/bars.py [--repeats 5]`. Exits with 1 on a miss.

Every ratio is between two things timed in one run, in turn; the median counts. Float32, three layers, 100 steps.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace

from tqdm import tqdm

from hmrnn import bench
from hmrnn.bench import TORCH_LSTM, Setting

PAPER = Setting()  # 512 units, batch 64, firing rates .21 / .03 as in the paper's Figure 4


def faster(setting: Setting, ours: str, theirs: str, repeats: int) -> float:
    """How many times the speed of theirs ours has, in a training step."""
    engines = [name for name in (ours, theirs) if name != TORCH_LSTM]
    seconds = bench.in_turn(bench.training_work(setting, engines, norm_lstm=False), repeats)
    return seconds[theirs] / seconds[ours]


def streaming(repeats: int) -> float:
    seconds = bench.in_turn(bench.streaming_work(PAPER), repeats)
    return min(value for name, value in seconds.items() if name.startswith("torch")) / seconds["native"]


def memory() -> float:
    return bench.peak_memory(PAPER, "native") / bench.peak_memory(PAPER, TORCH_LSTM)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="how often each is timed (default 5)")
    n = parser.parse_args().repeats
    wide = replace(PAPER, hidden=1024, batch=128)
    busy = replace(PAPER, rates=(0.6, 0.4))
    bars = [
        ("training, 512 units: native / torch.nn.LSTM", ">=", 1.6, lambda: faster(PAPER, "native", TORCH_LSTM, n)),
        (
            "training, 128 units: native / torch.nn.LSTM",
            ">=",
            1.4,
            lambda: faster(replace(PAPER, hidden=128), "native", TORCH_LSTM, n),
        ),
        (
            "training, 256 units: native / torch.nn.LSTM",
            ">=",
            1.4,
            lambda: faster(replace(PAPER, hidden=256), "native", TORCH_LSTM, n),
        ),
        (
            "training, 1024 units, batch 128: native / torch.nn.LSTM",
            ">=",
            1.4,
            lambda: faster(wide, "native", TORCH_LSTM, min(n, 3)),
        ),
        (
            "training, 512 units, native with layer norm / torch.nn.LSTM",
            ">=",
            1.25,
            lambda: faster(replace(PAPER, layer_norm=True), "native", TORCH_LSTM, n),
        ),
        ("training, 512 units: native / reference", ">=", 4.0, lambda: faster(PAPER, "native", "reference", n)),
        ("training, 512 units: events / reference", ">=", 2.0, lambda: faster(PAPER, "events", "reference", n)),
        ("training at rates .6 / .4: native / reference", ">=", 1.7, lambda: faster(busy, "native", "reference", n)),
        ("streaming, 512 units, batch 1: native / the faster torch.nn", ">=", 3.0, lambda: streaming(n)),
        ("peak memory of a training step: native / torch.nn.LSTM", "<=", 1.5, memory),
        ("time of native / time of its matrix products", "<=", 1.15, lambda: bench.products_ratio(PAPER, 2 * n)),
    ]
    results = []
    for name, sign, bar, measure in tqdm(bars, disable=not sys.stderr.isatty(), leave=False):
        ratio = measure()
        met = ratio >= bar if sign == ">=" else ratio <= bar
        results.append({"what": name, "ratio": round(ratio, 3), "bar": f"{sign} {bar}", "met": met})
        print(f"{'ok  ' if met else 'MISS'}  {ratio:6.2f}  {sign} {bar:<5}  {name}", flush=True)
    print(json.dumps({"machine": bench.machine(), "bars": results}))
    sys.exit(not all(result["met"] for result in results))


if __name__ == "__main__":
    main()
