"""The arguments of a fit, except for the rows: those of `SparkModel.fit`, checked before anything starts."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import keras

from elephas_like.core import checks
from elephas_like.core.types import FitConfig, OptimizerState
from elephas_like.trainer.callbacks import check_callbacks, check_worker_callbacks
from elephas_like.trainer.state import own_optimizer


@dataclass(frozen=True)
class FitRequest:
    """The arguments of one fit, as documented by `SparkModel.fit`."""

    epochs: int
    initial_epoch: int
    batch_size: int | None
    global_batch_size: int | None
    verbose: int
    validation_split: float
    validation_freq: int | tuple[int, ...]
    callbacks: tuple[keras.callbacks.Callback, ...]
    worker_callbacks: tuple[keras.callbacks.Callback, ...]
    class_weight: Mapping[int, float] | None
    shuffle: bool

    @classmethod
    def checked(
        cls,
        model: keras.Model,
        *,
        epochs: int,
        initial_epoch: int,
        batch_size: int | None,
        global_batch_size: int | None,
        verbose: int | str,
        validation_split: float,
        validation_freq: int | Sequence[int],
        callbacks: Sequence[keras.callbacks.Callback] | keras.callbacks.Callback | None,
        worker_callbacks: Sequence[keras.callbacks.Callback] | keras.callbacks.Callback | None,
        class_weight: Mapping[int, float] | None,
        shuffle: bool,
        has_validation_data: bool,
    ) -> FitRequest:
        """Check the arguments, alone, together and against the model, and return the request.

        Raises:
            ValueError, TypeError: an argument is invalid.
        """
        # Combinations that exclude each other.
        split = validation_share(validation_split, has_validation_data=has_validation_data)
        if batch_size is not None and global_batch_size is not None:
            raise ValueError("give batch_size (per worker) or global_batch_size (of all workers), not both.")
        if class_weight and len(getattr(model, "outputs", None) or [None]) > 1:
            raise ValueError("class_weight needs a model with a single output, as in Keras; use sample weights.")
        # Callbacks, each on the side where it runs.
        on_driver, on_workers = as_tuple(callbacks), as_tuple(worker_callbacks)
        check_callbacks(on_driver)
        check_worker_callbacks(on_workers)
        listed = isinstance(validation_freq, list | tuple)
        return cls(
            epochs=checks.positive_int("epochs", epochs),
            initial_epoch=checks.positive_int("initial_epoch", initial_epoch, least=0),
            batch_size=None if batch_size is None else checks.positive_int("batch_size", batch_size),
            global_batch_size=(
                None if global_batch_size is None else checks.positive_int("global_batch_size", global_batch_size)
            ),
            verbose=checks.verbosity(verbose),
            validation_split=split,
            validation_freq=(
                tuple(validation_freq) if listed else checks.positive_int("validation_freq", validation_freq)  # type: ignore[arg-type]  # a list
            ),
            callbacks=on_driver,
            worker_callbacks=on_workers,
            class_weight=class_weights(class_weight),
            shuffle=bool(shuffle),
        )

    def config(
        self,
        num_workers: int,
        *,
        batch_size: int,
        seed: int,
        split_seed: int | None,
        bootstrap: int | None,
        optimizer_state: OptimizerState,
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
            seed=seed,
            split_seed=split_seed,
            bootstrap=bootstrap,
            num_workers=num_workers,
            validation_split=self.validation_split,
            class_weight=self.class_weight,
            optimizer_state=optimizer_state,
        )


def check_optimizer_state(model: keras.Model, optimizer_state: OptimizerState) -> None:
    """Raise if the driver would not get all of the optimizer's state that it needs at the end of a fit.

    Averaged weights (`use_ema`) are slots of the optimizer, and the model ends with them. If slots stay on the workers,
    or are reset, the driver's are still zeros.

    Raises:
        ValueError: the optimizer has `use_ema`, and its slots are not averaged.
    """
    if optimizer_state is not OptimizerState.AVERAGE and getattr(own_optimizer(model), "use_ema", False):
        raise ValueError(
            f"an optimizer with use_ema=True needs optimizer_state='average'; got {optimizer_state.value!r}, with which "
            "its averaged weights would not come back from the workers. Use optimizer_state='average', or an optimizer "
            "without use_ema."
        )


def as_tuple(
    callbacks: Sequence[keras.callbacks.Callback] | keras.callbacks.Callback | None,
) -> tuple[keras.callbacks.Callback, ...]:
    """Return callbacks as a tuple: none, one, or several are accepted, as in Keras."""
    if callbacks is None:
        return ()
    return tuple(callbacks) if isinstance(callbacks, Sequence) else (callbacks,)


def validation_share(validation_split: object, *, has_validation_data: bool) -> float:
    """Return `validation_split`, a share from 0 to below 1.

    Raises:
        ValueError: it is out of range, or given together with validation data.
    """
    split = checks.share("validation_split", validation_split)
    if split and has_validation_data:
        raise ValueError("give validation_split or validation_data, not both.")
    return split


def class_weights(given: Mapping[int, float] | None) -> dict[int, float] | None:
    """Return weights by class as plain numbers; None for none."""
    return {int(label): float(weight) for label, weight in given.items()} if given else None


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
