"""Whatever Keras trains, SparkModel with one worker trains the same."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

from conformance.compare import (
    BATCH,
    SEED,
    applied_as_on_executors,
    applied_by_keras,
    by_keras,
    by_spark_model,
    difference,
    graphs_as_written,
)
from conformance.models import TABLE
from elephas_like.trainer.building import build
from elephas_like.trainer.spec import ModelSpec

TENSORFLOW = "it computes with TensorFlow"
STATEFUL = "its train_step takes no state, as JAX's must"
LOGS = "Keras' own fit raises: a step's logs hold a variable, which is no output of jax.jit"
UNSEEDED = "Keras' fit draws dropout without a seed, and the order of its loader, from PyTorch's one generator"
NOT_ON = {
    "jax": {
        "text_vectorization": TENSORFLOW,
        "normalization_and_discretization": TENSORFLOW,
        "float64": "JAX has no float64 unless it is asked for",
        "functions_of_tensorflow": TENSORFLOW,
        "softmax_of_tensorflow": TENSORFLOW,
        "compiled_function_as_loss": TENSORFLOW,
        "loss_that_differentiates_the_model": TENSORFLOW,
        "metric_of_the_learning_rate": LOGS,
        "patched_train_step": STATEFUL,
        "loss_metric_optimizer_and_constraint_without_get_config": LOGS,
        "batch_size_in_a_reshape": TENSORFLOW,
        "two_optimizers": STATEFUL,
        "two_optimizers_one_at_rest": STATEFUL,
        "model_without_call": "Keras' own fit raises: it builds a model on JAX by its call",
        "model_that_can_only_be_trained": "Keras' own fit raises: it builds a model on JAX by its call",
        "integers_bools_and_raw_variables": TENSORFLOW,
        "tables_constants_and_left_tensors": TENSORFLOW,
        "target_network": STATEFUL,
        "own_test_step_alone": "its test_step takes no state, as JAX's must",
        "metric_of_several_numbers": LOGS,
    },
    "torch": {
        "dropout_and_batch_normalization": UNSEEDED,
        "lstm_with_dropout": UNSEEDED,
        "stateful_rnn": "Keras' own fit raises: the state that a step starts from is overwritten before its gradient is taken",
        "attention": UNSEEDED,
        "text_vectorization": TENSORFLOW,
        "normalization_and_discretization": TENSORFLOW,
        "functions_of_tensorflow": TENSORFLOW,
        "softmax_of_tensorflow": TENSORFLOW,
        "compiled_function_as_loss": TENSORFLOW,
        "loss_that_differentiates_the_model": TENSORFLOW,
        "patched_train_step": TENSORFLOW,
        "batch_size_in_a_reshape": TENSORFLOW,
        "two_optimizers": TENSORFLOW,
        "two_optimizers_one_at_rest": TENSORFLOW,
        "model_without_call": "Keras' own fit raises: it builds a model on PyTorch by its call",
        "model_that_can_only_be_trained": "Keras' own fit raises: it builds a model on PyTorch by its call",
        "integers_bools_and_raw_variables": TENSORFLOW,
        "tables_constants_and_left_tensors": TENSORFLOW,
    },
}
"""Entries that a backend's Keras cannot run, and why."""


@pytest.mark.parametrize("name", TABLE)
def test_one_worker_trains_what_keras_trains(name: str) -> None:
    reason = NOT_ON.get(keras.backend.backend(), {}).get(name)
    if reason:
        pytest.skip(reason)
    with graphs_as_written():
        assert not difference(by_keras(TABLE[name]), by_spark_model(TABLE[name]), exact=True)


APPLIED = (
    "mlp_with_accuracy",
    "stateful_rnn",
    "text_vectorization",
    "two_inputs_by_name",
    "two_outputs_with_loss_weights",
    "sample_weights_and_weighted_metrics",
    "mixed_precision_that_overflows",
    "float64",
    "batch_size_in_a_reshape",
    "batch_size_where_it_is_known",
    "own_test_step_alone",
    "metric_of_several_numbers",
    "losses_added_in_call",
    "unbuilt_sequential",
)
"""Entries that are evaluated or predicted in a way of their own. By hand all of them were, on each backend."""


@pytest.mark.parametrize("name", APPLIED)
def test_executors_evaluate_and_predict_what_keras_does(name: str) -> None:
    if name in NOT_ON.get(keras.backend.backend(), {}):
        pytest.skip(NOT_ON[keras.backend.backend()][name])
    with graphs_as_written():
        keras.utils.set_random_seed(SEED)
        model, rows = TABLE[name]()
        found, expected = applied_as_on_executors(model, rows), applied_by_keras(model, rows)
    keras.tree.assert_same_structure(found, expected)
    for mine, theirs in zip(keras.tree.flatten(found), keras.tree.flatten(expected), strict=True):
        np.testing.assert_array_equal(mine, theirs, strict=isinstance(theirs, np.ndarray))


def test_a_model_that_is_built_anew_has_the_key_that_it_had() -> None:
    """Or executors would compile it anew. By hand all entries were compared, on each backend: a key of its own each time has one whose classes are made
    with it, and one with two outputs without names. The first of a kind may differ from those that follow.
    """
    others = (
        "bidirectional_gru",
        "metric_of_the_learning_rate",
        "attention",
        "mlp_with_accuracy",
        "losses_added_in_call",
    )
    for name in {*APPLIED, *others} - set(NOT_ON.get(keras.backend.backend(), {})):
        keys = []
        for _ in range(3):
            model, rows = TABLE[name]()
            if name != "unbuilt_sequential":
                build(model, keras.tree.map_structure(lambda part: part[:BATCH], rows))
            keys.append(ModelSpec.from_model(model).key)
        assert keys[1] == keys[2], name


def test_the_documents_say_how_many_kinds_of_models_there_are() -> None:
    root = Path(__file__).parents[2]
    assert f"{len(TABLE)} kinds of models with `model.fit`" in (root / "README.md").read_text()
    jax, torch = (len(TABLE) - len(NOT_ON[name]) for name in ("jax", "torch"))
    said = f"{jax} and {torch} of the {len(TABLE)} kinds of models of `tests/conformance`"
    assert said in (root / "docs" / "backends.md").read_text()
