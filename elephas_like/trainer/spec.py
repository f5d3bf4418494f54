"""ModelSpec: a compiled model as plain data, to build it in another process.

The live model is pickled by value (trainer/live_pickle.py), whatever its configuration says. Keras' archive is for
files that people keep (trainer/archive.py).
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn

import keras
import numpy as np

from elephas_like.core.errors import ElephasError
from elephas_like.core.structure import flatten
from elephas_like.trainer import live_pickle
from elephas_like.trainer.backends.chosen import BACKEND
from elephas_like.trainer.building import building_lock, state_restored
from elephas_like.trainer.code import with_code_by_value
from elephas_like.trainer.compile_arguments import complete_compile_arguments
from elephas_like.trainer.graph import code_of, layers_of, path_to, reachable
from elephas_like.trainer.keras_settings import KerasSettings
from elephas_like.trainer.model_facts import overrides
from elephas_like.trainer.serialization import computes_with_others
from elephas_like.trainer.state import Variables, metric_variables, read_metrics, write_metrics
from elephas_like.trainer.tensors import at_rest, backend_variable, is_variable, name_of

log = logging.getLogger(__name__)


class Carry(Enum):
    """Which values of variables a spec holds."""

    ALL = "all"
    NOTHING = "nothing"
    """No value that a TrainState has: a state is written before the model is trained or evaluated."""
    STRUCTURE = "structure"
    """Nor those of metrics: all are written before the model predicts."""


@dataclass(frozen=True)
class ModelSpec:
    """A compiled model as plain data.

    program: the live model by value, without `values`.
    values: arrays of variables by their position in the program; None for values that are left out.
    backend, settings: of the Keras that the model is built with.
    key: equal for specs that one compiled model can serve, whatever the values of variables.
    unbuilt: (the key without what `building_as_workers_do` saw built, for rows of which kind); None if it saw nothing.
    """

    program: bytes
    values: tuple[object, ...]
    backend: str
    settings: KerasSettings
    key: str
    unbuilt: tuple[str, str] | None = None

    @classmethod
    def from_model(cls, model: keras.Model, carry: Carry = Carry.ALL) -> ModelSpec:
        """Return the spec of a compiled model.

        The first spec of each kind of model is built here and compared with the model.

        Args:
            model: built or not, trained or not.
            carry: which values of variables the spec holds.

        Raises:
            ElephasError: the model holds something that cannot be pickled, or the rebuilt model differs; the message
                names the object.
        """
        with building_lock:
            return cls._from_model(model, carry)

    @classmethod
    def _from_model(cls, model: keras.Model, carry: Carry) -> ModelSpec:
        complete_compile_arguments(model)
        if carry is not Carry.ALL:  # which brings constants, too
            _check_normalizations(model)
        variables = Variables(model)
        pickled, settings, key = _pickled(model, variables, carry)
        spec = cls(pickled.program, pickled.values, keras.backend.backend(), settings, key, _UNBUILT.get(key))
        _check_once(model, variables, spec, whole=carry is Carry.ALL)
        if carry is Carry.NOTHING:
            _warn_of_unreached(model, spec.first_key, pickled.variables)
        return spec

    def build(self) -> keras.Model:
        """Return the compiled model with its values, and set this process's global Keras settings, less the policy, to the spec's.

        Raises:
            ElephasError: this process's Keras has another backend.
        """
        if keras.backend.backend() != self.backend:
            raise ElephasError(
                f"the driver's Keras runs on {self.backend!r}, this worker's on {keras.backend.backend()!r}: "
                "set KERAS_BACKEND to the same value on both."
            )
        self.settings.apply()
        with self.settings.policy_applied():
            model = live_pickle.loads(self.program, self.values)
        at_rest(model)
        return model

    def key_for(self, sample: tuple[object, ...]) -> str:
        """Return a key of the spec and a kind of rows: equal where one compiled model can serve, whatever was built of it here before."""
        rows = _kind_of_rows(sample)
        if self.unbuilt is not None and self.unbuilt[1] == rows:
            return f"{self.unbuilt[0]} {rows}"
        return f"{self.key} {rows}"

    @property
    def first_key(self) -> str:
        """The key that the model had before anything was built of it here."""
        return self.key if self.unbuilt is None else self.unbuilt[0]

    def content_key(self) -> str:
        """Return a digest that is equal for specs of the same model with the same values."""
        return content_digest(self.key, self.values)


def content_digest(key: str, values: Iterable[object]) -> str:
    """Return a digest of a key with arrays; other values do not count."""
    digest = hashlib.blake2b(key.encode(), digest_size=16)
    for value in values:
        if isinstance(value, np.ndarray):
            digest.update(f"{value.dtype} {value.shape}".encode())
            digest.update(repr(value.tolist()).encode() if value.dtype.hasobject else np.ascontiguousarray(value).data)
    return digest.hexdigest()


def _pickled(
    model: keras.Model, variables: Variables, carry: Carry
) -> tuple[live_pickle.LivePickle, KerasSettings, str]:
    """Return (the live model by value, the settings it is built with, its key)."""
    without: list[object] = []
    if carry is not Carry.ALL:
        without = list(variables)
    if carry is Carry.STRUCTURE:
        without += metric_variables(model)

    def dump() -> live_pickle.LivePickle:
        names = _names_of_columns(model)
        return live_pickle.dumps(model, without=without, constants=carry is Carry.ALL, kept_names=names)

    try:
        pickled = with_code_by_value(code_of(model), dump)
    except live_pickle.PickleError as error:
        raise ElephasError(_cannot_travel(model, error)) from error
    settings = KerasSettings.current()
    told = f"{pickled.digest} {keras.backend.backend()} {settings}{_without_decay(model, variables)}"
    return pickled, settings, hashlib.blake2b(told.encode(), digest_size=16).hexdigest()


_UNBUILT: dict[str, tuple[str, str]] = {}
"""ModelSpec.unbuilt by key."""


@contextmanager
def building_as_workers_do(model: keras.Model, sample: tuple[object, ...]) -> Iterator[None]:
    """Note that what is built of a model in here, from a batch, is what workers build of it from such rows.

    A fit on Spark sends a model whose metrics are not built yet, and the driver builds its own as soon as it knows the rows. Without this the
    next fit, or an evaluation, would find no compiled model on the workers: what they have would have another key.
    """
    with building_lock:
        before = _key_and_layout(model)
        yield
        after = _key_and_layout(model)
        # A layout that has changed is not that of the workers' models.
        if before is not None and after is not None and before[1] == after[1] and before != after:
            _UNBUILT[after[0]] = before[0], _kind_of_rows(sample)


def _key_and_layout(model: keras.Model) -> tuple[str, str] | None:
    """Return the key of a model's specs, and the hash of its layout; None if it cannot be sent to workers: the next fit says why."""
    with suppress(Exception):
        variables = Variables(model)
        return _pickled(model, variables, Carry.NOTHING)[2], variables.layout.hash
    return None


