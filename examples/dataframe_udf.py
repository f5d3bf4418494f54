"""Train a Keras model on columns of a DataFrame, and call it as a function in SQL."""
# pip install 'elephas-like[demo]'

import os
import sys

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import keras
from pyspark.sql import SparkSession
from sklearn.datasets import load_diabetes

from elephas_like import SparkModel, register_keras_udf

spark = SparkSession.builder.master("local[2]").appName("diabetes, in SQL").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
x, y = load_diabetes(return_X_y=True)
rows = [(float(a[0] > 0), float(a[2]), float(a[3]), float(b)) for a, b in zip(x * 20, (y - 152) / 77, strict=True)]
patients = spark.createDataFrame(rows, ["older", "bmi", "pressure", "progress"]).repartition(2)

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.02), "mse")

columns = ["older", "bmi", "pressure"]
spark_model = SparkModel(model, num_workers=2, seed=1)
spark_model.fit(
    patients, features_col=columns, label_col="progress", epochs=int(os.environ.get("EPOCHS", "10")), verbose=0
)
loss = spark_model.evaluate(patients, features_col=columns, label_col="progress")
print(f"mean squared error: {loss:.2f} (the mean alone: 1.00)")

register_keras_udf(spark, "progress_of", model)
patients.createOrReplaceTempView("patients")
answer = spark.sql(
    """SELECT older, round(avg(progress_of(older, bmi, pressure)), 1) AS predicted, round(avg(progress), 1) AS found
       FROM patients GROUP BY older ORDER BY older"""
)
answer.show()
spark.stop()
