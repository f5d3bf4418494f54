from __future__ import annotations

import keras
import numpy as np
import pytest
from voters import X, members, model

from elephas_like.ensembles.voting_model import VotingModel

layers = keras.layers
EAGER = {"run_eagerly": True}  # a model's few batches cost less than a graph for it
BINARY = {"loss": "binary_crossentropy", "metrics": ["accuracy", "auc"]}


def test_a_hard_vote_is_a_majority_of_labels() -> None:
    models = members(3, **EAGER)
    votes = np.stack([each.predict(X, verbose=0).argmax(1) for each in models])
    expected = [np.bincount(column).argmax() for column in votes.T]  # the lowest of equal counts
    ensemble = VotingModel(models)
    assert ensemble.predict(X).tolist() == ensemble.predict(X=X).tolist() == expected
    np.testing.assert_allclose(ensemble.predict_proba(X)[0], np.bincount(votes[:, 0], minlength=3) / 3, atol=1e-6)


def test_hyperas_names() -> None:
    models = members(2, **EAGER)
    ensemble = VotingModel(model_list=models, voting="soft", weights=[1, 3], nb_classes=3)
    mean = (models[0].predict(X, verbose=0) + 3 * models[1].predict(X, verbose=0)) / 4
    np.testing.assert_allclose(ensemble.predict_proba(X, 128, 0), mean, atol=1e-6)
    assert ensemble.predict(X, batch_size=128, verbose=0).tolist() == mean.argmax(1).tolist()


def test_binary_models_of_one_sigmoid_and_of_two_softmaxes_say_the_same() -> None:
    one = members(3, outputs=1, activation="sigmoid", **BINARY, **EAGER)
    two = members(3, outputs=2, **EAGER)
    for sigmoid, softmax in zip(one, two, strict=True):
        kernel = sigmoid.get_weights()[0]
        softmax.set_weights([np.concatenate([np.zeros_like(kernel), kernel], axis=1), np.zeros(2)])
    for voting in ("hard", "soft"):
        of_one, of_two = VotingModel(one, voting), VotingModel(two, voting)
        assert of_one.nb_classes == of_two.nb_classes == 2
        np.testing.assert_allclose(of_one.predict_proba(X), of_two.predict_proba(X), atol=1e-6)
        np.testing.assert_array_equal(of_one.predict(X), of_two.predict(X))


def test_logits_become_probabilities() -> None:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    models = members(2, activation=None, loss=loss)
    mean = np.mean([keras.ops.softmax(each.predict(X, verbose=0)) for each in models], axis=0)
    ensemble = VotingModel(models, "soft")
    np.testing.assert_allclose(ensemble.predict_proba(X), mean, atol=1e-6)
    y = np.arange(40) % 3
    assert ensemble.evaluate(X, y)[0] - 0.1 * sum((each.get_weights()[0] ** 2).sum() / 2 for each in models) == (
        pytest.approx(-np.log(mean[np.arange(40), y]).mean(), rel=1e-4)
    )


@pytest.fixture(
    scope="module",
    params=[
        {},
        {"outputs": 1, "activation": "sigmoid", **BINARY},
        {"outputs": 1, "activation": None, "loss": keras.losses.BinaryCrossentropy(from_logits=True)},
        {"loss": "categorical_crossentropy"},
    ],
)
def evaluated(request: pytest.FixtureRequest) -> tuple[keras.Model, list[tuple[dict, dict]]]:
    """A model, and what Keras says of it for some arguments of `evaluate`. No test may change it."""
    options = request.param
    if options.get("loss") == "categorical_crossentropy":
        options = options | {
            "metrics": ["accuracy", keras.metrics.F1Score(average="macro")],
            "weighted_metrics": ["accuracy", keras.metrics.AUC()],
        }
    each = model(**options, **EAGER)
    labels = np.arange(40) % (3 if each.output_shape[-1] == 3 else 2)
    y = np.eye(3, dtype="float32")[labels] if options.get("loss") == "categorical_crossentropy" else labels
    weights = np.random.default_rng(1).uniform(0.1, 2, 40)
    arguments = [
        {"x": X, "y": y, "batch_size": 16, "sample_weight": sample_weight, "return_dict": True}
        for sample_weight in (None, weights)
    ]
    return each, [(given, each.evaluate(**given, verbose=0)) for given in arguments]


@pytest.mark.parametrize("voting", ["hard", "soft"])
def test_one_model_evaluates_as_keras_does(voting: str, evaluated) -> None:
    each, expected = evaluated
    ensemble = VotingModel([each], voting)
    for given, of_keras in expected:
        assert ensemble.evaluate(**given) == pytest.approx(of_keras, rel=1e-5)


