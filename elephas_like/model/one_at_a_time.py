"""Fits of one process that would spoil each other: two of one model, or two that write checkpoints to one place."""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager

import keras

from elephas_like.core.errors import ElephasError
from elephas_like.spark import files

_taken: dict[Hashable, int] = {}
_lock = threading.Lock()


@contextmanager
def one_at_a_time(model: keras.Model, checkpoint_dir: str | os.PathLike[str] | None) -> Iterator[None]:
    """Hold a model and a directory of checkpoints during a fit. The thread that holds them may go on: a callback fits, too.

    Raises:
        ElephasError: a fit of another thread holds one of them.
    """
    with ExitStack() as held:
        held.enter_context(
            _taking(
                ("model", id(model)),
                f"another thread is fitting the model {model.name!r}: both would write its weights. Give each fit its own, as "
                "keras.models.clone_model and compile make it.",
            )
        )
        if checkpoint_dir is not None:
            place = os.fspath(checkpoint_dir)
            held.enter_context(
                _taking(
                    ("checkpoints", files.canonical(place)),
                    f"another thread's fit writes its checkpoints to {place}, and each would go on from the other's. Give each fit "
                    "a checkpoint_dir of its own.",
                )
            )
        yield


@contextmanager
def _taking(key: Hashable, message: str) -> Iterator[None]:
    this = threading.get_ident()
    with _lock:
        holder = _taken.get(key)
        if holder not in (None, this):
            raise ElephasError(message)
        _taken[key] = this
    try:
        yield
    finally:
        if holder is None:
            with _lock:
                del _taken[key]