def _kind_of_rows(sample: tuple[object, ...]) -> str:
    """Return the structure of a batch with the dtype and shape of a row of each array: losses and metrics are built for the rows they see first."""
    leaves, structure = flatten(sample)
    arrays = [np.asarray(leaf) for leaf in leaves]
    return f"{structure!r} {[(array.dtype.str, array.shape[1:]) for array in arrays]!r}"


def _without_decay(model: keras.Model, variables: Variables) -> str:
    """Return which weights optimizers leave out of weight decay by a pattern of names; "" without a pattern.

    On TensorFlow it is compared with paths, in which automatic names go on counting: "dense" is "dense_2" in the model that is built next.
    Keras has no public name for the pattern.
    """
    patterns = [getattr(each, "_exclude_from_weight_decay_pattern", None) for each in variables.optimizers]
    found = [
        [bool(pattern.search(variable.path)) for variable in model.trainable_variables]
        for pattern in patterns
        if pattern is not None
    ]
    return f" {found}" if found else ""


def _names_of_columns(model: keras.Model) -> list[str]:
    """Return the names by which rows may be keyed: those of several inputs and of several outputs."""
    named = [getattr(model, "input_names", None) or [], getattr(model, "output_names", None) or []]
    return [name for names in named if len(names) > 1 for name in names]


