"""The arguments of a fit, except for the rows: those of `SparkModel.fit`, checked before anything starts."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import keras
import numpy as np

from elephas_like.core import checks
from elephas_like.core.types import FitConfig, OptimizerState
from elephas_like.trainer.callback_checks import check_callbacks, check_worker_callbacks
from elephas_like.trainer.own_optimizers import own_optimizers

_REFUSED_BY_FIT = {
    "steps_per_epoch": "an epoch is every row exactly once; use fewer epochs, or a sample of the data",
    "steps": "all rows are predicted and evaluated; give fewer rows",
    "validation_steps": "all validation rows are scored",
    "validation_batch_size": "validation runs with batch_size; metrics do not depend on it",
    "workers": "it was removed from Keras; num_workers is an argument of SparkModel",
    "max_queue_size": "it was removed from Keras",
    "use_multiprocessing": "it was removed from Keras",
}
"""Arguments of Keras' fit, evaluate and predict that are refused, with what to do instead."""


_WEIGHTS_FROM_SLOTS = ("Ftrl", "ScheduleFreeAdamW")
"""Optimizers whose weights are a function of their slots."""


@dataclass(frozen=True)
class FitSeeds:
    """Random seeds of one fit.

    fit: of shuffling, dropout and the virtual clock. split: of the rows held out; None takes `fit`.
    bootstrap: of a draw of rows with replacement; None trains on each row once.
    """

    fit: int
    split: int | None = None
    bootstrap: int | None = None


def _size(name: str, value: Any) -> int | None:
    return None if value is None else checks.positive_int(name, value)


def _from_zero(name: str, value: Any) -> int:
    return checks.positive_int(name, value, least=0)


def _verbosity(_: str, value: Any) -> int:
    return checks.verbosity(value)


def _callbacks(_: str, value: Any) -> tuple[keras.callbacks.Callback, ...]:
    return as_tuple(value)


def limited_epochs(name: str, value: Any) -> int:
    """Return the number of epochs, no more of them than Keras is told to train (`keras.config.set_max_epochs`, which old ones lack).

    Raises:
        ValueError: Keras is told to end epochs early, too (`keras.config.set_max_steps_per_epoch`).
    """
    epochs = checks.positive_int(name, value)
    steps, most = (getattr(keras.config, limit, lambda: None)() for limit in ("max_steps_per_epoch", "max_epochs"))
    if steps:
        raise ValueError(
            f"epochs of {steps} steps, as keras.config.set_max_steps_per_epoch or KERAS_MAX_STEPS_PER_EPOCH says, are not supported: "
            f"{_REFUSED_BY_FIT['steps_per_epoch']}. Take the limit back with keras.config.set_max_steps_per_epoch(None)."
        )
    if not most or epochs <= most:
        return epochs
    warnings.warn(
        f"epochs={epochs} is limited to {most}, by keras.config.set_max_epochs or KERAS_MAX_EPOCHS.", stacklevel=2
    )
    return int(most)


def _class_weights(_: str, value: Any) -> dict[int, float] | None:
    return class_weights(value)


def _validation_freq(name: str, value: Any) -> int | tuple[int, ...]:
    if isinstance(value, list | tuple):
        return tuple(checks.positive_int(f"an epoch of {name}", epoch) for epoch in value)
    return checks.positive_int(name, value)


