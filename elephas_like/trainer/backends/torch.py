"""Keras on PyTorch: tensors, threads, variables, steps, and PyTorch's tensors in pickles (backends/protocol.py)."""

from __future__ import annotations

import copyreg
import importlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import pairwise
from typing import Any, TypeVar

from elephas_like.core.extras import require

require("torch")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

from elephas_like.core.errors import ElephasError, ElephasWarning  # noqa: E402
from elephas_like.core.types import Array, Integers  # noqa: E402
from elephas_like.trainer.backends.foreign_code import (  # noqa: E402
    check_no_tensorflow,
    not_a_number,
    own_steps,
    requires_state,
    without_text,
)
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
from elephas_like.trainer.backends.torch_buffers import Buffer, buffer_of, buffers_in  # noqa: E402
from elephas_like.trainer.backends.torch_generator import ProcessGenerator  # noqa: E402
from elephas_like.trainer.backends.torch_loop import TorchLoop  # noqa: E402

NAME = "torch"

Result = TypeVar("Result")

_GENERATOR = ProcessGenerator()


def _module(module: Any) -> Reduction:
    return importlib.import_module, (module.__name__,)


# cloudpickle takes `torch.ops` for a module that a function uses whose code has the names `torch` and `ops`, of keras.ops for example.
for _kind in (type(torch.ops), type(torch.classes)):  # both are modules that pickle does not know as such
    copyreg.pickle(_kind, _module)


def tensors(columns: Sequence[Array]) -> list[Tensor]:
    """Return columns as tensors on the device of Keras."""
    return [_tensor(np.asarray(column)) for column in columns]


def _tensor(column: Array) -> Tensor:
    if column.dtype.kind not in "biufcV" or column.dtype == np.uint64:  # V: bfloat16 and its like
        raise not_a_number(column.dtype.name, "PyTorch")
    return keras.ops.convert_to_tensor(column)


def row_numbers(order: Integers | int) -> Tensor:
    """Return row numbers as an int64 tensor; for an int n the numbers 0 to n - 1."""
    numbers = np.arange(order) if isinstance(order, int) else np.asarray(order)
    return keras.ops.convert_to_tensor(numbers.astype(np.int64))


def tensor_tree(tree: object) -> object:
    """Return the arrays of a tuple, list or dict as tensors; None stays None."""
    if tree is None:
        return None
    return keras.tree.map_structure(lambda leaf: None if leaf is None else _tensor(np.asarray(leaf)), tree)


def text_tensors(tree: object) -> object:
    """Return a tree of arrays as it is.

    Raises:
        ElephasError: it holds text.
    """
    return without_text(tree, "PyTorch")


def is_ragged(thing: object) -> bool:
    """Return whether an object is a nested tensor."""
    return isinstance(thing, torch.Tensor) and thing.is_nested


def is_sparse(thing: object) -> bool:
    """Return whether an object is a sparse matrix of SciPy's or a sparse tensor."""
    if isinstance(thing, torch.Tensor):
        return thing.layout is not torch.strided and not thing.is_nested
    return type(thing).__module__.startswith("scipy.sparse")


def dense(matrix: Any) -> Array:
    """Return a sparse matrix or tensor as a dense array."""
    array: Array = matrix.to_dense().cpu().numpy() if isinstance(matrix, torch.Tensor) else matrix.toarray()
    return array


def limit_threads(cores: int) -> bool:
    """Limit this process to `cores` threads, also if PyTorch has computed already."""
    torch.set_num_threads(cores)
    return True


_CUDNN = {"deterministic": False, "benchmark": False, "allow_tf32": True}
ARITHMETIC = {"algorithms": [False, False], "products": "highest", **_CUDNN}


