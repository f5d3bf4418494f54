"""What a loss says of its model."""

from __future__ import annotations

import json

import pytest

from elephas_like.core.model_types import LossModelTypeMapper, ModelType, ModelTypeEncoder, as_enum, snake_case


def test_names_functions_and_classes_are_known() -> None:
    class MeanSquaredError:
        name = "anything"

    def mean_absolute_error() -> None: ...

    mapper = LossModelTypeMapper()
    for loss in (
        "mse",
        "mean_squared_error",
        "MeanSquaredError",
        MeanSquaredError,
        MeanSquaredError(),
        mean_absolute_error,
    ):
        assert mapper.get_model_type(loss) is ModelType.REGRESSION
    for loss in ("binary_crossentropy", "categorical_crossentropy", "sparse_categorical_crossentropy"):
        assert mapper.get_model_type(loss) is ModelType.CLASSIFICATION
    assert mapper.get_model_type("mine") is None
    assert mapper.get_model_type(None) is None


@pytest.mark.parametrize(
    ("name", "snake"),
    [("MeanSquaredError", "mean_squared_error"), ("Top5Mine", "top5_mine"), ("KLDivergence", "kldivergence")],
)
def test_classes_are_named_as_functions_are(name: str, snake: str) -> None:
    assert snake_case(name) == snake


def test_what_is_registered_is_known_to_all() -> None:
    def my_loss_of_this_test() -> None: ...

    LossModelTypeMapper().register_loss(my_loss_of_this_test, ModelType.REGRESSION)
    assert LossModelTypeMapper().get_model_type(my_loss_of_this_test) is ModelType.REGRESSION
    assert LossModelTypeMapper().get_model_type("my_loss_of_this_test") is ModelType.REGRESSION
    with pytest.raises(TypeError, match="must be a ModelType"):
        LossModelTypeMapper().register_loss("x", "regression")  # type: ignore[arg-type]


def test_a_type_goes_through_json() -> None:
    text = json.dumps({"type": ModelType.REGRESSION, "other": 1}, cls=ModelTypeEncoder)
    assert text == '{"type": {"__enum__": "ModelType.REGRESSION"}, "other": 1}'
    assert json.loads(text, object_hook=as_enum) == {"type": ModelType.REGRESSION, "other": 1}
