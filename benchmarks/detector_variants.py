"""What the study of the detectors compares: settings of the library, and what it has no setting for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from hmrnn.guidance.steering import targets
from hmrnn.training.loop import Training


@dataclass(frozen=True)
class Variant:
    """What is other than the library's defaults."""

    model: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    start: Callable[[Training], None] | None = None  # changes a model before its first update
    every_update: Callable[[Training, int], None] | None = None  # before an update: the training, and its number
    loss: Callable[..., Any] | None = None  # in place of the task's: the task, its own loss, the update, the generator


# What the library has no setting for


def forget_bias(training: Training) -> None:
    """The biases of the gates lie one after the other: forget first."""
    for layer, size in zip(training.task.model.rnn.layers, training.task.model.rnn.hidden_sizes, strict=True):
        layer.b.data[:size] = 1.0


def orthogonal(training: Training) -> None:
    generator = torch.Generator().manual_seed(training.config.seed)
    for layer in training.task.model.rnn.layers:
        for block in layer.U.data.chunk(4):
            torch.nn.init.orthogonal_(block, generator=generator)


def bias_in_ball(radius: float) -> Callable[[Training], None]:
    """The norm ball, with the detector's bias in it."""

    def start(training: Training) -> None:
        rnn = training.task.model.rnn

        @torch.no_grad()
        def constrain(_: float | None) -> None:
            for layer in rnn.weights():
                if layer.W_z is not None:
                    blocks = [layer.W_z, layer.U_z, layer.V_z, layer.b_z.view(1)]
                    norm = torch.cat(blocks).norm()
                    for block in blocks:
                        block.mul_((radius / norm.clamp_min(1e-12)).clamp_max(1.0))

        rnn.constrain_detectors = constrain

    return start


def sampled_until(update_limit: int) -> Callable[[Training, int], None]:
    def every_update(training: Training, update: int) -> None:
        training.task.model.rnn.boundary = "sample" if update < update_limit else "step"

    return every_update


def noise_until(update_limit: int) -> Callable[[Training, int], None]:
    """Noise on s_z that fades, of deviation .5 at first: added to the bias, another for each update."""

    def noise(training: Training, update: int) -> torch.Tensor:
        fading = max(0.0, 1 - update / update_limit) if update >= 0 else 0.0
        generator = torch.Generator().manual_seed(1_000_003 * training.config.seed + update + 1)
        return 0.5 * fading * torch.randn(training.task.model.rnn.num_layers - 1, generator=generator)

    def every_update(training: Training, update: int) -> None:
        shift = noise(training, update) - noise(training, update - 1)
        training.task.model.rnn.shift_detectors(shift.tolist())

    return every_update


def slope(value: float) -> Callable[[Training, int], None]:
    """A constant slope: below 1 the window of the straight-through gradient is wider."""

    def every_update(training: Training, update: int) -> None:
        training.task.model.rnn.slope = value  # after the schedule, and guidance, have set it

    return every_update


def rising_slope(last: float) -> Callable[[Training, int], None]:
    """From 1, update by update: the library's schedule goes by epochs, and some of these runs have less than one. It
    brings boundaries that are sampled closer to those of a step."""

    def every_update(training: Training, update: int) -> None:
        training.task.model.rnn.slope = 1 + (last - 1) * update / training.last_update

    return every_update


def rate_prior(weight: float, until: int) -> Callable[..., Any]:
    """A loss on the firing rates, which fades."""

    def loss(task: Any, own: Callable[..., Any], update: int, generator: Any) -> Any:
        fading = max(0.0, 1 - update / until)
        if fading == 0:
            return own(update, generator)
        seen: list[Any] = []
        handle = task.model.rnn.register_forward_hook(lambda rnn, given, made: seen.append(made[0].z))
        answer = own(update, generator)
        handle.remove()
        rates = seen[0].mean((0, 1))
        wanted = torch.tensor(targets([0.18], len(rates)))
        return replace(answer, mean=answer.mean + weight * fading * (rates - wanted).square().sum())

    return loss


UNTIL = 200  # updates of 625 in which detectors get help, if not throughout: the learning rate falls from 312 on
PAPER = {"guided_updates": 0}
FIXED = {"target_rate": 0.18}  # and the entropy after three symbols: as before rates were read off the text
STEERED = {**FIXED, "uncertainty_weight": 0.0}
RECOMPUTE = {"copy_boundary": "recompute"}
VARIANTS: Mapping[str, Variant] = {
    "lstm": Variant({"model": "lstm"}),
    # The recipe: the library's defaults, and what each part of it does
    "recipe": Variant(),
    "recipe, rate .18": Variant(training=FIXED),
    "recipe, rate .18, let go": Variant(training={**FIXED, "guided_updates": UNTIL}),
    "recipe, rate .18, recompute": Variant(RECOMPUTE, FIXED),
    "steered": Variant(training=STEERED),
    "steered, let go": Variant(training={**STEERED, "guided_updates": UNTIL}),
    # The paper's training, without guidance, and what else could help it
    "paper": Variant(training=PAPER),
    "recompute": Variant(RECOMPUTE, PAPER),
    "no ball": Variant(training={**PAPER, "detector_radius": 1e9}),
    "ball 1.94": Variant(training={**PAPER, "detector_radius": 1.94}),
    "ball 0.6": Variant(training={**PAPER, "detector_radius": 0.6}),
    "ball with bias": Variant(training=PAPER, start=bias_in_ball(1.0)),
    "bias -1": Variant({"boundary_bias": -1.0}, PAPER),
    "bias +1": Variant({"boundary_bias": 1.0}, PAPER),
    "forget 1": Variant(training=PAPER, start=forget_bias),
    "orthogonal": Variant(training=PAPER, start=orthogonal),
    "sampled, steep": Variant({"boundary": "sample"}, PAPER, every_update=rising_slope(5.0)),
    "sampled first": Variant(training=PAPER, every_update=sampled_until(UNTIL)),
    "noise": Variant(training=PAPER, every_update=noise_until(UNTIL)),
    "wide window": Variant(training=PAPER, every_update=slope(0.5)),
    "steep": Variant(training=PAPER, every_update=rising_slope(5.0)),
    "rate prior": Variant(training=PAPER, loss=rate_prior(10.0, UNTIL)),
    # Adam does not see the scale of a loss, the clipping does: summed over 100 steps and clipped at 1 is this.
    "summed loss": Variant(training={**PAPER, "gradient_clip": 0.01}),
}
