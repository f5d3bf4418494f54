"""Members chosen for an ensemble greedily, by the score of their mean on validation rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras

from elephas_like.core import checks
from elephas_like.core import voting as votes
from elephas_like.core.types import Array
from elephas_like.core.voting import Results, Selection, Voting
from elephas_like.ensembles.member_models import voting_of
from elephas_like.ensembles.prepared_members import taking_prepared_rows
from elephas_like.ensembles.scoring import Judge, as_one
from elephas_like.ensembles.voting_model import VotingModel
from elephas_like.model.data_arguments import arrays, refuse_foreign


@dataclass(frozen=True)
class GreedySelection:
    """What `greedy_selection` chose.

    ensemble: the chosen models with their weights. selection: numbers of the models in the order in which they were taken,
    one weight per candidate, and the score after each step.
    """

    ensemble: VotingModel
    selection: Selection
    metric: str

    @property
    def members(self) -> tuple[int, ...]:
        """Numbers of the models in the order in which they were taken, repeats included."""
        return self.selection.members

    @property
    def weights(self) -> tuple[float, ...]:
        """One share per candidate; they sum to 1."""
        return self.selection.weights

    @property
    def size(self) -> int:
        """How many were taken, repeats counted."""
        return self.selection.size

    @property
    def path(self) -> tuple[float, ...]:
        """The score after each step, also of those after the best one."""
        return self.selection.path

    @property
    def score(self) -> float:
        """The ensemble's score on the validation rows."""
        return self.selection.score


def greedy_selection(
    models: Sequence[keras.Model] | VotingModel,
    validation: tuple[Any, ...],
    *,
    metric: str = "loss",
    direction: str = "auto",
    picks: int = 25,
    voting: str = "auto",
    batch_size: int = 128,
) -> GreedySelection:
    """Chooses members for an ensemble greedily, with replacement, by the score of their mean on validation rows.

    Each step takes the model, taken already or not, with which the mean of the outputs scores best; what is returned ends
    at the best step. A model that is taken twice weighs twice. Caruana et al., ICML 2004.

    Args:
        models: trained models with equal outputs; the first one's loss and metrics judge.
        validation: `(x, y)` or `(x, y, sample_weight)` arrays that no model was trained on; y is None where preprocessors of keras-hub make it.
        metric: "loss", or a metric that the first model was compiled with.
        direction: "max" or "min"; "auto" reads it off the metric's name.
        picks: steps to take at most.
        voting: "soft" or "mean"; "auto" takes "soft" for a crossentropy of one label a row. Hard votes have no mean to improve.

    Raises:
        ValueError: a metric that the first model does not have (the message lists them), or a direction that its name does
            not tell.
        DataError: a label that the first model does not take; the message names its row.
        ElephasError: preprocessors that make different labels of the same rows.
    """
    candidates = list(models.models if isinstance(models, VotingModel) else models)
    picks = checks.positive_int("picks", picks)
    if voting == Voting.HARD:
        raise ValueError("greedy selection improves a mean of outputs: voting must be 'soft', 'mean' or 'auto'.")
    kind = voting_of(candidates[0]) if voting == "auto" and candidates else voting
    everyone = VotingModel(candidates, kind)
    higher = higher_is_better(metric, direction)
    x, y, sample_weight = validation_arrays(validation)
    ballot = everyone._ballot()
    with taking_prepared_rows(candidates, as_one(x, y, sample_weight), batch_size) as (features, targets, weights):
        judge = Judge(candidates[:1], replace(ballot, weights=(1.0,), from_logits=ballot.from_logits[:1]))
        judge.check_labels(targets)
        judge.check_metric(metric, features[0], targets, weights)
        outputs: Sequence[Array] = [
            model.predict(rows, batch_size=batch_size, verbose=0)
            for model, rows in zip(candidates, features, strict=True)
        ]
        if everyone.voting is Voting.SOFT:
            outputs = ballot.beliefs(outputs)
        # Again, as the judge's last call must not be a compiled one.
        judge.check_metric(metric, features[0], targets, weights)
        mask = judge.mask(features[0], batch_size)

        def score(mean: Results) -> float:
            return judge.score(mean, targets, weights, batch_size, mask)[metric]

        selection = votes.greedy_selection(outputs, score, higher=higher, picks=picks)
    taken = [number for number, weight in enumerate(selection.weights) if weight > 0]
    ensemble = VotingModel(
        [candidates[number] for number in taken], everyone.voting.value, [selection.weights[number] for number in taken]
    )
    if isinstance(models, VotingModel):
        ensemble.histories = [models.histories[number] for number in taken if models.histories]
        ensemble.custom_objects = models.custom_objects
    return GreedySelection(ensemble, selection, metric)


def higher_is_better(metric: str, direction: str) -> bool:
    """Whether larger values of a metric are the better ones: as `direction` says, or for "auto" its name.

    Raises:
        ValueError: another direction, or a name that does not say.
    """
    if direction not in ("auto", "max", "min"):
        raise ValueError(f"direction must be one of 'auto', 'max', 'min'; got {direction!r}.")
    return votes.higher_is_better(metric) if direction == "auto" else direction == "max"


def validation_arrays(validation: Any) -> tuple[Any, Any, Any]:
    """(x, y, sample_weight or None) of validation rows given as arrays.

    Raises:
        TypeError: anything but a tuple of two or three.
    """
    if not isinstance(validation, tuple | list) or len(validation) not in (2, 3):
        raise TypeError(f"validation must be (x, y) or (x, y, sample_weight) arrays; got {type(validation).__name__}.")
    refuse_foreign(validation[0])
    x, y, *weight = (arrays(part) for part in validation)
    return x, y, weight[0] if weight else None
