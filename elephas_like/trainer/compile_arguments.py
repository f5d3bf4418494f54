"""The arguments of `compile` that a model keeps, and the repair of calls with metrics as third argument."""

from __future__ import annotations

import os
import types
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import keras

from elephas_like.core.errors import ElephasError, ElephasWarning
from elephas_like.trainer.backends.chosen import BACKEND
from elephas_like.trainer.graph import reachable
from elephas_like.trainer.model_facts import output_count, overrides, prepares_as_hub, prepares_rows
from elephas_like.trainer.own_optimizers import inside, own_optimizer, step_optimizers
from elephas_like.trainer.tensors import check_backend


def check_model(model: object) -> None:
    """Nothing, if this is a compiled Keras model.

    Raises:
        TypeError: another thing. ValueError: it is not compiled. ElephasError: it trains or tests in a function of its own, around its steps.
    """
    check_backend()
    if not isinstance(model, keras.Model):
        kind = f"{type(model).__module__}.{type(model).__name__}"
        raise TypeError(f"model must be a keras.Model; got {kind}.{_way_to_a_model(model)}")
    if not model.compiled:
        raise ValueError(
            f"the model {model.name!r} is not compiled. Compile it first, for example "
            "model.compile('adam', 'sparse_categorical_crossentropy', metrics=['accuracy'])."
        )
    for name in ("make_train_function", "make_test_function"):
        if overrides(model, name):
            raise ElephasError(
                f"{type(model).__name__}.{name} would not be called: workers run many steps of train_step and test_step in a loop of their "
                "own. Override those."
            )
    # A preprocessor makes rows before the steps, by TensorFlow on any backend.
    before_steps = getattr(model, "preprocessor", None) if prepares_as_hub(model) else None
    BACKEND.check_model(model, lambda: reachable(model, without=before_steps))


def _way_to_a_model(thing: object) -> str:
    if isinstance(thing, str | os.PathLike):
        return " Load it first: keras.saving.load_model(path)."
    if any(base.__module__.startswith("torch.nn") for base in type(thing).__mro__):
        return (
            " Wrap a module of PyTorch as a layer, keras.layers.TorchModuleWrapper(module), with KERAS_BACKEND=torch."
        )
    if callable(thing) and not isinstance(thing, type) and hasattr(thing, "__code__"):
        return " Call the function that makes it."
    return ""


def check_rows_are_kept(model: keras.Model, method: str = "fit", *, prepared: bool = False) -> None:
    """Raise ElephasError if Keras would train on other rows than those given; warn of a method of the class' own that is not called.

    Models of keras-hub that have a preprocessor apply it in their `fit` and `evaluate`, before any step.

    Args:
        prepared: whether the caller has their rows prepared (trainer/preparing.py).
    """
    kind = type(model).__name__
    if prepares_rows(model, method) and not (prepared and prepares_as_hub(model)):
        # Only keras-hub's own preprocess_samples does nothing without a preprocessor.
        advice = (
            "Prepare them first: preprocessor = model.preprocessor; "
            "model.preprocessor = None; then fit on x, y = preprocessor(x, y=y), of an RDD in rdd.mapPartitions. Give it back to the trained "
            "model, model.preprocessor = preprocessor, to predict rows as they are."
            if prepares_as_hub(model)
            else "Prepare them in a layer or in train_step and test_step; or before, for a model of a class without this preprocess_samples."
        )
        raise ElephasError(
            f"the model {model.name!r} prepares its rows in {kind}.{method}, by preprocess_samples, before any step; workers call "
            f"the steps alone, and would take the rows as they are. {advice}"
        )
    warn_of_own(model, method)


def warn_of_own(model: keras.Model, method: str) -> None:
    """Warn of `fit`, `evaluate` or `predict` of the class' own, which workers do not call."""
    if overrides(model, method) and not hasattr(model, "preprocess_samples"):
        kind, called = (
            type(model).__name__,
            {"fit": "train_step and test_step", "evaluate": "test_step"}.get(method, "predict_step"),
        )
        warnings.warn(
            f"{kind}.{method} is not called: workers call {called}, and what else it does, to the rows for example, is left out. Do that "
            "before, or in a layer or step.",
            ElephasWarning,
            stacklevel=4,
        )


