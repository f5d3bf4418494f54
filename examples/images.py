"""Train on files of images, and use what was learnt there for other images: by ImageFeaturizer and Spark's LogisticRegression."""
# pip install 'elephas-like[demo]'

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import keras
from mnist_data import load
from pyspark.ml import Pipeline
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.sql import SparkSession, functions

from elephas_like import ImageFeaturizer, SparkModel

# Files <digit>/<number>.png, which are there already where data lives in files.
folder = tempfile.TemporaryDirectory()
x, y, _, _ = load()
for number, (pixels, digit) in enumerate(zip(x[:2000].reshape(-1, 28, 28, 1) * 255, y[:2000], strict=True)):
    Path(folder.name, str(digit)).mkdir(exist_ok=True)
    keras.utils.save_img(Path(folder.name, str(digit), f"{number}.png"), pixels, scale=False)

builder = SparkSession.builder.master("local[2]").appName("images")
spark = builder.config("spark.sql.files.openCostInBytes", 4096).getOrCreate()  # so that a task reads many small files
spark.sparkContext.setLogLevel("ERROR")
digit = functions.element_at(functions.split("path", "/"), -2).cast("double")
images = spark.read.format("binaryFile").load(f"{folder.name}/*/*.png").select("content", digit.alias("label"))
images = images.repartition(2, "content").cache()
train, test = images.randomSplit([0.8, 0.2], seed=1)

# A model of the digits 0 to 4, with preprocessing in front.
keras.utils.set_random_seed(1)
layers = keras.layers
front = keras.Sequential([layers.Rescaling(1 / 255), layers.RandomTranslation(0.1, 0.1, seed=1)])
middle = [layers.Conv2D(width, 3, strides=2, activation="relu") for width in (16, 32)]
features = layers.Dense(64, activation="relu", name="features")
model = keras.Sequential(
    [keras.Input((28, 28, 1)), front, *middle, layers.Flatten(), features, layers.Dense(5, activation="softmax")]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
spark_model = SparkModel(model, num_workers=2, seed=1)
columns = {"features_col": "content", "column_dtypes": {"content": "image"}}
spark_model.fit(train.filter("label < 5"), epochs=int(os.environ.get("EPOCHS", "8")), verbose=0, **columns)
_, accuracy = spark_model.evaluate(test.filter("label < 5"), **columns)
print(f"accuracy of the digits 0 to 4: {accuracy:.3f}")

# Without its head it makes vectors, by which Spark tells the digits 5 to 9 apart: the model never saw one.
pipeline = Pipeline(stages=[ImageFeaturizer(model, layer="features"), LogisticRegression(maxIter=20, regParam=0.01)])
found = pipeline.fit(train.filter("label > 4")).transform(test.filter("label > 4"))
accuracy = MulticlassClassificationEvaluator(metricName="accuracy").evaluate(found)
print(f"test accuracy: {accuracy:.3f}")
spark.stop()
