"""Arrays, texts and sparse matrices on their way to TensorFlow."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

from elephas_like.core.errors import ElephasError
from elephas_like.trainer import tensors
from elephas_like.trainer.tensors import check_backend, dense, is_ragged, is_sparse, is_text, text_tensors


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.array(["a", "b"]), True),
        (np.array(["a", b"b"], dtype=object), True),
        (np.array([b"a"]), True),
        (np.array([1, "b"], dtype=object), False),
        (np.array([], dtype=object), False),
        (np.zeros(2), False),
        ("a", False),
    ],
)
def test_text(array: object, text: bool) -> None:
    assert is_text(array) == text


def test_text_becomes_tensors_and_the_rest_stays() -> None:
    numbers = np.zeros(2)
    found = text_tensors({"a": np.array([["x"], ["é"]], dtype=object), "b": numbers})
    assert found["a"].dtype == tf.string
    assert found["a"].numpy().tolist() == [[b"x"], ["é".encode()]]
    assert found["b"] is numbers


@pytest.mark.parametrize("matrix", [scipy.sparse.csr_matrix([[0, 2], [3, 0]]), tf.sparse.from_dense([[0, 2], [3, 0]])])
def test_sparse_matrices_become_dense(matrix: object) -> None:
    assert is_sparse(matrix)
    assert dense(matrix).tolist() == [[0, 2], [3, 0]]


def test_kinds_are_told_apart() -> None:
    assert is_ragged(tf.ragged.constant([[1], [1, 2]]))
    assert not is_ragged(tf.zeros((2, 2)))
    assert not is_sparse(np.zeros((2, 2)))


def test_another_backend_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    check_backend()
    monkeypatch.setattr(tensors.keras.backend, "backend", lambda: "jax")
    with pytest.raises(
        ElephasError, match=r"trains with Keras on TensorFlow, JAX or PyTorch;.*'jax'.*KERAS_BACKEND=tensorflow"
    ):
        check_backend()
    assert keras is tensors.keras
