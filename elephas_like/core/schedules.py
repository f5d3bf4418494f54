"""Schedules: the number of steps until the next exchange, where it changes in the course of a fit.

A `Schedule` is passed as `frequency=`. The driver asks it before each round. It depends on no clock, engine or random
number, so that the same fit has the same rounds everywhere. A round also ends where an epoch ends. Synchronous mode
only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from elephas_like.core.checks import positive, positive_int
from elephas_like.core.types import Span


@dataclass(frozen=True)
class Moment:
    """The point of a fit at which a schedule is asked.

    epoch: from 0.
    done: steps of the largest shard in this epoch so far.
    epoch_steps: steps of the largest shard in an epoch.
    learning_rate: of the workers' optimizers, now.
    first_learning_rate: the same at the start of the fit.
    """

    epoch: int
    done: int
    epoch_steps: int
    learning_rate: float = 1.0
    first_learning_rate: float = 1.0


@dataclass(frozen=True)
class Schedule:
    """The number of steps of the next round, as a function of the moment. Write your own by overriding `steps`."""

    def steps(self, moment: Moment) -> int:
        """Return the steps of the largest shard until the next exchange, at least 1.

        Smaller shards take their share of them.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class FixedSteps(Schedule):
    """Rounds of `count` steps; an epoch's last round takes the rest.

    (`frequency=<int>` makes an epoch's rounds equally long.)
    """

    count: int

    def __post_init__(self) -> None:
        """Check `count`."""
        positive_int("count", self.count)

    def steps(self, moment: Moment) -> int:
        """Return `count`."""
        return self.count


@dataclass(frozen=True)
class EveryEpoch(Schedule):
    """One round per epoch, as with `frequency="epoch"`."""

    def steps(self, moment: Moment) -> int:
        """Return the steps of a whole epoch."""
        return moment.epoch_steps


@dataclass(frozen=True)
class PostLocal(Schedule):
    """Post-local SGD: an exchange after every step at first, then rounds of `count` steps.

    Lin, Stich, Patel and Jaggi, "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020, arXiv:1808.07217.

    count: default 16.
    after: the epoch in which local steps begin; None (the default) begins them once the learning rate has fallen below
        its value at the start of the fit.
    """

    count: int = 16
    after: int | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        positive_int("count", self.count)
        if self.after is not None:
            positive_int("after", self.after, least=0)

    def steps(self, moment: Moment) -> int:
        """Return 1 in the first phase, then `count`."""
        if self.after is None:
            return self.count if moment.learning_rate < moment.first_learning_rate else 1
        return self.count if moment.epoch >= self.after else 1


@dataclass(frozen=True)
class QuadraticSynchronization(Schedule):
    """The quadratic synchronization rule: max(least, floor((alpha / learning rate)^2)) steps; longer as the rate falls.

    Gu, Lyu, Arora, Zhang and Huang, "A Quadratic Synchronization Rule for Distributed Deep Learning", ICLR 2024,
    arXiv:2310.14423.

    alpha: no value suits all models; at alpha = 2 x the learning rate rounds have 4 steps.
    least: shortest round in steps; default 4.
    """

    alpha: float
    least: int = 4

    def __post_init__(self) -> None:
        """Check the numbers."""
        positive("alpha", self.alpha)
        positive_int("least", self.least)

    def steps(self, moment: Moment) -> int:
        """Return max(least, floor((alpha / learning rate)^2)), or a whole epoch where the rate is 0."""
        if moment.learning_rate <= 0:
            return moment.epoch_steps
        return max(self.least, int((self.alpha / moment.learning_rate) ** 2))


def round_spans(
    schedule: Schedule,
    epoch: int,
    epoch_steps: int,
    learning_rate: Callable[[int], float],
    first_learning_rate: float,
    accumulation: int = 1,
    done: int = 0,
) -> Iterator[Span]:
    """Yield the spans of one epoch, each of the steps that the schedule gives.

    Other shards take their share of each span.

    Args:
        epoch_steps: batches that the largest shard has in an epoch.
        learning_rate: function of (steps of this epoch) that gives the optimizers' learning rate then.
        first_learning_rate: the learning rate at the start of the fit.
        accumulation: Keras' `gradient_accumulation_steps`: rounds end on its multiples.
        done: steps of the epoch that are trained already.

    Raises:
        ValueError: the schedule gives less than one step.
    """
    while done < epoch_steps:
        moment = Moment(epoch, done, epoch_steps, learning_rate(done), first_learning_rate)
        count = positive_int(f"{type(schedule).__name__}.steps()", schedule.steps(moment))
        end = min(epoch_steps, done + max(accumulation, count - count % accumulation))
        yield Span(epoch, done, end, epoch_steps)
        done = end
    if epoch_steps == 0:
        yield Span(epoch)
