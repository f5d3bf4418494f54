"""ModelSpec: everything that rebuilds a compiled model in another process, as plain data.

The model travels in Keras' own `.keras` format, which carries what `get_weights()` does not: the compile arguments,
the vocabularies and adapted state of preprocessing layers, and the optimizer. Classes and functions of the user's that
the model refers to travel beside it, by value where the other process could not import them (a notebook's cells, a
script, a file beside it).
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import re
import sys
import sysconfig
import tempfile
import threading
import types
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import cloudpickle
import keras

from elephas_like.core.errors import ElephasError
from elephas_like.trainer.serialization import output_count

_KERAS_BASES = (
    keras.layers.Layer,
    keras.losses.Loss,
    keras.metrics.Metric,
    keras.optimizers.Optimizer,
    keras.optimizers.schedules.LearningRateSchedule,
    keras.initializers.Initializer,
    keras.regularizers.Regularizer,
    keras.constraints.Constraint,
)
_FOREIGN = ("keras", "tensorflow", "numpy", "builtins", "jax", "torch", "ml_dtypes")
_by_value_lock = threading.Lock()


@dataclass(frozen=True)
class ModelSpec:
    """A compiled model as plain data.

    archive: the model in `.keras` format, weights included.
    objects: a cloudpickle of the user's classes and functions by name.
    runtime: Keras' global settings that a rebuilt model depends on.
    key: what two specs share when one compiled model can serve both, their weights aside.
    """

    archive: bytes
    objects: bytes
    runtime: Mapping[str, object]
    key: str

    @classmethod
    def from_model(cls, model: keras.Model, custom_objects: Mapping[str, object] | None = None) -> ModelSpec:
        """The spec of a compiled model.

        Args:
            model: built or not, trained or not.
            custom_objects: names of classes and functions, as for `keras.models.load_model`. Those that the model
                itself refers to are found without.

        Raises:
            ElephasError: where Keras cannot save the model, with Keras' reason.
        """
        kind = type(model)
        if kind.compile is not keras.Model.compile and kind.compile_from_config is keras.Model.compile_from_config:
            raise ElephasError(
                f"the model {model.name!r} cannot be sent to workers: {kind.__name__} has its own compile(), which Keras "
                "does not call when it loads a model. Give it get_compile_config() and compile_from_config(config) too."
            )
        complete_compile_arguments(model)
        lambdas = lambdas_of(model)
        found = custom_objects_of(model) | lambdas | dict(custom_objects or {})
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.keras"
            try:
                with warnings.catch_warnings(), _named(lambdas):
                    warnings.simplefilter("ignore")  # unbuilt models: they are restored by what we do
                    keras.saving.save_model(model, path)
            except (TypeError, ValueError, NotImplementedError, AttributeError) as cause:
                raise ElephasError(
                    f"the model {model.name!r} cannot be sent to workers, because Keras cannot save it: {cause}\n"
                    "Custom layers, losses and metrics with arguments need a get_config() that returns them."
                ) from cause
            archive = path.read_bytes()
        objects = pickle_by_value(found)
        runtime = {
            "backend": keras.backend.backend(),
            "floatx": keras.config.floatx(),
            "epsilon": keras.config.epsilon(),
            "image_data_format": keras.config.image_data_format(),
            "dtype_policy": model.dtype_policy.name,  # the model's own: compile() scales the loss by it
        }
        return cls(archive, objects, runtime, _key(archive, objects + _adapted_state(model), runtime))

    def build(self) -> keras.Model:
        """The compiled model with its weights, in this process, whose global Keras settings are set to the spec's."""
        if keras.backend.backend() != self.runtime["backend"]:
            raise ElephasError(
                f"the driver's Keras runs on {self.runtime['backend']!r}, this worker's on {keras.backend.backend()!r}: "
                "set KERAS_BACKEND to the same value on both."
            )
        keras.config.set_floatx(self.runtime["floatx"])
        keras.config.set_epsilon(self.runtime["epsilon"])
        keras.config.set_image_data_format(self.runtime["image_data_format"])
        objects = cloudpickle.loads(self.objects)  # our driver's own bytes, handed over by Spark
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.keras"
            path.write_bytes(self.archive)
            with warnings.catch_warnings(), _dtype_policy(self.runtime["dtype_policy"]):
                warnings.simplefilter("ignore")  # an optimizer of an unbuilt model has no variables to load yet
                return keras.saving.load_model(path, custom_objects=objects, compile=True, safe_mode=False)


