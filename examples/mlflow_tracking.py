"""Follow a fit and a search in MLflow: metrics by epoch, the model, a run for each trial. Then: mlflow ui --backend-store-uri ..."""
# pip install 'elephas-like[demo]'

import logging
import os
import sys

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import keras
import mlflow
from mlflow.keras import MlflowCallback
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits

from elephas_like import Metrics, SparkModel, search

logging.basicConfig(format="%(message)s")
logging.getLogger("elephas_like.model.metrics").setLevel(logging.INFO)
folder = "/tmp/mlflow" if len(sys.argv) < 2 else f"{sys.argv[1]}.runs"
os.makedirs(folder, exist_ok=True)
mlflow.set_tracking_uri(f"sqlite:///{folder}/runs.db")
x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32")
spark = SparkSession.builder.master("local[2]").appName("mlflow").getOrCreate()


def build(params):
    layers = [keras.Input((64,)), keras.layers.Dense(params["units"], "relu"), keras.layers.Dense(10, "softmax")]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(params["rate"]), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


with mlflow.start_run(run_name="fit") as run:
    spark_model = SparkModel(build({"units": 64, "rate": 0.003}), num_workers=2, seed=0)
    callbacks = [MlflowCallback(), Metrics()]  # Metrics logs a line for each epoch: rounds/s, waiting, bytes, drift
    spark_model.fit(
        x, y, epochs=int(os.environ.get("EPOCHS", "8")), validation_split=0.2, callbacks=callbacks, verbose=0
    )
    mlflow.keras.log_model(spark_model.master_network, name="model")
mlflow.flush_async_logging()
print(f"val_accuracy in MLflow: {mlflow.get_run(run.info.run_id).data.metrics['val_accuracy']:.3f}")

space = {"units": [32, 64, 128], "rate": ("loguniform", -7, -4)}
found = search(build, space, (x, y), max_evals=4, epochs=4, objective="val_accuracy", validation_split=0.2, seed=0)
parent = found.log_to_mlflow("search")
trials = mlflow.search_runs(filter_string=f"tags.mlflow.parentRunId = '{parent}'", search_all_experiments=True)
print(f"nested runs: {len(trials)}")
spark.stop()
