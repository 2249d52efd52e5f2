"""`Guide`: guides the detectors of an `HMLSTM` in any training loop."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.optim import Optimizer

from hmrnn.devices import any_weight
from hmrnn.errors import check_type
from hmrnn.guidance.imitation import Teacher, extended, imitation, inclinations, uncertainties
from hmrnn.guidance.steering import MOST_OFTEN, Seen, excesses, obstacle, targets
from hmrnn.hmlstm import HMLSTM
from hmrnn.layouts import padded
from hmrnn.recurrent import Call, Recurrent
from hmrnn.sequence import HMLSTMOutput

FORCE = 0.4  # the share of the way to its target that a detector's bias is moved after an update
WEIGHT = 0.1  # of the auxiliary loss, if there is a teacher
HELD_BACK = 0.01  # what is left of a slope that is held back: without any, z~ would be 1/2 whatever s_z is
HELD_BACK_BY = 1000  # updates, in which it falls to that linearly
MOST_WINDOWS = 256  # of one update: who accumulates the gradient of more has forgotten a step
MOST_STEPS = 8  # of an optimizer without a window: an optimizer that calls another's step tells of each


class Guide:
    """Guides the detectors of a network during training, so that they fire at useful places and rates.

        guide = Guide(rnn, optimizer, teacher=Branching.of(symbols, alphabet))
        for x, y in windows:                                  # (T, B) symbols
            with guide:                                       # around the forward pass
                out, state = rnn(embed(x), state)
            loss = F.cross_entropy(…) + guide.loss(x)         # the auxiliary loss
            loss.backward()
            optimizer.step()                                  # steers the detectors, too

    It does four things. The first two last as long as the learning rate, or for a number of updates.

    1. Steering: after each update the bias of each detector moves towards the one with which it would have fired at its
       target rate. That bias is known exactly: a detector fires where s_z > 0, so it is the quantile of s_z that should
       be 0. The strength of steering falls with the learning rate.
    2. Imitation: an auxiliary loss teaches the detectors where to fire. It trains the detectors only: hidden states are
       constants to it.
    3. With imitation, the straight-through gradient is reduced over the first 1,000 updates, by a smaller slope.
       `rnn.slope` has its own value again after the step.
    4. The norm ball: `rnn.constrain_detectors()` after each update.

    Args:
        rnn: The network whose detectors are guided. Its `boundary` must be "step".
        optimizer: The optimizer that trains it. `guide.step()` follows each `optimizer.step()` by itself. Without an
            optimizer, call `guide.step()` after each update.
        rates: Target rate of each detector, the lowest first. Further detectors fire a quarter as often as the one
            below. None fires more often than the first, or at less than 0.01 of the steps. "auto" takes the rates of
            the teacher.
        teacher: Tells from symbols where segments end. Without a teacher and a weight, detectors are steered only.
        weight: Weight of the auxiliary loss: by default .1 with a teacher, else 0. With a weight and without a teacher,
            detectors learn to fire where the next step is hardest to predict.
        updates: Number of updates for which detectors are guided; steering fades out in the second half of them. By
            default there is no end, and steering follows the learning rate, relative to the highest so far.
        strength: A function that returns the strength of steering in the next update, 0 to 1, instead.
        radius: Radius of the norm ball; by default it depends on the units of the layer. 0: no ball.

    If `torch.distributed` is initialised, all its processes train one network, and steer by the mean of what they see.
    Gradients may be accumulated over several windows; steering then uses their mean. `state_dict()` holds all that an
    exact resumption needs.
    """

    def __init__(
        self,
        rnn: Recurrent,
        optimizer: Optimizer | None = None,
        *,
        rates: Sequence[float] | Literal["auto"] = "auto",
        teacher: Teacher | None = None,
        weight: float | None = None,
        updates: int | None = None,
        strength: Callable[[], float] | None = None,
        radius: float | None = None,
    ) -> None:
        found = isinstance(rates, str) and rates == "auto"
        if found:
            if teacher is None:
                raise ValueError(
                    "what is to tell how often detectors fire? Give rates, as in [0.2, 0.05], or a teacher"
                )
            rates = [min(rate, MOST_OFTEN) for rate in teacher.rates]  # every symbol may be a segment
        rates = numbers_of(rates)
        if rates and (why_not := obstacle(rnn)):
            raise ValueError(why_not)
        if not found and rates and len(rates) > rnn.num_layers - 1:  # a teacher may tell of more layers than there are
            raise ValueError(f"rates must be at most one for each detector ({rnn.num_layers - 1}); got {rates}")
        if not all(0 < rate < 1 for rate in rates):
            raise ValueError(f"rates are shares of the steps, between 0 and 1; got {rates}")
        for name, value in (("weight", weight), ("updates", updates), ("radius", radius)):
            if value is not None and not value >= 0:  # nor NaN
                raise ValueError(f"{name} must not be negative; got {value}")
        self.rnn, self.optimizer, self.teacher, self.updates, self.radius = rnn, optimizer, teacher, updates, radius
        self.weight = (0.0 if teacher is None else WEIGHT) if weight is None else weight
        self.targets = targets(rates, rnn.num_layers - 1) if rates else []
        self.update = 0  # how many are done
        self.highest = 0.0  # of the learning rates so far
        self.strength = 0.0  # of steering, in the window at hand; at 0 nothing is guided
        self.imitates_rate = False  # as runs of older versions do, which go on as they began
        self._given_strength = strength
        self._watching = ExitStack()
        self._slope: tuple[float, float] | None = None  # as it was, and as it is held back
        self._forward: tuple[Call, HMLSTMOutput] | None = None  # while it is inside a block
        self._seen: Seen | None = None  # in the window at hand, until the loss was asked for
        self._entered = self._asked = False  # a window was; its loss was asked for
        self._excess: list[Tensor] = []  # of each window since the last step: of the detectors' biases, (L-1,)
        self._windows = 0  # since the last step
        self._idle = 0  # steps of the optimizer since the last window
        if optimizer is not None:
            self._group = self._own_group(optimizer)
            own = weakref.ref(self)  # so that the optimizer does not keep a guide that nobody uses any more
            optimizer.register_step_post_hook(lambda *_: guide._stepped() if (guide := own()) is not None else None)

    def _own_group(self, optimizer: Optimizer) -> int:
        """The number of the optimizer's first group that holds a parameter of the network."""
        own = set(map(id, self.rnn.parameters()))
        for i, group in enumerate(optimizer.param_groups):
            if any(id(parameter) in own for parameter in group["params"]):
                return i
        raise ValueError("the optimizer trains no parameter of this network: give the one that does")

    def _strength(self) -> float:
        """Of steering in the next update, 0 to 1."""
        if not self.targets:
            return 0.0
        if self.updates is not None:
            return min(1.0, 2 * (1 - self.update / self.updates)) if self.update < self.updates else 0.0
        if self._given_strength is not None:
            return self._given_strength()
        if self.optimizer is None:
            return 1.0
        rate = float(self.optimizer.param_groups[self._group]["lr"])
        self.highest = max(self.highest, rate)
        return rate / self.highest if self.highest > 0 else 1.0

    def __enter__(self) -> Guide:
        self._check_loss()
        if not self.rnn.training:
            raise RuntimeError("the network is in evaluation mode: call train(), and use a guide in training only")
        if not torch.is_grad_enabled():
            raise RuntimeError("gradients are disabled: use a guide in training only")
        if self._windows >= MOST_WINDOWS:
            raise RuntimeError(f"{MOST_WINDOWS} windows without a step: {self._how_to_step}")
        self.strength = self._strength()
        self._forward, self._entered, self._asked = None, True, False
        if self.strength > 0:
            self._watching.enter_context(self.rnn.watched(self._look))
            self._hold_back()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._watching.close()
        nothing = self.strength > 0 and self._forward is None
        if kind is not None or nothing:
            self._let_go()
            self._forward, self._entered = None, False
        if kind is not None:
            return
        if nothing:
            raise RuntimeError("the network made no forward pass inside `with guide` (single steps do not count)")
        if self._forward is not None:
            assert isinstance(self.rnn, HMLSTM)
            self._seen, self._forward = Seen.of(self.rnn, *self._forward), None
            self._excess.append(torch.stack(excesses(self.rnn, self._seen, self.targets)))
        self._windows += 1
        self._idle = 0

    def _look(self, call: Call, out: HMLSTMOutput) -> None:
        if self._forward is not None:
            raise RuntimeError("a second forward pass inside `with guide`: use a block and a loss for each")
        if call.given is not None:
            raise RuntimeError("boundaries are given to this forward pass, so that there are none to guide")
        if self._slope is not None and call.slope is not self.rnn.slope:
            raise RuntimeError("slope is given to this forward pass: set rnn.slope instead, which the guide holds back")
        self._forward = call, out

    def _hold_back(self) -> None:
        if self.weight > 0 and (self._slope is None or self.rnn.slope != self._slope[1]):
            slope = self.rnn.slope
            self.rnn.slope = slope * max(HELD_BACK, 1 - self.update / HELD_BACK_BY)
            self._slope = slope, self.rnn.slope

    def _let_go(self) -> None:
        if self._slope is not None and self.rnn.slope == self._slope[1]:
            self.rnn.slope = self._slope[0]
        self._slope = None

    def loss(
        self,
        symbols: Tensor | PackedSequence | None = None,
        uncertainty: Tensor | PackedSequence | Callable[[], Tensor] | None = None,
    ) -> Tensor:
        """Computes the auxiliary loss of the forward pass in the last `with guide` block.

        Args:
            symbols: (T, B) symbols that were read, for the teacher: in the layout of the forward pass, on any device.
            uncertainty: (T, B) how hard the next step was to predict: the loss of each step or the entropy of the
                prediction, or a function that returns it. Detectors above the first learn from it, and without a
                teacher all of them. With (T, B, n), the n-th detector learns from the n-th column.

        Returns:
            A scalar to add to the loss of the task; 0 if guidance has ended or has no weight.
        """
        if not self._entered:
            raise RuntimeError("guide.loss() tells of a forward pass inside `with guide`, and there was none before it")
        if self._asked:
            raise RuntimeError("guide.loss() was asked for twice: use a `with guide` block for each forward pass")
        self._asked = True
        seen, self._seen = self._seen, None
        if seen is None or self.weight == 0:
            return any_weight(self.rnn).new_zeros(())
        assert isinstance(self.rnn, HMLSTM)
        given = uncertainty() if callable(uncertainty) else uncertainty
        kinds = None if given is None else self._arranged("uncertainty", given, seen).detach()
        if self.teacher is not None:
            if symbols is None:
                raise TypeError("guide.loss() needs the symbols that were read: the teacher tells from them")
            taught = self.teacher, extended(self.teacher, self._arranged("symbols", symbols, seen), seen)
            kinds = inclinations(*taught, seen) if kinds is None else uncertainties(*taught, kinds)
        if kinds is None:
            raise TypeError("guide.loss() needs the uncertainty of each step: there is no teacher to tell")
        kinds = kinds.unsqueeze(-1) if kinds.dim() == 2 else kinds
        return self.weight * imitation(self.rnn, seen, kinds, self.targets, self.imitates_rate)

    def _arranged(self, name: str, values: Tensor | PackedSequence, seen: Seen) -> Tensor:
        """(T, B, …): as the network computed it."""
        check_type(name, values, (Tensor, PackedSequence), "a tensor")
        if isinstance(values, PackedSequence):
            values = padded(values)[0]
        elif values.dim() == 1:
            values = values.unsqueeze(1)
        elif self.rnn.batch_first:
            values = values.transpose(0, 1)
        if values.shape[:2] != seen.out.z.shape[:2]:
            shapes = " and ".join(str(tuple(shape)) for shape in (seen.out.z.shape[:2], values.shape[:2]))
            raise ValueError(f"{name} must be one for each step of the forward pass; time and batch are {shapes}")
        return values

    @torch.no_grad()
    def step(self) -> None:
        """Applies the norm ball and steering after an update of the weights. `optimizer.step()` calls it."""
        self._check_loss()
        if self._windows == 0:
            raise RuntimeError(
                f"a step without a forward pass inside `with guide` since the last one: {self._how_to_step}"
            )
        if self.radius != 0:
            self.rnn.constrain_detectors(self.radius)
        if self.strength > 0 and self._excess:
            excess = mean_of_processes(torch.stack(self._excess).nanmean(0)).nan_to_num(0, 0, 0)
            like = any_weight(self.rnn).dtype
            self.rnn.shift_detectors([*(-FORCE * self.strength * excess).to(like)])
        self.skip()

    def _stepped(self) -> None:
        """After a step of the optimizer."""
        self._idle += 1
        if self._windows > 0 or self._idle > MOST_STEPS:
            self.step()

    def skip(self) -> None:
        """Replaces `step()` for an update that was skipped, for instance after a gradient that is not finite."""
        self._let_go()
        self._seen, self._entered, self._windows, self._excess = None, False, 0, []
        self.update += 1

    @property
    def _how_to_step(self) -> str:
        if self.optimizer is None:
            return "call guide.step() once after each update of the weights"
        return "optimizer.step() makes it, of the optimizer that the guide was given, once after each forward pass"

    def _check_loss(self) -> None:
        if self._seen is not None and self.weight > 0:
            raise RuntimeError("guide.loss() was not asked for since the last forward pass: add it to the loss")

    def state_dict(self) -> dict[str, Any]:
        """Returns what an exact resumption needs."""
        return {"update": self.update, "highest": self.highest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what `state_dict()` returned."""
        update, highest = state.get("update"), state.get("highest")
        if type(update) is not int or update < 0 or type(highest) is not float or not 0 <= highest < float("inf"):
            raise ValueError(
                "the state of a Guide has update, a whole number from 0, and highest, a learning rate; got "
                f"{update!r:.40} and {highest!r:.40}"
            )
        self.update, self.highest = update, highest


def numbers_of(rates: Sequence[float] | str) -> list[float]:
    try:
        return [float(rate) for rate in rates]
    except (TypeError, ValueError):
        raise TypeError(
            f"rates must be a list of numbers, one for each detector from the lowest, as in [0.2, 0.05]; got {rates!r}"
        ) from None


def mean_of_processes(values: Tensor) -> Tensor:
    """The mean of what all processes have, if there are several."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return values
    dist.all_reduce(values)
    return values / dist.get_world_size()
