"""Regression on scikit-learn's diabetes data, with sample weights and a callback that lowers the learning rate."""
# pip install 'elephas-like[demo]'

import os
import sys

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import keras
import numpy as np
from pyspark.sql import SparkSession
from sklearn.datasets import load_diabetes

from elephas_like import SparkModel

x, y = load_diabetes(return_X_y=True)
y = (y - y.mean()) / y.std()
weights = np.where(y > 1, 2.0, 1.0)  # high values count twice
spark = SparkSession.builder.master("local[2]").appName("regression").getOrCreate()
rows = spark.sparkContext.parallelize(list(zip(x, y, weights, strict=True)), 2)

keras.utils.set_random_seed(1)
normalize = keras.layers.Normalization()
normalize.adapt(x)
model = keras.Sequential(
    [
        keras.Input((10,)),
        normalize,
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dense(1),
    ]
)
model.compile(keras.optimizers.Adam(0.003), "mse", metrics=["mae"])

spark_model = SparkModel(model, num_workers=2, seed=1)
history = spark_model.fit(
    rows,
    epochs=int(os.environ.get("EPOCHS", "15")),
    batch_size=16,
    validation_split=0.2,
    callbacks=[keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=2)],
    verbose=2,
)
print("validation mae by epoch:", [round(value, 3) for value in history.history["val_mae"]])
print("on all rows, as an RDD:", spark_model.evaluate(rows, return_dict=True))
spark.stop()