def arithmetic() -> dict[str, Any]:
    """Return the precision of matrix products, and whether algorithms are deterministic; of PyTorch and cuDNN.

    PyTorch refuses to tell some of them where a program has set a part of them by their newer names.
    """
    found: dict[str, Any] = {
        "algorithms": [
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ]
    }
    with suppress(RuntimeError):
        found["products"] = torch.get_float32_matmul_precision()
    for name in _CUDNN:
        with suppress(RuntimeError):
            found[name] = getattr(torch.backends.cudnn, name)
    return found


def use_arithmetic(settings: Mapping[str, Any]) -> None:
    """Set what `arithmetic` returned in another process."""
    now = arithmetic()
    for name, value in settings.items():
        if now.get(name, value) == value:
            continue
        if name == "algorithms":
            torch.use_deterministic_algorithms(value[0], warn_only=value[1])
        elif name == "products":
            torch.set_float32_matmul_precision(value)
        else:
            setattr(torch.backends.cudnn, name, value)


def compiled(step: Callable[..., Result]) -> Callable[..., Result]:
    """Return the function without gradients: what PyTorch compiles has to run for long before it has paid."""
    function: Callable[..., Result] = torch.no_grad()(step)
    return function


def many_graphs() -> AbstractContextManager[None]:
    """Do nothing: no graph is made."""
    return nullcontext()


def where_built(model: keras.Model) -> AbstractContextManager[None]:
    """Return a context without effect."""
    return nullcontext()


def output_shapes(model: keras.Model) -> list[tuple[int | None, ...]] | None:
    """Return None: the layers of whose outputs Keras says wrong shapes are TensorFlow's."""
    return None


def trace(model: keras.Model, variables: Iterable[AnyVariable], rows: object) -> str | None:
    """Return None: to run the model takes less time."""
    return None


def is_variable(thing: object) -> bool:
    """Return whether an object is a variable of Keras, a parameter of PyTorch's, or what stands for a buffer or a generator."""
    return isinstance(thing, keras.Variable | torch.nn.Parameter | Buffer | ProcessGenerator)


def variables_in(thing: object) -> Iterable[AnyVariable]:
    """Return the buffers of a module, which are tensors like others."""
    return buffers_in(thing) if isinstance(thing, torch.nn.Module) else ()


def backend_variable(variable: AnyVariable) -> Any:
    """Return the parameter inside a Keras variable; a parameter or buffer is returned unchanged."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def dtype_of(variable: AnyVariable) -> str:
    """Return the name of a variable's dtype."""
    return str(_content(variable).dtype).removeprefix("torch.")


def _content(variable: AnyVariable) -> Any:
    """Return the tensor of a variable; a generator is returned unchanged."""
    return variable.value if isinstance(variable, keras.Variable | Buffer) else variable


def name_of(variable: AnyVariable) -> str:
    """Return the name of a variable; that of a buffer in its module, in Keras' words; nothing for a parameter."""
    return str(getattr(variable, "name", None) or "")


def is_number(variable: AnyVariable) -> bool:
    """Return whether a variable can be part of a state: it has a shape, and its values are real."""
    held = _content(variable)
    return held is _GENERATOR or not (held.is_complex() or held.is_meta or torch.nn.parameter.is_lazy(held))


def assign(variable: AnyVariable, value: Array) -> None:
    """Set a variable to an array of its shape. The variable does not keep the array."""
    if variable is _GENERATOR:
        variable.write(value)
        return
    if not value.flags.writeable or any(stride < 0 for stride in value.strides):
        value = value.copy()  # PyTorch takes no other arrays
    if isinstance(variable, Buffer):
        variable.put(torch.from_numpy(value))
        return
    with torch.no_grad():
        _content(variable).copy_(torch.from_numpy(value))


def value_of(variable: AnyVariable) -> Array:
    """Return a copy of a variable's value; types that NumPy has not as float32."""
    return variable.read() if variable is _GENERATOR else _array_of(_content(variable)).copy()


def content_of(variable: AnyVariable) -> Array:
    """Return the same for reading at once: the array may share the variable's memory."""
    return variable.read() if variable is _GENERATOR else _array_of(_content(variable))


