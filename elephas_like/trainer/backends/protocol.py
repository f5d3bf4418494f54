"""What a backend of Keras is to the rest of the package: one module that has the names of `Backend`.

No other code asks which backend there is. Names that differ only in what they return for a thing of their own (`is_ragged`,
`is_compiled`, `reduction`) find nothing where a backend has no such thing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias, TypeVar

import keras

from elephas_like.core.types import Array, Integers, Structure

Tensor: TypeAlias = Any
"""A tensor of the backend's."""
AnyVariable: TypeAlias = Any
"""A Keras variable, or one of the backend's own, which Keras does not know."""
Step: TypeAlias = Callable[..., Any]
"""A model's `train_step` or `test_step`, in the form that the backend's Keras gives it."""
Reduction: TypeAlias = tuple[Callable[..., object], tuple[object, ...]]
"""How to rebuild an object elsewhere, in the form of pickle's `__reduce__`."""

RowsFunction: TypeAlias = Callable[..., object]
"""Makes of (x, y, sample_weight), None for what there is not, what a step takes."""

Result = TypeVar("Result")


class Loop(Protocol):
    """Runs a model's train or test step over batches of columns, compiled unless the model runs eagerly."""

    @property
    def done(self) -> int:
        """Steps run so far. The current one may be included. Other threads may read it, also while `run` is under way."""
        ...

    @property
    def returned(self) -> object:
        """The names in the logs that a step has returned, as a tree without values; None before the first step."""
        ...

    def run(
        self,
        columns: Sequence[Tensor],
        structure: Structure,
        order: Tensor,
        batch_size: int,
        first: int,
        last: int,
        *,
        sized: bool = False,
    ) -> None:
        """Run the steps `first` to `last` (exclusive; at least one). Step i sees the rows `order[i batch_size:][:batch_size]`.

        Afterwards the model's variables have the values of the last step.

        Args:
            sized: whether the step must see in Python how many rows its batch has. It may see it anyway.
        """
        ...


class PredictionLoop(Protocol):
    """Runs a model's predict step over successive batches."""

    def run(self, features: object, steps: int, batch_size: int, like: Sequence[Array]) -> list[Array]:
        """Return the outputs of `steps` batches, rows first, in the order of their leaves.

        Args:
            features: of `steps` times `batch_size` rows at least, an array or a tree of arrays.
            like: the outputs of one batch of so many rows.
        """
        ...


class MappedRows(Protocol):
    """A function of rows that pipelines map over batches, called like it."""

    def __call__(self, x: object, y: object = None, sample_weight: object = None) -> object:
        """Call the function on a batch, from a pipeline."""
        ...

    def step(self, columns: Sequence[object]) -> RowsFunction | None:
        """Return the same function for batches of arrays, without a pipeline; None where it takes a pipeline.

        Args:
            columns: (x, y, sample_weight), None for what there is not.
        """
        ...


