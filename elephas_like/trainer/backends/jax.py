"""Keras on JAX: tensors, threads, variables, steps, and JAX's arrays in pickles (backends/protocol.py)."""

from __future__ import annotations

import copyreg
import logging
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, TypeVar

from elephas_like.core.extras import require

require("jax")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402

from elephas_like.core.errors import ElephasError  # noqa: E402
from elephas_like.core.types import Array, Integers  # noqa: E402
from elephas_like.trainer.backends.foreign_code import (  # noqa: E402
    check_no_tensorflow,
    not_a_number,
    own_steps,
    takes_state,
    without_text,
)
from elephas_like.trainer.backends.jax_loop import JaxLoop, Rows, put, runs_eagerly, state_variables, unshared  # noqa: E402
from elephas_like.trainer.backends.protocol import (  # noqa: E402
    AnyVariable,
    Loop,
    MappedRows,
    PredictionLoop,
    Reduction,
    RowsFunction,
    Step,
    Tensor,
)

log = logging.getLogger(__name__)

NAME = "jax"

Result = TypeVar("Result")

_SIZES_PER_DOUBLING = 8
"""Columns have one of so many sizes between n and 2n rows: each size is compiled by itself, and none is an eighth too long."""

_TRACED_BYTES = 2**24
"""Of constants, which a trace spells out digit by digit."""

_ALIGNED = 64
"""Bytes. XLA's CPU computes on memory of others that begins at a multiple of so many; other memory it copies."""


def _cache(cache: Any) -> Reduction:
    """Return a cached function of JAX's own by the module that has it.

    Raises:
        TypeError: it is of no module.
    """
    for name, module in list(sys.modules.items()):
        if module is None or name.partition(".")[0] not in ("jax", "jaxlib"):
            continue
        for called, held in list(vars(module).items()):
            if held is cache:
                return getattr, (module, called)
    raise TypeError(f"cannot pickle {type(cache).__name__!r} object")


# The function that `jax.checkpoint` returns bears the user's names, so that cloudpickle takes it for one of theirs, to be sent with its globals.
with suppress(AttributeError):  # there is no public name of the type
    copyreg.pickle(jax._src.lib.weakref_lru_cache.WeakrefLRUCache, _cache)


