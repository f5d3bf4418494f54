"""Combine many models into one: votes and means of outputs, greedy selection of members, means of weights.

Outputs are arrays with the classes along the last axis, one array per member. Sums are computed in float64; results are
float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from elephas_like.core.objective import maximizes
from elephas_like.core.types import Array, Floats, Integers, Vector

Results = npt.NDArray[np.float32]

_TOLERANCE = 1e-3
"""Tolerance for half precision: a probability may be so far below 0 or above 1; their sum may be 20 times as far from 1."""


class Voting(StrEnum):
    """How the outputs of members are combined into the ensemble's."""

    HARD = "hard"
    SOFT = "soft"
    MEAN = "mean"


def normalized(weights: Sequence[float] | None, count: int) -> Floats:
    """Return `count` weights that sum to 1; equal weights for None.

    Raises:
        ValueError: the number of weights is wrong, one is negative or not finite, or none is above 0.
    """
    if weights is None:
        return np.full(count, 1.0 / count)
    given: Floats = np.asarray(list(weights), np.float64)
    if given.shape != (count,):
        raise ValueError(f"weights must be one number per model: expected {count}, got {given.size}.")
    if not np.isfinite(given).all() or (given < 0).any() or given.sum() <= 0:
        raise ValueError(f"weights must be finite, at least 0, and not all 0; got {given.tolist()}.")
    total: Floats = given / given.sum()
    return total


def mean(outputs: Sequence[Array], weights: Sequence[float] | None = None) -> Results:
    """Return the weighted mean of the members' outputs, in their shape."""
    return _mean(outputs, weights).astype(np.float32)


def _mean(outputs: Sequence[Array], weights: Sequence[float] | None) -> Floats:
    shares = normalized(weights, len(outputs))
    total: Floats = np.zeros(np.shape(outputs[0]))
    for share, output in zip(shares, outputs, strict=True):
        total += share * np.asarray(output, np.float64)
    return total


def probabilities(output: Array, *, from_logits: bool = False) -> Results:
    """Return class probabilities for a classifier's output. One sigmoid column p becomes the two columns 1 - p and p.

    Args:
        output: (..., classes), or (..., 1) for a binary classifier.
        from_logits: whether `output` holds logits, as the model's loss says.

    Raises:
        ValueError: the numbers are not probabilities of exclusive classes: NaN, outside 0 to 1, or not summing to 1.
    """
    values: Floats = np.asarray(output, np.float64)
    if from_logits and values.shape[-1] == 1:
        values = 0.5 * (1.0 + np.tanh(0.5 * values))  # the logistic function, without overflow
    elif from_logits:
        values = np.exp(values - values.max(axis=-1, keepdims=True))
        values /= values.sum(axis=-1, keepdims=True)
    if np.isnan(values).any():
        lost = np.isnan(values).any(axis=-1)
        raise ValueError(
            f"hard and soft votes need class probabilities; a member's outputs are NaN or infinite in {np.sum(lost)} of {np.size(lost)} rows of a "
            "batch. Most often such a row has NaN or infinity among its features: fill it or leave it out, or let "
            "transform(handle_invalid='keep') give it null. If all rows are so, the member's weights are not finite."
        )
    if not ((values >= -_TOLERANCE) & (values <= 1 + _TOLERANCE)).all():
        raise ValueError(
            f"hard and soft votes need class probabilities from 0 to 1; a member gave numbers from {values.min():.4g} to "
            f"{values.max():.4g}. For regression use voting='mean'; a classifier that gives logits must be compiled with "
            "a loss that says from_logits=True."
        )
    if values.shape[-1] == 1:
        values = np.concatenate([1.0 - values, values], axis=-1)
    elif values.size and np.abs(values.sum(axis=-1) - 1).max() > 20 * _TOLERANCE:
        raise ValueError(
            "hard and soft votes need probabilities of exclusive classes, which sum to 1; a member's sum to "
            f"{values.sum(axis=-1).min():.4g} to {values.sum(axis=-1).max():.4g}. For multi-label models use voting='mean'."
        )
    return values.astype(np.float32)


def soft_vote(members: Sequence[Array], weights: Sequence[float] | None = None) -> Results:
    """Return the weighted mean of the members' probabilities, (..., classes)."""
    return mean(members, weights)


def hard_vote(members: Sequence[Array], weights: Sequence[float] | None = None) -> Results:
    """Return each class's share of the votes, (..., classes).

    A member's vote, with its weight, goes to its most probable class.

    A member that gives two classes the same probability votes for the lower label. float32 results make votes equal
    that differ only by the rounding of their sum: 0.1 + 0.2 and 0.3.
    """
    classes = np.shape(members[0])[-1]
    return mean([np.eye(classes)[np.argmax(member, axis=-1)] for member in members], weights)


def labels(shares: Array) -> Integers:
    """Return the label with the largest share along the last axis; among equal shares the lowest, as scikit-learn does."""
    found: Integers = np.argmax(shares, axis=-1)
    return found


@dataclass(frozen=True)
class Ballot:
    """How members' outputs are combined, as plain data that is sent to executors.

    weights: one per member, summing to 1.
    from_logits: for each member, whether its outputs are logits.
    keeps_nan: whether classes of a row are NaN if a member gives NaN for it, which is an error otherwise.
    """

    voting: Voting
    weights: tuple[float, ...]
    from_logits: tuple[bool, ...]
    keeps_nan: bool = False

    def __call__(self, outputs: Sequence[Array]) -> Results:
        """Return the ensemble's output: means (mean), mean probabilities (soft), or shares of the votes (hard)."""
        if self.voting is Voting.MEAN:
            return mean(outputs, self.weights)
        if not self.keeps_nan:
            return self._votes(outputs)
        unknown = np.any([np.isnan(output).any(axis=-1) for output in outputs], axis=0)
        known = [np.where(unknown[..., None], 1 / np.shape(output)[-1], output) for output in outputs]
        return np.where(unknown[..., None], np.float32(np.nan), self._votes(known))

    def _votes(self, outputs: Sequence[Array]) -> Results:
        return (hard_vote if self.voting is Voting.HARD else soft_vote)(self.beliefs(outputs), self.weights)

    def beliefs(self, outputs: Sequence[Array]) -> list[Results]:
        """Return the members' class probabilities."""
        return [
            probabilities(output, from_logits=logits) for output, logits in zip(outputs, self.from_logits, strict=True)
        ]


