"""Loss and metrics of an ensemble's outputs, as the first member was compiled with them.

Keras' own `compute_loss` and `compute_metrics` of that member, given the ensemble's outputs in place of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import keras
import numpy as np

from elephas_like.core import voting
from elephas_like.core.row_checks import check_labels, check_shard_labels
from elephas_like.core.structure import flatten, unflatten
from elephas_like.core.types import Array, Floats, ShardRef
from elephas_like.core.voting import Ballot, Results, Voting
from elephas_like.ensembles.prepared_members import Batch, prepared_batches, preparers_of
from elephas_like.trainer.callbacks import warn_of_metrics
from elephas_like.trainer.inference import EnsemblePredictor, Predicting, batches
from elephas_like.trainer.label_rules import label_rules
from elephas_like.trainer.metric_results import metric_results
from elephas_like.trainer.preparing import Preparer, rows_at_once
from elephas_like.trainer.state import read_metrics
from elephas_like.trainer.task import loss_setting
from elephas_like.trainer.tensors import at_rest, mask_of, masked, tensor_tree

_OF_DECISIONS = (
    keras.metrics.Accuracy,
    keras.metrics.BinaryAccuracy,
    keras.metrics.CategoricalAccuracy,
    keras.metrics.SparseCategoricalAccuracy,
    keras.metrics.Precision,
    keras.metrics.Recall,
    keras.metrics.FBetaScore,  # F1Score is one
    keras.metrics.TruePositives,
    keras.metrics.TrueNegatives,
    keras.metrics.FalsePositives,
    keras.metrics.FalseNegatives,
)


def gives_logits(model: keras.Model) -> bool:
    """Whether the outputs are logits, as the loss says that the model was compiled with."""
    loss = getattr(model, "loss", None)
    if isinstance(loss, dict):
        loss = next(iter(loss.values()), None)
    elif isinstance(loss, list | tuple):
        loss = loss[0] if loss else None
    return bool(loss_setting(loss, "from_logits"))


def output_width(model: keras.Model) -> int | None:
    """Columns of a model's output, where it is known."""
    outputs = getattr(model, "outputs", None)
    return None if not outputs or not outputs[0].shape else outputs[0].shape[-1]


@dataclass(frozen=True)
class Tally:
    """Sums over some rows, which add up over parts of a dataset.

    loss: of the rows. metrics: the metrics' states, given the mean outputs. votes: given what was voted for; None where the
    two are the same.
    """

    loss: float
    rows: int
    metrics: Floats
    votes: Floats | None = None

    def __add__(self, other: Tally) -> Tally:
        votes = None if self.votes is None or other.votes is None else self.votes + other.votes
        return Tally(self.loss + other.loss, self.rows + other.rows, self.metrics + other.metrics, votes)