def architecture(model: keras.Model) -> str:
    """Digest of what a model computes at inference, its weights aside: equal for models whose weights can be averaged.

    How the model is trained stays out (initializers, regularizers, dropout rates, seeds, compile arguments), and so do
    its own name and automatic ones.
    """
    with zipfile.ZipFile(io.BytesIO(ModelSpec.from_model(model).archive)) as entries:
        config = json.loads(entries.read("config.json"))
    config.pop("compile_config", None)
    if isinstance(config.get("config"), dict):
        config["config"].pop("name", None)
    text = _without_numbers(_settled(_of_inference(config), {}))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


_OF_TRAINING = ("_initializer", "_regularizer", "_constraint", "seed", "rate", "momentum")


def _of_inference(config: object) -> object:
    """A configuration without the keys that matter to training only."""
    if isinstance(config, list):
        return [_of_inference(item) for item in config]
    if not isinstance(config, dict):
        return config
    return {name: _of_inference(value) for name, value in config.items() if not str(name).endswith(_OF_TRAINING)}


def layers_of(model: keras.Model) -> list[keras.layers.Layer]:
    """Every layer that a model reaches, nested, wrapped and kept in attributes, in the order of its weights first."""
    place = {id(variable): number for number, variable in enumerate(model.weights)}
    found = [thing for thing in _reachable(model) if isinstance(thing, keras.layers.Layer) and thing is not model]
    return sorted(
        found, key=lambda layer: min((place.get(id(v), len(place)) for v in layer.weights), default=len(place))
    )


def complete_compile_arguments(model: keras.Model) -> None:
    """Puts the optimizer back among what a model was compiled with.

    Keras 3 takes it out when it saves `.h5`; what is saved or rebuilt later would have the default, RMSprop. There is no
    public way to it.
    """
    arguments = _compile_arguments(model)
    if arguments is not None and model.optimizer is not None:  # a model that was never compiled has not even the name
        arguments.setdefault("optimizer", model.optimizer)


def _compile_arguments(model: keras.Model) -> dict[str, object] | None:
    """What `compile` was given, by name, as the model itself keeps it."""
    arguments = getattr(getattr(model, "_compile_config", None), "config", None)
    return arguments if isinstance(arguments, dict) else None


@contextmanager
def _dtype_policy(name: object) -> Iterator[None]:
    """Keras' dtype policy for as long as a model is loaded: its layers remember theirs."""
    before = keras.config.dtype_policy()
    if before.name == name:
        yield
        return
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _key(archive: bytes, objects: bytes, runtime: Mapping[str, object]) -> str:
    """Digest of architecture, compile arguments, assets and user code; weights and the saving date stay out."""
    digest = hashlib.blake2b(digest_size=16)
    with zipfile.ZipFile(io.BytesIO(archive)) as entries:
        for name in sorted(entries.namelist()):
            if name == "config.json":
                digest.update(_without_numbers(_settled(json.loads(entries.read(name)), {})).encode())
            elif name not in ("metadata.json", "model.weights.h5"):
                digest.update(name.encode() + b"\0" + entries.read(name))
    digest.update(objects)
    digest.update(repr(sorted(runtime.items())).encode())
    return digest.hexdigest()


def _settled(config: object, shared: dict[object, int]) -> object:
    """A configuration without what differs between two savings of one model.

    A learning rate that is a number is a variable of the optimizer, and so part of the state. Keras marks what is shared
    by its address: here by the order in which it comes.
    """
    if isinstance(config, list):
        return [_settled(item, shared) for item in config]
    if not isinstance(config, dict):
        return config
    plain = {name: _settled(value, shared) for name, value in config.items()}
    if isinstance(plain.get("learning_rate"), float):
        plain["learning_rate"] = None
    if "shared_object_id" in plain:
        plain["shared_object_id"] = shared.setdefault(plain["shared_object_id"], len(shared))
    return plain


