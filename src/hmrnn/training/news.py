"""What a run tells of its updates and validations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hmrnn.training.metrics import Reporter
from hmrnn.training.task import Validation

if TYPE_CHECKING:
    from hmrnn.training.loop import Training, Update


def report(training: Training, done: Update, speed: float, reporter: Reporter) -> None:
    """An update's news."""
    measure = training.task.measure
    if not done.applied:
        reporter.say(
            f"update {training.update}: not applied, since the loss ({done.loss:g} {measure.name}) or the gradient's "
            f"norm ({done.gradient_norm:g}) is not finite ({training.skipped} so far)"
        )
    for warning in training.watch.see(done.rates):
        reporter.say(f"warning: {warning}")
    reporter.record(
        update=training.update,
        epoch=training.epoch,
        **{measure.name: done.loss},
        rates=done.rates,
        gradient_norm=done.gradient_norm,
        slope=training.task.model.rnn.slope,
        learning_rate=done.learning_rate,
        skipped=training.skipped,
        **{f"{measure.step}_per_second": speed},
        minutes=training.minutes,
    )
    rates = " ".join(f"{rate:.2f}".lstrip("0") for rate in done.rates)
    fired = f", z {rates}" if rates else ""
    reporter.progress(
        training.share,
        f"epoch {training.epoch:.2f}, {done.loss:.3f} {measure.name}, {speed:,.0f} {measure.step}/s{fired}",
    )


def tell_validation(training: Training, validation: Validation, improved: bool, reporter: Reporter) -> None:
    measure = training.task.measure
    told = {f"valid_{measure.name}": validation.loss, f"best_{measure.name}": training.best}
    reporter.record(
        update=training.update,
        epoch=training.epoch,
        **told,
        valid_rates=list(validation.rates),
        minutes=training.minutes,
    )
    rates = " ".join(f"{rate:.3f}" for rate in validation.rates)
    reporter.say(
        f"epoch {training.epoch:.2f}, update {training.update}, {training.minutes:.1f} min: validation "
        f"{validation.loss:.4f} {measure.text}{', the best so far' if improved else ''}"
        f"{f', boundaries {rates}' if rates else ''}; learning rate {training.learning_rate():.2g}"
    )
