"""Keras' archive of a model (`.keras`), as files that people keep hold it; and what its configuration says of a model."""

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
    """A compiled model in Keras' own format, optimizer included.

    Raises:
        ElephasError: where Keras cannot save the model, with Keras' reason.
    """
    kind = type(model)
    if kind.compile is not keras.Model.compile and kind.compile_from_config is keras.Model.compile_from_config:
        raise ElephasError(
            f"the model {model.name!r} cannot be saved: {kind.__name__} has its own compile(), which Keras does not call "
            "when it loads a model. Give it get_compile_config() and compile_from_config(config) too."
        )
    complete_compile_arguments(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        try:
            with warnings.catch_warnings(), _named(lambdas_of(model)):
                warnings.simplefilter("ignore")  # unbuilt models: they are restored by what we do
                keras.saving.save_model(model, path)
        except (TypeError, ValueError, NotImplementedError, AttributeError) as cause:
            raise ElephasError(
                f"the model {model.name!r} cannot be saved by Keras: {cause}\n"
                "Custom layers, losses and metrics with arguments need a get_config() that returns them."
            ) from cause
        return path.read_bytes()


def architecture(model: keras.Model) -> str:
    """Digest of what a model computes at inference, its weights aside: equal for models whose weights can be averaged.

    How the model is trained stays out (initializers, regularizers, dropout rates, seeds, compile arguments), and so do
    its own name and automatic ones.
    """
    with zipfile.ZipFile(io.BytesIO(archive_of(model))) as entries:
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


def _without_numbers(config: object) -> str:
    """A model's configuration as text in which automatic names are numbered from the start.

    Keras numbers them through a process ("dense_7"), so that the same code gives another configuration each time, and
    compiled models could not serve a second fit. Names that are their user's own stay; so do those of inputs, by
    which rows may be keyed, unless there is but one.
    """
    kinds: list[str] = []
    _collect(config, kinds)
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
    for code in code_of(model, into_functions=False):
        name = getattr(code, "__name__", "<lambda>")
        if name != "<lambda>":
            found[name] = code
            found[keras.saving.get_registered_name(code)] = code
    return found


def lambdas_of(model: keras.Model) -> dict[str, object]:
    """The lambdas that a model refers to, under names in the order in which they are met.

    Keras would carry a lambda as bytecode, without the globals that it uses: `keras.ops` itself is one of those.
    """
    lambdas = [
        thing
        for thing in reachable(model, into_functions=False)
        if isinstance(thing, types.FunctionType) and thing.__name__ == "<lambda>" and not is_foreign(thing)
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
