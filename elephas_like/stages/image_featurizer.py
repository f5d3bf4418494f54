"""A Spark ML stage that turns images into vectors of features, by a Keras model without its head."""

from __future__ import annotations

import os
import tempfile
import types
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
from pyspark.ml import Transformer
from pyspark.sql import DataFrame

from elephas_like.core import checks
from elephas_like.core.decisions import Task
from elephas_like.core.types import Slot
from elephas_like.model.data_arguments import frame_plan
from elephas_like.rows.frame_plan import AS_IMAGES, ColumnChoice, Invalid
from elephas_like.rows.prediction_columns import Field, with_predictions
from elephas_like.spark import files
from elephas_like.spark.session import started_context
from elephas_like.stages.param_table import IMAGES
from elephas_like.stages.params import stage_params
from elephas_like.stages.stage import Stage, check_frame
from elephas_like.trainer.inference import Predictor, Scorer
from elephas_like.trainer.task import inputs, outputs

_INFERENCE_ROWS = 32
_POOLING = {"avg": keras.layers.GlobalAveragePooling2D, "max": keras.layers.GlobalMaxPooling2D}
_ImageParams: Any = stage_params("_ImageParams", IMAGES)


class ImageFeaturizer(Stage, _ImageParams, Transformer):
    """Adds a column of vectors: what a Keras model says of the images of another column.

    Images are files in bytes, as `spark.read.format("binaryFile")` reads them, or the structs of Spark's image source. They are
    decoded on the executors, turned into RGB (or gray, for a model with one channel) and resized to the model's input.

    Args:
        model: a Keras model, or the name of one in `keras.applications`, such as "MobileNetV2", which is made without its head.
        weights: file of the weights of a named model without its head; a path, or a URL of any filesystem that Spark reaches.
            Nothing is downloaded.
        preprocessing: what comes before the model: a name in `keras.applications`, such as "mobilenet_v2", whose
            `preprocess_input` it is; a Keras layer or model; or a function of tensors. It becomes part of the model. None: that
            of a named model, and nothing for others.
        image_size: (height, width) of the images that the model sees, if the model leaves this open.
        layer: name of the layer whose output is taken, instead of the last one.
        pooling: "avg" or "max": how an output of (height, width, channels) becomes a vector.
        params: by name, camelCase or snake_case: `input_col`, `output_col`, `handle_invalid`, `inference_batch_size`,
            `custom_objects`. `explainParams()` lists them.

    Raises:
        TypeError, ValueError: an argument is invalid, or the model does not make vectors of images.
        FileNotFoundError: there is no such file of weights.
    """

    __module__ = "elephas_like.ml_model"  # saved stages name their class by this path

    def __init__(
        self,
        model: keras.Model | str,
        *,
        weights: str | os.PathLike[str] | None = None,
        preprocessing: str | Callable[[Any], Any] | None = None,
        image_size: Sequence[int] | None = None,
        layer: str | None = None,
        pooling: str = "avg",
        **params: Any,
    ) -> None:
        super().__init__()
        self._set(**params)
        if pooling not in _POOLING:
            raise ValueError(f"pooling must be one of {', '.join(map(repr, _POOLING))}; got {pooling!r}.")
        if preprocessing is not None and not isinstance(preprocessing, str) and not callable(preprocessing):
            raise TypeError(
                f"preprocessing must be a name, a Keras layer or model, or a function; got {preprocessing!r}."
            )
        size = None if image_size is None else _sides(image_size)
        if isinstance(model, str):
            preprocessing = model if preprocessing is None else preprocessing
            model = _application(model, size, weights)
        elif not isinstance(model, keras.Model):
            raise TypeError(
                f"model must be a keras.Model, or the name of one in keras.applications; got {type(model).__name__}."
            )
        elif weights is not None:
            raise ValueError("a model brings its weights: weights= goes with the name of a model.")
        prepare = _module_of(preprocessing).preprocess_input if isinstance(preprocessing, str) else preprocessing
        self._model = _together(model, prepare, size, layer, pooling)

    def get_model(self) -> keras.Model:
        """Return the Keras model from images, (height, width, channels) of 0 to 255, to vectors; preprocessing included."""
        return self._model

    def models_to_save(self) -> list[keras.Model]:
        """Return the model to save."""
        return [self._model]

    @classmethod
    def from_saved(cls, model: keras.Model, history: list[Any], params: dict[str, Any]) -> ImageFeaturizer:
        """Return the stage that was saved."""
        return cls(model, **params)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        check_frame(dataset)
        column = self.given("inputCol")
        choice = ColumnChoice(column, None, dtypes={column: AS_IMAGES}, invalid=Invalid(self.given("handleInvalid")))
        plan = frame_plan(dataset, choice, self._model, endless=True)
        rows = self.given("inferenceBatchSize") or _INFERENCE_ROWS
        scorer = Scorer(Predictor.of(self._model, rows), Task.VALUES)
        vectors = Field(self.given("outputCol"), 0, rank=1, vector=True, dtype="float")
        return with_predictions(dataset, plan, scorer, [vectors])