class Judge:
    """The first member's loss and metrics, for outputs of the ensemble. Rows are given as the members' `predict` takes them.

    Args:
        preparers: what prepares the rows of each member; none for members that take rows as they are, None to look for it.
        place: what errors call the rows, such as "partition 3".

    Raises:
        ValueError: the first model is not compiled. ElephasError: some models have a preprocessor, and some do not.
    """

    def __init__(
        self,
        models: Sequence[keras.Model],
        ballot: Ballot,
        preparers: Sequence[Preparer] | None = None,
        place: str = "",
    ) -> None:
        self._models, self._ballot, self._place = list(models), ballot, place
        self._judge = self._models[0]
        self._preparers = preparers_of(self._models) if preparers is None else preparers
        if not self._judge.compiled:
            raise ValueError(
                f"loss and metrics are those of the first model, and {self._judge.name!r} is not compiled. Compile it "
                "first, for example models[0].compile(loss='sparse_categorical_crossentropy', metrics=['accuracy'])."
            )

    def check_labels(self, y: object) -> None:
        """Nothing, if the judge takes these labels. Those that a preprocessor makes are looked at when they are made.

        Raises:
            DataError: naming the first row with a label that it does not take.
        """
        if y is not None and not self._preparers:
            check_labels(label_rules(self._judge), y, self._place)

    def evaluate(self, x: object, y: object, sample_weight: object, batch_size: int) -> dict[str, float]:
        """Loss and metrics by name over rows that pass through all members, a batch at a time. It raises as `check_labels`."""
        self.check_labels(y)
        return self.results(self.tally(x, y, sample_weight, batch_size))

    def tally(self, x: object, y: object, sample_weight: object, batch_size: int) -> Tally:
        """The sums of which loss and metrics over these rows are made."""
        return self._tally(list(self._judged(x, y, sample_weight, batch_size)))

    def tallies(self, x: object, y: object, sample_weight: object, batch_size: int, begin: int = 0) -> Iterator[Tally]:
        """The same for each batch, one in memory at a time. begin: the number of the first row."""
        return (self._tally([batch]) for batch in self._judged(x, y, sample_weight, batch_size, begin))

    def results(self, tally: Tally, sample: tuple[object, ...] | None = None) -> dict[str, float]:
        """Loss and metrics by name, as Keras' evaluate has them, of sums.

        Args:
            sample: rows like those that the sums come from, where they come from elsewhere: they build the metrics here, and a warning
                names those of which sums say nothing.
        """
        if sample is not None and self._preparers:
            sample = next(self._preparers[0].batches(sample, 1))
        results = self._named(tally.metrics, sample)
        if sample is not None:
            warn_of_metrics(self._judge, sample)
        if tally.votes is not None:
            of_votes = self._named(tally.votes, sample)
            results |= {name: of_votes[name] for name in self._of_decisions() if name in of_votes}
        return {"loss": tally.loss / tally.rows if tally.rows else float("nan")} | results

    def check_metric(self, metric: str, x: object, y: object, sample_weight: object) -> None:
        """Nothing, if the judge has this metric.

        Raises:
            ValueError: it does not; the message lists those that it has.
        """
        known = list(
            self.evaluate(_first(x), _first(y), None, 1)
        )  # a row of weight 0 would leave metrics without a result
        if metric not in known:
            raise ValueError(f"metric must be one of {', '.join(map(repr, known))}; got {metric!r}.")

    def mask(self, x: object, batch_size: int) -> Array | None:
        """The mask of the judge's outputs for these rows; None where they have none."""
        found = []
        for features, _, _, _ in _batches(x, None, None, batch_size):
            mask = mask_of(self._judge(tensor_tree(features), training=False))
            if mask is None:
                return None
            found.append(mask)
        return np.concatenate(found)

    def score(
        self, mean: Array, y: object, sample_weight: object, batch_size: int, mask: Array | None = None
    ) -> dict[str, float]:
        """Loss and metrics by name of a mean of outputs (of probabilities with soft votes), without regularization.

        The judge's last call must not have been a compiled one (`predict`): `check_metric` makes one that is not.

        Args:
            mask: of the outputs.
        """
        judged = []
        for part, targets, weights, rows in _batches((mean, mask), y, sample_weight, batch_size):
            assert isinstance(part, tuple)
            given = self._as_judged(np.asarray(part[0]))
            judged.append(_Judged(given, given, targets, weights, rows, 0.0, part[1]))
        return self.results(self._tally(judged))

    def _batches(self, x: object, y: object, sample_weight: object, batch_size: int) -> Iterator[Batch]:
        if self._preparers:
            yield from prepared_batches(self._preparers, as_one(x, y, sample_weight), batch_size)
            return
        for features, targets, weights, rows in _batches(x, y, sample_weight, batch_size):
            yield [features] * len(self._models), targets, weights, rows

    def _judged(
        self, x: object, y: object, sample_weight: object, batch_size: int, begin: int = 0
    ) -> Iterator[_Judged]:
        shares, rules = self._ballot.weights, label_rules(self._judge) if self._preparers else None
        for model in self._models:
            at_rest(model)
        for of_members, targets, weights, rows in self._batches(x, y, sample_weight, batch_size):
            check_labels(rules, targets, self._place, begin)
            begin += rows
            outputs: list[Array] = []
            penalty, mask = 0.0, None
            for share, model, features in zip(shares, self._models, of_members, strict=True):
                # Not compiled: `losses` of a compiled call would be the graph's.
                output = model(tensor_tree(features), training=False)
                mask = mask if outputs else mask_of(output)  # the first one judges
                outputs.append(keras.ops.convert_to_numpy(output))
                penalty += share * sum(float(loss) for loss in model.losses)
            mean = decided = outputs[0]
            if len(outputs) > 1 and self._ballot.voting is Voting.MEAN:
                mean = decided = voting.mean(outputs, shares)
            elif len(outputs) > 1:
                mean = decided = self._as_judged(voting.mean(self._ballot.beliefs(outputs), shares))
                if self._ballot.voting is Voting.HARD:
                    decided = self._decisions(voting.labels(self._ballot(outputs)), mean.shape[-1])
            yield _Judged(mean, decided, targets, weights, rows, penalty, mask)

    def _decisions(self, labels: Array, width: int) -> Results:
        """Labels as outputs of the judge's that say so with all certainty."""
        certain = np.eye(max(2, width), dtype=np.float32)[labels]
        return certain[..., 1:] if width == 1 else certain

    def _as_judged(self, mean: Array) -> Array:
        """Mean probabilities on the scale of the judge's own output: one column or two, probabilities or logits."""
        if self._ballot.voting is Voting.MEAN:
            return mean
        one = output_width(self._judge) == 1
        given = np.asarray(mean[..., 1:] if one else mean, np.float32)
        if not self._ballot.from_logits[0]:
            return given
        with np.errstate(divide="ignore"):
            logs = np.log(given) - (np.log1p(-given) if one else np.float32(0))
        return np.clip(logs, -80.0, 80.0)  # float32's infinities would make a loss of NaN

    def _tally(self, batches: Sequence[_Judged]) -> Tally:
        """Keras' sums: the losses of batches weighted by their rows, and the states of metrics over all of them."""
        judge, loss, rows = self._judge, 0.0, 0
        metrics = self._states([(batch.mean, batch) for batch in batches])
        votes = None
        if any(batch.decided is not batch.mean for batch in batches):
            votes = self._states([(batch.decided, batch) for batch in batches])
        for batch in batches:
            targets, weights = tensor_tree(batch.targets), tensor_tree(batch.weights)
            found = judge.compute_loss(y=targets, y_pred=masked(batch.mean, batch.mask), sample_weight=weights)
            own = sum(float(part) for part in judge.losses)
            loss += batch.rows * (float(found) - own + batch.penalty)
            rows += batch.rows
        judge.reset_metrics()
        return Tally(loss, rows, metrics, votes)

    def _states(self, batches: Sequence[tuple[Array, _Judged]]) -> Floats:
        """The states of the judge's metrics after batches, of which these are the outputs."""
        self._judge.reset_metrics()
        for outputs, batch in batches:
            targets, weights = tensor_tree(batch.targets), tensor_tree(batch.weights)
            self._judge.compute_metrics(None, targets, masked(outputs, batch.mask), weights)
        return read_metrics(self._judge)

    def _named(self, states: Floats, sample: tuple[object, ...] | None) -> dict[str, float]:
        """What the judge's metrics say of their states, the loss aside, and those that only its own test step updates."""
        results = metric_results(self._judge, states, sample, evaluated=True)
        return {name: value for name, value in results.items() if name != "loss"}

    def _of_decisions(self) -> list[str]:
        """Names of the metrics that look at decisions: those of the compiled metrics, in their order."""
        found = []
        for compiled in self._judge.metrics:
            if hasattr(compiled, "metrics") and compiled.metrics:
                named = zip(compiled.result(), compiled.metrics, strict=False)
                found += [name for name, metric in named if isinstance(metric, _OF_DECISIONS)]
        return found


