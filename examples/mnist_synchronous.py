"""Train on MNIST in synchronous rounds: rows in an RDD, Keras callbacks on the driver; predict and save the model."""
# pip install 'elephas-like[demo]'

import os
import sys

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import keras
from mnist_data import load
from pyspark.sql import SparkSession

from elephas_like import SparkModel

x, y, x_test, y_test = load()
builder = SparkSession.builder.appName("mnist, synchronous")  # on the master of spark-submit, else on this machine
spark = builder.config("spark.python.daemon.module", "elephas_like.daemon").getOrCreate()  # TensorFlow is imported once
rows = spark.sparkContext.parallelize(list(zip(x, y, strict=True)), 2)

keras.utils.set_random_seed(1)
model = keras.Sequential(
    [
        keras.Input((784,)),
        keras.layers.Reshape((28, 28, 1)),
        keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
        keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

spark_model = SparkModel(model, num_workers=2)
history = spark_model.fit(
    rows,
    epochs=int(os.environ.get("EPOCHS", "10")),
    batch_size=16,
    validation_split=0.1,
    callbacks=[keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True)],
    verbose=2,
)
print("validation accuracy by epoch:", [round(value, 3) for value in history.history["val_accuracy"]])

loss, accuracy = spark_model.evaluate(x_test, y_test)
print(f"test accuracy: {accuracy:.3f}")

test_rows = spark.sparkContext.parallelize(list(x_test), 2)
print("first predictions:", spark_model.predict(test_rows)[:5].argmax(axis=1), "labels:", y_test[:5])
# Without overwrite=True an existing file is kept, and save raises an error.
spark_model.save("/tmp/mnist.keras" if len(sys.argv) < 2 else sys.argv[1], overwrite=True)
spark.stop()