def _array_of(tensor: Tensor) -> Array:
    """Return a tensor's values, which the array may share."""
    held = tensor.detach().cpu()
    if held.dtype.is_floating_point and held.dtype not in (torch.float16, torch.float32, torch.float64):
        held = held.to(torch.float32)  # bfloat16 and shorter ones
    array: Array = held.resolve_conj().resolve_neg().numpy()
    return array


def generators() -> Sequence[AnyVariable]:
    """Return PyTorch's generator, from which dropout without a seed draws, in Keras' layers and in PyTorch's."""
    return (_GENERATOR,)


def check_model(model: keras.Model, reached: Callable[[], Iterable[object]]) -> None:
    """Do nothing if a compiled model can be trained on PyTorch, as far as its code shows.

    Raises:
        ElephasError: a step in the form of JAX's, a layer that computes with TensorFlow, or code that uses it; complex weights, or
            tensors that share memory.
    """
    for name, step in own_steps(model):
        if requires_state(step):
            raise ElephasError(
                f"{name} takes (state, data), as on JAX: Keras on PyTorch calls {step.__name__}(data), which updates the model and "
                "returns logs. Write it in that form, or set KERAS_BACKEND=jax before keras is imported."
            )
    things = list(reached())
    check_no_tensorflow(model, things, "PyTorch")
    _check_tensors(model, things)
    own = {type(thing).__name__ for thing in things if isinstance(thing, torch.optim.Optimizer | torch.Generator)}
    if own:
        warnings.warn(
            f"the model {model.name!r} holds {', '.join(sorted(own))} of PyTorch's, whose state is no part of what workers exchange: "
            "each worker has its own, which is lost with its process. Use Keras' optimizers and random layers.",
            ElephasWarning,
            stacklevel=2,
        )


def _check_tensors(model: keras.Model, things: Iterable[object]) -> None:
    """Raise for tensors that a state cannot hold, or that would not be what they were on a worker."""
    places: dict[tuple[int, int], Any] = {}
    for variable in (thing for thing in things if isinstance(thing, torch.nn.Parameter | Buffer)):
        tensor = _content(variable)
        if isinstance(variable, torch.nn.Parameter) and tensor.is_complex():
            raise ElephasError(
                f"the model {model.name!r} has a parameter of {dtype_of(variable)}, and workers exchange real numbers. Keep its real "
                "and imaginary part in a parameter each."
            )
        if tensor.numel() and tensor.layout is torch.strided:
            length = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
            place = tensor.data_ptr(), tensor.data_ptr() + length * tensor.element_size()
            if places.setdefault(place, tensor) is not tensor:
                raise _sharing(model, tensor, places[place])
    for one, other in pairwise(sorted(places)):
        if other[0] < one[1]:
            raise _sharing(model, places[one], places[other])


def _sharing(model: keras.Model, one: Tensor, other: Tensor) -> ElephasError:
    return ElephasError(
        f"two tensors of the model {model.name!r} share memory, of shapes {tuple(one.shape)} and {tuple(other.shape)}. On a worker each "
        "would have its own: use clone(), or the same tensor twice."
    )


def at_rest(model: keras.Model) -> None:
    """Put PyTorch's modules in evaluation mode, as Keras' fit, predict and evaluate leave them; they begin in training mode."""
    model.eval()


def is_eager(model: keras.Model) -> bool:
    """Return whether a model's code runs at every step: unless `torch.compile` compiles it."""
    return model.jit_compile is not True


def build_by_test_step(model: keras.Model, batch: Any) -> None:
    """Run the model's test step on a batch of tensors: it builds what is not built."""
    test_step(model, batch)


def test_step(model: keras.Model, batch: Any) -> None:
    """Run the model's test step on a batch of tensors; metrics change, and what is not built is."""
    # As Keras' own fit: it also builds an optimizer that a step of the user's leaves out.
    model._symbolic_build(data_batch=batch)
    model.eval()
    with torch.no_grad():
        model.test_step(batch)


