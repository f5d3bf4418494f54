"""Keras on JAX or PyTorch: SparkModel trains on them as on TensorFlow, which is not needed.

With 'elephas-like[all-torch]' installed: KERAS_BACKEND=torch python examples/other_backends.py
"""
# pip install 'elephas-like[all-jax]'

import os
import sys

os.environ.setdefault("KERAS_BACKEND", "jax")  # before keras is imported
os.environ["PYSPARK_PYTHON"] = sys.executable

import keras
import numpy as np
from pyspark.sql import SparkSession

from elephas_like import SparkModel


def main() -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    random = np.random.default_rng(0)
    x = random.normal(size=(4000, 20)).astype("float32")
    y = (x[:, :5].sum(axis=1) > 0).astype("int32")
    rdd = spark.sparkContext.parallelize(list(zip(x, y, strict=True)), 2)

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(2, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    spark_model = SparkModel(model, num_workers=2)
    history = spark_model.fit(rdd, epochs=5, batch_size=32, validation_split=0.1, verbose=0).history
    print(f"Keras on {keras.backend.backend()}: validation accuracy {history['val_accuracy'][-1]:.3f}")
    assert history["val_accuracy"][-1] > 0.8
    spark.stop()


if __name__ == "__main__":
    main()