@dataclass(frozen=True)
class ShardJudge:
    """Judges an ensemble on executors, in one pass over the rows for all members: what the driver sends there."""

    members: EnsemblePredictor
    ballot: Ballot

    def __call__(self, ref: ShardRef) -> Tally | None:
        """The sums of a shard's rows, a batch in memory at a time; None where there are no rows.

        Raises:
            ValueError: rows without a target. DataError: a label that the judge does not take.
        """
        with self.members.used() as members:
            return self._tally(members, ref)

    def _tally(self, members: Sequence[Predicting], ref: ShardRef) -> Tally | None:
        models, preparers = [each.model for each in members], [each.preparer for each in members if each.preparer]
        place = f"partition {ref.worker}"
        judge, total = Judge(models, self.ballot, preparers, place), None
        size = at_once = self.members.batch_size
        if preparers:
            at_once *= max(1, rows_at_once(ref) // size)
        else:
            check_shard_labels(label_rules(models[0]), ref, place)
        for number, (x, *rest) in enumerate(batches(ref, at_once)):
            if not rest and not preparers:
                raise ValueError("the rows have no target to evaluate by: expected (x, y) or (x, y, sample_weight).")
            y, sample_weight = (*rest, None, None)[:2]
            for found in judge.tallies(x, y, sample_weight, size, number * at_once):
                total = found if total is None else total + found
        return total


@dataclass(frozen=True)
class _Judged:
    """A batch: the mean output, what was decided, targets, weights, rows, the members' mean regularization, the outputs' mask."""

    mean: Array
    decided: Array
    targets: object
    weights: object
    rows: int
    penalty: float
    mask: Array | None = None


def _batches(
    x: object, y: object, sample_weight: object, batch_size: int
) -> Iterator[tuple[object, object, object, int]]:
    """(features, targets, weights, rows) of successive batches of arrays.

    Raises:
        ValueError: arrays of different lengths, or without rows.
    """
    leaves, structure = flatten((x, y, sample_weight))
    columns = [_floats(np.asarray(leaf)) for leaf in leaves]
    lengths = {len(column) for column in columns}
    if len(lengths) != 1 or lengths == {0}:
        raise ValueError(f"all arrays must have the same number of rows, above 0; got {sorted(lengths)}.")
    count = len(columns[0])
    for start in range(0, count, batch_size):
        batch = unflatten(structure, [column[start : start + batch_size] for column in columns])
        assert isinstance(batch, tuple)
        yield *batch, min(batch_size, count - start)


def as_one(x: object, y: object, sample_weight: object) -> tuple[object, ...]:
    """Arrays as one: (x,), (x, y) or (x, y, sample_weight)."""
    return (x,) if y is None else (x, y) if sample_weight is None else (x, y, sample_weight)


def _floats(column: Array) -> Array:
    """Floats in Keras' default dtype, as its own `evaluate` takes them."""
    return column.astype(keras.config.floatx()) if column.dtype.kind == "f" else column


def _first(tree: object) -> object:
    """The first row of arrays."""
    leaves, structure = flatten(tree)
    return unflatten(structure, [np.asarray(leaf)[:1] for leaf in leaves])