def member_seeds(seed: int, count: int) -> list[int]:
    """Return one seed per member. It seeds the member's initial weights, rows, shuffling and dropout."""
    return [int(child.generate_state(1)[0] >> 1) for child in np.random.SeedSequence(seed).spawn(count)]


def higher_is_better(metric: str) -> bool:
    """Return whether a larger value of a metric is better, judged by its name.

    Raises:
        ValueError: the name does not say.
    """
    up = maximizes(metric)
    if up is None:
        raise ValueError(
            f"direction must be given for the metric {metric!r}, 'max' or 'min': its name does not say which."
        )
    return up


@dataclass(frozen=True)
class Selection:
    """Which candidates were selected, and the score after each step.

    members: candidate numbers in the order of selection; with replacement a number may occur more than once.
    weights: one per candidate, its share among the members; they sum to 1.
    path: the score after each step. With replacement it may be longer than `members`, which end at the best score.
    """

    members: tuple[int, ...]
    weights: tuple[float, ...]
    path: tuple[float, ...]

    @property
    def size(self) -> int:
        """Number of selected members, repeats included."""
        return len(self.members)

    @property
    def score(self) -> float:
        """Score of the selected members."""
        return self.path[self.size - 1]


def greedy_selection(
    outputs: Sequence[Array], score: Callable[[Results], float], *, higher: bool, picks: int
) -> Selection:
    """Select, step by step and with replacement, the candidate that makes the mean of the selected outputs best.

    The selection ends where the score was best, at the first such step. Caruana, Niculescu-Mizil, Crew, Ksikes:
    Ensemble selection from libraries of models, ICML 2004.

    Args:
        outputs: predictions of each candidate for the validation rows, all of one shape.
        score: function of a mean of outputs.
        higher: whether a larger score is better.
        picks: maximum number of steps.

    Raises:
        ValueError: there is no candidate.
    """
    if not outputs:
        raise ValueError("greedy selection needs at least one candidate.")
    sign = 1.0 if higher else -1.0
    candidates: list[Floats] = [np.asarray(output, np.float64) for output in outputs]
    total: Floats = np.zeros(candidates[0].shape)
    taken: list[int] = []
    path: list[float] = []
    for step in range(1, picks + 1):
        scores = [score(((total + output) / step).astype(np.float32)) for output in candidates]
        best = _first_best([sign * value for value in scores])
        total += candidates[best]
        taken.append(best)
        path.append(scores[best])
    size = _first_best([sign * value for value in path]) + 1
    return _selection(taken[:size], len(outputs), path)


def greedy_soup(scores: Sequence[float], score: Callable[[tuple[int, ...]], float], *, higher: bool) -> Selection:
    """Go through the candidates from the best to the worst; keep each one with which the soup's score does not drop.

    Wortsman et al.: Model soups: averaging weights of multiple fine-tuned models improves accuracy without increasing
    inference time, ICML 2022, recipe 1.

    Args:
        scores: of each candidate alone.
        score: function of candidate numbers: the score of the mean of their weights.
        higher: whether a larger score is better.

    Raises:
        ValueError: there is no candidate.
    """
    if not scores:
        raise ValueError("a soup needs at least one model.")
    sign = 1.0 if higher else -1.0
    signed = [sign * value if np.isfinite(value) else -np.inf for value in scores]
    order = sorted(range(len(scores)), key=lambda number: (-signed[number], number))
    taken, path = [order[0]], [scores[order[0]]]
    for number in order[1:]:
        value = score((*taken, number))
        if sign * value >= sign * path[-1]:
            taken.append(number)
            path.append(value)
    return _selection(taken, len(scores), path)


def soup(vectors: Sequence[Vector], weights: Sequence[float] | None = None) -> Vector:
    """Return the weighted mean of flat weight vectors.

    Raises:
        ValueError: vectors of different lengths.
    """
    lengths = {vector.size for vector in vectors}
    if len(lengths) != 1:
        raise ValueError(
            f"weights of different architectures cannot be averaged; got vectors of {sorted(lengths)} numbers."
        )
    return _mean(vectors, weights).astype(vectors[0].dtype, copy=False)


def smallest_cosine(vectors: Sequence[Vector]) -> float:
    """Return the smallest cosine between the first vector and any other.

    It is near 0 for weights that were initialized independently. It is 1.0 for a single vector, and where a vector is
    all zeros.
    """
    first: Floats = vectors[0].astype(np.float64)
    cosines = [1.0]
    for vector in vectors[1:]:
        scale = float(np.linalg.norm(first) * np.linalg.norm(vector))
        cosines.append(float(first @ vector) / scale if scale else 1.0)
    return min(cosines)


def _first_best(signed: Sequence[float]) -> int:
    """Return the position of the first maximum; NaN counts as minus infinity."""
    return int(np.argmax([value if not np.isnan(value) else -np.inf for value in signed]))


def _selection(taken: Sequence[int], count: int, path: Sequence[float]) -> Selection:
    shares = np.bincount(taken, minlength=count) / len(taken)
    return Selection(tuple(taken), tuple(shares.tolist()), tuple(path))
