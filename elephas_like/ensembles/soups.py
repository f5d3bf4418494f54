"""Soups: models whose weights are averaged into one, and BatchNorm statistics recomputed for them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from pyspark import RDD

from elephas_like.core import checks
from elephas_like.core import voting as votes
from elephas_like.core.merging import StatisticsMean
from elephas_like.core.row_checks import check_labels
from elephas_like.core.structure import flatten
from elephas_like.core.types import Role, TrainState
from elephas_like.core.voting import Selection
from elephas_like.ensembles.prepared_members import prepared_features
from elephas_like.ensembles.recalibration import BatchNorms, MomentsOfShard, array_batches
from elephas_like.ensembles.selection import higher_is_better, validation_arrays
from elephas_like.ensembles.voting_model import VotingModel
from elephas_like.model.data_arguments import arrays, refuse_foreign
from elephas_like.model.predict import score_shards
from elephas_like.model.prepared import prepared
from elephas_like.model.sources import source_of
from elephas_like.model.spark_model import SparkModel
from elephas_like.rows.shards import ShardedDataset
from elephas_like.trainer.archive import architecture
from elephas_like.trainer.copies import fresh_copy
from elephas_like.trainer.inference import Predictor
from elephas_like.trainer.label_rules import label_rules
from elephas_like.trainer.preparing import preparer_of
from elephas_like.trainer.state import Variables

UNRELATED = 0.3
"""Kernels of models with one initialisation point in like directions; of others the cosine is about 0."""


def recalibrate_batch_norm(model: keras.Model | SparkModel, data: Any, *, batch_size: int = 32) -> None:
    """Recomputes the statistics of a model's BatchNorm layers over data, in place, as averaged weights need it.

    One pass in training mode, as torch's `update_bn` with cumulative averages: a layer's mean and variance are those of all
    that it sees, pooled by the law of total variance. So the first layer gets exactly the statistics of the rows. A deeper
    one sees batches that the layers before it normalized by the batch's own statistics, and dropout drops: like training,
    and the closer to inference the larger the batches are. Rows are cut into even batches, as no batch may be tiny. Frozen
    layers, and everything but the statistics, stay as they are. (Izmailov et al., UAI 2018.)

    Args:
        model: a built Keras model, or a SparkModel.
        data: features as for `predict`: an array, or a tuple or dict of arrays for several inputs; or an RDD or
            ShardedDataset of rows as for `fit` (for a model without a loss of features), whose partitions are passed
            through on the executors. A model of keras-hub with a preprocessor takes rows as its own fit does, and no ShardedDataset.
        batch_size: rows a batch at most.

    Raises:
        ValueError: no rows, or a layer with batch renormalization. ElephasError: a ShardedDataset for a model with a preprocessor.
    """
    network = model.master_network if isinstance(model, SparkModel) else model
    rows = checks.positive_int("batch_size", batch_size)
    norms = BatchNorms(network)
    if not norms.layers:
        return
    if isinstance(data, RDD | ShardedDataset):
        source = prepared(source_of(data), network).for_model(network)
        allowed = isinstance(model, SparkModel) and model.allow_plain_text
        found = score_shards(source, MomentsOfShard(Predictor.of(network, rows)), allow_plain_text=allowed)
        moments = norms.pool(part for _, part in found)
    else:
        refuse_foreign(data)
        features, preparer = arrays(data), preparer_of(network)
        if preparer is not None:
            features = prepared_features(preparer, features, rows)
        _check_features(network, features)
        moments = norms.moments(array_batches(features, rows))
    if moments.rows == 0:
        raise ValueError("there are no rows to recompute the statistics from: the data is empty.")
    norms.write(moments)


def uniform_soup(models: Sequence[keras.Model], *, data: Any = None, batch_size: int = 32) -> keras.Model:
    """The model whose weights are the mean of the models' weights. (Wortsman et al., ICML 2022.)

    Useful for models that were trained from one initialisation, or fine-tuned from one pretrained model: the mean of others
    lies in no valley of the loss, and a warning says where they look like that.

    Args:
        models: built models of one architecture.
        data: features or rows for `recalibrate_batch_norm`; without, BatchNorm statistics are the models', pooled.
        batch_size: rows a batch of that.

    Returns:
        A new model, compiled as the first one, with a new optimizer.

    Raises:
        ValueError: models of different architectures, with what differs.
    """
    builder = _SoupBuilder.of(models, data, batch_size)
    return builder.average(range(len(builder.states)))


@dataclass(frozen=True)
class GreedySoup:
    """What `greedy_soup` made: the model, which models are in it, and the score each time that one went in."""

    model: keras.Model
    selection: Selection
    metric: str

    @property
    def members(self) -> tuple[int, ...]:
        """Numbers of the models in the soup, the best one first."""
        return self.selection.members

    @property
    def path(self) -> tuple[float, ...]:
        """The score of the soup after each member that went in."""
        return self.selection.path

    @property
    def score(self) -> float:
        """The soup's score on the validation rows, never worse than the best member's."""
        return self.selection.score


def greedy_soup(
    models: Sequence[keras.Model],
    validation: tuple[Any, ...],
    *,
    metric: str = "loss",
    direction: str = "auto",
    data: Any = None,
    batch_size: int = 32,
) -> GreedySoup:
    """A soup of the models that do it good: from the best one down, each stays with which the score does not drop.

    Args:
        models: built, compiled models of one architecture; best of one initialisation (see `uniform_soup`).
        validation: `(x, y)` or `(x, y, sample_weight)` arrays that no model was trained on.
        metric: "loss", or a metric that the first model was compiled with. direction: "max", "min", or "auto".
        data: features or rows for `recalibrate_batch_norm`, before each soup is scored.
        batch_size: rows a batch.

    Raises:
        ValueError: models of different architectures, or a metric that the first model does not have.
        DataError: a label that the models do not take; the message names its row.
    """
    higher = higher_is_better(metric, direction)
    x, y, sample_weight = validation_arrays(validation)
    builder = _SoupBuilder.of(models, data, batch_size)
    model = builder.model
    if not model.compiled:
        raise ValueError(
            f"soups are scored as the first model was compiled, and {models[0].name!r} is not. Compile it first."
        )
    if preparer_of(model) is None:  # which may make others of them
        check_labels(label_rules(model), y)

    def scored() -> float:
        found = model.evaluate(x, y, sample_weight=sample_weight, batch_size=batch_size, return_dict=True, verbose=0)
        if metric not in found:
            raise ValueError(f"metric must be one of {', '.join(map(repr, found))}; got {metric!r}.")
        return float(found[metric])

    def alone(state: TrainState) -> float:
        builder.variables.write(state)
        return scored()

    def together(members: tuple[int, ...]) -> float:
        builder.average(members)
        return scored()

    selection = votes.greedy_soup([alone(state) for state in builder.states], together, higher=higher)
    if selection.size == 1:
        builder.variables.write(builder.states[selection.members[0]])  # as it is, with the statistics that it has
    else:
        builder.average(selection.members)
    return GreedySoup(model, selection, metric)


@dataclass(frozen=True)
class _SoupBuilder:
    """Averages models of one architecture.

    model: a copy of the first one, which takes the mean. states: those of the models.
    """

    model: keras.Model
    variables: Variables
    states: Sequence[TrainState]
    data: Any
    batch_size: int

    @classmethod
    def of(cls, models: Sequence[keras.Model], data: Any, batch_size: int) -> _SoupBuilder:
        given = list(models.models if isinstance(models, VotingModel) else models)
        rows = checks.positive_int("batch_size", batch_size)
        _check_alike(given)
        model = fresh_copy(given[0])
        variables = Variables(model)
        fresh = variables.read()
        states = [
            fresh.but(weights=state.weights, statistics=state.statistics, frozen=state.frozen)
            for state in (Variables(model).read() for model in given)
        ]
        _warn_if_unrelated(given)
        if data is None and len(given) > 1 and BatchNorms(model).layers:
            warnings.warn(
                "the soup has BatchNorm layers: pass data= to recompute their statistics for the averaged weights; without, "
                "they are the models' own, pooled.",
                UserWarning,
                stacklevel=3,
            )
        return cls(model, variables, states, data, rows)

    def average(self, members: Sequence[int]) -> keras.Model:
        """Average some states into the model: weights by their mean; statistics pooled, and recomputed where there is data."""
        chosen = [self.states[number] for number in members]
        pooled = {}
        for role in (Role.STATISTIC, Role.FROZEN):
            mean = StatisticsMean(self.variables.layout, role)
            for state in chosen:
                mean.add(state.statistics if role is Role.STATISTIC else state.frozen, 1)
            if (found := mean.result()) is not None:
                pooled[role.value] = found
        self.variables.write(chosen[0].but(weights=votes.soup([state.weights for state in chosen]), **pooled))
        if self.data is not None:
            recalibrate_batch_norm(self.model, self.data, batch_size=self.batch_size)
        return self.model


def _check_alike(models: Sequence[keras.Model]) -> None:
    if not models:
        raise ValueError("a soup needs at least one model; got an empty list.")
    for number, model in enumerate(models):
        if not isinstance(model, keras.Model):
            raise TypeError(f"models must be Keras models; got {type(model).__module__}.{type(model).__name__}.")
        if not model.built:
            raise ValueError(f"model {number} ({model.name!r}) is not built, and so has no weights to average.")
    shapes = [[tuple(weight.shape) for weight in model.weights] for model in models]
    first = architecture(models[0])
    for number, model in enumerate(models):
        pairs = zip(shapes[0], shapes[number], strict=False)
        apart = next((place for place, (one, other) in enumerate(pairs) if one != other), None)
        text = f"a soup needs models of one architecture; model {number} ({model.name!r}) differs from model 0"
        if apart is not None:
            one, other = shapes[0][apart], shapes[number][apart]
            raise ValueError(f"{text}: weight {apart} expected shape {one}, got {other}. A VotingModel takes both.")
        if len(shapes[0]) != len(shapes[number]):
            raise ValueError(
                f"{text}: expected {len(shapes[0])} weights, got {len(shapes[number])}. A VotingModel takes both."
            )
        if architecture(model) != first:
            raise ValueError(
                f"{text}: its weights have equal shapes, but its layers are not the same (kinds, activations, or how they "
                "are connected). A VotingModel takes both."
            )


def _warn_if_unrelated(models: Sequence[keras.Model]) -> None:
    kernels = [
        np.concatenate(
            [
                keras.ops.convert_to_numpy(variable).astype(np.float32).ravel()
                for variable in model.trainable_variables
                if len(variable.shape) > 1
            ]
            or [np.zeros(1, np.float32)]
        )
        for model in models
    ]
    found = votes.smallest_cosine(kernels)
    if found < UNRELATED:
        warnings.warn(
            f"the models do not seem to share an initialisation (their kernels have a cosine of {found:.2f}): the mean of "
            "their weights may be worse than each of them. Train them from one initialisation, or let them vote.",
            UserWarning,
            stacklevel=4,
        )


def _check_features(model: keras.Model, features: object) -> None:
    """Refuses `(x, y)` for a model of one input, which takes features only."""
    inputs = getattr(model, "inputs", None) or []
    leaves, _ = flatten(features)
    if inputs and len(leaves) != len(inputs):
        raise ValueError(
            f"data must be features, one array per input: the model has {len(inputs)} inputs, got {len(leaves)} arrays. "
            "Targets are not needed."
        )
    if len({len(np.asarray(leaf)) for leaf in leaves}) != 1:
        raise ValueError(
            f"all arrays must have the same number of rows; got shapes {[np.asarray(leaf).shape for leaf in leaves]}."
        )
