"""Keras on TensorFlow: tensors, threads, variables, steps, and TensorFlow's objects in pickles (backends/protocol.py)."""

from __future__ import annotations

import linecache
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import config as determinism

from elephas_like.core.errors import ElephasWarning
from elephas_like.core.source_lines import source_lines
from elephas_like.core.types import Array, Integers
from elephas_like.trainer.backends.protocol import (
    AnyVariable,
    Loop,
    MappedRows,
    PredictionLoop,
    Reduction,
    RowsFunction,
    Step,
    Tensor,
)
from elephas_like.trainer.backends.tensorflow_fused import for_one_process as for_one_process
from elephas_like.trainer.backends.tensorflow_fused import fuse as fuse
from elephas_like.trainer.backends.tensorflow_gradients import CustomGradients
from elephas_like.trainer.backends.tensorflow_gradients import free_graphs_of_fits as free_graphs_of_fits
from elephas_like.trainer.backends.tensorflow_loop import TensorFlowLoop, TensorFlowPredictions
from elephas_like.trainer.backends.tensorflow_loop import many_graphs as many_graphs
from elephas_like.trainer.backends.tensorflow_rows import TracedRows
from elephas_like.trainer.backends.text import is_text

NAME = "tensorflow"

Result = TypeVar("Result")


def tensors(columns: Sequence[Array]) -> list[Tensor]:
    """Return columns as tensors; Python strings become byte strings."""
    return [tf.convert_to_tensor(column) for column in columns]


def row_numbers(order: Integers | int) -> Tensor:
    """Return row numbers as an int64 tensor; for an int n the numbers 0 to n - 1."""
    return tf.range(order, dtype=tf.int64) if isinstance(order, int) else tf.constant(order, tf.int64)


ARITHMETIC = {"tensor_float_32": True, "deterministic": False}


def arithmetic() -> dict[str, Any]:
    """Return whether this process computes with TensorFloat-32, and deterministically.

    TensorFlow has a public name to begin to compute deterministically, and none to ask or to end it.
    """
    exact = determinism.is_op_determinism_enabled()
    return {"tensor_float_32": tf.config.experimental.tensor_float_32_execution_enabled(), "deterministic": bool(exact)}


def use_arithmetic(settings: Mapping[str, Any]) -> None:
    """Set what `arithmetic` returned in another process."""
    now = arithmetic()
    wanted = {name: settings.get(name, value) for name, value in now.items()}
    if wanted["tensor_float_32"] != now["tensor_float_32"]:
        tf.config.experimental.enable_tensor_float_32_execution(wanted["tensor_float_32"])
    if wanted["deterministic"] and not now["deterministic"]:
        tf.random.set_seed(0)  # without one, operations that draw are refused then; training has seeds of its own
        tf.config.experimental.enable_op_determinism()
    elif now["deterministic"] and not wanted["deterministic"]:
        determinism.disable_op_determinism()


def compiled(step: Callable[..., Result]) -> Callable[..., Result]:
    """Return a function of tensors as a graph, traced as seldom as possible."""
    function: Callable[..., Result] = tf.function(step, reduce_retracing=True)
    return function


def tensor_tree(tree: object) -> object:
    """Return the arrays of a tuple, list or dict as tensors; None stays None."""
    if tree is None:
        return None
    return keras.tree.map_structure(lambda leaf: None if leaf is None else tf.convert_to_tensor(leaf), tree)


def text_tensors(tree: object) -> object:
    """Return a tree of arrays with string arrays as tensors, the only form in which Keras accepts text."""
    return keras.tree.map_structure(lambda leaf: tf.constant(leaf.tolist(), tf.string) if is_text(leaf) else leaf, tree)


def is_ragged(thing: object) -> bool:
    """Return whether an object is a tensor with rows of unequal shape."""
    return isinstance(thing, tf.RaggedTensor)


def is_sparse(thing: object) -> bool:
    """Return whether an object is a sparse matrix of SciPy's or a sparse tensor."""
    return isinstance(thing, tf.SparseTensor) or type(thing).__module__.startswith("scipy.sparse")


def dense(matrix: Any) -> Array:
    """Return a sparse matrix or tensor as a dense array."""
    array: Array = tf.sparse.to_dense(matrix).numpy() if isinstance(matrix, tf.SparseTensor) else matrix.toarray()
    return array


