"""Metrics without a name, whose numbers Keras counts through a whole process."""

from __future__ import annotations

import keras
import pytest

from elephas_like.trainer.metric_names import FreshNames, freshly_named

AUC, Precision = keras.metrics.AUC, keras.metrics.Precision


def built(metrics: object, outputs: int = 1) -> keras.Model:
    entry = keras.Input((2,))
    ends = [keras.layers.Dense(1, "sigmoid", name=name)(entry) for name in "ab"[:outputs]]
    model = keras.Model(entry, dict(zip("ab", ends, strict=False)) if outputs > 1 else ends[0])
    model.compile("sgd", "binary_crossentropy", metrics=metrics)
    rows = keras.ops.ones((4, 2))
    target = keras.ops.ones((4, 1))
    model.test_on_batch(rows, {"a": target, "b": target} if outputs > 1 else target)
    return model


def names(model: keras.Model) -> list[str]:
    """The names of the logs in alphabetical order, which Keras 3.8 gives them itself."""
    logs = model.get_metrics_result()
    return sorted(freshly_named(model, {**logs, **{f"val_{name}": value for name, value in logs.items()}}))


def both(*expected: str) -> list[str]:
    """The names of logs, and those of validation."""
    return sorted([*expected, *(f"val_{name}" for name in expected)])


@pytest.mark.parametrize("made_before", [0, 3])
def test_numbers_are_those_of_a_fresh_process(made_before: int) -> None:
    for _ in range(made_before):
        AUC()
    found = names(built([AUC(), Precision(), AUC(curve="PR")]))
    assert found == both("loss", "auc", "precision", "auc_1")


def test_the_value_goes_with_the_name() -> None:
    roc, pr = AUC(), AUC(curve="PR")
    model = built([pr, roc])  # a fresh process gives auc to the one that was made first
    assert freshly_named(model, {f"val_{roc.name}": 1.0, pr.name: 2.0}) == {"val_auc": 1.0, "auc_1": 2.0}


def test_names_of_outputs_stay_before_them() -> None:
    AUC()
    found = names(built({"a": [AUC()], "b": [AUC()]}, outputs=2))
    assert [name for name in found if "auc" in name] == ["a_auc", "b_auc_1", "val_a_auc", "val_b_auc_1"]


def test_names_that_were_given_stay() -> None:
    Precision()
    given = [AUC(name="roc_5"), "accuracy", "AUC", Precision(), Precision(name="my_precision_5")]
    assert names(built(given)) == both("loss", "roc_5", "accuracy", "AUC", "precision", "my_precision_5")


def test_equal_names_are_left_to_keras() -> None:
    accuracy = keras.metrics.BinaryAccuracy  # which is binary_accuracy by default, not by number
    found = names(built([accuracy(), accuracy(threshold=0.7)]))
    assert found == both("loss", "binary_accuracy", "binary_accuracy_1")


def test_no_log_is_lost_to_another_of_the_same_name() -> None:
    class Other(AUC):
        pass

    AUC()
    metrics = [Other(name="auc"), AUC()]
    raw = metrics[1].name
    assert names(built(metrics)) == both("loss", "auc", raw)


def test_callbacks_see_the_fresh_names() -> None:
    AUC()
    model = built([AUC()])
    logs = {model.metrics[1].metrics[0].name: 0.5, "added": 1.0}
    callback = FreshNames()
    callback.set_model(model)
    callback.on_epoch_end(0, logs)
    callback.on_epoch_end(1, None)
    assert logs == {"auc": 0.5, "added": 1.0}