@dataclass(frozen=True)
class FitRequest:
    """The arguments of one fit; what they mean is said by `SparkModel.fit`. Made by `checked`.

    Beside each argument's type is the function that checks its value, given the argument's name.
    """

    epochs: Annotated[int, limited_epochs]
    initial_epoch: Annotated[int, _from_zero]
    batch_size: Annotated[int | None, _size]
    global_batch_size: Annotated[int | None, _size]
    verbose: Annotated[int, _verbosity]
    validation_split: Annotated[float, checks.share]
    validation_freq: Annotated[int | tuple[int, ...], _validation_freq]
    callbacks: Annotated[tuple[keras.callbacks.Callback, ...], _callbacks]
    worker_callbacks: Annotated[tuple[keras.callbacks.Callback, ...], _callbacks]
    class_weight: Annotated[Mapping[int, float] | None, _class_weights]
    shuffle: Annotated[bool, checks.flag]
    checkpoint_dir: Annotated[str | None, checks.directory]
    checkpoint_freq: Annotated[str | float, checks.checkpoint_freq]
    resume: Annotated[bool | str, checks.resume]
    monitor: Annotated[int | str | None, checks.monitor]

    @classmethod
    def checked(cls, model: keras.Model, *, has_validation_data: bool, **given: Any) -> FitRequest:
        """The request, if its arguments make sense for the model and together.

        Raises:
            ValueError, TypeError: an argument is invalid.
        """
        validation_share(given["validation_split"], has_validation_data=has_validation_data)
        if given["batch_size"] is not None and given["global_batch_size"] is not None:
            raise ValueError("give batch_size (per worker) or global_batch_size (of all workers), not both.")
        if class_weights(given["class_weight"]) and len(getattr(model, "outputs", None) or [None]) > 1:
            raise ValueError("class_weight needs a model with a single output, as in Keras; use sample weights.")
        if given["checkpoint_dir"] is None and given["resume"] is True:
            raise ValueError("resume=True needs the checkpoint_dir of the fit that is to go on.")
        check_callbacks(as_tuple(given["callbacks"]))
        check_worker_callbacks(as_tuple(given["worker_callbacks"]))
        if given["checkpoint_dir"] is not None and any(
            isinstance(callback, keras.callbacks.BackupAndRestore) for callback in as_tuple(given["callbacks"])
        ):
            raise ValueError(
                "give checkpoint_dir or BackupAndRestore, not both: each would go on from its own. checkpoint_dir keeps more: "
                "the strategy's state, History, and callbacks."
            )
        hints = get_type_hints(cls, include_extras=True)
        return cls(**{name: hints[name].__metadata__[0](name, value) for name, value in given.items()})

    def config(
        self,
        num_workers: int,
        batch_size: int,
        *,
        seeds: FitSeeds,
        optimizer_state: OptimizerState,
        optimizer_state_every: int = 1,
        control_variates: bool = False,
        in_rounds: bool = True,
    ) -> FitConfig:
        """Return the configuration for `num_workers` workers.

        `batch_size` is each worker's, unless the request says otherwise.
        """
        rows, larger = self.batch_size or batch_size, 0
        if self.global_batch_size is not None:
            rows, larger = split_batch(self.global_batch_size, num_workers)
        return FitConfig(
            batch_size=rows,
            larger_batches=larger,
            epochs=self.epochs,
            initial_epoch=self.initial_epoch,
            shuffle=self.shuffle,
            seed=seeds.fit,
            split_seed=seeds.split,
            bootstrap=seeds.bootstrap,
            num_workers=num_workers,
            validation_split=self.validation_split,
            class_weight=self.class_weight,
            optimizer_state=optimizer_state,
            optimizer_state_every=optimizer_state_every,
            control_variates=control_variates and num_workers > 1,
            in_rounds=in_rounds,
        )


def check_optimizer_state(model: keras.Model, optimizer_state: OptimizerState, every: int = 1) -> None:
    """Raise if the driver would not get all of the optimizer's state that it needs at the end of a fit.

    Averaged weights (`use_ema`) are slots of an optimizer, and the model ends with them. If slots stay on the workers,
    or are reset, the driver's are still zeros.

    Some optimizers compute weights from their slots: what averaging does to the weights is lost if it is not done to them.

    Args:
        every: rounds from one average of the slots to the next.

    Raises:
        ValueError: an optimizer has `use_ema`, or computes weights from slots, and its slots are not averaged in each round.
    """
    if optimizer_state is OptimizerState.AVERAGE and every == 1:
        return
    needs, given = "optimizer_state='average'", repr(optimizer_state.value)
    if optimizer_state is OptimizerState.AVERAGE:
        needs, given = f"{needs} in each round", f"optimizer_state_every={every}"
    optimizers = own_optimizers(model)
    kinds = [kind.__name__ for optimizer in optimizers for kind in type(optimizer).__mro__]
    own = next((name for name in kinds if name in _WEIGHTS_FROM_SLOTS), None)
    if own is not None:
        raise ValueError(
            f"{own} computes the weights from its slots, and needs {needs}; got {given}, with "
            "which each step would go back to a worker's own weights, or to those of the fit's begin."
        )
    if any(getattr(optimizer, "use_ema", False) for optimizer in optimizers):
        raise ValueError(
            f"an optimizer with use_ema=True needs {needs}; got {given}, with which "
            f"its averaged weights would not come back from the workers. Use {needs}, or an optimizer "
            "without use_ema."
        )


