"""SparkMLlibModel on labeled points."""

from __future__ import annotations

import keras
from pyspark.mllib.regression import LabeledPoint

from elephas_like import SparkMLlibModel


def test_labeled_points_to_score_have_the_classes_of_those_to_train_on(sc) -> None:
    labeled = [LabeledPoint(float(label), [float(label), 1.0]) for label in (0, 1, 2) for _ in range(4)]
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "categorical_crossentropy")
    held = sc.parallelize(labeled[:8], 2)  # of the classes 0 and 1 alone
    history = SparkMLlibModel(model, 2).fit(
        sc.parallelize(labeled, 2), epochs=1, categorical=True, validation_data=held
    )
    assert len(history.history["val_loss"]) == 1
