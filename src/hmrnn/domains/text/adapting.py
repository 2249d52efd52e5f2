"""What `eval` tells besides the plain figure: at another temperature, and of a model that goes on learning.

What has to be chosen is chosen on the validation part of the text that the run was trained on, before anything of the
text that is evaluated is read.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

from hmrnn.domains.text.config import AdaptingConfig
from hmrnn.domains.text.data.store import TextData
from hmrnn.domains.text.data.symbols import Numbers
from hmrnn.domains.text.dynamic import (
    EPSILON,
    SAMPLED,
    DynamicEvaluation,
    Rates,
)
from hmrnn.domains.text.evaluation import TEMPERATURES, best_temperature, bits_at
from hmrnn.domains.text.model import TextModel

# Symbols at the start of the validation part to choose on: minutes of reading with one core and 512 units.
FOR_RATES = 20_000
FOR_TEMPERATURE = 50_000


@dataclass(frozen=True)
class Chosen:
    """What is given, or was chosen."""

    value: Any
    names: tuple[str, ...] = ()  # of what was chosen of it
    symbols: int = 0  # so many of the validation part it was chosen on

    def origin(self) -> dict[str, Any]:
        on = {"split": "valid", "first": self.symbols} if self.names else None
        return {"chosen": list(self.names), "chosen_on": on}


@dataclass(frozen=True)
class Adapting:
    """What to do besides plain evaluation, once all is chosen."""

    temperature: Chosen | None = None
    dynamic: DynamicEvaluation | None = None
    rates: Chosen | None = None
    dynamic_temperature: Chosen | None = None


def prepare(model: TextModel, own: TextData | None, asked: AdaptingConfig) -> Adapting:
    """Chooses. `own` is the text that the model was trained on, which is there if something of it is needed."""
    temperature = None if asked.temperature is None else Chosen(asked.temperature)
    if asked.temperature == "auto":
        assert own is not None
        valid = own.split("valid")[:FOR_TEMPERATURE]
        say(f"choosing the temperature on {first(len(valid))}")
        temperature = of_temperature(bits_at(TEMPERATURES, model, valid, show=True), len(valid))
    if asked.dynamic is None:
        return Adapting(temperature)
    assert own is not None
    say(f"dynamic evaluation: measuring gradients on {SAMPLED} windows of the training part")
    dynamic = DynamicEvaluation(model, own.split("train"), show=True)
    valid = own.split("valid")[:FOR_RATES]
    rates = choose_rates(dynamic, valid, asked)
    if asked.temperature != "auto":
        return Adapting(temperature, dynamic, rates, temperature)
    say(f"choosing the temperature of dynamic evaluation on {first(len(valid))}")
    bits = dynamic.score(valid, rates.value, TEMPERATURES, show=True).bits
    return Adapting(temperature, dynamic, rates, of_temperature(bits, len(valid)))


def choose_rates(dynamic: DynamicEvaluation, valid: Numbers, asked: AdaptingConfig) -> Chosen:
    eta = None if asked.dynamic == "auto" else asked.dynamic
    if eta is not None and asked.decay is not None:
        return Chosen(Rates(eta, asked.decay))
    names = tuple(name for name, given in (("eta", eta), ("lambda", asked.decay)) if given is None)
    say(f"choosing {' and '.join(names)} on {first(len(valid))}")

    def tell(rates: Rates, bits: float) -> None:
        say(f"  eta {rates.eta:g}, lambda {rates.decay:g}: {bits:.4f} bits")

    return Chosen(dynamic.choose(valid, eta, asked.decay, show=True, tell=tell), names, len(valid))


def of_temperature(bits: list[float], symbols: int) -> Chosen:
    return Chosen(best_temperature(bits), ("temperature",), symbols)


def measure(adapting: Adapting, model: TextModel, numbers: Numbers, streams: int) -> dict[str, Any]:
    """The plain figure, and beside it what was asked for."""
    start = time.perf_counter()
    at = adapting.temperature
    plain, *warmed = bits_at((1.0,) if at is None else (1.0, at.value), model, numbers, streams, show=True)
    bits = f"bits_per_{model.symbols.counted}"
    answer: dict[str, Any] = {bits: plain, "seconds": time.perf_counter() - start}
    answer["temperature"] = None if at is None else {bits: warmed[0], **at_temperature(at)}
    answer["dynamic"] = dynamic_figures(adapting, numbers, bits)
    return answer


def dynamic_figures(adapting: Adapting, numbers: Numbers, bits: str) -> dict[str, Any] | None:
    if adapting.dynamic is None or adapting.rates is None:
        return None
    start = time.perf_counter()
    at, rates = adapting.dynamic_temperature, adapting.rates
    score = adapting.dynamic.score(numbers, rates.value, (1.0,) if at is None else (1.0, at.value), show=True)
    return {
        bits: score.bits[0],
        "eta": rates.value.eta,
        "lambda": rates.value.decay,
        **rates.origin(),
        "epsilon": EPSILON,
        "window": adapting.dynamic.window,
        "restarts": score.restarts,
        "temperature": None if at is None else {bits: score.bits[1], **at_temperature(at)},
        "seconds": time.perf_counter() - start,
    }


def at_temperature(at: Chosen) -> dict[str, Any]:
    return {"temperature": at.value, **at.origin()}


def lines_of(figures: dict[str, Any], bits: str, symbols: int) -> list[str]:
    """The lines that follow the plain one. `bits` is the name of the figure."""
    lines = [] if figures["temperature"] is None else [line_of_temperature(figures["temperature"], bits, "")]
    dynamic = figures["dynamic"]
    if dynamic is not None:
        restarts = f", {dynamic['restarts']} times anew from the trained weights" if dynamic["restarts"] else ""
        lines.append(
            f"{dynamic[bits]:.4f} with dynamic evaluation: it goes on learning as it reads, with eta "
            f"{dynamic['eta']:g} and lambda {dynamic['lambda']:g}, after each {dynamic['window']} symbols{restarts} "
            f"({how_chosen(dynamic)}; {symbols / dynamic['seconds']:,.0f} symbols/s)"
        )
        if dynamic["temperature"] is not None:
            lines.append(line_of_temperature(dynamic["temperature"], bits, "dynamic evaluation and "))
    return lines


def line_of_temperature(figure: dict[str, Any], bits: str, what: str) -> str:
    return f"{figure[bits]:.4f} with {what}temperature {figure['temperature']:.4g} ({how_chosen(figure)})"


def how_chosen(figure: dict[str, Any]) -> str:
    if not figure["chosen"]:
        return "given"
    return f"{' and '.join(figure['chosen'])} chosen on {first(figure['chosen_on']['first'])}"


def first(symbols: int) -> str:
    return f"the first {symbols:,} symbols of the validation part"


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
