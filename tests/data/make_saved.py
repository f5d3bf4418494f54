"""Writes one of each thing that users save, with what it predicts, into the folder that is named on the command line.

    python tests/data/make_saved.py tests/data/saved_by_v1

tests/test_saved_before.py reads them with every later version: run this for a new form of a file only, into a new folder.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import keras
import numpy as np

X = np.linspace(-1, 1, 24, dtype="float32").reshape(12, 2)
Y = (X.sum(axis=1) > 0).astype("int32")


def model(seed: int = 1, units: int = 3) -> keras.Model:
    """A classifier of two classes, trained a little."""
    keras.utils.set_random_seed(seed)
    made = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(units, "tanh"), keras.layers.Dense(2, "softmax")], name="small"
    )
    made.compile(keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
    made.fit(X, Y, batch_size=4, epochs=3, verbose=0)
    return made


def for_search(params: dict) -> keras.Model:
    """The model of one point."""
    made = model(2, params["units"])
    made.optimizer.learning_rate = params["rate"]
    return made


SEARCH = {
    "space": {"rate": ("loguniform", -3, -1), "units": [2, 4]},
    "max_evals": 3,
    "algo": "tpe",
    "epochs": 2,
    "batch_size": 4,
    "validation_split": 0.25,
    "keep_models": 1,
    "seed": 3,
    "verbose": 0,
}
"""Arguments of a search, which a later one must repeat to go on with it."""


def main(folder: Path) -> None:
    """Writes all of them."""
    from pyspark.ml import Pipeline
    from pyspark.ml.feature import VectorAssembler
    from pyspark.sql import SparkSession

    from elephas_like import (
        ElephasEstimator,
        ElephasTransformer,
        EnsembleEstimator,
        EnsembleModel,
        SparkModel,
        VotingModel,
        search,
    )
    from elephas_like.strategies import Nesterov, PostLocal, TrimmedMean

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    first, second = model(1), model(2)
    expected = {"model": first.predict(X, verbose=0).tolist()}

    options = {"num_workers": 2, "seed": 5, "codec": "int8", "frequency": PostLocal(4, after=1)}
    options["strategy"] = Nesterov(momentum=0.25, reduce=TrimmedMean(0.2))
    spark_model = SparkModel(first, **options)
    spark_model.save(folder / "spark_model.keras")
    spark_model.save(folder / "spark_model.h5")

    ensemble = VotingModel([first, second], weights=[2, 1])
    ensemble.save(folder / "ensemble.zip")
    expected["ensemble"] = ensemble.predict_proba(X).tolist()

    found = search(for_search, SEARCH["space"], (X, Y), checkpoint_dir=folder / "search", **_others(SEARCH))
    expected["search"] = {
        "best_value": found.best_value,
        "best_params": found.best_params,
        "predictions": found.best_model.predict(X, verbose=0).tolist(),
    }

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    estimator = ElephasEstimator(first, epochs=2, **options)
    rows = [(*map(float, x), float(y)) for x, y in zip(X, Y, strict=True)]
    df = spark.createDataFrame(rows, "a double, b double, label double").coalesce(1)
    assembler = VectorAssembler(inputCols=["a", "b"], outputCol="features")
    transformer = ElephasTransformer(first, probability_col="probability", history=[{"loss": [2.0, 1.0]}])
    Pipeline(stages=[assembler, estimator]).write().save(f"{folder}/pipeline")
    Pipeline(stages=[assembler, transformer]).fit(df).write().save(f"{folder}/pipeline_model")
    EnsembleEstimator(first, num_members=2, epochs=1, seed=1).write().save(f"{folder}/ensemble_estimator")
    EnsembleModel(ensemble, probability_col="probability").write().save(f"{folder}/ensemble_model")
    estimator.save(f"{folder}/estimator.h5")
    transformer.save(f"{folder}/transformer.h5")
    spark.stop()

    for extra in [*folder.rglob(".*.crc"), *folder.rglob("_SUCCESS")]:
        extra.unlink()
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def _others(arguments: dict) -> dict:
    return {name: value for name, value in arguments.items() if name != "space"}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
