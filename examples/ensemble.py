"""Train five MNIST models in parallel on Spark, each on rows drawn with replacement; let them vote; save them as one file."""
# pip install 'elephas-like[demo]'

import os
import sys

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import keras
from mnist_data import load
from pyspark.sql import SparkSession

from elephas_like import VotingModel, greedy_selection, train_ensemble

x, y, x_test, y_test = load()
x, y, x_held, y_held = x[:3200], y[:3200], x[3200:], y[3200:]
spark = SparkSession.builder.master("local[2]").appName("an ensemble").getOrCreate()
rows = spark.sparkContext.parallelize(list(zip(x, y, strict=True)), 4)


def build():
    model = keras.Sequential(
        [
            keras.Input((784,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


epochs = int(os.environ.get("EPOCHS", "8"))
ensemble = train_ensemble(build, rows, 5, epochs=epochs, batch_size=32, seed=1, verbose=2)
alone = [model.evaluate(x_test, y_test, verbose=0)[1] for model in ensemble.models]
print("members:", [round(accuracy, 3) for accuracy in alone])
print(f"mean member: {sum(alone) / len(alone):.3f}")

chosen = greedy_selection(ensemble, (x_held, y_held))
print("members chosen on the held-out rows, in this order:", chosen.members)
print(f"accuracy of the chosen members on the test rows: {chosen.ensemble.evaluate(x_test, y_test)[1]:.3f}")
print(f"test accuracy of the ensemble: {ensemble.evaluate(x_test, y_test)[1]:.3f}")

path = "/tmp/mnist_ensemble.zip" if len(sys.argv) < 2 else sys.argv[1].replace(".keras", ".zip")
ensemble.save(path)
test_rows = spark.sparkContext.parallelize(list(x_test), 2)
print("first labels:", VotingModel.load(path).predict(test_rows)[:5], "of", y_test[:5])
spark.stop()