def test_regression_is_the_weighted_mean() -> None:
    models = members(2, outputs=1, activation=None, loss="mse", metrics=["mae"])
    ensemble = VotingModel(models, "mean", weights=[2, 2])
    mean = np.mean([each.predict(X, verbose=0) for each in models], axis=0)
    np.testing.assert_allclose(ensemble.predict(X), mean, atol=1e-6)
    y = X.sum(1)
    assert ensemble.evaluate(X, y, return_dict=True)["mae"] == pytest.approx(np.abs(mean[:, 0] - y).mean(), rel=1e-5)
    assert VotingModel(models[:1], "mean").evaluate(X, y) == pytest.approx(
        models[0].evaluate(X, y, verbose=0), rel=1e-5
    )
    with pytest.raises(ValueError, match="predict_proba needs voting"):
        ensemble.predict_proba(X)


def test_arrays_of_text() -> None:
    texts = np.array(["a b", "b c", "c"])
    words = keras.layers.TextVectorization(output_mode="multi_hot")
    words.adapt(texts)
    text = keras.Input((), dtype="string")
    models = [keras.Model(text, keras.layers.Dense(2, activation="softmax")(words(text))) for _ in range(2)]
    models[0].compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    ensemble = VotingModel(models, "soft")
    labels = ensemble.predict(texts)
    assert labels.shape == (3,)
    assert ensemble.evaluate(texts, labels, return_dict=True)["accuracy"] == 1.0


def test_accuracy_of_hard_votes_is_that_of_the_labels() -> None:
    models, y = members(4), np.arange(40) % 3
    hard = VotingModel(models, "hard", weights=[3, 1, 1, 1])
    assert hard.evaluate(X, y, return_dict=True)["accuracy"] == pytest.approx((hard.predict(X) == y).mean())
    soft = VotingModel(models, "soft", weights=[3, 1, 1, 1])
    assert hard.evaluate(X, y)[0] == pytest.approx(soft.evaluate(X, y)[0])  # the loss is of the mean probabilities


def two_outputs() -> keras.Model:
    given = keras.Input((3,))
    return keras.Model(given, [layers.Dense(1)(given), layers.Dense(1)(given)])


@pytest.mark.parametrize(
    ("arguments", "kind", "match"),
    [
        (lambda: {"models": []}, ValueError, "at least one model"),
        (lambda: {}, TypeError, "give the models once"),
        (lambda: {"models": [1]}, TypeError, "must be Keras models; got builtins.int"),
        (
            lambda: {"models": [model(), model(2)]},
            ValueError,
            r"equal outputs: model 0 has shape \(None, 3\), and model 1",
        ),
        (lambda: {"models": [two_outputs()]}, ValueError, "one output each"),
        (lambda: {"models": [model()], "weights": [1, 2]}, ValueError, "expected 1, got 2"),
        (lambda: {"models": [model()], "voting": "sof"}, ValueError, "Did you mean 'soft'"),
        (lambda: {"models": [model()], "nb_classes": 4}, ValueError, "nb_classes is 4, and the models' outputs have 3"),
        (lambda: {"models": [model()], "nb_classes": 3, "voting": "mean"}, ValueError, "has no classes"),
    ],
)
def test_arguments_that_make_no_sense(arguments, kind: type, match: str) -> None:
    with pytest.raises(kind, match=match):
        VotingModel(**arguments())


def test_models_of_regression_cannot_vote() -> None:
    with pytest.raises(ValueError, match="use voting='mean'"):
        VotingModel(members(2, outputs=1, activation=None, loss="mse")).predict(10 * X)


def test_a_model_that_was_never_compiled_predicts_but_cannot_judge() -> None:
    plain = keras.Sequential([keras.Input((3,)), layers.Dense(3, "softmax")])
    ensemble = VotingModel([plain])
    assert ensemble.predict(X).shape == (40,)
    with pytest.raises(ValueError, match="is not compiled"):
        ensemble.evaluate(X, np.zeros(40))


def test_a_notebook_shows_the_members() -> None:
    members = []
    for name in ("one", "two"):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, "softmax")], name=name)
        model.compile("sgd", "categorical_crossentropy")
        members.append(model)
    shown = VotingModel(members, weights=[1, 3])._repr_html_()
    assert "<td>one</td><td>0.25</td><td>9</td>" in shown
    assert "<td>two</td><td>0.75</td><td>9</td>" in shown


@pytest.mark.parametrize("voting", ["soft", "hard", "mean"])
def test_predictions_of_no_rows_by_members_of_any_number_of_outputs_are_none(voting: str) -> None:
    """Their outputs have no size to make an array of."""
    inputs = keras.Input((None,))
    model = keras.Model(inputs, keras.layers.Softmax()(inputs))
    assert VotingModel([model, model], voting=voting).predict(np.zeros((0, 3), "float32")).shape == (0,)
