"""Train on MNIST asynchronously: each worker exchanges with the parameter server after its own steps, and waits for no other."""
# pip install 'elephas-like[demo]'

import os
import sys

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import keras
from mnist_data import load
from pyspark.sql import SparkSession

from elephas_like import SparkModel

x, y, x_test, y_test = load()
builder = SparkSession.builder.master("local[2]").appName("mnist, asynchronous")
spark = builder.config("spark.python.daemon.module", "elephas_like.daemon").getOrCreate()  # TensorFlow is imported once
rows = spark.sparkContext.parallelize(list(zip(x, y, strict=True)), 2)

keras.utils.set_random_seed(1)
model = keras.Sequential(
    [
        keras.Input((784,)),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

spark_model = SparkModel(model, mode="asynchronous", frequency=20, num_workers=2)
history = spark_model.fit(rows, epochs=int(os.environ.get("EPOCHS", "10")), batch_size=16, verbose=2)

staleness = [worker.staleness for exchange in history.rounds for worker in exchange.workers]
print(f"{len(staleness)} exchanges, mean staleness {sum(staleness) / len(staleness):.2f}")
loss, accuracy = spark_model.evaluate(x_test, y_test)
print(f"test accuracy: {accuracy:.3f}")
spark.stop()