def complete_compile_arguments(model: keras.Model) -> None:
    """Put the optimizer back among a model's compile arguments.

    Keras 3 removes it when it saves `.h5`. A model saved or rebuilt later would have the default, RMSprop. There is no
    public way.
    """
    arguments = _compile_arguments(model)
    if arguments is not None and model.optimizer is not None:  # an uncompiled model lacks the attribute
        given = dict(arguments)
        arguments.clear()
        arguments.update({"optimizer": model.optimizer} | given)  # first, as compile does


def _compile_arguments(model: keras.Model) -> dict[str, object] | None:
    """Return the arguments of `compile` by name, as the model keeps them; None where it keeps none."""
    arguments = getattr(getattr(model, "_compile_config", None), "config", None)
    return arguments if isinstance(arguments, dict) else None


def compiled_with(model: keras.Model) -> tuple[object, object]:
    """Return the optimizer and the loss that a model has now, for `compiled_anew`."""
    return getattr(model, "optimizer", None), getattr(model, "loss", None)


def compiled_anew(model: keras.Model, before: tuple[object, object]) -> bool:
    """Return whether a model has been compiled since it was compiled with what `before` holds; a train step may keep a tensor as its `loss`."""
    now = compiled_with(model)
    return any(one is not was and not keras.ops.is_tensor(one) for one, was in zip(now, before, strict=True))


def compiled_as(model: keras.Model) -> dict[str, str]:
    """Return in words what decides how a model trains, the same in every process: its optimizer, loss and loss weights.

    Names, and a learning rate that is a number, are left out: Keras numbers the first, and callbacks change the second. A MultiOptimizer is
    the list of its optimizers. Those that a train step of the user's own uses beside the model's are said apart.
    """
    own = own_optimizer(model)
    parts = [] if own is None else inside(own)
    others = [part for each in step_optimizers(model) if each is not own for part in inside(each)]
    given = _compile_arguments(model) or {}
    said = {name: given.get(name, getattr(model, name, None)) for name in ("loss", "loss_weights")}
    optimizers = {
        "optimizer": _words(own if own in parts else parts),
        "other_optimizers": ", ".join(sorted(map(_words, others))),
    }
    return {**optimizers, **{name: _words(value) for name, value in said.items()}}


def _words(thing: object) -> str:
    if isinstance(thing, str):
        return thing
    if isinstance(thing, Mapping):
        return "{" + ", ".join(f"{name}: {_words(value)}" for name, value in sorted(thing.items(), key=str)) + "}"
    if isinstance(thing, list | tuple):
        return "[" + ", ".join(map(_words, thing)) + "]"
    if isinstance(thing, types.FunctionType | types.BuiltinFunctionType | type):
        return thing.__qualname__
    if thing is None or isinstance(thing, int | float):
        return repr(thing)
    settings: dict[str, object] = {}
    if isinstance(thing, keras.losses.Loss):  # whose get_config seldom has its arguments
        settings = _settings(vars(thing))
    elif isinstance(thing, keras.optimizers.Optimizer):
        with suppress(Exception):  # whatever code of the user's own raises
            settings = _settings(thing.get_config())
    return f"{type(thing).__name__}{_words(settings)}" if settings else type(thing).__name__


def _settings(given: Mapping[str, Any]) -> dict[str, object]:
    """Return what is plain data, or functions, of an object's attributes; no name, and no learning rate that is a number."""
    plain = (int, float, str, dict, list, tuple, types.FunctionType)
    return {
        name: value
        for name, value in given.items()
        if name not in ("name", "_name")
        and not (name == "learning_rate" and isinstance(value, int | float))
        and (value is None or isinstance(value, plain))
    }


def repair_compile(model: keras.Model) -> bool:
    """Compile the model again if it was compiled as `compile(optimizer, loss, ["acc"])`. Return whether it was.

    The third positional argument of Keras 3's compile is `loss_weights`. In earlier versions, and in Elephas' examples,
    it was `metrics`.

    Raises:
        ValueError: `metrics` was given too, and not as a list for a single output.
    """
    given = _compile_arguments(model) or {}
    names = given.get("loss_weights")
    if not isinstance(names, (list, tuple)) or not names or not all(isinstance(name, str) for name in names):
        return False
    # Names among the loss weights are metrics; they can be merged with metrics= only for a single output.
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
        auto_scale_loss=False,  # the optimizer has its loss scale by now, unless that was not to be
    )
    return True