def check_control_variates(model: keras.Model) -> None:
    """Raise if corrections of the weights would be lost at the optimizer's next step.

    Raises:
        ValueError: an optimizer computes weights from its slots.
    """
    kinds = [kind.__name__ for optimizer in own_optimizers(model) for kind in type(optimizer).__mro__]
    own = next((name for name in kinds if name in _WEIGHTS_FROM_SLOTS), None)
    if own is not None:
        raise ValueError(
            f"{own} computes the weights from its slots: what control variates add to the weights would be lost with its next step. Use "
            "another optimizer, or leave control_variates out."
        )


def refuse_unknown(others: Iterable[str], known: Iterable[str]) -> None:
    """Nothing, if there are no others.

    Raises:
        ValueError: an argument of Keras' that has no meaning here. TypeError: any other name, with the nearest known one.
    """
    for name in others:
        if name in _REFUSED_BY_FIT:
            raise ValueError(f"{name}= is not supported: {_REFUSED_BY_FIT[name]}.")
        raise TypeError(f"unexpected argument {name!r}.{checks.did_you_mean(name, known)}")


def as_tuple(
    callbacks: Sequence[keras.callbacks.Callback] | keras.callbacks.Callback | None,
) -> tuple[keras.callbacks.Callback, ...]:
    """Return callbacks as a tuple: none, one, several, or a CallbackList are accepted, as in Keras; so is a CallbackList among several."""
    if callbacks is None:
        return ()
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = list(callbacks.callbacks)
    given = callbacks if isinstance(callbacks, Sequence) else (callbacks,)
    found: list[keras.callbacks.Callback] = []
    for callback in given:
        # A subclass may have hooks of its own.
        found.extend(as_tuple(callback) if type(callback) is keras.callbacks.CallbackList else (callback,))
    return tuple(found)


def validation_share(validation_split: object, *, has_validation_data: bool) -> float:
    """Return `validation_split`, a share from 0 to below 1.

    Raises:
        ValueError: it is out of range, or given together with validation data.
    """
    split = checks.share("validation_split", validation_split)
    if split and has_validation_data:
        raise ValueError("give validation_split or validation_data, not both.")
    return split


_NUMBERS = (int, float, np.integer, np.floating)


def class_weights(given: object) -> dict[int, float] | None:
    """Return weights by class as plain numbers; None for none.

    Raises:
        TypeError, ValueError: it is no dict from whole numbers to finite weights from 0 on.
    """
    if given is None:
        return None
    said = "class_weight must be a dict from classes, which are whole numbers from 0 on, to weights"
    if not isinstance(given, Mapping):
        raise TypeError(f"{said}; got {type(given).__name__}.")
    for label, weight in given.items():
        if isinstance(label, str) and label.isdecimal():  # as JSON has keys
            label = int(label)
        if not isinstance(label, _NUMBERS) or label < 0 or label % 1:
            raise ValueError(f"{said}; got the class {label!r}.")
        if not isinstance(weight, _NUMBERS) or not 0 <= weight < math.inf:
            raise ValueError(f"{said}, which are finite and not negative; class {label!r} has {weight!r}.")
    return {int(label): float(weight) for label, weight in given.items()} or None


def check_one_weight(class_weight: object, *, has_sample_weight: bool) -> None:
    """Raise if a row would have two weights.

    Raises:
        ValueError: it would.
    """
    if class_weight and has_sample_weight:
        raise ValueError(
            "class_weight and sample weights exclude each other, as in Keras: multiply each row's weight by that of its class."
        )


def split_batch(global_batch_size: int, num_workers: int) -> tuple[int, int]:
    """Return (rows per batch of each worker, number of workers with one row more), which add up to the global batch."""
    if global_batch_size < num_workers:
        warnings.warn(
            f"global_batch_size={global_batch_size} gives {num_workers} workers less than a row each: batches of one row "
            f"make an effective global batch of {num_workers}. Use fewer workers.",
            UserWarning,
            stacklevel=6,  # the caller of SparkModel.fit
        )
        return 1, 0
    return divmod(global_batch_size, num_workers)
