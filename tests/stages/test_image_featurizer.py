"""ImageFeaturizer on real images, alone and in Spark's pipelines."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
from image_data import digits, jpeg, write_digits
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.sql import functions
from stable_ids import named

from elephas_like import ImageFeaturizer, VotingModel

IMAGES = 240


def half(x):
    """Preprocessing of a module, which can be found again by its name."""
    return x / 2


def convolutions(channels: int = 1, size: int | None = 8, name: str = "small") -> keras.Model:
    keras.utils.set_random_seed(3)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((size, size, channels)),
            layers.Conv2D(16, 3, activation="relu", name="first"),
            layers.Conv2D(32, 3, strides=2, activation="relu", name="second"),
        ],
        name=name,
    )


def in_keras(model: keras.Model, x: np.ndarray) -> np.ndarray:
    return np.asarray(model(x.astype("float32"), training=False))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    write_digits(folder, IMAGES)
    return folder


@pytest.fixture(scope="module")
def pictures(spark, folder):
    """The digits as Spark reads files: path and content, with what their path says."""
    read = spark.read.format("binaryFile").option("recursiveFileLookup", True).load(str(folder))
    parts = functions.split("path", "[/.]")
    number, label = functions.element_at(parts, -2).cast("int"), functions.element_at(parts, -3).cast("double")
    return read.select(number.alias("number"), label.alias("label"), "content").repartition(2).cache()


def vectors_of(df) -> np.ndarray:
    rows = df.orderBy("number").collect()
    return np.stack([row.features.toArray() for row in rows])


def test_vectors_are_what_keras_says_of_the_same_pixels(pictures) -> None:
    model = convolutions(channels=3)
    found = ImageFeaturizer(model, preprocessing="mobilenet_v2", pooling="max").transform(pictures)
    assert found.columns == ["number", "label", "content", "features"]
    x = digits(IMAGES)[0].repeat(3, axis=3)
    expected = in_keras(model, x / 127.5 - 1).max(axis=(1, 2))
    np.testing.assert_allclose(vectors_of(found), expected, atol=1e-5)


@pytest.mark.slow
def test_a_pipeline_with_logistic_regression_learns_and_is_loaded_again(pictures, tmp_path) -> None:
    model = keras.Sequential([convolutions(), keras.layers.Flatten()])
    featurizer = ImageFeaturizer(model, preprocessing=half, handle_invalid="keep")
    train, test = pictures.filter("number < 180"), pictures.filter("number >= 180")
    fitted = Pipeline(stages=[featurizer, LogisticRegression(maxIter=15, regParam=0.1)]).fit(train)
    found = fitted.transform(test).cache()
    assert MulticlassClassificationEvaluator(metricName="accuracy").evaluate(found) > 0.85
    fitted.write().overwrite().save(str(tmp_path / "pipeline"))
    loaded = PipelineModel.load(str(tmp_path / "pipeline"))
    assert isinstance(loaded.stages[0], ImageFeaturizer)
    assert (loaded.stages[0].uid, loaded.stages[0].getHandleInvalid()) == (featurizer.uid, "keep")
    columns = ("features", "prediction")
    assert loaded.transform(test).select(*columns).collect() == found.select(*columns).collect()


def test_sparks_image_source_gives_the_same_vectors(spark, folder) -> None:
    featurizer = ImageFeaturizer(convolutions(channels=3, size=16), outputCol="features")
    files = spark.read.format("binaryFile").load(f"{folder}/7").select(functions.col("path").alias("number"), "content")
    structs = spark.read.format("image").load(f"{folder}/7").selectExpr("image.origin AS number", "image")
    expected = vectors_of(featurizer.transform(files))
    assert len(expected) > 20
    np.testing.assert_allclose(
        vectors_of(featurizer.copy().setImageCol("image").transform(structs)), expected, atol=1e-6
    )


def test_what_is_no_image_is_an_error_or_skipped_or_kept(spark) -> None:
    x, _ = digits(1)
    contents = [jpeg(x[0]), jpeg(x[0])[:200], None]
    df = spark.createDataFrame([(i, content) for i, content in enumerate(contents)], "number int, content binary")
    featurizer = ImageFeaturizer(convolutions())
    with pytest.raises(Exception, match=r"column 'content', partition \d, row \d: expected an image.*handle_invalid"):
        featurizer.transform(df.filter("number < 2")).collect()
    (row,) = featurizer.copy().setHandleInvalid("skip").transform(df).collect()
    assert (row.number, len(row.features)) == (0, 32)
    kept = featurizer.copy().setHandleInvalid("keep").transform(df).orderBy("number").collect()
    assert [kept[0].features, kept[1].features, kept[2].features] == [row.features, None, None]


def test_the_model_has_its_preprocessing_pooling_and_size() -> None:
    x = np.random.default_rng(0).integers(0, 256, (2, 24, 20, 3)).astype("uint8")
    model = convolutions(channels=3, size=None)
    found = ImageFeaturizer(model, image_size=(24, 20)).get_model()
    assert (found.input_shape, found.output_shape) == ((None, 24, 20, 3), (None, 32))
    np.testing.assert_allclose(in_keras(found, x), in_keras(model, x).mean(axis=(1, 2)), rtol=1e-5)
    first = ImageFeaturizer(model, image_size=(24, 20), layer="first").get_model()
    assert first.output_shape == (None, 16)
    front = keras.Sequential([keras.Input((24, 20, 3)), keras.layers.Resizing(8, 8), keras.layers.Rescaling(1 / 255)])
    behind = ImageFeaturizer(convolutions(channels=3), preprocessing=front).get_model()
    assert behind.input_shape == (None, 24, 20, 3)
    expected = in_keras(convolutions(channels=3), in_keras(front, x)).mean(axis=(1, 2))
    np.testing.assert_allclose(in_keras(behind, x), expected, rtol=1e-5)
    vectors = keras.Sequential([convolutions(), keras.layers.Flatten()])
    assert ImageFeaturizer(vectors).get_model() is vectors


def test_a_named_model_reads_its_weights_from_a_file(tmp_path) -> None:
    keras.utils.set_random_seed(5)
    body = keras.applications.MobileNet(include_top=False, weights=None, input_shape=(32, 32, 3))
    body.save_weights(tmp_path / "body.weights.h5")
    named = ImageFeaturizer("MobileNet", weights=tmp_path / "body.weights.h5", image_size=(32, 32)).get_model()
    x = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3)).astype("uint8")
    prepared = keras.applications.mobilenet.preprocess_input(x.astype("float32"))
    np.testing.assert_allclose(in_keras(named, x), in_keras(body, prepared).mean(axis=(1, 2)), rtol=1e-4, atol=1e-6)
    convolutions(channels=3).save_weights(tmp_path / "other.weights.h5")
    with pytest.raises(ValueError, match="does not hold the weights of MobileNet without its head"):
        ImageFeaturizer("MobileNet", weights=tmp_path / "other.weights.h5", image_size=(32, 32))


def two_inputs() -> keras.Model:
    one, other = keras.Input((8, 8, 3), name="one"), keras.Input((8, 8, 3), name="other")
    return keras.Model([one, other], keras.layers.Add()([one, other]))


def sequence() -> keras.Model:
    return keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Reshape((64, 3))], name="sequence")


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        ({"model": VotingModel}, TypeError, "model must be a keras.Model, or the name of one in keras.applications"),
        ({"model": "MobileNetV9"}, ValueError, "keras.applications has no 'MobileNetV9'. Did you mean 'MobileNetV2'"),
        ({"model": "mobilenet_v2"}, ValueError, "is a module of keras.applications; name a model"),
        ({"model": "MobileNetV2"}, ValueError, r"say the size of the images that MobileNetV2 sees"),
        (
            {"model": "MobileNetV3Small", "image_size": (32, 32)},
            ValueError,
            "say where the weights of MobileNetV3Small",
        ),
        ({"model": "VGG16", "image_size": (32, 32)}, ValueError, "say where the weights.*Nothing is downloaded"),
        ({"model": "VGG16", "image_size": (32, 32), "weights": "imagenet"}, FileNotFoundError, "imagenet"),
        ({"weights": "a.weights.h5"}, ValueError, "a model brings its weights"),
        ({"model": two_inputs}, ValueError, "must have one input, images of .*it has .*one.*other"),
        ({"model": sequence}, ValueError, "'sequence' must have one output, a vector or .*layer='...'"),
        ({"model": lambda: convolutions(channels=5)}, ValueError, "1 or 3 channels.*5"),
        ({"model": lambda: convolutions(size=None)}, ValueError, "takes images of any size: say one"),
        ({"image_size": (9, 9)}, ValueError, r"images of shape \(9, 9, 1\) do not go through"),
        ({"image_size": 9}, ValueError, r"image_size must be \(height, width\); got 9"),
        ({"image_size": (9, 9, 3)}, ValueError, r"image_size must be \(height, width\); got \(9, 9, 3\)"),
        ({"preprocessing": "mobile_net"}, ValueError, "no 'mobile_net'. Did you mean 'mobilenet"),
        (
            {"preprocessing": np.asarray},
            ValueError,
            "Preprocessing must be a Keras layer or model, or a function of tensors",
        ),
        ({"preprocessing": 3}, TypeError, "preprocessing must be"),
        ({"pooling": "sum"}, ValueError, "pooling must be one of 'avg', 'max'; got 'sum'"),
        ({"layer": "third"}, ValueError, "third"),
        ({"images": "content"}, TypeError, "ImageFeaturizer has no parameter 'images'"),
    ],
    ids=named,
)
def test_what_makes_no_vectors_of_images_is_said_at_once(arguments, kind, said: str) -> None:
    given = dict(arguments)
    model = given.pop("model", convolutions)
    with pytest.raises(kind, match=said):
        ImageFeaturizer(model() if callable(model) and model is not VotingModel else model, **given)


def test_columns_that_hold_no_images_are_said_before_any_job(spark) -> None:
    df = spark.sql("SELECT 1 AS id, binary('a') AS content, binary('b') AS features")
    featurizer = ImageFeaturizer(convolutions())
    with pytest.raises(ValueError, match=r"there is no column 'contents'.*Did you mean 'content'"):
        featurizer.copy().setInputCol("contents").transform(df)
    with pytest.raises(TypeError, match="'id' holds numbers, no images"):
        featurizer.copy().setInputCol("id").transform(df)
    with pytest.raises(ValueError, match="has a column 'features' already"):
        featurizer.transform(df)
    with pytest.raises(TypeError, match="expected a Spark DataFrame"):
        featurizer.transform(df.toPandas())
