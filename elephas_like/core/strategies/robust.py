"""Reductions other than the mean, and the strategies named after them.

Each is an argument of any strategy: `Nesterov(reduce=Median())`, `Nesterov(reduce=Clipped(norm=1.0,
then=TrimmedMean()))`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from elephas_like.core.checks import positive, share
from elephas_like.core.strategies.algebra import NOTHING, Context, Mean, Reduce, Reduction
from elephas_like.core.strategies.synchronous import Average
from elephas_like.core.types import Array, Update, Vector

_TINY = 1e-30


@dataclass(frozen=True)
class Median(Reduce):
    """The median of each coordinate over the workers, ignoring samples; for an even number, the mean of the middle two.

    Yin, Chen, Ramchandran and Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
    ICML 2018. Tolerates arbitrary updates from fewer than half of the workers. Holds all K deltas.
    """

    def combine(self, deltas: Sequence[Vector], weights: Sequence[float], context: Context) -> Vector:
        """Return median_i d_i, coordinate by coordinate."""
        return np.median(np.stack(deltas), axis=0).astype(deltas[0].dtype, copy=False)


@dataclass(frozen=True)
class TrimmedMean(Reduce):
    """The mean of each coordinate without its smallest and largest values, ignoring samples.

    Yin et al. (see `Median`). Of K workers floor(share K) are left out at each end. Holds all K deltas.

    share: from 0 to below 1/2; default 0.2, so that of five workers one is left out at each end.
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        """Check `share`."""
        if share("share", self.share) >= 0.5:
            raise ValueError(f"share must be below 1/2, or nothing would be left; got {self.share!r}.")

    def combine(self, deltas: Sequence[Vector], weights: Sequence[float], context: Context) -> Vector:
        """Return the mean of the values between the ends."""
        out = int(self.share * len(deltas))
        kept: Vector = np.sort(np.stack(deltas), axis=0)[out : len(deltas) - out]
        mean: Vector = kept.mean(axis=0, dtype=kept.dtype)
        return mean


@dataclass(frozen=True)
class Radial(Reduce):
    """Radial-directional averaging, tensor by tensor: the mean of the lengths along the mean of the directions.

        d = (sum_i w_i |d_i| / sum_i w_i) phi(sum_i w_i phi(d_i)),   phi(v) = v / |v|,   w_i = n_i^2 / steps_i

    The plain mean of deltas that disagree is short; this keeps their length. The weight, samples times samples per
    step, is that of Douillard et al., "Decoupled DiLoCo for Resilient Distributed Pre-training", arXiv:2604.21428.
    Holds all K deltas.
    """

    def weight(self, update: Update, context: Context) -> float:
        """Return samples times samples per step."""
        return update.samples**2 / max(1, update.steps)

    def combine(self, deltas: Sequence[Vector], weights: Sequence[float], context: Context) -> Vector:
        """Return the mean length along the mean direction, for each tensor."""
        out = np.zeros_like(deltas[0])
        for place in context.tensors():
            norms = [float(np.linalg.norm(delta[place])) for delta in deltas]
            towards = np.zeros_like(deltas[0][place])
            for delta, weight, norm in zip(deltas, weights, norms, strict=True):
                if norm > 0:
                    towards += np.float32(weight / norm) * delta[place]
            length = sum(w * norm for w, norm in zip(weights, norms, strict=True)) / sum(weights)
            out[place] = towards * np.float32(length / max(float(np.linalg.norm(towards)), _TINY))
        return out


@dataclass(frozen=True)
class Clipped(Reduce):
    """Clip every delta to a length of at most `norm` before another reduction: d_i min(1, norm / |d_i|).

    Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks", ICML 2013, for gradients.

    norm: maximum length, over all tensors together.
    then: the reduction of the clipped deltas, which determines the memory; None takes the strategy's own, for most the
        mean.
    """

    norm: float
    then: Reduce | None = None

    def __post_init__(self) -> None:
        """Check `norm` and `then`."""
        positive("norm", self.norm)
        if self.then is not None and not isinstance(self.then, Reduce):
            raise TypeError(f"then must be a Reduce such as Mean() or Median(); got {self.then!r}.")

    def weight(self, update: Update, context: Context) -> float:
        """Return the weight of the other reduction."""
        return (self.then or Mean()).weight(update, context)

    def begin(self, context: Context, held: Mapping[str, Array] = NOTHING) -> Reduction:
        """Return the other reduction, with clipping in front."""
        return _Clipping(self.norm, (self.then or Mean()).begin(context, held))

    def around(self, own: Reduce) -> Reduce:
        """Return clipping in front of the strategy's own reduction, unless `then` was given."""
        return replace(self, then=own if self.then is None else self.then.around(own))


class _Clipping:
    """Clips each delta and passes it to another reduction."""

    def __init__(self, norm: float, then: Reduction) -> None:
        self._norm, self._then = norm, then

    def add(self, delta: Vector, weight: float) -> None:
        length = float(np.linalg.norm(delta))
        self._then.add(delta * np.float32(self._norm / length) if length > self._norm else delta, weight)

    def result(self) -> Vector | None:
        return self._then.result()

    def held(self) -> dict[str, Array]:
        return self._then.held()


@dataclass(frozen=True)
class RDA(Average):
    """`Average(reduce=Radial())`: x <- x + the mean of the deltas' lengths along the mean of their directions."""

    name: ClassVar[str] = "rda"
    reduces: ClassVar[Reduce] = Radial()


@dataclass(frozen=True)
class MedianAverage(Average):
    """`Average(reduce=Median())`: x <- x + median_i d_i, coordinate by coordinate."""

    name: ClassVar[str] = "median"
    reduces: ClassVar[Reduce] = Median()


@dataclass(frozen=True)
class TrimmedAverage(Average):
    """`Average(reduce=TrimmedMean())`: x <- x + the mean of the deltas without the ends of each coordinate."""

    name: ClassVar[str] = "trimmed_mean"
    reduces: ClassVar[Reduce] = TrimmedMean()