def limit_threads(cores: int) -> bool:
    """Limit this process's TensorFlow thread pool to `cores` threads. Return False if TensorFlow had started already."""
    try:
        tf.config.threading.set_intra_op_parallelism_threads(cores)
        tf.config.threading.set_inter_op_parallelism_threads(max(1, cores - 1))
    except RuntimeError:
        return False
    return True


def where_built(model: keras.Model) -> AbstractContextManager[Any]:
    """Return the scope of the `tf.distribute` strategy that the model was made under, in which Keras' fit makes its variables."""
    scope: AbstractContextManager[Any] = model.distribute_strategy.scope()
    return scope


def output_shapes(model: keras.Model) -> list[tuple[int | None, ...]] | None:
    """Return the shapes of a model's outputs, without rows, as TensorFlow finds them; None if it does not."""
    try:
        said = model.input
    except AttributeError:
        said = model.inputs[0]  # a Sequential's
    given = keras.tree.map_structure(lambda one: tf.TensorSpec(one.shape, one.dtype), said)
    try:
        traced = tf.function(lambda values: model(values, training=False)).get_concrete_function(given)
    except Exception:  # code of layers raises many kinds
        return None
    found = [one.shape for one in keras.tree.flatten(traced.structured_outputs)]
    return None if any(shape.rank is None for shape in found) else [tuple(shape[1:]) for shape in found]


def trace(model: keras.Model, variables: Iterable[AnyVariable], rows: object) -> str | None:
    """Return None: to run the model takes less time."""
    return None


def is_variable(thing: object) -> bool:
    """Return whether an object is a variable of Keras, or of TensorFlow, which Keras does not know."""
    return isinstance(thing, keras.Variable | tf.Variable)


def variables_in(thing: object) -> Iterable[AnyVariable]:
    """Return nothing: every variable is an object of its own."""
    return ()


def backend_variable(variable: Any) -> tf.Variable:
    """Return the TensorFlow variable inside a Keras variable; a TensorFlow variable is returned unchanged."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def dtype_of(variable: AnyVariable) -> str:
    """Return the name of a variable's dtype."""
    name: str = backend_variable(variable).dtype.name
    return name


def name_of(variable: AnyVariable) -> str:
    """Return the name of a variable."""
    return str(variable.name)


def is_number(variable: AnyVariable) -> bool:
    """Return whether a variable can be part of a state: its shape is known, and it holds no text."""
    held = backend_variable(variable)
    number: bool = held.dtype.is_floating or held.dtype.is_integer or held.dtype.is_bool
    return number and bool(held.shape.is_fully_defined())


_SEVERAL = tf.distribute.DistributedValues
"""A variable that was made under a `tf.distribute` strategy: one for each of the process's devices, of which raw ops reach one."""

# A state is assigned and read at every exchange. Raw ops take a third or less of the time of Keras' `assign` and
# `convert_to_numpy`, and need no trace: benchmarks/state.py prints the numbers.


def assign(variable: AnyVariable, value: Array) -> None:
    """Set a variable to an array of its shape. The variable does not keep the array."""
    held = backend_variable(variable)
    if isinstance(held, _SEVERAL):
        held.assign(value)
        return
    tf.raw_ops.AssignVariableOp(resource=held.handle, value=value.astype(held.dtype.as_numpy_dtype, copy=False))


def value_of(variable: AnyVariable) -> Array:
    """Return a copy of a variable's value; bfloat16 as float32."""
    held = backend_variable(variable)
    if isinstance(held, _SEVERAL):
        value = np.array(held.numpy())
    else:
        value = np.asarray(tf.raw_ops.ReadVariableOp(resource=held.handle, dtype=held.dtype).numpy())
    return value if value.dtype.kind in "fiub" else value.astype(np.float32)


def content_of(variable: AnyVariable) -> Array:
    """Return the same for reading at once: the array shares the variable's memory until that is written again."""
    held = backend_variable(variable)
    if isinstance(held, _SEVERAL):
        return value_of(variable)
    try:
        return np.asarray(memoryview(tf.raw_ops.ReadVariableOp(resource=held.handle, dtype=held.dtype)))
    except (TypeError, ValueError, BufferError):  # bfloat16 and shorter types
        return value_of(variable)


def generators() -> Sequence[AnyVariable]:
    """Return nothing: Keras' layers draw from generators of their own."""
    return ()


def check_model(model: keras.Model, reached: Callable[[], Iterable[object]]) -> None:
    """Do nothing: TensorFlow runs every model that it has built."""


def at_rest(model: keras.Model) -> None:
    """Do nothing: a call says whether it trains."""


