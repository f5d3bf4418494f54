"""Files of images train, predict and answer SQL as the same pixels do in an array."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from image_data import digits, png

from elephas_like import SparkModel, register_keras_udf


@pytest.fixture(scope="module")
def pictures(spark):
    """Digits as PNG files and as bytes of their pixels, in two partitions."""
    pixels, labels = digits(60)
    rows = [(png(image), image.tobytes(), int(label)) for image, label in zip(pixels, labels, strict=True)]
    return spark.createDataFrame(rows, "content binary, pixels binary, label int").repartition(2).cache()


def classifier() -> keras.Model:
    """A model with preprocessing in front, of which a part is random. No convolution: its bits depend on threads."""
    keras.utils.set_random_seed(2)
    front = keras.Sequential([keras.layers.Rescaling(1 / 255), keras.layers.RandomTranslation(0.1, 0.1, seed=1)])
    layers = [front, keras.layers.Flatten(), keras.layers.Dense(8), keras.layers.Dense(10, "softmax")]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def test_a_fit_on_files_has_the_bits_of_one_on_pixels(pictures) -> None:
    fitted = []
    for column, dtype in (("content", "image"), ("pixels", "uint8")):
        model = classifier()
        columns = {"features_col": column, "column_dtypes": {column: dtype}}
        SparkModel(model, num_workers=2, seed=1).fit(pictures, epochs=2, verbose=0, **columns)
        fitted.append(model.get_weights())
    for one, other, begin in zip(*fitted, classifier().get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype.kind != "f" or (one != begin).any()


def test_predictions_and_sql_of_files_are_those_of_keras(spark, pictures) -> None:
    model = classifier()
    rows = pictures.collect()
    expected = model.predict(np.stack([np.frombuffer(row.pixels, "uint8").reshape(8, 8, 1) for row in rows]), verbose=0)
    found = SparkModel(model).predict(pictures, features_col="content", column_dtypes={"content": "image"})
    np.testing.assert_allclose(found, expected, atol=1e-6)
    register_keras_udf(spark, "digit_of", model, dtype="image")
    said = [row.digit for row in pictures.selectExpr("digit_of(content) AS digit").collect()]
    assert said == expected.argmax(axis=1).tolist()
