"""Dynamic evaluation: a model that goes on learning as it reads (Krause, Kahembwe, Murray and Renals, 2018).

L(s) is the mean loss of a window s of text in nats, g its gradient, and theta_g are the trained weights. First, with
these, over N windows s_k of the training text, and for each weight on its own:

    MS = 1/N * sum over k of g(s_k)^2            RMS = sqrt(MS)

Then, as the text is read, each window s_i is predicted first, with what was learnt from those before it, and then

    theta <- theta - eta * g(s_i) / (RMS + epsilon) + lambda * (theta_g - theta) * RMS_norm
    RMS_norm = min(RMS / mean(RMS), 1/lambda)    the mean is that over all weights

so that weights whose gradients are small anyway take steps as large as the others, what is learnt is forgotten again,
the sooner the larger a weight's gradients are, and no weight is pulled further than back to where it was.

Detectors stay as they were trained, and nothing is learnt through them: their straight-through gradient is an estimate,
and is held back as in training. Both were better (docs/log.md), and the boundaries remain those of the trained model
as far as it sees the same.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hmrnn.domains.text.data.streams import Streams
from hmrnn.domains.text.data.symbols import Numbers
from hmrnn.domains.text.evaluation import check_length, nats_at, progress
from hmrnn.dropout import evaluating
from hmrnn.errors import check_size
from hmrnn.guidance.guide import HELD_BACK
from hmrnn.hmlstm import HMLSTM
from hmrnn.recurrent import Recurrent
from hmrnn.sequence import HMLSTMState

if TYPE_CHECKING:
    from hmrnn.domains.text.model import TextModel

WINDOW = 100  # symbols
SAMPLED = 300  # windows of the training text
# The authors' code has 2e-5, for RMS of batches of 100 rows. For that of single windows this was better (docs/log.md).
EPSILON = 2e-4
FURTHEST = 6  # steps from where the search for rates starts


@dataclass(frozen=True)
class Rates:
    eta: float = 5e-4  # of learning
    decay: float = 0.01  # lambda: of forgetting

    def __post_init__(self) -> None:
        if not 0 <= self.eta <= 1e30:  # float32 ends soon after
            raise ValueError(f"eta must lie between 0 and 1e30; got {self.eta}")
        if not 0 <= self.decay <= 1:
            raise ValueError(f"lambda must lie between 0 and 1; got {self.decay}")


class DynamicScore(NamedTuple):
    bits: list[float]  # a character, at each temperature
    restarts: int  # how often the weights ran away and it went back to the trained ones


class DynamicEvaluation:
    """A model, and the size of its gradients on the text that it was trained on. The model is left as it is."""

    def __init__(
        self, model: TextModel, train: Numbers, window: int = WINDOW, sampled: int = SAMPLED, show: bool = False
    ) -> None:
        """Reads that many windows of the training text, spread evenly. `show` draws a progress bar."""
        check_size("window", window)
        check_size("sampled", sampled)
        self.model, self.window = model, window
        self.rms = gradient_rms(model, train, window, sampled, show)

    def score(
        self, numbers: Numbers, rates: Rates, temperatures: Sequence[float] = (1.0,), show: bool = False
    ) -> DynamicScore:
        """The mean of -log2 p(next symbol), from the second symbol on. It learns at temperature 1 whatever it is told
        to score at.

        Where the weights have run away and predict nothing, it goes back to the trained ones, without a past.
        """
        check_length(numbers)
        stream, learner = Streams.to_evaluate(numbers, 1), Learner(self.model, self.rms, rates)
        generator = torch.Generator(self.model.embedding.weight.device).manual_seed(0)  # as in plain evaluation
        nats, restarts, state = torch.zeros(len(temperatures), dtype=torch.float64), 0, None
        with progress(stream.steps, show) as bar:
            for start in range(0, stream.steps, self.window):
                end = min(start + self.window, stream.steps)
                window = Window(stream, start, end, generator)
                read = read_window(learner.model, window, state)
                if not read.logits.isfinite().all():
                    learner.forget()
                    restarts += 1
                    read = read_window(learner.model, window, None)
                nats += nats_at(temperatures, read.logits.detach(), read.targets)
                learner.learn(read)
                state = read.state.detach()
                bar.update(end - start)
        return DynamicScore((nats / math.log(2) / stream.steps).tolist(), restarts)

    def choose(
        self,
        valid: Numbers,
        eta: float | None = None,
        decay: float | None = None,
        show: bool = False,
        tell: Callable[[Rates, float], None] | None = None,
    ) -> Rates:
        """The rates with which a text of the validation part is predicted best. One that is given stays.

        A walk on the grid of their doubles and halves, from place to better place as long as a neighbour is better.
        `tell` gets what was tried, and its bits.
        """
        start, found, best = Rates(), dict[tuple[int, int], float](), (0, 0)

        def rates_at(i: int, j: int) -> Rates:
            return Rates(start.eta * 2**i if eta is None else eta, start.decay * 2**j if decay is None else decay)

        while True:
            near = [(best[0] + i, best[1] + j) for i, j in ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))]
            for i, j in near:
                is_free = (eta is None or i == 0) and (decay is None or j == 0) and max(abs(i), abs(j)) <= FURTHEST
                if is_free and (i, j) not in found:
                    found[i, j] = self.score(valid, rates_at(i, j), show=show).bits[0]
                    if tell is not None:
                        tell(rates_at(i, j), found[i, j])
            if min(found, key=found.__getitem__) == best:
                return rates_at(*best)
            best = min(found, key=found.__getitem__)


class Window(NamedTuple):
    """Some steps of one stream."""

    stream: Streams
    start: int
    end: int
    generator: torch.Generator  # for sampled boundaries


class ReadWindow(NamedTuple):
    """What came of a window."""

    logits: Tensor  # (T, symbols)
    targets: Tensor  # (T,)
    state: HMLSTMState


def read_window(model: TextModel, window: Window, state: HMLSTMState | None) -> ReadWindow:
    stream, start, end, generator = window
    symbols = stream.read(start, end + 1).to(model.embedding.weight.device)
    given = model.boundaries_of(stream, start, end)
    out, state = model(symbols[:-1], state, boundaries=given, slope=held_back(model.rnn), generator=generator)
    return ReadWindow(out.logits[:, 0], symbols[1:, 0], state)


def held_back(rnn: Recurrent) -> float:
    """A slope with which hardly anything is learnt through detectors. Its own, where that decides on boundaries."""
    return rnn.slope * HELD_BACK if isinstance(rnn, HMLSTM) and rnn.boundary == "step" else rnn.slope


def learnable(model: TextModel) -> dict[str, torch.nn.Parameter]:
    """The weights that learn: all but those of the detectors."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad and not name.endswith("_z")}


