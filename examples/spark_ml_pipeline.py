"""A Spark ML pipeline with a Keras model as its last stage: search a grid, evaluate, save and load it."""
# pip install 'elephas-like[demo]'

import os
import sys
import tempfile

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import keras
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import StandardScaler, StringIndexer, VectorAssembler
from pyspark.ml.tuning import ParamGridBuilder, TrainValidationSplit
from pyspark.sql import SparkSession
from sklearn.datasets import load_wine

from elephas_like import ElephasEstimator

spark = SparkSession.builder.master("local[2]").appName("wine, a pipeline").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
data = load_wine()
names = [name.replace("/", "_") for name in data.feature_names]
rows = [(*map(float, x), str(data.target_names[y])) for x, y in zip(data.data, data.target, strict=True)]
train, test = spark.createDataFrame(rows, [*names, "kind"]).repartition(2).randomSplit([0.75, 0.25], seed=1)

keras.utils.set_random_seed(1)
model = keras.Sequential(
    [keras.Input((13,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(3, activation="softmax")]
)
model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])

estimator = ElephasEstimator(model, num_workers=2, batch_size=8, seed=1, validation_split=0.0)
pipeline = Pipeline(
    stages=[
        StringIndexer(inputCol="kind", outputCol="label"),
        VectorAssembler(inputCols=names, outputCol="raw"),
        StandardScaler(inputCol="raw", outputCol="features", withMean=True),
        estimator,
    ]
)
accuracy = MulticlassClassificationEvaluator(metricName="accuracy")
grid = ParamGridBuilder().addGrid(estimator.epochs, [2, int(os.environ.get("EPOCHS", "10"))]).build()
search = TrainValidationSplit(estimator=pipeline, estimatorParamMaps=grid, evaluator=accuracy, seed=1).fit(train)
print("validation accuracy by epochs:", [round(value, 3) for value in search.validationMetrics])
print(f"test accuracy: {accuracy.evaluate(search.bestModel.transform(test)):.3f}")

with tempfile.TemporaryDirectory() as folder:
    search.bestModel.write().save(f"{folder}/wine")
    loaded = PipelineModel.load(f"{folder}/wine")
    print(
        f"loaded: {accuracy.evaluate(loaded.transform(test)):.3f}, trained {loaded.stages[-1].history[0]['loss'][-1]:.3f}"
    )
spark.stop()
