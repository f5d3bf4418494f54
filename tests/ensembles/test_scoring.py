"""An ensemble is judged as Keras judges a model: the same for one member, and by hand for two."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
from trainer.small import shard
from voters import X as ROWS
from voters import masking, members

from elephas_like import VotingModel, greedy_selection, greedy_soup
from elephas_like.core.errors import DataError
from elephas_like.core.voting import Ballot, Voting
from elephas_like.ensembles.scoring import Judge, ShardJudge, gives_logits, output_width
from elephas_like.trainer.inference import EnsemblePredictor, Predictor


def constant(*outputs: float, loss: object = "mse", metrics: object = ("mae",)):
    """A compiled model whose output is the same for every row."""
    layer = keras.layers.Dense(len(outputs), kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((2,)), layer])
    layer.bias.assign(outputs)
    model.compile("sgd", loss, metrics=list(metrics))
    return model


def ballot(voting: Voting, models, weights=None) -> Ballot:
    shares = tuple(weights or [1 / len(models)] * len(models))
    return Ballot(voting, shares, tuple(gives_logits(model) for model in models))


X = np.zeros((3, 2), np.float32)


def test_one_member_is_judged_as_keras_evaluates_it() -> None:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(3, activation="softmax", kernel_regularizer=keras.regularizers.L2(0.1))]
    )
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"], weighted_metrics=["accuracy"])
    x, y = np.random.default_rng(0).normal(size=(7, 2)).astype("float32"), np.array([0, 1, 2, 0, 1, 2, 0])
    weights = np.arange(7, dtype=np.float32)
    expected = model.evaluate(x, y, sample_weight=weights, batch_size=3, return_dict=True, verbose=0)
    found = Judge([model], ballot(Voting.SOFT, [model])).evaluate(x, y, weights, 3)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-5)


def test_the_mean_of_two_regressions_by_hand() -> None:
    models = [constant(1.0), constant(5.0)]
    y = np.array([[2.0], [2.0], [5.0]], np.float32)
    found = Judge(models, ballot(Voting.MEAN, models, (0.75, 0.25))).evaluate(X, y, None, 2)
    # The mean is 0.75 * 1 + 0.25 * 5 = 2: errors 0, 0, 3.
    assert found == pytest.approx({"loss": 9 / 3, "mae": 3 / 3})


def test_hard_votes_decide_what_accuracy_sees_and_means_what_the_loss_sees() -> None:
    # Two of three say class 0, by a little; the third says class 1, by far: the mean of probabilities is for class 1.
    outputs = [(0.6, 0.4), (0.6, 0.4), (0.0, 1.0)]
    models = [constant(*pair, loss="sparse_categorical_crossentropy", metrics=["accuracy"]) for pair in outputs]
    y = np.array([0, 0, 1])
    hard = Judge(models, ballot(Voting.HARD, models)).evaluate(X, y, None, 32)
    soft = Judge(models, ballot(Voting.SOFT, models)).evaluate(X, y, None, 32)
    assert hard["accuracy"] == pytest.approx(2 / 3)
    assert soft["accuracy"] == pytest.approx(1 / 3)
    # Mean probabilities 0.4 and 0.6.
    assert hard["loss"] == soft["loss"] == pytest.approx(-(2 * np.log(0.4) + np.log(0.6)) / 3, rel=1e-5)


def test_logits_are_judged_by_their_probabilities() -> None:
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    models = [constant(np.log(p / (1 - p)), loss=loss, metrics=[]) for p in (0.2, 0.6)]
    found = Judge(models, ballot(Voting.SOFT, models)).evaluate(X, np.ones((3, 1), np.float32), None, 32)
    assert found["loss"] == pytest.approx(-np.log(0.4), rel=1e-5)  # the mean of 0.2 and 0.6


def test_a_metric_that_the_judge_does_not_have_is_refused_with_those_that_it_has() -> None:
    models = [constant(1.0)]
    with pytest.raises(ValueError, match=r"metric must be one of 'loss', 'mae'; got 'acc'"):
        Judge(models, ballot(Voting.MEAN, models)).check_metric("acc", X, np.zeros((3, 1)), None)


def test_a_judge_must_be_compiled() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="not compiled"):
        Judge([model], ballot(Voting.MEAN, [model]))


def test_what_a_model_puts_out() -> None:
    assert output_width(constant(1.0, 2.0, 3.0)) == 3
    assert not gives_logits(constant(1.0))
    assert gives_logits(constant(1.0, loss=[keras.losses.BinaryCrossentropy(from_logits=True)]))


TOKENS = np.array([[1, 2, 0, 0], [3, 0, 0, 0], [1, 2, 3, 4]])
TAGS = np.array([[0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 1, 0]])


@pytest.fixture(scope="module")
def masked() -> tuple[keras.Model, dict[str, float]]:
    """A model whose outputs bear masks, and what Keras says of it. No test may change it."""
    model = masking(0)
    return model, model.evaluate(TOKENS, TAGS, batch_size=2, return_dict=True, verbose=0)


@pytest.mark.parametrize("voting", [Voting.SOFT, Voting.HARD, Voting.MEAN])
def test_steps_that_are_masked_count_for_an_ensemble_as_little_as_for_keras(voting: Voting, masked) -> None:
    model, expected = masked
    for models in ([model], [model, model]):
        found = Judge(models, ballot(voting, models)).evaluate(TOKENS, TAGS, None, 2)
        assert found == pytest.approx(expected, rel=1e-5)


def test_a_first_row_of_weight_zero_hides_no_metric() -> None:
    class Own(keras.Model):
        def test_step(self, data):
            return super().test_step(data)

    inputs = keras.Input((2,))
    model = Own(inputs, keras.layers.Dense(2, "softmax")(inputs))
    model.compile("sgd", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    judge = Judge([model], ballot(Voting.SOFT, [model]))
    judge.check_metric("accuracy", X, np.array([0, 1, 1]), np.array([0.0, 1.0, 1.0]))


def test_a_label_that_no_output_stands_for_is_named_by_its_row(tmp_path: Path) -> None:
    """TensorFlow's error listed the labels of a batch, and not where they are."""
    models, labels = members(2), np.arange(40) % 3
    labels[37] = 3
    said = r"row 37: the model has 3 outputs \(0-2\)"
    for judged in (
        lambda: VotingModel(models, "soft").evaluate(ROWS, labels),
        lambda: VotingModel(models, "hard").evaluate(ROWS, labels),
        lambda: greedy_selection(models, (ROWS, labels), metric="accuracy"),
        lambda: greedy_soup(members(1) + members(1), (ROWS, labels), metric="accuracy"),
    ):
        with pytest.raises(DataError, match=said):
            judged()
    votes = ballot(Voting.SOFT, models)
    predictor = EnsemblePredictor(tuple(Predictor.of(each, 8) for each in models), votes, 8)
    with pytest.raises(DataError, match=f"partition 5, {said}"):
        ShardJudge(predictor, votes)(shard(tmp_path, ROWS, labels, worker=5))