def gradients_of(read: ReadWindow, weights: Sequence[Tensor]) -> Sequence[Tensor] | None:
    """Those of the mean loss; None if they are not finite, or too large to be squared."""
    loss = F.cross_entropy(read.logits.float(), read.targets)
    gradients = torch.autograd.grad(loss, weights, materialize_grads=True)
    return gradients if torch.nn.utils.get_total_norm(gradients) < 1e15 else None


def gradient_rms(model: TextModel, train: Numbers, window: int, sampled: int, show: bool) -> dict[str, Tensor]:
    """RMS of each weight that learns. Before each window that counts, another one is read, to have a past."""
    check_length(train)
    weights = learnable(model)
    squares = [torch.zeros_like(weight) for weight in weights.values()]
    generator = torch.Generator(model.embedding.weight.device).manual_seed(0)
    stretches = max(1, min(sampled, (len(train) - 1) // (2 * window)))
    steps, counted = (len(train) - 1) // stretches, 0
    past, end = min(window, steps // 2), min(2 * window, steps)
    with evaluating(model), progress(stretches * end, show) as bar:
        for row in range(stretches):
            stream, state = Streams(train, range(row, row + 1), steps), None
            if past > 0:
                with torch.no_grad():
                    state = read_window(model, Window(stream, 0, past, generator), None).state
            read = read_window(model, Window(stream, past, end, generator), state)
            gradients = gradients_of(read, list(weights.values()))
            if gradients is not None:
                for square, gradient in zip(squares, gradients, strict=True):
                    square.addcmul_(gradient, gradient)
                counted += 1
            bar.update(end)
    if counted == 0:
        raise ValueError("the model's gradients on the text that it was trained on are not finite: it can't learn")
    return {name: (square / counted).sqrt() for name, square in zip(weights, squares, strict=True)}


class Learner:
    """A copy of a model that learns from what it reads."""

    def __init__(self, model: TextModel, rms: dict[str, Tensor], rates: Rates) -> None:
        self.model = copy.deepcopy(model).eval()
        self.weights = list(learnable(self.model).values())
        self.trained = [weight.detach() for weight in learnable(model).values()]
        mean = sum(float(r.double().sum()) for r in rms.values()) / sum(r.numel() for r in rms.values())
        self.steps = [rates.eta / (r + EPSILON) for r in rms.values()]
        self.pulls = [(r * (rates.decay / max(mean, 1e-30))).clamp(max=1) for r in rms.values()]

    def learn(self, read: ReadWindow) -> None:
        """One step, by the gradients of what was read. Without one where they are not finite."""
        gradients = gradients_of(read, self.weights)
        if gradients is None:
            return
        with torch.no_grad():
            for weight, trained, pull, gradient, step in zip(
                self.weights, self.trained, self.pulls, gradients, self.steps, strict=True
            ):
                weight.lerp_(trained, pull).addcmul_(gradient, step, value=-1)  # the pull is from where it was

    @torch.no_grad()
    def forget(self) -> None:
        """Goes back to the trained weights."""
        for weight, trained in zip(self.weights, self.trained, strict=True):
            weight.copy_(trained)
