"""Train a SparkMLlibModel on MLlib's LabeledPoints, and predict for vectors and matrices."""
# pip install 'elephas-like[demo]'

import os
import sys

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import keras
from pyspark.mllib.linalg import Vectors
from pyspark.sql import SparkSession
from sklearn.datasets import load_wine

from elephas_like import SparkMLlibModel
from elephas_like.mllib import from_matrix, to_matrix
from elephas_like.utils import to_labeled_point

x, y = load_wine(return_X_y=True)
x = (x - x.mean(axis=0)) / x.std(axis=0)
spark = SparkSession.builder.master("local[2]").appName("mllib").getOrCreate()
points = to_labeled_point(spark.sparkContext, x, y)

keras.utils.set_random_seed(1)
model = keras.Sequential(
    [
        keras.Input((13,)),
        keras.layers.Dense(16, activation="relu"),
        keras.layers.Dense(3, activation="softmax"),
    ]
)
model.compile(keras.optimizers.Adam(0.01), "categorical_crossentropy", metrics=["accuracy"])

spark_model = SparkMLlibModel(model, num_workers=2, batch_size=16, seed=1)
history = spark_model.fit(
    points,
    epochs=int(os.environ.get("EPOCHS", "20")),
    validation_split=0.1,
    categorical=True,  # labels become one-hot rows
    nb_classes=3,
)
print("training accuracy by epoch:", [round(value, 2) for value in history.history["accuracy"]])
print("one wine:", spark_model.predict(Vectors.dense(x[0])))
classes = from_matrix(spark_model.predict(to_matrix(x))).argmax(axis=1)
print(f"accuracy: {(classes == y).mean():.4f}")
spark.stop()