_LOADED = ("TFSMLayer", "_UserObject")
"""Classes of a SavedModel that was loaded: Keras', and that of `tf.saved_model.load`."""
_OF_LOADED = ("tensorflow.", "google.")
"""Modules of what its functions refer to: graphs, and messages of protobuf."""


def _cannot_travel(model: keras.Model, error: live_pickle.PickleError) -> str:
    path = path_to(model, error.culprit)
    place = f"its {path.lstrip('.')}" if path else "something in it"
    kind = type(error.culprit)
    loaded = [thing for thing in reachable(model) if type(thing).__name__ in _LOADED]
    if kind.__module__.startswith(_OF_LOADED) and any(path_to(thing, error.culprit) is not None for thing in loaded):
        return (
            f"the model {model.name!r} cannot be sent to workers: {place} belongs to a SavedModel that was loaded (a TFSMLayer, or "
            "tf.saved_model.load), whose functions live in this process only. Compute its outputs before the fit, and train the layers that "
            "follow it on them."
        )
    return (
        f"the model {model.name!r} cannot be sent to workers: {place} is a {kind.__module__}.{kind.__qualname__}, which "
        f"lives in this process only ({error}). Make it where it is used (in call), or leave it out of pickles by "
        "a __getstate__ and __setstate__ of the class that holds it."
    )


_checked: set[tuple[str, bool]] = set()
_warned: set[str] = set()


def _warn_of_unreached(model: keras.Model, key: str, pickled: Iterable[object]) -> None:
    """Warn of variables that workers get and that no state brings back, since `reachable` does not find them; once for each key."""
    if key in _warned:
        return
    _warned.add(key)
    reached = {id(backend_variable(thing)) for thing in reachable(model) if is_variable(thing)}
    reached |= {
        id(backend_variable(variable)) for variable in metric_variables(model)
    }  # summed, wherever they are kept
    lost = [name_of(variable).split(":")[0] for variable in pickled if id(backend_variable(variable)) not in reached]
    if lost:
        shown = ", ".join(map(repr, lost[:3])) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
        log.warning(
            "the model %r refers to variables in places that elephas_like does not look into, such as attributes of a class and "
            "globals of its methods: %s. If training changes them, their values on the workers are lost. Keep them in "
            "attributes of a layer or of the model.",
            model.name,
            shown,
        )


def _check_once(model: keras.Model, variables: Variables, spec: ModelSpec, *, whole: bool) -> None:
    """Compare the rebuilt model with the model itself, once per kind of model in this process, with and without `whole` values.

    What was built since then for the metrics is not compared.

    Raises:
        ElephasError: they differ.
    """
    if (spec.first_key, whole) in _checked:
        return
    try:
        copy = spec.build()
        found = Variables(copy)
    except Exception as error:
        raise ElephasError(
            f"the model {model.name!r} cannot be sent to workers: what was pickled of it cannot be made again "
            f"({type(error).__name__}: {error}). Has one of its classes a __new__, __hash__ or __setattr__ of its own?"
        ) from error
    # The variables, one by one, then their number, the optimizers and the settings.
    for mine, theirs in zip(variables.layout.entries, found.layout.entries, strict=False):
        if mine != theirs:
            _refuse(
                model, f"the variable {mine.name!r} ({mine.role.value}, {mine.dtype}{list(mine.shape)})", theirs.name
            )
    counts = (len(variables.layout.entries), len(found.layout.entries))
    if counts[0] != counts[1]:
        _refuse(model, f"a number of variables, {counts[0]}", counts[1])
    kinds = [[type(optimizer).__name__ for optimizer in each.optimizers] for each in (variables, found)]
    if kinds[0] != kinds[1]:
        _refuse(model, f"optimizers {kinds[0]}", kinds[1])
    if copy.compiled != model.compiled or copy.run_eagerly != model.run_eagerly:
        _refuse(model, f"compiled={model.compiled}, run_eagerly={model.run_eagerly}", "other settings")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a row that nobody gave: of one step, where the model says no number
        _compare_outputs(model, variables, copy, found)
    _checked.add((spec.first_key, whole))


