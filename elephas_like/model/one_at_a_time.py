"""Fits and evaluations of one process that would spoil each other: two of one model, or two fits that write checkpoints to one place."""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager

import keras

from elephas_like.core.errors import ElephasError
from elephas_like.spark import files

_taken: dict[Hashable, tuple[int, str]] = {}
"""Who holds a model or a directory, and what they do with it."""
_lock = threading.Lock()


@contextmanager
def one_at_a_time(model: keras.Model, checkpoint_dir: str | os.PathLike[str] | None) -> Iterator[None]:
    """Hold a model and a directory of checkpoints during a fit. The thread that holds a model may fit it again: a callback does.

    Raises:
        ElephasError: a fit or an evaluation of another thread holds the model, or any fit the directory.
    """
    with ExitStack() as held:
        held.enter_context(_taking(("model", id(model)), f"fitting the model {model.name!r}", _A_MODEL_EACH))
        if checkpoint_dir is not None:
            place = os.fspath(checkpoint_dir)
            doing = f"writing the checkpoints of its fit to {place}"
            held.enter_context(_taking(("checkpoints", files.canonical(place)), doing, _A_DIRECTORY_EACH, again=False))
        yield


@contextmanager
def evaluating(model: keras.Model) -> Iterator[None]:
    """Hold a model while its own metrics count rows: a fit, or another evaluation, would reset them. As `one_at_a_time` otherwise."""
    with _taking(("model", id(model)), f"evaluating the model {model.name!r}", _A_MODEL_EACH):
        yield


_A_MODEL_EACH = (
    "both would write its weights or its metrics. Give each a model of its own, as keras.models.clone_model, set_weights and "
    "compile make it."
)
_A_DIRECTORY_EACH = "each would go on from the other's. Give each fit a checkpoint_dir of its own."


@contextmanager
def _taking(key: Hashable, doing: str, advice: str, *, again: bool = True) -> Iterator[None]:
    """again: whether the thread that holds it may take it once more."""
    this, is_ours = threading.get_ident(), False
    try:  # also around what takes it: Ctrl-C may come at once
        with _lock:
            holder = _taken.get(key)
            if holder is not None and holder[0] != this:
                raise ElephasError(f"another thread is {holder[1]}: {advice}")
            if holder is not None and not again:
                raise ElephasError(f"the fit whose callback this is called in is {holder[1]}: {advice}")
            if holder is None:
                is_ours, _taken[key] = True, (this, doing)
        yield
    finally:
        if is_ours:
            _taken.pop(key, None)  # one step, which needs no lock