def _adapted_state(model: keras.Model) -> bytes:
    """Digest of what `adapt` left in layers that keep it as constants beside their variables: graphs hold it too."""
    digest = hashlib.blake2b(digest_size=16)
    for thing in _reachable(model):
        if isinstance(thing, keras.layers.Layer) and thing.built and hasattr(thing, "finalize_state"):
            store: dict[str, object] = {}
            thing.save_own_variables(store)
            for name, value in store.items():
                digest.update(name.encode() + keras.ops.convert_to_numpy(value).tobytes())
    return digest.digest()


def _without_numbers(config: object) -> str:
    """A model's configuration as text in which automatic names are numbered from the start.

    Keras numbers them through a process ("dense_7"), so that the same code gives another configuration each time, and
    compiled models could not serve a second fit. Names that are their user's own stay; so do those of inputs, by
    which rows may be keyed, unless there is but one.
    """
    kinds: list[str] = []
    _collect(config, kinds)
    automatic = {_snake(kind) for kind in kinds}
    if kinds.count("InputLayer") > 1:
        automatic.discard("input_layer")
    numbers: dict[str, dict[str, int]] = {}

    def renumbered(found: re.Match[str]) -> str:
        name, number = found.group(1), found.group(2) or ""
        if name not in automatic:
            return found.group(0)
        seen = numbers.setdefault(name, {})
        return f'"{name}#{seen.setdefault(number, len(seen))}"'

    text = json.dumps(config, sort_keys=True)
    return re.sub(r'"([a-z][a-z0-9_]*?)(?:_(\d+))?"', renumbered, text)


def _snake(kind: str) -> str:
    """The name that Keras gives to the first object of a class: Conv2DTranspose becomes conv2d_transpose."""
    return re.sub("([a-z])([A-Z])", r"\1_\2", re.sub("(.)([A-Z][a-z]+)", r"\1_\2", kind.split(">")[-1])).lower()


def _collect(config: object, kinds: list[str]) -> None:
    """The class names of a configuration, one per object."""
    if isinstance(config, dict):
        if isinstance(config.get("class_name"), str):
            kinds.append(config["class_name"])
        for value in config.values():
            _collect(value, kinds)
    elif isinstance(config, list):
        for value in config:
            _collect(value, kinds)


def custom_objects_of(model: keras.Model) -> dict[str, object]:
    """The user's classes and functions that a model refers to, by name and by registered name; lambdas have none."""
    found: dict[str, object] = {}
    for thing in _reachable(model):
        code = thing if isinstance(thing, types.FunctionType) else type(thing)
        if _is_foreign(code) or code.__name__ == "<lambda>":
            continue
        found[code.__name__] = code
        found[keras.saving.get_registered_name(code)] = code
    return found


def lambdas_of(model: keras.Model) -> dict[str, object]:
    """The lambdas that a model refers to, under names in the order in which they are met.

    Keras would carry a lambda as bytecode, without the globals that it uses: `keras.ops` itself is one of those.
    """
    lambdas = [
        thing
        for thing in _reachable(model)
        if isinstance(thing, types.FunctionType) and thing.__name__ == "<lambda>" and not _is_foreign(thing)
    ]
    return {f"lambda_{number}": thing for number, thing in enumerate(lambdas)}


@contextmanager
def _named(lambdas: Mapping[str, object]) -> Iterator[None]:
    """Lambdas under their names, as long as Keras saves them."""
    try:
        for name, thing in lambdas.items():
            thing.__name__ = name  # type: ignore[attr-defined]  # functions have it
        yield
    finally:
        for thing in lambdas.values():
            thing.__name__ = "<lambda>"  # type: ignore[attr-defined]


def _is_foreign(thing: object) -> bool:
    return (getattr(thing, "__module__", None) or "").split(".")[0] in _FOREIGN


def _reachable(model: keras.Model) -> Iterator[object]:
    """Functions, and objects of Keras' kinds, met on a walk over a model, its layers, and what it was compiled with."""
    seen: set[int] = set()
    queue: list[object] = [model]
    while queue:
        thing = queue.pop()
        if id(thing) in seen or thing is None or isinstance(thing, (str, bytes, int, float)):
            continue
        seen.add(id(thing))
        if isinstance(thing, types.FunctionType):
            yield thing
        elif isinstance(thing, (list, tuple, set)):
            queue.extend(thing)
        elif isinstance(thing, dict):
            queue.extend(thing.values())
        elif isinstance(thing, keras.Variable):
            continue
        elif isinstance(thing, _KERAS_BASES) or type(thing).__module__.startswith("keras."):
            yield thing
            # Keras keeps a wrapper of a layer's `build` on the layer: it closes over the layer, weights included.
            attributes = getattr(thing, "__dict__", {}).items()
            queue.extend(value for name, value in attributes if not (callable(value) and hasattr(type(thing), name)))
        elif hasattr(thing, "get_config"):
            yield thing