def is_eager(model: keras.Model) -> bool:
    """Return whether a model's code runs at every step."""
    return bool(model.run_eagerly)


def build_by_test_step(model: keras.Model, batch: Any) -> None:
    """Run the model's test step on a batch of tensors: it builds what is not built."""
    test_step(model, batch)


def test_step(model: keras.Model, batch: Any) -> None:
    """Run the model's test step on a batch of tensors."""
    model.test_step(batch)


STEPS_BUILD = True
TRACES = True


def trace_train_step(model: keras.Model, batch: Any) -> None:
    """Trace the model's train step: it creates variables but assigns nothing."""
    tf.function(model.train_step, autograph=False).get_concrete_function(batch)


def train_step(model: keras.Model, batch: Any) -> None:
    """Run the model's train step on a batch of tensors."""
    model.train_step(batch)


def loop(model: keras.Model, step: Step, corrections: Sequence[keras.Variable] = ()) -> Loop:
    """Return the compiled loop over one of a model's two steps."""
    return TensorFlowLoop(model, step, corrections)


def prediction_loop(model: keras.Model) -> PredictionLoop | None:
    """Return the compiled loop over the predict step; None for a model that runs eagerly.

    Keras compiles a graph of its own for single batches. Custom gradients of both go with the model.
    """
    if is_eager(model):
        return None
    vars(model)["predict_step"] = CustomGradients(model).noted(model.predict_step)
    return TensorFlowPredictions(model)


def mapped_rows(function: RowsFunction) -> MappedRows | None:
    """Return a function that is traced once for all pipelines of tf.data."""
    return TracedRows(function)


def is_compiled(thing: object) -> bool:
    """Return whether an object is a `tf.function`."""
    return isinstance(thing, tf.types.experimental.PolymorphicFunction)


def reduction(thing: object, value: Callable[[tf.Variable], object]) -> Reduction | None:
    """Return how to rebuild a TensorFlow object elsewhere, in the form of pickle's `__reduce__`.

    None for other objects.

    Args:
        value: function of a variable that returns what is pickled for its value.

    Raises:
        TypeError: the object exists in this process only.
    """
    if isinstance(thing, tf.Variable):
        return _variable, (value(thing), *_variable_arguments(thing))
    if isinstance(thing, tf.Tensor):
        return _tensor_reduction(thing)
    if is_compiled(thing):
        return _function_reduction(thing)
    if isinstance(thing, tf.distribute.Strategy):
        return tf.distribute.get_strategy, ()
    if isinstance(thing, tf.lookup.StaticHashTable):
        return _static_table, (*_exported(thing), *_table_arguments(thing, thing.default_value))
    if isinstance(thing, tf.lookup.experimental.MutableHashTable):
        default = thing._default_value  # there is no public way to it
        return _mutable_table, (*_exported(thing), *_table_arguments(thing, default))
    if isinstance(thing, tf.RaggedTensor):
        return _ragged, (thing.flat_values, list(thing.nested_row_splits))
    if isinstance(thing, tf.SparseTensor):
        return _sparse, (thing.indices, thing.values, thing.dense_shape)
    plain = _wrappers().get(type(thing))
    if plain is not None:
        container: Any = thing
        kind = type(getattr(thing, "__wrapped__", None))
        if not issubclass(kind, plain):  # lists have no inner one
            kind = plain
        if issubclass(kind, tuple):  # of whatever arguments its own class takes
            return tuple.__new__, (kind, tuple(container))
        return kind, (list(container.items() if isinstance(thing, dict) else container),)
    return None


def variable_attributes(variable: keras.Variable, value: Callable[[AnyVariable], object]) -> dict[str, object]:
    """Return nothing: the value of a Keras variable is a `tf.Variable`, which has a reduction."""
    return {}


def _variable_arguments(variable: tf.Variable) -> tuple[object, ...]:
    shape = variable.shape.as_list() if variable.shape.rank is not None else None
    name = variable.name.split(":")[0]
    return (
        shape,
        variable.dtype.name,
        variable.trainable,
        name,
        variable.aggregation.name,
        variable.synchronization.name,
    )


def _variable(
    value: Array | None,
    shape: list[int | None] | None,
    dtype: str,
    trainable: bool,
    name: str,
    aggregation: str,
    synchronization: str,
) -> tf.Variable:
    """Return a variable with a value, or with zeros until a state is written."""
    if value is None:
        value = tf.zeros([size or 0 for size in shape or ()], dtype)
    return tf.Variable(
        tf.convert_to_tensor(value, dtype),
        shape=tf.TensorShape(shape),
        trainable=trainable,
        name=name,
        aggregation=tf.VariableAggregation[aggregation],
        synchronization=tf.VariableSynchronization[synchronization],
    )


