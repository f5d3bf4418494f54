"""Programs: compiled models that a process keeps, and which of them go first."""

from __future__ import annotations

import random

import keras
import numpy as np
import pytest

from elephas_like.core.errors import DataError
from elephas_like.core.structure import flatten
from elephas_like.core.types import Role
from elephas_like.trainer.building import build
from elephas_like.trainer.keras_settings import KerasSettings
from elephas_like.trainer.metric_results import metrics_of
from elephas_like.trainer.programs import Program, Programs, check_rows_fit
from elephas_like.trainer.spec import ModelSpec
from elephas_like.trainer.tensors import row_numbers, tensors
from trainer.small import mlp, rows

X, Y = rows(22)


def prepared(optimizer: object = "adam", **compiled: object) -> keras.Model:
    model = mlp(optimizer, **compiled)
    build(model, (X[:1], Y[:1]))
    return model


def test_a_tuple_of_numbers_is_no_row_of_a_model_with_one_input() -> None:
    numbers = tuple(X.T)
    with pytest.raises(DataError, match=r"one array of features, of shape \(4,\), .* are a tuple of 4 values"):
        check_rows_fit(mlp(), (numbers, Y))

    class Reads(keras.Sequential):
        def train_step(self, data: object) -> object:
            """Read a tuple in its own way."""

    check_rows_fit(Reads(mlp().layers), (numbers, Y))
    with pytest.raises(DataError, match=r"of shape \(4,\), .* are a tuple of 2 values.*np\.stack\(x\)"):
        check_rows_fit(mlp(), ((X[:1], X[:1]), Y))  # a list of rows' arrays
    words = np.array([["1.5", "b", "c", "d"]])
    for text in (words, words.astype("S"), words.astype(object), np.array([b"1.5"], object)):
        with pytest.raises(DataError, match=r"takes numbers, and the rows have text, such as '1\.5': convert it"):
            check_rows_fit(mlp(), (text, Y))
    check_rows_fit(Reads(mlp().layers), (words, Y))
    reads_text = keras.Model(word := keras.Input((4,), dtype="string"), keras.layers.Identity()(word))
    check_rows_fit(reads_text, (words.astype(object),))
    check_rows_fit(reads_text, (np.zeros((0, 4)),))
    with pytest.raises(DataError, match=r"takes text, and the rows have numbers: give strings"):
        check_rows_fit(reads_text, (X[:1],))
    named = keras.Model({"a": (word := keras.Input((4,), name="a"))}, keras.layers.Dense(1)(word))
    check_rows_fit(named, ({"a": X[:1], "id": words},))  # which it does not read
    with pytest.raises(DataError, match="takes numbers, and the rows have text"):
        check_rows_fit(named, ({"a": words},))
    model = mlp()
    model.predict_step = lambda data: data
    check_rows_fit(model, (numbers,))
    check_rows_fit(model, (np.ones((1, 6)),))  # of which it may read four


kept_programs = pytest.mark.skipif(keras.backend.backend() == "torch", reason="an eager model's program is not kept")


@kept_programs
def test_a_program_is_kept_for_the_next_borrower_and_never_lent_twice() -> None:
    programs, spec = Programs(), ModelSpec.from_model(prepared())
    one = programs.borrow(spec, (X[:1], Y[:1]), 0)
    other = programs.borrow(spec, (X[:1], Y[:1]), 0)
    assert one is not other
    programs.give_back(one)
    assert programs.borrow(spec, (X[:1], Y[:1]), 0) is one


def test_the_program_of_a_model_that_runs_eagerly_is_not_kept() -> None:
    programs, spec = Programs(), ModelSpec.from_model(prepared(run_eagerly=True))
    program = programs.borrow(spec, (X[:1], Y[:1]), 0)
    programs.give_back(program)
    assert programs.borrow(spec, (X[:1], Y[:1]), 0) is not program


@kept_programs
@pytest.mark.parametrize(
    ("bounds", "kept"),
    [
        ({"count": 2}, [False, True, True]),
        ({"nbytes": 3 * 4 * 95}, [True, True, True]),
        ({"nbytes": 3 * 4 * 95 - 1}, [False, True, True]),
        ({"nbytes": 1}, [False, False, True]),
    ],
)
def test_the_longest_unused_programs_go_where_they_are_too_many_or_too_large(bounds: dict, kept: list[bool]) -> None:
    """Adam of 4 -> 5 -> 1: 31 weights, 62 slots, an iteration and a learning rate."""
    programs = Programs(**bounds)
    specs = [ModelSpec.from_model(prepared(loss=loss)) for loss in ("mse", "mae", "log_cosh")]
    made = [programs.borrow(spec, (X[:1], Y[:1]), 0) for spec in specs]
    assert [program.nbytes for program in made] == [4 * 95] * 3
    for program in (made[0], made[2], made[1], made[2]):  # the last one comes twice
        programs.give_back(program)
    assert [program.key in programs._free for program in made] == kept
    for spec, program, there in list(zip(specs, made, kept, strict=True))[::-1]:
        again = programs.borrow(spec, (X[:1], Y[:1]), 0)
        assert (again is program) == there
        assert again.model(X[:2]).shape == (2, 1)


def test_a_program_of_another_model_is_another_one() -> None:
    programs = Programs()
    one = programs.borrow(ModelSpec.from_model(prepared("adam")), (X[:1], Y[:1]), 0)
    programs.give_back(one)
    assert programs.borrow(ModelSpec.from_model(prepared("sgd")), (X[:1], Y[:1]), 0) is not one


def test_a_kept_program_is_traced_under_its_own_settings() -> None:
    # |1 - 0| / max(|0|, epsilon) = 1000 of 1, in percent, for a target of 0 and an epsilon of 1e-3; another fit's is 1e-7
    programs, sample = Programs(), (np.ones((1, 4), "float32"), np.zeros((1, 1), "float32"))
    specs = []
    before = KerasSettings.current()
    try:
        for epsilon in (1e-3, 1e-7):
            keras.config.set_epsilon(epsilon)
            model = keras.Sequential(
                [keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros", bias_initializer="ones")]
            )
            model.compile("sgd", "mape")
            specs.append(ModelSpec.from_model(model))
        for spec in specs:
            programs.give_back(programs.borrow(spec, sample, 0))
        program = programs.borrow(specs[0], sample, 0)
        program.model.reset_metrics()
        program.testing.run(tensors(list(sample)), flatten(sample)[1], row_numbers(1), 1, 0, 1)
    finally:
        before.apply()
    assert metrics_of(program.model)["loss"] == pytest.approx(1e5)


def test_making_a_program_leaves_the_user_s_random_numbers_alone() -> None:
    spec = ModelSpec.from_model(prepared())
    np.random.seed(5)
    random.seed(5)
    expected = np.random.rand(), random.random()
    np.random.seed(5)
    random.seed(5)
    Program(spec, (X[:1], Y[:1]), 0)
    assert (np.random.rand(), random.random()) == expected


def test_making_a_program_leaves_the_user_s_keras_settings_alone() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        spec = ModelSpec.from_model(prepared())
    finally:
        keras.config.set_dtype_policy("float32")
    program = Program(spec, (X[:1], Y[:1]), 0)
    assert keras.config.dtype_policy().name == "float32"
    assert program.variables.layout.size(Role.LOSS_SCALE) == 2  # the counter of good steps and the scale
