"""The table of Params: Elephas' mixins alone, and stages that check what they are told."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest
from pyspark.ml.param import shared

from elephas_like import SparkModel, search, train_ensemble
from elephas_like.ml import params as door
from elephas_like.stages.param_table import COLUMNS, ENSEMBLE, FITTING, UNSET
from elephas_like.stages.params import MIXINS, camel, snake, stage_params

Stage = stage_params("Stage", (*COLUMNS, *FITTING))

ELEPHAS = {
    "HasMode": ("mode", "asynchronous"),
    "HasFrequency": ("frequency", "epoch"),
    "HasNumberOfClasses": ("nb_classes", 10),
    "HasCategoricalLabels": ("categorical_labels", True),
    "HasEpochs": ("epochs", 10),
    "HasBatchSize": ("batch_size", 32),
    "HasVerbosity": ("verbosity", 0),
    "HasValidationSplit": ("validation_split", 0.1),
    "HasNumberOfWorkers": ("num_workers", 8),
    "HasMetrics": ("metrics", ["acc"]),
    "HasCustomObjects": ("custom_objects", {}),
    "HasInferenceBatchSize": ("inference_batch_size", None),
    "HasKerasOptimizerConfig": ("optimizer_config", None),
    "HasPredictClasses": ("predict_classes", True),
}


@pytest.mark.parametrize("name", sorted(door.__all__))
def test_mixins_stand_alone_with_elephas_defaults_and_take_anything(spark, name: str) -> None:
    mixin = getattr(door, name)()
    assert MIXINS[name] is type(mixin)
    verb = {"HasKerasModelConfig": "keras_model_config", "HasLoss": "loss"}.get(name) or ELEPHAS[name][0]
    if name in ELEPHAS:
        assert getattr(mixin, f"get_{verb}")() == ELEPHAS[name][1]
    else:
        with pytest.raises(KeyError):
            getattr(mixin, f"get_{verb}")()
    for value in ("foobar", {"a": 1}):
        assert getattr(mixin, f"set_{verb}")(value) is mixin
        assert getattr(mixin, f"get_{verb}")() == value


def test_defaults_of_one_object_are_not_another_s(spark) -> None:
    door.HasCustomObjects().get_custom_objects()["a"] = 1
    assert door.HasCustomObjects().get_custom_objects() == {}


def test_names_in_both_styles(spark) -> None:
    assert (snake("rawPredictionCol"), camel("num_workers")) == ("raw_prediction_col", "numWorkers")
    stage = Stage()
    stage._set(batchSize=16, features_col=["a", "b"], predictionCol="p", weight_col="w")
    assert (stage.get_batch_size(), stage.getBatchSize()) == (16, 16)
    assert stage.getFeaturesCol() == stage.get_features_col() == ["a", "b"]
    assert stage.getOutputCol() == stage.getPredictionCol() == "p"
    assert stage.getSampleWeightCol() == stage.getWeightCol() == "w"
    assert stage.setNumWorkers(3).set_epochs(2).getOrDefault(stage.numWorkers) == 3
    assert stage.batchSize is stage.batch_size
    names = [param.name for param in stage.params]
    assert len(names) == len(set(names)) == len(COLUMNS) + len(FITTING)
    assert "rows a batch on each worker (default: 32, current: 16)" in stage.explainParams()


def test_the_stage_s_own_defaults(spark) -> None:
    stage = Stage()
    assert (stage.get_mode(), stage.get_frequency(), stage.get_num_workers()) == ("synchronous", "auto", None)
    assert isinstance(stage, door.HasMode)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mode": "foobar"}, "mode must be one of 'synchronous', 'asynchronous', 'hogwild'; got 'foobar'"),
        ({"frequency": "epoche"}, "Did you mean 'epoch'"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1; got 0"),
        ({"epochs": 2.5}, "epochs must be a whole number"),
        ({"validationSplit": 1}, "validationSplit must be a share from 0 to below 1; got 1"),
        ({"features_col": 3}, "features_col must be a column's name, a list of names, or a dict of those"),
        ({"features_col": ["a", ""]}, "must be a text that is not empty"),
        ({"metrics": "acc"}, "metrics must be a list"),
        ({"shuffle": "yes"}, "shuffle must be True or False"),
        ({"custom_objects": [1]}, "custom_objects must be a dict"),
        ({"keras_model_config": "class_name: Sequential"}, "what model.to_json"),
        ({"parameter_server_mode": "ftp"}, "must be one of 'http', 'socket'"),
        ({"model_type": "ranking"}, "model_type must be one of 'classification', 'regression'"),
        ({"batchsize": 3}, "has no parameter 'batchsize'.*Did you mean 'batch"),
        ({"batch_size": 3, "batchSize": 3}, "batchSize is given twice"),
        ({"thresholds": [0.5]}, "a number from 0 for each of at least two classes, with at most one 0"),
        ({"thresholds": [0, 1, 0]}, "with at most one 0"),
        ({"thresholds": ["a", 1]}, "thresholds must be a list of numbers, one per class"),
        ({"handle_invalid": "drop"}, "must be one of 'error', 'skip', 'keep'; got 'drop'"),
        ({"prediction_col": None}, "must be the name of a column to add, or '' for none; got None"),
        ({"codec": "int9"}, "codec must be one of .*'int8'.*; got 'int9'"),
        ({"strategy": "nesterow"}, "no strategy is called 'nesterow'. Did you mean 'nesterov'"),
        ({"loss": 5}, "loss must be a name, a function, or a Keras object or its configuration; got 5"),
        ({"optimizer_config": 0.1}, "optimizer_config must be a name"),
        ({"tls": "server.pem"}, "tls must be True, False, None, or the paths of a certificate and its key"),
        ({"join_timeout": -1}, "join_timeout must be a time in seconds above 0"),
    ],
    ids=str,
)
def test_values_are_checked_when_they_are_set(spark, given: dict[str, object], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        Stage()._set(**given)


def test_a_column_is_set_by_its_name(spark) -> None:
    with pytest.raises(TypeError, match=r"features_col must be a column's name, .*; got Column<"):
        Stage()._set(features_col=spark.range(1).id)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("epochs", "abc", "epochs must be a whole number of at least 1; got 'abc'"),
        ("epochs", None, "epochs must be a whole number of at least 1; got None"),
        ("batch_size", 0, "(batchSize|batch_size) must be a whole number"),
        ("labelCol", 3, "labelCol must be a column's name, a list of names"),
        ("shuffle", "yes", "shuffle must be True or False"),
        ("mode", "foobar", "mode must be one of 'synchronous', 'asynchronous', 'hogwild'"),
    ],
)
def test_every_way_to_set_a_param_is_checked(spark, name: str, value: object, said: str) -> None:
    stage = Stage()
    param = getattr(stage, name)
    for act in (
        lambda: stage.set(param, value),
        lambda: stage.copy({param: value}),
        lambda: stage._set(**{name: value}),
        lambda: param.typeConverter(value),
        lambda: stage._setDefault(**{name: value}) if value is not None else stage.set(param, value),
    ):
        with pytest.raises((TypeError, ValueError), match=said):
            act()
    assert not stage.isSet(param)


def test_none_is_a_value_where_it_is_the_default(spark) -> None:
    stage = Stage()._set(numWorkers=3, weightCol="w", seed=1, strategy="nesterov", probabilityCol="p")
    for name in ("numWorkers", "weightCol", "seed", "strategy"):
        stage.set(stage.getParam(name), None)
        assert stage.getOrDefault(name) is None
    stage.set(stage.probabilityCol, None)
    assert stage.getProbabilityCol() == ""
    assert stage.setWeightCol("").getWeightCol() is None  # as in Spark


def test_values_are_kept_as_the_table_says(spark) -> None:
    stage = Stage()
    stage.set(stage.epochs, np.int64(3))
    stage.set(stage.thresholds, np.array([1, 2]))
    stage.set(stage.classWeight, {"0": 2})
    assert type(stage.getEpochs()) is int
    assert (stage.getThresholds(), stage.getClassWeight()) == ([1.0, 2.0], {0: 2.0})


@pytest.mark.parametrize("entry", [*COLUMNS, *FITTING, *ENSEMBLE], ids=lambda entry: entry.name)
def test_params_have_spark_s_names_and_keep_their_others(spark, entry) -> None:
    assert entry.name == camel(entry.name)
    stage = stage_params("Stage", (entry,))()
    for name in (entry.name, snake(entry.name), *entry.aliases):
        assert stage.getParam(name).name == entry.name
        assert stage.hasParam(name)
        assert hasattr(stage, f"set_{snake(name)}")
        assert hasattr(stage, f"get{name[0].upper()}{camel(name)[1:]}")
    assert stage.params == [stage.getParam(entry.name)]
    if entry.default is not UNSET:
        assert stage.getOrDefault(entry.name) == entry.default


def test_tools_of_spark_find_columns_seed_and_thresholds(spark) -> None:
    stage = Stage()
    found = {
        shared.HasFeaturesCol: stage.getFeaturesCol(),
        shared.HasLabelCol: stage.getLabelCol(),
        shared.HasPredictionCol: stage.getPredictionCol(),
        shared.HasOutputCol: stage.getOutputCol(),
        shared.HasProbabilityCol: stage.getProbabilityCol(),
        shared.HasRawPredictionCol: stage.getRawPredictionCol(),
        shared.HasHandleInvalid: stage.getHandleInvalid(),
        shared.HasWeightCol: stage.getWeightCol(),
        shared.HasValidationIndicatorCol: stage.getValidationIndicatorCol(),
        shared.HasSeed: stage.getSeed(),
    }
    assert all(isinstance(stage, kind) for kind in (*found, shared.HasThresholds))
    assert list(found.values()) == [
        *("features", "label", "prediction", "prediction", "probability", "rawPrediction", "error"),
        *(None, None, None),
    ]
    assert not stage.isDefined(stage.thresholds)


def test_a_copy_with_a_param_map_is_checked_too(spark) -> None:
    stage = Stage()
    assert stage.copy({stage.epochs: 3}).get_epochs() == 3
    with pytest.raises(ValueError, match="epochs must be a whole number"):
        stage.copy({stage.epochs: 0})


def test_the_defaults_of_fits_and_estimators_are_those_of_the_migration_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "migration.md").read_text()
    names = ("epochs", "validation_split", "verbose")
    for function in (SparkModel.fit, train_ensemble, search):
        values = [inspect.signature(function).parameters[name].default for name in names]
        shown = " | ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in values)
        assert f"| `{function.__qualname__}` | {shown} |" in page
    stages = {entry.name: entry.default for entry in FITTING}
    values = " | ".join(str(stages[name]) for name in ("epochs", "validationSplit", "verbose"))
    assert f"| `ElephasEstimator`, `EnsembleEstimator` | {values} |" in page
