"""The compiled loop of train steps: one XLA program around Keras' stateless `train_step`.

A step's rows are gathered inside the program, from columns that stay on the device. Each batch size, number of rows in the
last batch, and size of the columns is compiled once; columns are padded, so that shards of almost the same size have one size.
The loop is not unrolled: two to eight steps in one pass were never faster, and take longer to compile (docs/backends.md).

On a CPU, XLA runs convolutions inside loops on one thread without its fast kernels: such steps are called one by one from Python,
which was four times as fast. Whether a step has one is read from its trace.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import compress
from typing import Any

from elephas_like.core.extras import require
from elephas_like.core.structure import unflatten
from elephas_like.core.types import Structure
from elephas_like.trainer.backends.jax_cache import share_programs
from elephas_like.trainer.backends.protocol import Step, Tensor

require("jax")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402

PIECE_SECONDS = 0.5
"""About how long one call of the loop takes at most: between calls `done` is counted on, by which a worker shows that it lives."""
_FIRST_PIECE = 16

State = tuple[list[Any], ...]


class Rows:
    """Row numbers on the device, padded as columns are.

    count: how many there are.
    """

    def __init__(self, numbers: Any, count: int) -> None:
        self.numbers, self.count = numbers, count


class JaxLoop:
    """Runs a model's train or test step over batches of columns; compiled unless the model runs eagerly."""

    def __init__(self, model: keras.Model, step: Step, corrections: Sequence[keras.Variable] = ()) -> None:
        self._model = model
        self._corrections = list(corrections)
        self._step = step
        self._trains = step != model.test_step
        self._eager = runs_eagerly(model)
        self._compiled: dict[object, tuple[Callable[..., State], Callable[..., State] | None]] = {}
        self._beside: Beside | None = None
        self._convolves: bool | None = None
        self._piece = _FIRST_PIECE
        self.done = 0
        self.returned: object = None

    def run(
        self,
        columns: Sequence[Tensor],
        structure: Structure,
        order: Rows,
        batch_size: int,
        first: int,
        last: int,
        *,
        sized: bool = False,
    ) -> None:
        """Run the steps `first` to `last` (exclusive). Step i sees the rows `order[i batch_size:][:batch_size]`, and their number."""
        columns = tuple(columns)
        variables = state_variables(self._model, trains=self._trains)
        *values, others = unshared((*variables, self._inputs()))
        state: State = tuple(values)
        whole = min(last, order.count // batch_size)
        try:
            if first < whole:
                one, loop = self._functions(state, others, columns, structure, order, batch_size)
                while first < whole:
                    if loop is None:
                        state, first = one(state, others, columns, order.numbers, first * batch_size), first + 1
                        self.done += 1
                        continue
                    until = min(first + self._piece, whole)
                    state = self._timed(loop, state, others, columns, order.numbers, first, until)
                    first = until
            if first < last:  # the last batch is smaller
                one, _ = self._functions(state, others, columns, structure, order, order.count - first * batch_size)
                state = one(state, others, columns, order.numbers, first * batch_size)
                self.done += 1
        finally:
            for group, values in zip(variables, state, strict=True):
                for variable, value in zip(group, values, strict=True):
                    put(variable, value)

    def _inputs(self) -> list[keras.Variable]:
        """Return the variables beside the state that compiled steps take as inputs; if they are others than before, compile anew."""
        self._beside = self._beside or Beside(self._model)
        if self._beside.moved():
            self._compiled.clear()
        return [*self._corrections, *self._beside.inputs]

    def _corrected(self, weights: Sequence[Any]) -> Sequence[Any]:
        """Return the trainable variables' values after a step with what each step adds to them."""
        if not self._corrections:
            return weights
        return [value + correction.value for value, correction in zip(weights, self._corrections, strict=True)]

    def _timed(
        self,
        loop: Callable[..., State],
        state: State,
        others: list[Any],
        columns: Sequence[Tensor],
        rows: Any,
        first: int,
        until: int,
    ) -> State:
        """Run some steps in one call, and fit the number of the next call to the time that they took."""
        began = time.perf_counter()
        state = jax.block_until_ready(loop(state, others, columns, rows, first, until))
        took = time.perf_counter() - began
        self.done += until - first
        if took < PIECE_SECONDS / 4 and until - first == self._piece:
            self._piece *= 2
        elif took > PIECE_SECONDS and self._piece > 1:
            self._piece //= 2
        return state

    def _functions(
        self,
        state: State,
        others: list[Any],
        columns: Sequence[Tensor],
        structure: Structure,
        order: Rows,
        rows: int,
    ) -> tuple[Callable[..., State], Callable[..., State] | None]:
        """Return functions that run a step, and several steps, of that many rows; None where steps are called one by one."""
        shapes = tuple((column.shape, str(column.dtype)) for column in columns)
        key = (repr(structure), shapes, order.numbers.shape, rows)
        if key not in self._compiled:
            self._compiled[key] = self._compile(state, others, columns, structure, order, rows)
        return self._compiled[key]

    def _compile(
        self,
        state: State,
        others: list[Any],
        columns: Sequence[Tensor],
        structure: Structure,
        order: Rows,
        rows: int,
    ) -> tuple[Callable[..., State], Callable[..., State] | None]:
        inputs = self._inputs()

        def one(state: State, others: list[Any], columns: Sequence[Tensor], order: Any, begin: Any) -> State:
            numbers = jax.lax.dynamic_slice(order, (begin,), (rows,))
            batch = unflatten(structure, [jnp.take(column, numbers, axis=0, mode="clip") for column in columns])
            assert isinstance(batch, tuple)
            if not self._eager:
                batch = jax.tree.map(
                    lambda leaf: leaf, batch
                )  # sorts dicts, as Keras' own compiled steps get and predict them
            with nullcontext() if self._eager else holding(inputs, others):
                logs, after = self._step(state, keras.utils.pack_x_y_sample_weight(*batch))
                after = (self._corrected(after[0]), *after[1:])
            if self.returned is None:
                self.returned = keras.tree.map_structure(lambda _: None, logs)  # which names no tensor of a trace
            return tuple(map(list, after))

        def loop(
            state: State, others: list[Any], columns: Sequence[Tensor], order: Any, first: Any, until: Any
        ) -> State:
            after: State = jax.lax.fori_loop(
                first, until, lambda step, state: one(state, others, columns, order, step * rows), state
            )
            return after

        if self._eager:
            return one, None
        share_programs()
        single, several = jax.jit(one, donate_argnums=0), jax.jit(loop, donate_argnums=0)
        if self._convolves is None:
            traced = several.trace(
                state, others, tuple(columns), order.numbers, 0, 1
            )  # and not again when it is called
            self._convolves = jax.default_backend() == "cpu" and has_convolution(traced.jaxpr.jaxpr)
        return single, None if self._convolves else several


def runs_eagerly(model: keras.Model) -> bool:
    """Return whether a model's code runs at every step: `run_eagerly=True`, and `jit_compile=False`, with which JAX compiles no step."""
    return bool(model.run_eagerly) or not model.jit_compile


def has_convolution(jaxpr: Any) -> bool:
    """Return whether a traced function convolves, in whatever it calls."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "conv_general_dilated":
            return True
        for value in equation.params.values():
            for inner in value if isinstance(value, list | tuple) else [value]:
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns") and has_convolution(inner):
                    return True
    return False


def state_variables(model: keras.Model, *, trains: bool) -> tuple[list[keras.Variable], ...]:
    """Return a model's variables in the groups of which Keras' JAX steps take and return the values."""
    optimizer = getattr(model, "optimizer", None)
    groups = [list(model.trainable_variables), list(model.non_trainable_variables)]
    if trains:
        groups.append([] if optimizer is None else list(optimizer.variables))
    return (*groups, list(model.metrics_variables))


class Beside:
    """Variables that a step may read and Keras does not hand to it, such as one that a loss closes over.

    A trace takes their values for constants. A variable whose value has changed is an input of the next trace. Not all are inputs
    from the start, because a function under `jax.jit` within a step cannot read an input that is not its argument.

    inputs: those whose values have changed.
    """

    def __init__(self, model: keras.Model) -> None:
        from elephas_like.trainer.graph import reachable  # which asks this process's backend

        known = {id(variable) for group in state_variables(model, trains=True) for variable in group}
        others = (thing for thing in reachable(model) if isinstance(thing, keras.Variable) and id(thing) not in known)
        self._constants = [(variable, variable.value) for variable in others]  # JAX's arrays never change
        self.inputs: list[keras.Variable] = []

    def moved(self) -> bool:
        """Take constants whose values have changed for inputs. Return whether there were any."""
        same = [value is held.value or np.array_equal(value, held.value) for held, value in self._constants]
        self.inputs = [*self.inputs, *(one for (one, _), stays in zip(self._constants, same, strict=True) if not stays)]
        self._constants = list(compress(self._constants, same))
        return not all(same)


@contextmanager
def holding(variables: Sequence[keras.Variable], values: Sequence[Any]) -> Iterator[None]:
    """Let variables have other values, such as the inputs of a trace, for a while."""
    before = [variable.value for variable in variables]
    try:
        for variable, value in zip(variables, values, strict=True):
            put(variable, value)
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            put(variable, value)


def unshared(variables: tuple[list[keras.Variable], ...]) -> State:
    """Return the values of variables, each an array of its own: a step may reuse the memory of those that it is given."""
    seen: set[int] = set()

    def own(variable: keras.Variable) -> Any:
        value = variable.value
        if id(value) in seen:
            return jnp.array(value, copy=True)
        seen.add(id(value))
        return value

    return tuple([own(variable) for variable in group] for group in variables)


def put(variable: Any, value: Any) -> None:
    """Set a variable to an array of the device's, as it is."""
    variable._direct_assign(value)  # `assign` converts and checks what needs neither