def _refuse(model: keras.Model, expected: str, found: object) -> NoReturn:
    raise ElephasError(
        f"the model {model.name!r} cannot be sent to workers, because they would train another one: expected {expected}, "
        f"found {found}. Please report this with the model's code."
    )


def _check_normalizations(model: keras.Model) -> None:
    """Raise ElephasError if a Normalization of the model computes with what its weights do not say, which no worker would know."""
    for layer in layers_of(model):
        if computes_with_others(layer):
            raise ElephasError(
                f"the layer {layer.name!r} of the model {model.name!r} computes with another mean and variance than its weights hold: "
                "Keras leaves it as it was when `set_weights` or another dtype policy comes. Call the layer's `finalize_state()` then, or "
                "`adapt(x)`."
            )


def _compare_outputs(model: keras.Model, variables: Variables, copy: keras.Model, found: Variables) -> None:
    """Compare the outputs of model and copy for one row of zeros, if the model says what a row looks like, or what both compute of it."""
    inputs = getattr(model, "inputs", None)
    if not inputs or not overrides(model, "call") or not model.built:
        return
    if any(tensor.dtype == "string" for tensor in inputs):
        return
    tree = inputs[0] if len(inputs) == 1 else getattr(model, "input", inputs)
    rows = keras.tree.map_structure(lambda tensor: np.zeros([size or 1 for size in tensor.shape], tensor.dtype), tree)
    found.write(variables.read())
    write_metrics(copy, read_metrics(model))
    at_rest(model)  # as the copy is
    text = BACKEND.trace(model, variables, rows)
    if text is not None and text == BACKEND.trace(copy, found, rows):
        return

    def outputs() -> list[np.ndarray]:
        with state_restored(model):
            return _outputs(model, rows)

    try:
        mine = outputs()
    except Exception as error:  # a row of zeros may be invalid input
        log.debug("the model %r was not compared with its copy on a row of zeros: %s", model.name, error)
        return
    try:
        theirs = _outputs(copy, rows)
    except Exception as error:
        _refuse(model, "an output for a row of zeros", f"{type(error).__name__}: {error}")
    if _alike(mine, theirs):
        return
    for one, other, again in zip(mine, theirs, outputs(), strict=True):
        if not _alike([one], [again]):
            log.debug(
                "the model %r was not compared with its copy: its own output changes from call to call", model.name
            )
        elif not _alike([one], [other]):
            _refuse(model, f"the output {one.ravel()[:3]} for a row of zeros", f"{other.ravel()[:3]}")


def _outputs(model: keras.Model, rows: object) -> list[np.ndarray]:
    """Return a model's outputs, without training. Those of types that are not NumPy's own, as bfloat16, as float32: NumPy 1 compares no others."""
    found = [keras.ops.convert_to_numpy(output) for output in keras.tree.flatten(model(rows, training=False))]
    return [output.astype(np.float32) if output.dtype.kind == "V" else output for output in found]


def _alike(some: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> bool:
    """Return whether outputs are the same, numbers as far as rounding lets them be."""
    return all(
        np.array_equal(one, other)
        if one.dtype.kind in "OSU"
        else np.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)
        for one, other in zip(some, others, strict=True)
    )
