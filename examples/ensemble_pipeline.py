"""A Spark ML pipeline with an ensemble as its last stage: choose its size by cross-validation, save it, load it."""
# pip install 'elephas-like[demo]'

import os
import sys
import tempfile

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import keras
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import BinaryClassificationEvaluator, MulticlassClassificationEvaluator
from pyspark.ml.feature import StandardScaler, VectorAssembler
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import SparkSession
from sklearn.datasets import load_breast_cancer

from elephas_like import EnsembleEstimator

spark = SparkSession.builder.master("local[2]").appName("breast cancer, an ensemble").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
data = load_breast_cancer()
names = [name.replace(" ", "_") for name in data.feature_names]
rows = [(*map(float, x), float(y)) for x, y in zip(data.data, data.target, strict=True)]
train, test = spark.createDataFrame(rows, [*names, "label"]).repartition(2).randomSplit([0.7, 0.3], seed=1)

keras.utils.set_random_seed(1)
model = keras.Sequential(
    [keras.Input((30,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1, activation="sigmoid")]
)
model.compile(keras.optimizers.Adam(0.005), "binary_crossentropy", metrics=["accuracy"])

epochs = int(os.environ.get("EPOCHS", "10"))
ensemble = EnsembleEstimator(model, epochs=epochs, batch_size=16, seed=1)
pipeline = Pipeline(
    stages=[
        VectorAssembler(inputCols=names, outputCol="raw"),
        StandardScaler(inputCol="raw", outputCol="features", withMean=True),
        ensemble,
    ]
)
area = BinaryClassificationEvaluator()
grid = ParamGridBuilder().addGrid(ensemble.numMembers, [1, 5]).build()
search = CrossValidator(estimator=pipeline, estimatorParamMaps=grid, evaluator=area, numFolds=2, seed=1).fit(train)
print(f"area under ROC: {search.avgMetrics[0]:.4f} of one model, {search.avgMetrics[1]:.4f} of five")

found = search.bestModel.transform(test)
print("area under ROC of the test rows:", round(area.evaluate(found), 4))
print("test accuracy:", round(MulticlassClassificationEvaluator(metricName="accuracy").evaluate(found), 3))
found.select("label", "prediction", "probability").show(3, truncate=False)

with tempfile.TemporaryDirectory() as folder:
    search.bestModel.write().save(f"{folder}/ensemble")
    loaded = PipelineModel.load(f"{folder}/ensemble")
    print("loaded:", round(area.evaluate(loaded.transform(test)), 4), "by", loaded.stages[-1].ensemble)
spark.stop()
