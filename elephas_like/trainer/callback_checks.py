"""Which Keras callbacks can work on the driver, on workers, and in several trainings at once: said before anything starts."""

from __future__ import annotations

import logging
import random
import warnings
from collections.abc import Sequence

import cloudpickle
import keras

from elephas_like.core.errors import ElephasError
from elephas_like.trainer.code import pickle_by_value

log = logging.getLogger(__name__)

_BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
_TEST_BATCH_HOOKS = ("on_test_batch_begin", "on_test_batch_end")
_SAVING = tuple(
    getattr(keras.callbacks, name)
    for name in ("ModelCheckpoint", "BackupAndRestore", "OrbaxCheckpoint")
    if hasattr(keras.callbacks, name)
)
"""Keras' callbacks that save a model each epoch, or after so many batches; OrbaxCheckpoint is not in every version."""
_HANDLED_HERE = (keras.callbacks.TerminateOnNaN, keras.callbacks.ProgbarLogger)


def class_of(thing: object) -> str:
    """Return the name of an object's class and of its module: tf_keras has callbacks of the same names."""
    kind = type(thing)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def is_of_the_user(callback: keras.callbacks.Callback) -> bool:
    """Return whether a callback runs the user's code. Keras' own add nothing to a model, and no metrics to its logs."""
    return isinstance(callback, keras.callbacks.LambdaCallback) or not type(callback).__module__.startswith("keras.")


def check_callbacks(callbacks: Sequence[keras.callbacks.Callback]) -> None:
    """Raise if a callback cannot work on the driver.

    No batch is global in data-parallel training: each worker is at a different one. Keras' own callbacks whose settings
    need batches are refused. Batch hooks of the user's callbacks are not called, and named in a warning.

    Raises:
        TypeError: an object is no Keras callback.
        ValueError: `save_freq=<int>`, `update_freq="batch"`, `profile_batch`, or a LambdaCallback's batch hooks.
    """
    advice = "Batches are on the workers: pass the callback as worker_callbacks=[...] to have it there."
    for callback in callbacks:
        if not isinstance(callback, keras.callbacks.Callback):
            raise TypeError(f"callbacks must be keras.callbacks.Callback objects; got {class_of(callback)}.")
        name = type(callback).__name__
        frequency = getattr(callback, "save_freq", "epoch")
        if frequency != "epoch" and isinstance(callback, _SAVING):
            raise ValueError(f"{name}(save_freq={frequency!r}) counts batches; use save_freq='epoch'. {advice}")
        if getattr(callback, "log_every_n_steps", None) is not None and type(callback).__module__.startswith("mlflow."):
            raise ValueError(f"{name}(log_every_n_steps=...) counts batches; use log_every_epoch=True. {advice}")
        # Settings of Keras' own callbacks that need batches.
        if isinstance(callback, keras.callbacks.TensorBoard):
            if callback.update_freq != "epoch":
                raise ValueError(
                    f"TensorBoard(update_freq={callback.update_freq!r}): use update_freq='epoch'. {advice}"
                )
            if _profiles_batches(callback):
                raise ValueError(f"TensorBoard(profile_batch=...) looks at batches: use profile_batch=0. {advice}")
        elif isinstance(callback, keras.callbacks.LambdaCallback):
            asked = [hook for hook in _BATCH_HOOKS if hook in vars(callback) and not _is_default(vars(callback)[hook])]
            if asked:
                raise ValueError(f"LambdaCallback({asked[0]}=...) would never be called. {advice}")
        # Batch hooks of the user's callbacks: only warn, because the callback may have other hooks too.
        for hook in (*_BATCH_HOOKS, *_TEST_BATCH_HOOKS):
            if not isinstance(callback, _HANDLED_HERE) and _is_user_code(type(callback), hook):
                warnings.warn(f"{name}.{hook} will not be called on the driver. {advice}", UserWarning, stacklevel=4)
                break


def check_copied_callbacks(callbacks: Sequence[keras.callbacks.Callback], whose: str) -> None:
    """Raise ValueError for BackupAndRestore, of which several trainings would each go on from what another has written.

    Args:
        whose: "member" or "trial": whatever gets a copy of each callback.
    """
    if any(isinstance(callback, keras.callbacks.BackupAndRestore) for callback in callbacks):
        raise ValueError(
            f"BackupAndRestore has one backup_dir, and each {whose} gets a copy of it: a {whose} would go on from the weights of another."
        )


def shipped_callbacks(callbacks: Sequence[keras.callbacks.Callback]) -> bytes:
    """Return callbacks as workers get them, pickled; b"" for none.

    Raises:
        ElephasError: what is pickled of one cannot be made again, as of a progress bar that stands for a file.
        UnsendableError, RefersToSparkError: one refers to what lives in this process only.
    """
    if not callbacks:
        return b""
    pickled, drawn = pickle_by_value(list(callbacks)), random.getstate()
    try:
        cloudpickle.loads(pickled)
    except RecursionError as error:
        if len(callbacks) > 1:  # one of them, which says so by itself
            for callback in callbacks:
                shipped_callbacks([callback])
        raise ElephasError(
            f"{class_of(callbacks[0])} cannot be sent to workers: what was pickled of it cannot be made again (RecursionError: {error}). "
            "The callbacks=[...] of SparkModel.fit stay on the driver, and may be of any kind."
        ) from error
    except Exception as error:  # of what only executors have: if they have it not, their error says so
        log.debug("callbacks cannot be made again in this process: %s", error)
    finally:
        random.setstate(drawn)
    return pickled


def check_worker_callbacks(callbacks: Sequence[keras.callbacks.Callback]) -> None:
    """Raise if a callback cannot work on a worker.

    Raises:
        TypeError: an object is no Keras callback.
        ValueError: EarlyStopping and TerminateOnNaN, because no worker can end a training that all share;
            LearningRateScheduler and ReduceLROnPlateau, because each round brings the driver's learning rate.
    """
    for callback in callbacks:
        if not isinstance(callback, keras.callbacks.Callback):
            raise TypeError(f"worker_callbacks must be keras.callbacks.Callback objects; got {class_of(callback)}.")
        if isinstance(callback, (keras.callbacks.EarlyStopping, keras.callbacks.TerminateOnNaN)):
            raise ValueError(
                f"{type(callback).__name__} ends a training, which all workers share: pass it as callbacks=[...], where "
                "it sees the global metrics."
            )
        if isinstance(callback, (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)):
            raise ValueError(
                f"{type(callback).__name__} sets the learning rate, which each round brings to the workers anew: pass it as "
                "callbacks=[...], where it is set for all of them."
            )


def _is_default(hook: object) -> bool:
    return getattr(hook, "__name__", "") == "<lambda>" and "keras" in getattr(hook, "__module__", "")


def _is_user_code(kind: type, hook: str) -> bool:
    """Return whether a hook is defined by the user's code.

    Hooks of Keras' own callbacks do nothing that is needed here.
    """
    owner = next((owner for owner in kind.__mro__ if hook in vars(owner)), keras.callbacks.Callback)
    return not owner.__module__.startswith(("keras.", "mlflow."))


def _profiles_batches(callback: keras.callbacks.TensorBoard) -> bool:
    """Return whether a TensorBoard callback profiles batches. Keras keeps that range in private attributes only."""
    return bool(getattr(callback, "_start_batch", 0))