def _sides(image_size: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(image_size, Sequence) or len(image_size) != 2:
        raise ValueError(f"image_size must be (height, width); got {image_size!r}.")
    return tuple(checks.positive_int("image_size", side) for side in image_size)


def _module_of(name: str) -> types.ModuleType:
    """Return the module of keras.applications that has a name, or that has a model of that name."""
    known: dict[str, types.ModuleType] = {}
    for module_name, module in vars(keras.applications).items():
        if hasattr(module, "preprocess_input") and module_name != "imagenet_utils":
            known |= {module_name: module} | {member: module for member in vars(module) if member[0].isupper()}
    # These two are in no module of their own.
    known |= {f"MobileNetV3{size}": keras.applications.mobilenet_v3 for size in ("Small", "Large")}
    if name not in known:
        raise ValueError(f"keras.applications has no {name!r}.{checks.did_you_mean(name, known)}")
    return known[name]


def _application(name: str, size: tuple[int, ...] | None, weights: str | os.PathLike[str] | None) -> keras.Model:
    """Return a model of keras.applications without its head, with the weights in a file."""
    build = getattr(_module_of(name), name, None) or getattr(keras.applications, name, None)
    if not callable(build):
        raise ValueError(f"{name!r} is a module of keras.applications; name a model in it, such as 'MobileNetV2'.")
    if size is None:
        raise ValueError(f"say the size of the images that {name} sees, as in image_size=(224, 224).")
    if weights is None:
        raise ValueError(
            f"say where the weights of {name} without its head are: weights='path/of/the.weights.h5'. Nothing is downloaded."
        )
    model = build(include_top=False, weights=None, input_shape=(*size, 3))
    with tempfile.TemporaryDirectory(prefix="elephas_like-") as folder:
        source = os.fspath(weights)
        local = str(Path(folder) / source.rsplit("/", 1)[-1])
        files.get(source, local, started_context())
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", "Skipping")  # layers that the file does not have would stay random
                model.load_weights(local)
        except (ValueError, UserWarning) as error:
            raise ValueError(f"{source} does not hold the weights of {name} without its head: {error}") from error
    return model


def _together(
    model: keras.Model,
    preprocessing: Callable[[Any], Any] | None,
    size: tuple[int, ...] | None,
    layer: str | None,
    pooling: str,
) -> keras.Model:
    """Return preprocessing, the model up to a layer, and pooling as one model; the model itself if it is all there is."""
    if layer is not None:
        model = keras.Model(model.inputs, model.get_layer(layer).output)
    shape = _image_shape(model, preprocessing, size)
    vectors = model
    if preprocessing is not None or _shape(inputs(model)) != shape or len(_shape(outputs(model)) or ()) != 1:
        image = keras.Input(shape, name="image")
        try:
            found = model(image if preprocessing is None else preprocessing(image))
        except Exception as error:
            raise ValueError(
                f"images of shape {shape} do not go through preprocessing and the model {model.name!r}. Preprocessing must be a "
                "Keras layer or model, or a function of tensors, as keras.applications.*.preprocess_input are; and the model "
                f"must take what it gives. {type(error).__name__}: {error}"
            ) from error
        if len(getattr(found, "shape", ())) == 4:
            found = _POOLING[pooling](data_format="channels_last")(found)
        vectors = keras.Model(image, found, name=f"{model.name}_features")
    made = _shape(outputs(vectors))
    if made is None or len(made) != 1:
        raise ValueError(
            f"the model {model.name!r} must have one output, a vector or (height, width, channels), which is pooled; it has "
            f"{outputs(model)}. Name the layer whose output to take: layer='...'."
        )
    return vectors


def _image_shape(
    model: keras.Model, preprocessing: Callable[[Any], Any] | None, size: tuple[int, ...] | None
) -> tuple[int, ...]:
    """Return (height, width, channels) of what comes first: as preprocessing says, or the model, where `size` does not."""
    first = preprocessing if isinstance(preprocessing, keras.Model) and _shape(inputs(preprocessing)) else model
    slot = inputs(first)
    shape = (None, None, None) if isinstance(slot, Slot) and slot.shape is None else _shape(slot) or ()
    if len(shape) != 3 or shape[2] not in (1, 3, None):
        raise ValueError(
            f"the model {first.name!r} must have one input, images of (height, width, 1 or 3 channels); it has {slot}."
        )
    height, width = size or shape[:2]
    if height is None or width is None:
        raise ValueError(f"the model {first.name!r} takes images of any size: say one, as in image_size=(224, 224).")
    return height, width, shape[2] or 3


def _shape(slots: object) -> tuple[int | None, ...] | None:
    """Return the shape of a model's only input or output; None if there are several, or if it does not say one."""
    return slots.shape if isinstance(slots, Slot) else None
