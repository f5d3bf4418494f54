"""Search layers, units, dropout and learning rates on Spark's slots, score the best model, and plot the search."""
# pip install 'elephas-like[demo]'

import os
import sys

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import keras
from mnist_data import load
from pyspark.sql import SparkSession

from elephas_like import search

x, y, x_test, y_test = load()
builder = SparkSession.builder.master("local[2]").appName("search")
spark = builder.config("spark.python.daemon.module", "elephas_like.daemon").getOrCreate()  # TensorFlow is imported once


def build(params):
    layers = [keras.layers.Dense(params["units"], "relu") for _ in range(params["layers"])]
    model = keras.Sequential(
        [keras.Input((784,)), *layers, keras.layers.Dropout(params["dropout"]), keras.layers.Dense(10, "softmax")]
    )
    optimizer = keras.optimizers.Adam(params["rate"])
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


space = {
    "units": [32, 64, 128, 256],  # a list is a choice; hyperopt's hp.* may be used as well
    "layers": ("randint", 1, 4),
    "dropout": ("uniform", 0.0, 0.5),
    "rate": ("loguniform", -9, -4),
}
found = search(
    build,
    space,
    (x, y),
    max_evals=3 * int(os.environ.get("EPOCHS", "8")),
    objective="val_accuracy",
    epochs=int(os.environ.get("EPOCHS", "8")),
    validation_split=0.2,
    seed=0,
)
table = found.trials.sort_values("val_accuracy", ascending=False)
print(table[["trial", "status", "val_accuracy", "epochs", "seconds", "params"]].head().to_string(index=False))
print(found)
print(f"test accuracy: {found.best_model.evaluate(x_test, y_test, verbose=0)[1]:.3f}")
found.plot().savefig("/tmp/search.png" if len(sys.argv) < 2 else f"{sys.argv[1]}.png")
spark.stop()
