"""EnsembleEstimator and EnsembleModel on real tables: with Spark's evaluators, in pipelines and grids, saved and loaded."""

from __future__ import annotations

import inspect
from pathlib import Path

import keras
import numpy as np
import pytest
from custom_parts import Scale, own_error
from frame_data import breast_cancer, frame, mlp
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import BinaryClassificationEvaluator, MulticlassClassificationEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.tuning import CrossValidator, CrossValidatorModel, ParamGridBuilder

from elephas_like import EnsembleEstimator, EnsembleModel, VotingModel, train_ensemble
from elephas_like.stages.ensemble_stages import _FIT

X, Y = (part[:240] for part in breast_cancer())


def classifier(**compiled: object) -> keras.Model:
    return mlp(30, 1, "sigmoid", "binary_crossentropy", metrics=["accuracy"], **compiled)


def scaled(seed: int) -> keras.Model:
    """A regression with code of its own, by the seed that each member has."""
    keras.utils.set_random_seed(seed)
    made = keras.Sequential([keras.Input((2,)), Scale(3.0), keras.layers.Dense(1)])
    made.compile(keras.optimizers.Adam(0.03), own_error)
    return made


def apart(y, prediction):
    """A loss whose name says nothing."""
    return keras.ops.abs(y - prediction)


@pytest.fixture(scope="module")
def cancer(spark):
    return frame(spark, X, Y).cache()


@pytest.fixture(scope="module")
def numbers(spark):
    rows = [(float(i), float(i % 3), float(i + i % 3)) for i in range(40)]
    return spark.createDataFrame(rows, "a double, b double, label double").coalesce(1).cache()


@pytest.fixture(scope="module")
def fitted(cancer) -> EnsembleModel:
    df = cancer.selectExpr("*", "id >= 200 AS held")
    estimator = EnsembleEstimator(
        classifier(), numMembers=2, epochs=6, batch_size=16, seed=1, validation_col="held", weights=[1, 2]
    )
    return estimator.fit(df)


def test_an_ensemble_for_all_evaluators_unchanged(fitted, cancer) -> None:
    found = fitted.copy({fitted.probabilityCol: "p"}).transform(cancer)
    assert found.columns == ["id", "features", "label", "prediction", "p", "rawPrediction"]
    assert found.schema["prediction"].dataType.simpleString() == "double"
    assert MulticlassClassificationEvaluator().evaluate(found) > 0.9
    assert BinaryClassificationEvaluator().evaluate(found) > 0.95
    rows = found.collect()
    likely = VotingModel(fitted.models, "soft", [1, 2]).predict_proba(X)
    np.testing.assert_allclose([row.p for row in rows], likely, atol=1e-6)
    assert [row.prediction for row in rows] == (likely[:, 1] > 0.5).astype(float).tolist()
    again = fitted.transform(found.drop("prediction", "p"))  # which has a rawPrediction
    assert again.columns == ["id", "features", "label", "rawPrediction", "prediction", "probability"]


def test_the_members_are_those_of_train_ensemble(fitted) -> None:
    expected = train_ensemble(
        classifier(), (X[:200], Y[:200]), 2, epochs=6, batch_size=16, seed=1, validation_data=(X[200:], Y[200:]),
        engine="in_process", verbose=0,
    )  # fmt: skip
    for ours, theirs in zip(fitted.models, expected.models, strict=True):
        for left, right in zip(ours.get_weights(), theirs.get_weights(), strict=True):
            np.testing.assert_allclose(left, right, atol=1e-5)
    assert [len(history["val_accuracy"]) for history in fitted.histories] == [6, 6]


@pytest.fixture(scope="module")
def pipelines(numbers) -> tuple[Pipeline, PipelineModel]:
    estimator = EnsembleEstimator(
        scaled, num_members=2, epochs=2, bagging=False, seed=1, engine="in_process", output_col="p"
    )
    assembler = VectorAssembler(inputCols=["a", "b"], outputCol="features")
    pipeline = Pipeline(stages=[assembler, estimator])
    return pipeline, pipeline.fit(numbers)