def padded_rows(rows: int) -> int:
    """Return the size to which columns of so many rows are padded."""
    step = 2 ** max(0, (max(1, rows) - 1).bit_length() - 1) // _SIZES_PER_DOUBLING
    return rows if step < 2 else -(-rows // step) * step


def tensors(columns: Sequence[Array]) -> list[Tensor]:
    """Return columns as arrays on the device, padded to one of few sizes; no row number points to the padding."""
    return [_padded(np.asarray(column)) for column in columns]


def _padded(column: Array) -> Tensor:
    if column.dtype.kind not in "biufV":  # V: bfloat16 and its like
        raise not_a_number(column.dtype.name, "JAX")
    shape = (padded_rows(len(column)), *column.shape[1:])
    held = unfilled(shape, jax.dtypes.canonicalize_dtype(column.dtype))
    held[: len(column)] = column
    held[len(column) :] = 0
    return jax.device_put(held)  # on a CPU the array's own memory, which nobody else has


def unfilled(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an array that is not filled yet. JAX on a CPU takes it as it is, without a copy."""
    count = math.prod(shape) * dtype.itemsize
    memory = np.empty(count + _ALIGNED, np.uint8)
    begin = -memory.ctypes.data % _ALIGNED
    return memory[begin : begin + count].view(dtype).reshape(shape)


def row_numbers(order: Integers | int) -> Tensor:
    """Return row numbers; for an int n the numbers 0 to n - 1."""
    numbers = np.arange(order) if isinstance(order, int) else np.asarray(order)
    return Rows(_padded(numbers.astype(np.int32)), len(numbers))


def tensor_tree(tree: object) -> object:
    """Return the arrays of a tuple, list or dict as arrays on the device; None stays None."""
    if tree is None:
        return None
    return keras.tree.map_structure(lambda leaf: None if leaf is None else jnp.asarray(leaf), tree)


def text_tensors(tree: object) -> object:
    """Return a tree of arrays as it is.

    Raises:
        ElephasError: it holds text.
    """
    return without_text(tree, "JAX")


def is_ragged(thing: object) -> bool:
    """Return False: JAX has no tensors with rows of unequal shape."""
    return False


def is_sparse(thing: object) -> bool:
    """Return whether an object is a sparse matrix of SciPy's or of JAX's."""
    return type(thing).__module__.startswith(("scipy.sparse", "jax.experimental.sparse"))


def dense(matrix: Any) -> Array:
    """Return a sparse matrix as a dense array."""
    array: Array = np.asarray(matrix.todense()) if hasattr(matrix, "todense") else matrix.toarray()
    return array


def limit_threads(cores: int) -> bool:
    """Limit this process to `cores` threads. Return False if JAX had started already.

    XLA has one setting for "one thread" and none for more: it counts the cores that the process may use, or takes `NPROC`.
    """
    if jax._src.xla_bridge.backends_are_initialized():  # there is no public way
        return False
    os.environ["NPROC"] = str(cores)
    flags = os.environ.get("XLA_FLAGS", "")
    if cores == 1 and "xla_cpu_multi_thread_eigen" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    return True


ARITHMETIC = {"jax_default_matmul_precision": None, "jax_threefry_partitionable": True}
"""Whether JAX has 64 bits at all, tasks learn by their environment."""


def arithmetic() -> dict[str, Any]:
    """Return the precision of matrix products, and in which order random bits are drawn."""
    return {name: getattr(jax.config, name) for name in ARITHMETIC if hasattr(jax.config, name)}


def use_arithmetic(settings: Mapping[str, Any]) -> None:
    """Set what `arithmetic` returned in another process."""
    for name, value in settings.items():
        if getattr(jax.config, name, value) != value:
            jax.config.update(name, value)


def compiled(step: Callable[..., Result]) -> Callable[..., Result]:
    """Return the function itself: JAX compiles only functions that change nothing."""
    return step


def many_graphs() -> AbstractContextManager[None]:
    """Do nothing: JAX does not warn."""
    return nullcontext()


def where_built(model: keras.Model) -> AbstractContextManager[None]:
    """Return a context without effect."""
    return nullcontext()


def output_shapes(model: keras.Model) -> list[tuple[int | None, ...]] | None:
    """Return None: the layers of whose outputs Keras says wrong shapes are TensorFlow's."""
    return None


def trace(model: keras.Model, variables: Iterable[AnyVariable], rows: object) -> str | None:
    """Return what a model computes, as JAX hands it to its compiler, constants and all: no layer's name is in it.

    None for models that run eagerly, cannot be traced, or have constants of more than 16 MiB.
    """
    if is_eager(model):
        return None
    held = list(variables)

    def outputs(values: Sequence[Any], rows: object) -> object:
        with keras.StatelessScope(state_mapping=list(zip(held, values, strict=True))):
            return model(rows, training=False)

    try:
        # With inputs that are not used: else models that use other variables of the same shapes had the same text.
        whole = jax.jit(outputs, keep_unused=True)
        traced = whole.trace([variable.value for variable in held], rows)
        if sum(getattr(constant, "nbytes", 0) for constant in traced.jaxpr.consts) > _TRACED_BYTES:
            return None
        text: str = traced.lower().as_text()
    except Exception as error:  # of any code that a model may have: it is run then
        log.debug("the model %r cannot be traced: %s", model.name, error)
        return None
    return text


def is_variable(thing: object) -> bool:
    """Return whether an object is a variable of Keras. JAX has none of its own."""
    return isinstance(thing, keras.Variable)


def variables_in(thing: object) -> Iterable[AnyVariable]:
    """Return nothing: every variable is an object of its own."""
    return ()


def backend_variable(variable: AnyVariable) -> Any:
    """Return the variable: its array is another one after each step."""
    return variable


def dtype_of(variable: AnyVariable) -> str:
    """Return the name of a variable's dtype."""
    return str(variable.dtype)


def name_of(variable: AnyVariable) -> str:
    """Return the name of a variable."""
    return str(variable.name)


def is_number(variable: AnyVariable) -> bool:
    """Return True: JAX has no other variables."""
    return True


def assign(variable: AnyVariable, value: Array) -> None:
    """Set a variable to an array of its shape. The variable does not keep the array."""
    # JAX may use NumPy's memory as it is: the copy is the variable's own. `jnp.asarray` would start a program for each variable.
    put(variable, jax.device_put(value.astype(jnp.dtype(variable.dtype), copy=True)))


def value_of(variable: AnyVariable) -> Array:
    """Return a copy of a variable's value; bfloat16 as float32."""
    return np.array(content_of(variable))


def content_of(variable: AnyVariable) -> Array:
    """Return the same for reading at once: the array may share the variable's memory."""
    value = np.asarray(variable.value)
    return value if value.dtype.kind in "fiub" else value.astype(np.float32)


def generators() -> Sequence[AnyVariable]:
    """Return nothing: Keras' layers draw from generators of their own."""
    return ()


def check_model(model: keras.Model, reached: Callable[[], Iterable[object]]) -> None:
    """Do nothing if a compiled model can be trained on JAX, as far as its code shows.

    Raises:
        ElephasError: a step in the form of another backend, a layer that computes with TensorFlow, or code that uses it.
    """
    for name, step in own_steps(model):
        if not takes_state(step):
            raise ElephasError(
                f"{name} has no argument `state`: Keras on JAX calls {step.__name__}(state, data), which returns (logs, state). "
                "Write it in that form, or set KERAS_BACKEND=tensorflow before keras is imported."
            )
    check_no_tensorflow(model, reached(), "JAX")


def at_rest(model: keras.Model) -> None:
    """Do nothing: a call says whether it trains."""


def is_eager(model: keras.Model) -> bool:
    """Return whether a model's code runs at every step."""
    return runs_eagerly(model)


def build_by_test_step(model: keras.Model, batch: Any) -> None:
    """Build what is not built. The step is traced, and run by models that run eagerly only."""
    if is_eager(model):
        test_step(model, batch)
        return
    step, variables = _test_step(model, batch)
    jax.eval_shape(step, unshared(variables), batch)  # to compile it takes 0.3 s or more, and it would run once


def test_step(model: keras.Model, batch: Any) -> None:
    """Run the model's test step on a batch of tensors; metrics change, and what is not built is."""
    step, variables = _test_step(model, batch)
    state = (step if is_eager(model) else jax.jit(step))(unshared(variables), batch)
    for group, values in zip(variables, state, strict=True):
        for variable, value in zip(group, values, strict=True):
            put(variable, value)


def _test_step(model: keras.Model, batch: Any) -> tuple[Callable[[Any, Any], Any], tuple[list[keras.Variable], ...]]:
    """Return the test step of a model that has all its variables, as a function of their values, and the variables."""
    model._symbolic_build(data_batch=batch)  # as Keras' own fit on JAX: a step cannot make variables

    def step(state: Any, batch: Any) -> Any:
        return model.test_step(state, batch)[1]  # not the logs, in which a user's metric may leave a variable

    return step, state_variables(model, trains=False)


STEPS_BUILD = False
TRACES = False


def trace_train_step(model: keras.Model, batch: Any) -> None:
    """Do nothing: a step on JAX gets the values of all variables, and makes none."""


def train_step(model: keras.Model, batch: Any) -> None:
    """Do nothing, as above."""


def loop(model: keras.Model, step: Step, corrections: Sequence[keras.Variable] = ()) -> Loop:
    """Return the compiled loop over one of a model's two steps. Its steps know their sizes."""
    return JaxLoop(model, step, corrections)


def prediction_loop(model: keras.Model) -> PredictionLoop | None:
    """Return None: each step is a call of Keras' own."""
    return None


def mapped_rows(function: RowsFunction) -> MappedRows | None:
    """Return None: pipelines are Grain's or TensorFlow's."""
    return None


def free_graphs_of_fits() -> None:
    """Do nothing: it is TensorFlow that registers gradients."""


def for_one_process(optimizers: Sequence[keras.optimizers.Optimizer]) -> None:
    """Do nothing: XLA merges equal ops, and gradients are summed over devices elsewhere."""


def fuse(optimizers: Sequence[keras.optimizers.Optimizer]) -> bool:
    """Return False: XLA fuses the update steps of all optimizers."""
    return False


def is_compiled(thing: object) -> bool:
    """Return False: functions of `jax.jit` pickle themselves."""
    return False


def reduction(thing: object, value: Callable[[AnyVariable], object]) -> Reduction | None:
    """Return how to rebuild an array of JAX's. None for other objects.

    Raises:
        TypeError: a tracer, which exists inside of its trace only.
    """
    if isinstance(thing, jax.core.Tracer):
        return _nothing, ()  # left behind by a trace, such as a layer's last attention scores: the next trace sets it
    if not isinstance(thing, jax.Array):
        return None
    if jnp.issubdtype(thing.dtype, jax.dtypes.prng_key):
        return _key, (np.asarray(jax.random.key_data(thing)), str(jax.random.key_impl(thing)))
    return jnp.asarray, (np.asarray(thing),)


def _key(data: Array, kind: str) -> Tensor:
    return jax.random.wrap_key_data(data, impl=kind)


def _nothing() -> None:
    return None


class _Value:
    """The value of a variable in a pickle: `content` lies in the table, and is None where a state is written later."""

    def __init__(self, content: object, shape: tuple[int, ...], dtype: str) -> None:
        self._arguments = content, shape, dtype

    def __reduce__(self) -> Reduction:
        return _array, self._arguments


def _array(content: Array | None, shape: tuple[int, ...], dtype: str) -> Tensor:
    return jnp.zeros(shape, dtype) if content is None else jnp.array(content, dtype)


def variable_attributes(variable: keras.Variable, value: Callable[[AnyVariable], object]) -> dict[str, object]:
    """Return the value of a variable as it is pickled, on no device; JAX's array does not tell whose it is.

    Under a `keras.distribution` a variable also names the devices of this process that hold it (`_layout`, and nothing public takes it off).
    """
    found: dict[str, object] = {"_value": _Value(value(variable), tuple(variable.shape), str(variable.dtype))}
    return found | {"_layout": None} if hasattr(variable, "_layout") else found
