"""Train on a table of a database, and write the predictions into another: PGUSER=... PGPASSWORD=... jdbc.py URL DRIVER.jar MODEL.keras."""
# pip install 'elephas-like[demo]'

import os
import sys

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import keras
from pyspark.sql import SparkSession
from sklearn.datasets import load_diabetes

from elephas_like import ElephasEstimator

url, driver, saved = sys.argv[1:4]  # jdbc:postgresql://host/database
database = {
    "url": url,
    "driver": "org.postgresql.Driver",
    "user": os.environ["PGUSER"],
    "password": os.environ["PGPASSWORD"],
}
spark = SparkSession.builder.master("local[2]").config("spark.jars", driver).appName("a database").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")

# The table, which is there already where data lives in a database.
x, y = load_diabetes(return_X_y=True)
names = load_diabetes().feature_names
rows = [(i, *map(float, a * 20), float(b - 152) / 77) for i, (a, b) in enumerate(zip(x, y, strict=True))]
table = spark.createDataFrame(rows, ["id", *names, "progress"])
table.write.format("jdbc").options(**database, dbtable="patients").mode("overwrite").save()

# Four queries, each with a range of ids, read the table: one for each partition.
ranges = {"partitionColumn": "id", "lowerBound": 0, "upperBound": len(rows), "numPartitions": 4}
patients = spark.read.format("jdbc").options(**database, dbtable="patients", **ranges).load()
print("partitions:", patients.rdd.getNumPartitions())

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((len(names),)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.02), "mse")
epochs = int(os.environ.get("EPOCHS", "20"))
fitted = ElephasEstimator(model, features_col=names, label_col="progress", epochs=epochs, seed=1).fit(patients)

predicted = fitted.transform(patients).select("id", "prediction")
predicted.write.format("jdbc").options(**database, dbtable="predictions").mode("overwrite").save()
written = spark.read.format("jdbc").options(**database, dbtable="predictions").load()
print("rows read again that are as they were predicted:", written.intersect(predicted).count())

# The database joins, and Spark reads the answer.
query = "SELECT avg((prediction - progress) ^ 2) AS error FROM predictions JOIN patients USING (id)"
(answer,) = spark.read.format("jdbc").options(**database, query=query).load().collect()
print(f"mean squared error: {answer.error:.2f} (the mean alone: 1.00)")
fitted.get_model().save(saved)
spark.stop()
