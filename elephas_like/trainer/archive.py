"""Keras' archive of a model (`.keras`), for files that people keep; and what its configuration says about the model."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tempfile
import types
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import keras

from elephas_like.core.errors import ElephasError
from elephas_like.trainer.code import is_foreign
from elephas_like.trainer.compile_arguments import complete_compile_arguments
from elephas_like.trainer.graph import automatic_name, code_of, reachable


def archive_of(model: keras.Model) -> bytes:
    """Return a compiled model in Keras' own format, optimizer included.

    Raises:
        ElephasError: Keras cannot save the model; the message has Keras' reason.
    """
    kind = type(model)
    if kind.compile is not keras.Model.compile and kind.compile_from_config is keras.Model.compile_from_config:
        raise ElephasError(
            f"the model {model.name!r} cannot be saved: {kind.__name__} has its own compile(), which Keras does not call "
            "when it loads a model. Give it get_compile_config() and compile_from_config(config) too."
        )
    return _saved(model)


def _saved(model: keras.Model) -> bytes:
    """Return a model in Keras' own format, which may not know how the model was compiled.

    Raises:
        ElephasError: Keras cannot save the model; the message has Keras' reason.
    """
    complete_compile_arguments(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        try:
            with warnings.catch_warnings(), _lambdas_named(lambdas_of(model)):
                warnings.simplefilter("ignore")  # about unbuilt models, which are restored by other means
                keras.saving.save_model(model, path)
        except (TypeError, ValueError, NotImplementedError, AttributeError) as cause:
            raise ElephasError(
                f"the model {model.name!r} cannot be saved by Keras: {cause}\n"
                "Custom layers, losses and metrics with arguments need a get_config() that returns them."
            ) from cause
        return path.read_bytes()


def architecture(model: keras.Model) -> str:
    """Return a digest of a model's inference, weights aside: equal for models whose weights can be averaged.

    The digest ignores how the model is trained (initializers, regularizers, dropout rates, seeds, compile arguments),
    its own name and automatic names.

    Raises:
        ElephasError: Keras cannot save the model.
    """
    return hashlib.blake2b(_inference_in(_saved(model)).encode(), digest_size=16).hexdigest()


def is_rebuilt(archive: bytes, model: keras.Model) -> bool:
    """Return whether a model has the architecture of one in an archive of Keras', which the same function made.

    Numbers of names, shapes that layers were built for, and which layers others share do not count.

    Raises:
        ElephasError: Keras cannot save the model.
    """

    def plain(content: bytes) -> str:
        return re.sub(r'"build_config": {[^{}]*}|, "shared_object_id": \d+|_\d+(?=")', "", _inference_in(content))

    return plain(archive) == plain(_saved(model))


def _inference_in(archive: bytes) -> str:
    with zipfile.ZipFile(io.BytesIO(archive)) as entries:
        config = json.loads(entries.read("config.json"))
    config.pop("compile_config", None)
    if isinstance(config.get("config"), dict):
        config["config"].pop("name", None)
    return _renumbered(_canonical(_inference_config(config), {}))


_TRAINING_KEYS = ("_initializer", "_regularizer", "_constraint", "seed", "momentum")


def _inference_config(config: object) -> object:
    """Return a configuration without the keys that matter for training only."""
    if isinstance(config, list):
        return [_inference_config(item) for item in config]
    if not isinstance(config, dict):
        return config
    return {name: _inference_config(value) for name, value in config.items() if not _is_for_training(str(name))}


def _is_for_training(name: str) -> bool:
    # Other rates than those of dropout make another function of the same weights, as a convolution's dilation_rate.
    drops = name == "rate" or (name.endswith("_rate") and "drop" in name)
    return drops or name.endswith(_TRAINING_KEYS)


def _canonical(config: object, shared: dict[object, int]) -> object:
    """Return a configuration without what differs between two saves of one model.

    A learning rate that is a number is a variable of the optimizer, and so part of the state. Keras marks shared
    objects by their address; here they are numbered in order of occurrence.
    """
    if isinstance(config, list):
        return [_canonical(item, shared) for item in config]
    if not isinstance(config, dict):
        return config
    plain = {name: _canonical(value, shared) for name, value in config.items()}
    if isinstance(plain.get("learning_rate"), float):
        plain["learning_rate"] = None
    if "shared_object_id" in plain:
        plain["shared_object_id"] = shared.setdefault(plain["shared_object_id"], len(shared))
    return plain


def _renumbered(config: object) -> str:
    """Return a model's configuration as text in which automatic names are numbered from the start.

    Keras numbers names through a process ("dense_7"). The same code would give another configuration each time, and a
    compiled model could not serve a second fit. Names given by the user stay. So do the names of several inputs,
    because rows may be keyed by them.
    """
    kinds: list[str] = []
    _collect_class_names(config, kinds)
    automatic = {automatic_name(kind.split(">")[-1]) for kind in kinds}
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


def _collect_class_names(config: object, kinds: list[str]) -> None:
    """Append the class names of a configuration to `kinds`, one per object."""
    if isinstance(config, dict):
        if isinstance(config.get("class_name"), str):
            kinds.append(config["class_name"])
        for value in config.values():
            _collect_class_names(value, kinds)
    elif isinstance(config, list):
        for value in config:
            _collect_class_names(value, kinds)


def custom_objects_of(model: keras.Model) -> dict[str, object]:
    """Return the user's classes and functions that a model refers to, by name and by registered name.

    Lambdas are left out.
    """
    found: dict[str, object] = {}
    for code in code_of(model, into_functions=False):
        name = getattr(code, "__name__", "<lambda>")
        if name != "<lambda>":
            found[name] = code
            found[keras.saving.get_registered_name(code)] = code
    return found


def lambdas_of(model: keras.Model) -> dict[str, object]:
    """Return the lambdas that a model refers to, under names in the order in which they are found.

    Keras would save a lambda as bytecode, without the globals that it uses, `keras.ops` among them.
    """
    lambdas = [
        thing
        for thing in reachable(model, into_functions=False)
        if isinstance(thing, types.FunctionType) and thing.__name__ == "<lambda>" and not is_foreign(thing)
    ]
    return {f"lambda_{number}": thing for number, thing in enumerate(lambdas)}


@contextmanager
def _lambdas_named(lambdas: Mapping[str, object]) -> Iterator[None]:
    """Give lambdas their names while Keras saves them."""
    try:
        for name, thing in lambdas.items():
            thing.__name__ = name  # type: ignore[attr-defined]  # functions have it
        yield
    finally:
        for thing in lambdas.values():
            thing.__name__ = "<lambda>"  # type: ignore[attr-defined]