STEPS_BUILD = True
TRACES = False


def trace_train_step(model: keras.Model, batch: Any) -> None:
    """Do nothing: a step on PyTorch can only be run."""


def train_step(model: keras.Model, batch: Any) -> None:
    """Run the model's train step on a batch of tensors."""
    model.train()
    try:
        model.train_step(batch)
    finally:
        model.zero_grad()
        model.eval()


def loop(model: keras.Model, step: Step, corrections: Sequence[keras.Variable] = ()) -> Loop:
    """Return the loop over one of a model's two steps. Its steps know their sizes."""
    return TorchLoop(model, step, corrections)


def prediction_loop(model: keras.Model) -> PredictionLoop | None:
    """Return None: each step is a call of Keras' own."""
    return None


def mapped_rows(function: RowsFunction) -> MappedRows | None:
    """Return None: pipelines are Grain's or TensorFlow's."""
    return None


def free_graphs_of_fits() -> None:
    """Do nothing: it is TensorFlow that registers gradients."""


def for_one_process(optimizers: Sequence[keras.optimizers.Optimizer]) -> None:
    """Do nothing: there is no graph, and an eager step reads its number as a number."""


def fuse(optimizers: Sequence[keras.optimizers.Optimizer]) -> bool:
    """Return False: Keras' optimizers take PyTorch's kernels for all variables at once as they are."""
    return False


def is_compiled(thing: object) -> bool:
    """Return False: what `torch.compile` returns has its Python function in another attribute, which pickles find."""
    return False


def reduction(thing: object, value: Callable[[AnyVariable], object]) -> Reduction | None:
    """Return how to rebuild a tensor, parameter or buffer on the device of Keras elsewhere. None for other objects.

    Args:
        value: function of a variable that returns what is pickled for its value.
    """
    if not isinstance(thing, torch.Tensor):
        return None
    if thing.is_meta:
        return _nothing, ()  # left behind by a trace, such as a layer's last attention scores: the next trace sets it
    dtype, buffer = str(thing.dtype).removeprefix("torch."), buffer_of(thing)
    if isinstance(thing, torch.nn.Parameter):
        hooks = [getattr(thing, name) for name in _HOOKS]
        return _parameter, (value(thing), tuple(thing.shape), dtype, thing.requires_grad, hooks, dict(vars(thing)))
    if buffer is not None and is_number(buffer):
        return _filled, (value(buffer), tuple(thing.shape), dtype)
    if is_sparse(thing) or thing.is_nested:
        return None  # PyTorch's own pickle
    return _constant, (_array_of(thing), dtype)


def variable_attributes(variable: keras.Variable, value: Callable[[AnyVariable], object]) -> dict[str, object]:
    """Return nothing: the value of a Keras variable is a parameter, which has a reduction."""
    return {}


def _nothing() -> None:
    return None


def _constant(content: Array, dtype: str) -> Tensor:
    return keras.ops.convert_to_tensor(content).to(getattr(torch, dtype))


def _filled(content: Array | None, shape: tuple[int, ...], dtype: str) -> Tensor:
    """Return a tensor with values, or with zeros until a state is written."""
    return _constant(np.zeros(shape, np.float32) if content is None else content, dtype)


_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
"""What `register_hook` and its like leave on a tensor; there is no public way to them."""


def _parameter(
    content: Array | None,
    shape: tuple[int, ...],
    dtype: str,
    requires_grad: bool,
    hooks: list[Any],
    attributes: dict[str, object],
) -> torch.nn.Parameter:
    made = torch.nn.Parameter(_filled(content, shape, dtype), requires_grad=requires_grad)
    for name, held in zip(_HOOKS, hooks, strict=True):
        if held:
            setattr(made, name, held)
    vars(made).update(attributes)
    return made
