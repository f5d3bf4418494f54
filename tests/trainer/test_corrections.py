"""What a step adds to the weights, on each backend."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from elephas_like.core.types import Role
from elephas_like.trainer.programs import Program
from elephas_like.trainer.spec import ModelSpec
from elephas_like.trainer.tensors import row_numbers, tensors
from trainer.small import rows

X, Y = rows(6)


def program_of(*, eager: bool = False) -> Program:
    """A model whose optimizer moves nothing, one of whose kernels must not be negative."""
    dense = keras.layers.Dense
    model = keras.Sequential(
        [keras.Input((X.shape[1],)), dense(3, kernel_constraint=keras.constraints.NonNeg()), dense(Y.shape[1])]
    )
    model.compile(keras.optimizers.SGD(0.0), "mse", run_eagerly=eager)
    return Program(ModelSpec.from_model(model), (X[:2], Y[:2]), 1, corrected=True)


def run(program: Program, steps: int) -> np.ndarray:
    """The weights after so many steps of two rows from weights of 1."""
    state = program.variables.read()
    program.variables.write(state.but(weights=np.ones_like(state.weights)))
    program.training.run(tensors([X, Y]), [0, 1], row_numbers(6), 2, 0, steps)
    return program.variables.read().weights


@pytest.mark.parametrize("eager", [False, True])
def test_each_step_adds_them_to_the_weights(eager: bool) -> None:
    program = program_of(eager=eager)
    added = np.linspace(-0.3, 0.5, program.variables.layout.size(Role.WEIGHT), dtype=np.float32)
    assert (run(program, 2) == 1).all()  # at first they are zero
    program.corrections.write(added)
    np.testing.assert_allclose(run(program, 3), 1 + 3 * added, rtol=1e-5)
    program.corrections.write(-added)
    np.testing.assert_allclose(run(program, 1), 1 - added, rtol=1e-5)
    program.corrections.write(None)
    assert (run(program, 2) == 1).all()


def test_weights_that_have_a_constraint_are_left_out() -> None:
    program = program_of()
    assert program.corrections.left_out == program.variables.layout.slices(Role.WEIGHT)[:1]


def test_they_are_no_part_of_the_state_and_add_nothing_to_evaluations() -> None:
    program = program_of()
    other = Program(ModelSpec.from_model(program.model), (X[:2], Y[:2]), 1)
    assert other.corrections is None
    assert other.variables.layout.hash == program.variables.layout.hash
    assert other.key != program.key
    before = run(program, 1)
    program.corrections.write(np.ones_like(before))
    program.testing.run(tensors([X, Y]), [0, 1], row_numbers(6), 2, 0, 3)
    np.testing.assert_array_equal(program.variables.read().weights, before)