def _tensor_reduction(tensor: tf.Tensor) -> Reduction:
    if not hasattr(tensor, "numpy"):
        return _nothing, ()  # left behind by a trace, such as a layer's last attention scores: the next trace sets it
    if tensor.dtype in (tf.resource, tf.variant):
        raise TypeError(f"cannot pickle a TensorFlow {tensor.dtype.name} handle")
    return tf.constant, (tensor.numpy(), tensor.dtype.name)


def _nothing() -> None:
    return None


def _ragged(values: tf.Tensor, splits: list[tf.Tensor]) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_nested_row_splits(values, splits)


def _sparse(indices: tf.Tensor, values: tf.Tensor, shape: tf.Tensor) -> tf.SparseTensor:
    return tf.SparseTensor(indices, values, shape)


def _function_reduction(function: tf.types.experimental.PolymorphicFunction) -> Reduction:
    """Return the reduction of a `tf.function`: its Python function, traced anew, with the source that AutoGraph reads."""
    python = function.python_function
    options = {
        "input_signature": function.input_signature,
        # There is no public way to these three.
        "autograph": getattr(function, "_autograph", True),
        "jit_compile": getattr(function, "_jit_compile", None),
        "reduce_retracing": getattr(function, "_reduce_retracing", False),
    }
    return _function, (python, options, _source_of(python))


def _function(
    python: Callable[..., object], options: dict[str, object], source: tuple[str, list[str]] | None
) -> object:
    """Return the `tf.function`. Its source is put where `inspect` looks for it.

    On workers always: the file may be another one there, and may be edited later. On the driver it is what the user imports.
    """
    if source is not None and (_on_worker() or not linecache.getlines(source[0])):
        name, lines = source
        # Without a time, the file is not looked at again.
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    return tf.function(python, **options)


def _on_worker() -> bool:
    """Return whether this is a process in which Spark runs tasks."""
    return "pyspark.worker" in sys.modules


def _source_of(python: object) -> tuple[str, list[str]] | None:
    """Return the file and lines of a function's code; None for installed files, which workers have."""
    code = getattr(getattr(python, "__func__", python), "__code__", None)
    if not isinstance(code, types.CodeType) or "site-packages" in code.co_filename:
        return None
    lines, own = source_lines(code)
    if not own:
        warnings.warn(
            f"{code.co_filename} was edited after it was imported. Under tf.function the code of {code.co_name!r} is read from the file: "
            "what is trained is the edited code, or an error. Import it again, or start Python anew.",
            ElephasWarning,
            stacklevel=2,
        )
    return (code.co_filename, lines) if lines else None


def _exported(table: Any) -> tuple[Array, Array]:
    """Return keys and values of a table, in the order of the keys: TensorFlow gives them as they lie, in equal tables differently."""
    keys, values = (part.numpy() for part in table.export())
    order = np.argsort(keys, kind="stable")
    return keys[order], values[order]


def _table_arguments(table: object, default: object) -> tuple[object, ...]:
    default = default.numpy() if hasattr(default, "numpy") else default
    return table.key_dtype.name, table.value_dtype.name, default  # type: ignore[attr-defined]  # lookup tables have them


def _static_table(keys: Array, values: Array, key_dtype: str, value_dtype: str, default: object) -> object:
    content = tf.lookup.KeyValueTensorInitializer(tf.constant(keys, key_dtype), tf.constant(values, value_dtype))
    return tf.lookup.StaticHashTable(content, default)


def _mutable_table(keys: Array, values: Array, key_dtype: str, value_dtype: str, default: object) -> object:
    table = tf.lookup.experimental.MutableHashTable(tf.as_dtype(key_dtype), tf.as_dtype(value_dtype), default)
    if len(keys):
        table.insert(tf.constant(keys, key_dtype), tf.constant(values, value_dtype))
    return table


@cache
def _wrappers() -> dict[type, type]:
    """Return the classes in which TensorFlow wraps containers in a module's attributes, with the plain classes."""
    module = tf.Module()
    module.list, module.dict, module.tuple = [], {}, (tf.Module(),)
    return {type(value): kind for value, kind in ((module.list, list), (module.dict, dict), (module.tuple, tuple))}
