"""Stages written and read again: by directory, on a Hadoop URL, and as HDF5."""

from __future__ import annotations

import json
import operator
import pickle
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
from custom_parts import Scale, own_error
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.tuning import ParamGridBuilder, TrainValidationSplit, TrainValidationSplitModel

from elephas_like import ElephasEstimator, ElephasTransformer, EnsembleEstimator, load_ml_estimator, load_ml_transformer
from elephas_like.stages.saving import decoded, encoded
from elephas_like.strategies import Clipped, FixedSteps, KerasOuter, Nesterov


def model(**compiled: object) -> keras.Model:
    keras.utils.set_random_seed(3)
    made = keras.Sequential([keras.Input((2,)), Scale(3.0), keras.layers.Dense(1)])
    made.compile(keras.optimizers.Adam(0.03), own_error, **compiled)
    return made


def test_stages_can_be_pickled(spark) -> None:
    plain = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, "softmax")])
    plain.compile("sgd", "sparse_categorical_crossentropy")
    for stage in (
        ElephasEstimator(plain, epochs=3),
        EnsembleEstimator(plain, num_members=2),
        ElephasTransformer(plain),
    ):
        copied = pickle.loads(pickle.dumps(stage))  # noqa: S301  # our own
        assert copied.explainParams() == stage.explainParams()
        for one, other in zip(copied.get_model().get_weights(), plain.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def df(spark):
    rows = [(float(i), float(i % 3), float(i + i % 3)) for i in range(40)]
    return spark.createDataFrame(rows, "a double, b double, label double").coalesce(1).cache()


@pytest.fixture(scope="module")
def fitted(df) -> PipelineModel:
    assembler = VectorAssembler(inputCols=["a", "b"], outputCol="features")
    eager = model(run_eagerly=True)  # its fits are short: a graph for each costs more
    return Pipeline(stages=[assembler, ElephasEstimator(eager, epochs=2, num_workers=1, seed=1)]).fit(df)


@pytest.fixture(scope="module")
def expected(fitted, df) -> list[float]:
    return predictions(fitted, df)


def predictions(stage, df) -> list[float]:
    return [row.prediction for row in stage.transform(df).collect()]


@pytest.fixture(params=["file", pytest.param("viewfs", marks=pytest.mark.classic)])
def base(request: pytest.FixtureRequest, spark, tmp_path: Path) -> str:
    if request.param == "viewfs":
        cluster = f"stages{abs(hash(str(tmp_path)))}"  # Hadoop keeps a filesystem that it has made by its name
        spark.sparkContext._jsc.hadoopConfiguration().set(
            f"fs.viewfs.mounttable.{cluster}.link./data", f"file://{tmp_path}"
        )
        return f"viewfs://{cluster}/data"
    return f"file://{tmp_path}"


def test_a_fitted_pipeline_comes_back_whole(fitted, expected, df, base: str) -> None:
    path = f"{base}/pipeline"
    fitted.write().save(path)
    loaded = PipelineModel.load(path)
    one, two = fitted.stages[-1], loaded.stages[-1]
    assert (two.uid, two.history) == (one.uid, one.history)
    assert two.get_model().optimizer.iterations.numpy() == one.get_model().optimizer.iterations.numpy() > 0
    for first, second in zip(one.get_model().optimizer.variables, two.get_model().optimizer.variables, strict=True):
        np.testing.assert_array_equal(first.numpy(), second.numpy())
    assert predictions(loaded, df) == expected
    with pytest.raises(Exception, match=r"(?i)already exists"):
        fitted.write().save(path)
    fitted.write().overwrite().save(path)


def test_an_estimator_keeps_uid_params_strategy_and_code(spark, df, tmp_path: Path) -> None:
    path = str(tmp_path / "estimator")
    estimator = ElephasEstimator(
        model(),
        epochs=1,
        features_col=["a", "b"],
        strategy=Nesterov(momentum=0.25),
        codec="int8",
        frequency=FixedSteps(3),
        class_weight={0: 2.0},
        loss=own_error,
        custom_objects={"Scale": Scale},
    )
    Pipeline(stages=[estimator]).save(path)
    (loaded,) = Pipeline.load(path).getStages()
    assert loaded.uid == estimator.uid
    assert loaded.given("strategy") == Nesterov(momentum=0.25)
    assert (loaded.given("codec"), loaded.given("frequency")) == ("int8", FixedSteps(3))
    assert loaded.given("class_weight") == {0: 2.0}
    assert loaded.given("loss") is own_error
    assert loaded.given("custom_objects") == {"Scale": Scale}
    assert loaded.given("featuresCol") == ["a", "b"]
    assert not loaded.isSet("batch_size")
    assert loaded.get_model().layers[0].by == 3.0
    assert loaded.get_model().optimizer.learning_rate.numpy() == pytest.approx(0.03)


@pytest.mark.parametrize("name", ["run[1]", "{a,b}", "run?", "run*", "a\\b"])
def test_a_path_that_spark_would_not_read_again_is_refused(spark, tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"a stage cannot be saved to .* Choose a path without them"):
        ElephasEstimator(model()).save(str(tmp_path / name))
    assert not list(tmp_path.iterdir())


def test_code_that_cannot_be_found_again_is_named(tmp_path: Path) -> None:
    def local(y_true, y_pred):
        return y_true - y_pred

    with pytest.raises(
        ValueError, match=r"ElephasEstimator's loss is .*local, which cannot be found again by its name"
    ):
        ElephasEstimator(model(), loss=local).save(str(tmp_path / "x.h5"))
    with pytest.raises(
        ValueError, match=r"refers to 'Gone' of the module 'custom_parts'.*custom_objects=\{'Gone': Gone\}"
    ):
        decoded({"__import__": "custom_parts:Gone"})
    assert decoded({"__import__": "custom_parts:Gone"}, {"Gone": Scale}) is Scale
    with pytest.raises(ValueError, match=r"it cannot be saved: <object"):
        encoded("it", object())
    named = keras.Sequential([keras.Input((1,)), keras.layers.Lambda(lambda x: x)])
    with pytest.raises(ValueError, match="holds a lambda"):
        ElephasTransformer(named).save(str(tmp_path / "y.h5"))


def test_values_come_back_as_they_were() -> None:
    values = [1, 2.5, "a", None, True, [1, [2]], {"a": 1}, {1: 2.0}, own_error, Scale, Nesterov(learning_rate=0.5)]
    written = json.loads(json.dumps([encoded("it", value) for value in values]))
    assert [decoded(value) for value in written] == values
    assert encoded("a metric for each class", {"f1": [np.array([0.5, 1.0])]}) == {"f1": [[0.5, 1.0]]}
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    assert decoded(json.loads(json.dumps(encoded("it", loss)))).get_config()["from_logits"]


def test_a_strategy_whose_constructor_takes_other_arguments_comes_back() -> None:
    outer = KerasOuter(keras.optimizers.SGD(0.5, momentum=0.9), reduce=Clipped(1.0))
    back = decoded(json.loads(json.dumps(encoded("it", outer))))
    assert back == outer
    assert (
        back.step(np.zeros(2, "float32"), np.ones(2, "float32"), back.init(np.zeros(2, "float32")), None)[0][0] == 0.5
    )


@pytest.mark.classic
def test_what_fails_to_replace_a_stage_leaves_it_there(spark, tmp_path: Path) -> None:
    path = str(tmp_path / "estimator")
    first = ElephasEstimator(model())
    first.save(path)
    with pytest.raises(FileExistsError, match=r"estimator already exists; write\(\)\.overwrite\(\)"):
        first.save(path)
    with pytest.raises(ValueError, match="cannot be found again by its name"):
        ElephasEstimator(model(), loss=lambda y, p: p).write().overwrite().save(path)
    assert ElephasEstimator.load(path).uid == first.uid
    second = ElephasEstimator(model())
    second.write().overwrite().save(path)
    assert load_ml_estimator(tmp_path / "estimator").uid == second.uid
    assert [found.name for found in tmp_path.iterdir()] == ["estimator"]


def test_a_search_of_spark_s_comes_back_with_our_estimator(df, tmp_path: Path) -> None:
    eager = model(run_eagerly=True)
    estimator = ElephasEstimator(eager, features_col=["a", "b"], epochs=1, num_workers=1, engine="in_process", seed=1)
    grid = ParamGridBuilder().addGrid(estimator.epochs, [1, 2]).addGrid(estimator.class_weight, [{0: 1.0}]).build()
    evaluator = RegressionEvaluator()
    search = TrainValidationSplit(estimator=estimator, estimatorParamMaps=grid, evaluator=evaluator, parallelism=2)
    search.save(str(tmp_path / "search"))
    again = TrainValidationSplit.load(str(tmp_path / "search"))
    assert again.getEstimator().uid == estimator.uid
    assert [found[estimator.epochs] for found in again.getEstimatorParamMaps()] == [1, 2]
    found = again.fit(df)
    found.save(str(tmp_path / "found"))
    loaded = TrainValidationSplitModel.load(str(tmp_path / "found"))
    assert isinstance(loaded.bestModel, ElephasTransformer)
    assert loaded.bestModel.history == found.bestModel.history
    assert predictions(loaded, df) == predictions(found, df)


def test_hdf5_keeps_all_that_the_directory_does(fitted, base: str) -> None:
    transformer = fitted.stages[-1]
    path = f"{base}/stage.h5"
    transformer.save(path)
    transformer.save(file_name=path)  # Elephas' name, and its replacing
    loaded = load_ml_transformer(path)
    assert ElephasTransformer.load(path).uid == loaded.uid
    assert (loaded.uid, loaded.history) == (transformer.uid, transformer.history)
    for first, second in zip(transformer.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(first, second)
    with pytest.raises(ValueError, match="holds a ElephasTransformer, not a ElephasEstimator"):
        load_ml_estimator(path)


def test_files_of_elephas_are_read(spark, tmp_path: Path) -> None:
    plain = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    path = str(tmp_path / "elephas.hdf5")
    config = {
        "keras_model_config": plain.to_json(),
        "mode": "asynchronous",
        "frequency": "epoch",
        "num_workers": 2,
        "categorical": False,
        "loss": "mse",
        "metrics": ["mae"],
        "validation_split": 0.2,
        "featuresCol": "x",
        "labelCol": "y",
        "epochs": 3,
        "batch_size": 8,
        "verbose": 0,
        "nb_classes": 1,
        "outputCol": "p",
    }
    with h5py.File(path, "w") as file:
        file.attrs["distributed_config"] = json.dumps({"class_name": "ElephasEstimator", "config": config}).encode()
    estimator = load_ml_estimator(path)
    assert {name: estimator.get_config()[name] for name in config} == config
    config = {
        "keras_model_config": plain.to_json(),
        "labelCol": "y",
        "featuresCol": "x",
        "outputCol": "p",
        "weights": [weight.tolist() for weight in plain.get_weights()],
        "model_type": {"__enum__": "ModelType.REGRESSION"},
    }
    with h5py.File(path, "w") as file:
        file.attrs["distributed_config"] = json.dumps({"class_name": "ElephasTransformer", "config": config}).encode()
    transformer = load_ml_transformer(path)
    np.testing.assert_array_equal(transformer.weights[0], plain.get_weights()[0])
    assert transformer.getModelType() == "regression"
    metadata = {"class": "elephas.ml_model.ElephasEstimator", "uid": "old", "timestamp": 1, "sparkVersion": "3.5.1"}
    params = {
        "keras_model_config": plain.to_json(),
        "loss": "mse",
        "epochs": 4,
        "featuresCol": "x",
        "custom_objects": {},
    }
    (tmp_path / "elephas" / "metadata").mkdir(parents=True)
    written = json.dumps(metadata | {"paramMap": params, "defaultParamMap": {"epochs": 10}})
    (tmp_path / "elephas" / "metadata" / "part-00000").write_text(written)
    estimator = ElephasEstimator.load(str(tmp_path / "elephas"))
    assert (estimator.uid, estimator.get_epochs(), estimator.getFeaturesCol()) == ("old", 4, "x")
    with h5py.File(path, "w"):
        pass
    with pytest.raises(ValueError, match="holds no Spark ML stage"):
        load_ml_transformer(path)


@pytest.mark.parametrize("file_name", ["architecture.h5", "architecture"])
def test_a_transformer_without_weights_is_saved_and_gets_them_later(spark, df, tmp_path: Path, file_name: str) -> None:
    whole = model()
    options = {"features_col": ["a", "b"], "custom_objects": {"Scale": Scale, "own_error": own_error}}
    ElephasTransformer(keras_model_config=whole.to_json(), output_col="p", **options).save(str(tmp_path / file_name))
    loaded = load_ml_transformer(tmp_path / file_name)
    assert loaded.getOutputCol() == "p"
    with pytest.raises(ValueError, match="an architecture only, no weights: set them"):
        loaded.transform(df)
    loaded.weights = whole.get_weights()
    expected = ElephasTransformer(whole, features_col=["a", "b"], output_col="p").transform(df)
    assert [row.p for row in loaded.transform(df).collect()] == [row.p for row in expected.collect()]


def test_elephas_files_without_weights_are_read(tmp_path: Path) -> None:
    plain = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    config = {"keras_model_config": plain.to_json(), "labelCol": "y", "featuresCol": "x", "outputCol": "p"}
    config |= {"weights": None, "model_type": {"__enum__": "ModelType.REGRESSION"}}
    with h5py.File(tmp_path / "elephas.h5", "w") as file:
        file.attrs["distributed_config"] = json.dumps({"class_name": "ElephasTransformer", "config": config})
    loaded = load_ml_transformer(tmp_path / "elephas.h5")
    with pytest.raises(ValueError, match=r"or give weights= to its constructor"):
        loaded.get_model()
    loaded.weights = plain.get_weights()
    np.testing.assert_array_equal(loaded.get_model().get_weights()[0], plain.get_weights()[0])


def test_a_file_does_not_choose_functions_of_python_itself() -> None:
    with pytest.raises(ValueError, match=r"loss is _operator.sub, which is of Python's standard library"):
        encoded("loss", operator.sub)
    for path in ("os:system", "subprocess:run", "builtins:eval", "importlib:import_module"):
        with pytest.raises(ValueError, match=r"standard library: .*If you trust the file, pass it"):
            decoded({"__import__": path})
    assert decoded({"__import__": "os:system"}, {"system": len}) is len