def test_a_fitted_pipeline_comes_back_whole(pipelines, numbers, tmp_path: Path) -> None:
    pipeline, fitted = pipelines
    estimator = pipeline.getStages()[-1]
    pipeline.save(f"file://{tmp_path}/unfitted")
    again = Pipeline.load(f"file://{tmp_path}/unfitted").getStages()[-1]
    assert again.uid == estimator.uid
    assert (again.given("build"), again.getNumMembers(), again.get_bagging()) == (scaled, 2, False)
    assert not again.isSet("voting")
    fitted.write().save(str(tmp_path / "fitted"))
    loaded = PipelineModel.load(str(tmp_path / "fitted"))
    one, two = fitted.stages[-1], loaded.stages[-1]
    assert (two.uid, two.histories) == (one.uid, one.histories)
    assert (two.ensemble.voting, two.getOutputCol()) == ("mean", "p")
    for first, second in zip(one.models, two.models, strict=True):
        assert second.optimizer.iterations.numpy() == first.optimizer.iterations.numpy() > 0
        for left, right in zip(first.optimizer.variables, second.optimizer.variables, strict=True):
            np.testing.assert_array_equal(left.numpy(), right.numpy())
        assert second.loss is own_error
    assert [row.p for row in loaded.transform(numbers).collect()] == [
        row.p for row in fitted.transform(numbers).collect()
    ]
    with pytest.raises(Exception, match=r"(?i)already exists"):
        fitted.write().save(str(tmp_path / "fitted"))
    with pytest.raises(ValueError, match=r"holds a elephas_like\.ml_ensemble\.EnsembleModel, not a"):
        EnsembleEstimator.load(
            next(str(path) for path in (tmp_path / "fitted" / "stages").iterdir() if "Ens" in path.name)
        )