def pickle_by_value(thing: object) -> bytes:
    """A cloudpickle in which code of modules that are not installed travels by value, as code of `__main__` does.

    So does what that code imports from other such modules, unless one of them holds what cannot be pickled.
    """
    direct = _own_modules(thing)
    with _by_value_lock:
        try:
            with _registered(_with_imports(direct)):
                return cloudpickle.dumps(thing)
        except (TypeError, ValueError, AttributeError, pickle.PicklingError):
            with _registered(direct):
                return cloudpickle.dumps(thing)


def _own_modules(thing: object) -> list[types.ModuleType]:
    """Modules of the user's own files among what a mapping of classes and functions, or a list of objects, refers to."""
    values = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, list) else [thing]
    found: dict[str, types.ModuleType] = {}
    for value in values:
        for owner in [*getattr(value, "__mro__", ()), value, *type(value).__mro__]:
            module = sys.modules.get(getattr(owner, "__module__", None) or "")
            if module is not None and _is_own(module):
                found[module.__name__] = module
    return list(found.values())


def _with_imports(modules: list[types.ModuleType]) -> list[types.ModuleType]:
    """The modules, and the user's own ones among what they import, and so on."""
    found = {module.__name__: module for module in modules}
    queue = list(modules)
    while queue:
        for value in list(vars(queue.pop()).values()):
            name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
            module = sys.modules.get(name) if isinstance(name, str) else None
            if module is not None and module.__name__ not in found and _is_own(module):
                found[module.__name__] = module
                queue.append(module)
    return list(found.values())


def _is_own(module: types.ModuleType) -> bool:
    """Whether a module is a file of the user's, which workers may not have."""
    file = getattr(module, "__file__", None)
    if file is None or module.__name__.split(".")[0] in (*_FOREIGN, "elephas_like", "__main__"):
        return False
    path = Path(file).resolve()
    return not any(path.is_relative_to(folder) for folder in _installed())


@cache
def _installed() -> list[Path]:
    return [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")]


@contextmanager
def _registered(modules: list[types.ModuleType]) -> Iterator[None]:
    added = []
    for module in modules:
        if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.register_pickle_by_value(module)
            added.append(module)
    try:
        yield
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)


def repair_compile(model: keras.Model) -> bool:
    """Takes `compile(optimizer, loss, ["acc"])` as it is meant; True where that was needed.

    The third positional argument of Keras 3's compile is `loss_weights`; before, and in the examples that Elephas'
    users know, it was `metrics`.

    Raises:
        ValueError: `metrics` was given too, and not as a list of a single output's.
    """
    settings = model.get_compile_config() or {}
    names = settings.get("loss_weights")
    if not isinstance(names, (list, tuple)) or not names or not all(isinstance(name, str) for name in names):
        return False
    given = _compile_arguments(model) or {}
    more = given.get("metrics") or []
    flat = isinstance(more, list | tuple) and not any(isinstance(part, list | tuple | dict) for part in more)
    if not flat or (more and output_count(model) > 1):
        raise ValueError(
            f"compile(optimizer, loss, {list(names)!r}, metrics={more!r}) names metrics twice: Keras 3 reads the third "
            "positional argument as loss_weights. Give all of them as metrics=."
        )
    warnings.warn(
        f"compile(optimizer, loss, {list(names)!r}): Keras 3 reads the third positional argument as loss_weights. It is "
        f"taken as metrics={list(names)!r}; write metrics= to silence this warning.",
        UserWarning,
        stacklevel=3,
    )
    model.compile(
        optimizer=model.optimizer,
        loss=model.loss,
        metrics=[*names, *more],  # type: ignore[misc]  # a flat list
        weighted_metrics=given.get("weighted_metrics"),
        run_eagerly=model.run_eagerly,
        jit_compile=model.jit_compile,
        steps_per_execution=model.steps_per_execution,
    )
    return True