class Backend(Protocol):
    """A backend that workers train with: tensors, threads, variables, steps, and how objects of its own travel."""

    @property
    def NAME(self) -> str:
        """As Keras calls it."""
        ...

    # Tensors.

    def tensors(self, columns: Sequence[Array]) -> list[Tensor]:
        """Return columns as tensors."""
        ...

    def row_numbers(self, order: Integers | int) -> Tensor:
        """Return row numbers as a tensor; for an int n the numbers 0 to n - 1."""
        ...

    def tensor_tree(self, tree: object) -> object:
        """Return the arrays of a tuple, list or dict as tensors; None stays None."""
        ...

    def text_tensors(self, tree: object) -> object:
        """Return a tree of arrays with string arrays in the form in which Keras accepts text."""
        ...

    def is_ragged(self, thing: object) -> bool:
        """Return whether an object is a tensor with rows of unequal shape."""
        ...

    def is_sparse(self, thing: object) -> bool:
        """Return whether an object is a sparse matrix of SciPy's or a sparse tensor."""
        ...

    def dense(self, matrix: Any) -> Array:
        """Return a sparse matrix or tensor as a dense array."""
        ...

    # Threads and functions.

    def limit_threads(self, cores: int) -> bool:
        """Limit this process's threads to `cores`. Return False if the backend had started already."""
        ...

    ARITHMETIC: dict[str, Any]
    """What `arithmetic` returns where a program has set nothing."""

    def arithmetic(self) -> dict[str, Any]:
        """Return this process's settings of how exactly it computes, and whether equally each time, as plain data."""
        ...

    def use_arithmetic(self, settings: Mapping[str, Any]) -> None:
        """Set what `arithmetic` returned in another process; what this backend has no setting for is left out."""
        ...

    def compiled(self, step: Callable[..., Result]) -> Callable[..., Result]:
        """Return a function that calls a model, compiled where the backend can compile what changes variables."""
        ...

    def many_graphs(self) -> AbstractContextManager[None]:
        """Suppress warnings about compiling often, where every model is a new graph."""
        ...

    def where_built(self, model: keras.Model) -> AbstractContextManager[Any]:
        """Return the context in which variables of a model and its optimizer must be made."""
        ...

    def output_shapes(self, model: keras.Model) -> list[tuple[int | None, ...]] | None:
        """Return the shapes of a model's outputs, without rows, by a trace of the model; None where the backend makes none."""
        ...

    def trace(self, model: keras.Model, variables: Iterable[AnyVariable], rows: object) -> str | None:
        """Return what a model computes of rows and of these variables, as text; None where the backend makes no such text, or not of this model.

        Two models with the same text have the same outputs, if the variables have the same values.
        """
        ...

    # Variables.

    def is_variable(self, thing: object) -> bool:
        """Return whether an object is a variable of Keras, or of the backend."""
        ...

    def variables_in(self, thing: object) -> Iterable[AnyVariable]:
        """Return the variables of an object that stand for tensors which are like others; the same objects at every call."""
        ...

    def backend_variable(self, variable: AnyVariable) -> Any:
        """Return the object by whose identity a variable is known, for as long as it lives."""
        ...

    def dtype_of(self, variable: AnyVariable) -> str:
        """Return the name of a variable's dtype."""
        ...

    def name_of(self, variable: AnyVariable) -> str:
        """Return the name of a variable; empty if it has none."""
        ...

    def is_number(self, variable: AnyVariable) -> bool:
        """Return whether a variable can be part of a state: its shape is known, and it holds no text."""
        ...

    def assign(self, variable: AnyVariable, value: Array) -> None:
        """Set a variable to an array of its shape. The variable does not keep the array."""
        ...

    def value_of(self, variable: AnyVariable) -> Array:
        """Return a copy of a variable's value; types that NumPy has not as float32."""
        ...

    def content_of(self, variable: AnyVariable) -> Array:
        """Return the same for reading at once: the array may share the variable's memory, where that saves a copy."""
        ...

    def generators(self) -> Sequence[AnyVariable]:
        """Return the process's own random generators that layers without a seed draw from, as variables named seed_generator_state.

        Keras' variables have the state of all others.
        """
        ...

    # Steps.

    def check_model(self, model: keras.Model, reached: Callable[[], Iterable[object]]) -> None:
        """Do nothing if a compiled model can be trained on this backend, as far as its code shows.

        Args:
            reached: everything that the model refers to (trainer/graph.py).

        Raises:
            ElephasError: it cannot.
        """
        ...

    def at_rest(self, model: keras.Model) -> None:
        """Put a model in the mode that it has outside of training, where a backend has such modes."""
        ...

    def is_eager(self, model: keras.Model) -> bool:
        """Return whether a model's Python code runs at every step, so that it may leave something behind in attributes."""
        ...

    def build_by_test_step(self, model: keras.Model, batch: Any) -> None:
        """Build what the model's test step builds. The step may be run, and metrics change, or only be traced."""
        ...

    def test_step(self, model: keras.Model, batch: Any) -> None:
        """Run the model's test step on a batch of tensors; metrics change, and what is not built is."""
        ...

    @property
    def STEPS_BUILD(self) -> bool:
        """Whether a train step of the user's own may build what it uses on its first call."""
        ...

    @property
    def TRACES(self) -> bool:
        """Whether `trace_train_step` can build without running a step."""
        ...

    def trace_train_step(self, model: keras.Model, batch: Any) -> None:
        """Trace the model's train step: it creates variables but assigns nothing. For backends that trace."""
        ...

    def train_step(self, model: keras.Model, batch: Any) -> None:
        """Run the model's train step on a batch of tensors. For backends whose steps build."""
        ...

    def loop(self, model: keras.Model, step: Step, corrections: Sequence[keras.Variable] = ()) -> Loop:
        """Return the loop over one of a model's two steps.

        Args:
            corrections: what each step adds to the trainable variables afterwards, one each, or none. Their values may change between
                runs.
        """
        ...

    def prediction_loop(self, model: keras.Model) -> PredictionLoop | None:
        """Return the loop over a model's predict step, or None where each step is a call of Keras' own."""
        ...

    def mapped_rows(self, function: RowsFunction) -> MappedRows | None:
        """Return a function that prepares rows in pipelines of the backend's, compiled once for all of them; None without such pipelines."""
        ...

    def free_graphs_of_fits(self) -> None:
        """Have what Keras' own fit, evaluate and predict compile of a model go with it, in this process, where it would stay."""
        ...

    def for_one_process(self, optimizers: Sequence[keras.optimizers.Optimizer]) -> None:
        """Have the optimizers that step a model leave out what one process has no use for, where that is worth something."""
        ...

    def fuse(self, optimizers: Sequence[keras.optimizers.Optimizer]) -> bool:
        """Have the optimizers that step a model take fused kernels, where the backend has any for them. Return whether one does."""
        ...

    # Pickles (trainer/live_pickle.py).

    def is_compiled(self, thing: object) -> bool:
        """Return whether an object is a compiled function that has its Python function as `python_function`."""
        ...

    def reduction(self, thing: object, value: Callable[[AnyVariable], object]) -> Reduction | None:
        """Return how to rebuild an object of the backend's elsewhere. None for other objects.

        Args:
            value: function of a variable that returns what is pickled for its value.

        Raises:
            TypeError: the object exists in this process only.
        """
        ...

    def variable_attributes(
        self, variable: keras.Variable, value: Callable[[AnyVariable], object]
    ) -> dict[str, object]:
        """Return the attributes of a Keras variable that are pickled in another form than they have.

        Args:
            value: as above.
        """
        ...