def test_a_model_is_kept_with_an_estimator(cancer, tmp_path: Path) -> None:
    model = classifier(run_eagerly=True)
    estimator = EnsembleEstimator(model, voting="hard", class_weight={0: 2.0}, optimizer_config="sgd", max_failures=1)
    estimator.write().save(str(tmp_path / "estimator"))
    loaded = EnsembleEstimator.load(str(tmp_path / "estimator"))
    for left, right in zip(loaded.get_model().get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(left, right)
    assert isinstance(loaded.get_model().optimizer, keras.optimizers.SGD)
    assert (loaded.getVoting(), loaded.get_class_weight(), loaded.getMaxFailures()) == ("hard", {0: 2.0}, 1)
    options = {loaded.numMembers: 2, loaded.epochs: 1, loaded.engine: "in_process"}
    members = loaded.fit(cancer, options).models
    assert all(isinstance(member.optimizer, keras.optimizers.SGD) for member in members)
    before = classifier().get_weights()
    for left, right in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(left, right)


def test_a_cross_validation_over_members_and_epochs_in_parallel(cancer, tmp_path: Path) -> None:
    eager = classifier(run_eagerly=True)  # few steps: graphs cost more
    estimator = EnsembleEstimator(eager, seed=1, validation_split=0.0, batch_size=16)
    grid = ParamGridBuilder().addGrid(estimator.numMembers, [1, 2]).addGrid(estimator.epochs, [3]).build()
    search = CrossValidator(
        estimator=Pipeline(stages=[estimator]),
        estimatorParamMaps=grid,
        evaluator=BinaryClassificationEvaluator(),
        numFolds=2,
        parallelism=2,
        seed=4,
    )
    found = search.fit(cancer)
    assert min(found.avgMetrics) > 0.9
    best = found.bestModel.stages[-1]
    assert len(best.models) == (1, 2)[int(np.argmax(found.avgMetrics))]
    found.write().save(str(tmp_path / "search"))
    loaded = CrossValidatorModel.load(str(tmp_path / "search"))
    assert loaded.avgMetrics == found.avgMetrics
    assert [row.prediction for row in loaded.transform(cancer).collect()] == [
        row.prediction for row in found.transform(cancer).collect()
    ]


def test_every_argument_of_train_ensemble_is_one_of_the_estimator_s() -> None:
    arguments = set(inspect.signature(train_ensemble).parameters)
    assert arguments - set(_FIT) == {
        "build_or_model", "data", "y", "num_members", "validation_split", "validation_data", "callbacks",
    }  # fmt: skip
    estimator = EnsembleEstimator()
    for name in ("num_members", "workers_per_member", "sample_weight_col", "validation_split", *_FIT.values()):
        assert estimator.hasParam(name) or hasattr(estimator, name)


@pytest.mark.parametrize(
    ("given", "kind", "match"),
    [
        ({"num_members": 0}, ValueError, "num_members must be a whole number"),
        ({"bagging": "some"}, ValueError, "bagging must be True"),
        ({"voting": "loud"}, ValueError, "voting must be one of 'auto', 'hard'"),
        ({"weights": [1, -1]}, ValueError, "weights must be finite, at least 0"),
        ({"num_member": 2}, TypeError, "has no parameter 'num_member'. Did you mean 'num_members'"),
        ({"mode": "asynchronous"}, TypeError, "EnsembleEstimator has no parameter 'mode'"),
        ({"build": 3}, TypeError, "build must be a function"),
        ({"build_or_model": "model"}, TypeError, "build must be a function"),
        ({"verbose": 3}, ValueError, "verbose must be 0, 1, 2 or 'auto'"),
        ({"weights": np.array([0.0, 0.0])}, ValueError, "not all 0"),
    ],
)
def test_params_that_make_no_sense(spark, given: dict, kind: type, match: str) -> None:
    with pytest.raises(kind, match=match):
        EnsembleEstimator(**given)


@pytest.mark.parametrize(
    ("make", "kind", "match"),
    [
        (lambda: EnsembleEstimator(classifier(), keras_model_config="{}"), ValueError, "a model or keras_model_config"),
        (
            lambda: EnsembleEstimator(lambda: None, loss="mse"),
            TypeError,
            "must be a keras.Model; got builtins.NoneType",
        ),
        (lambda: EnsembleEstimator(), ValueError, "no model: give one, EnsembleEstimator"),
        (lambda: EnsembleEstimator(classifier(), build=classifier), ValueError, "got both"),
        (lambda: EnsembleEstimator(classifier(), weights=[1]), ValueError, "expected 5, got 1"),
        (lambda: EnsembleEstimator(classifier(), label_col="lable"), ValueError, "no column 'lable'"),
        pytest.param(
            lambda: EnsembleEstimator(classifier(), bagging="partition"),
            ValueError,
            "num_members is 5, and the data has 2",
            marks=pytest.mark.classic,
        ),
        (lambda: EnsembleEstimator(classifier(), validation_col="label"), TypeError, "must be boolean"),
        (lambda: EnsembleEstimator(classifier(), loss=apart), ValueError, "voting='auto' knows crossentropies"),
        (lambda: EnsembleEstimator(lambda: 3), TypeError, "must be a keras.Model; got builtins.int"),
    ],
)
def test_fits_that_cannot_be(cancer, make, kind: type, match: str) -> None:
    with pytest.raises(kind, match=match):
        make().fit(cancer)


def test_an_ensemble_that_is_none_and_code_that_cannot_be_found_again(spark, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="ensemble must be a VotingModel; got list"):
        EnsembleModel([classifier()])
    with pytest.raises(ValueError, match=r"EnsembleEstimator's build is .*<lambda>, which cannot be found again"):
        EnsembleEstimator(lambda: classifier()).save(str(tmp_path / "estimator"))
    lambdas = keras.Sequential([keras.Input((1,)), keras.layers.Lambda(lambda x: x)])
    with pytest.raises(ValueError, match="holds a lambda"):
        EnsembleModel(VotingModel([lambdas], "mean")).save(str(tmp_path / "model"))
