"""What the models of an ensemble must have in common, and how such models vote."""

from __future__ import annotations

from collections.abc import Sequence

import keras

from elephas_like.core.voting import Voting
from elephas_like.ensembles.scoring import gives_logits, output_width
from elephas_like.trainer.task import last_activation, loss_name, single_loss

_REGRESSION = ("mse", "mae", "mape", "msle")


def voting_of(model: keras.Model) -> str:
    """How an ensemble of such models votes: "soft" for a crossentropy, "mean" for a loss of regression, or for several labels a row.

    Raises:
        ValueError: a loss that does not say.
    """
    found = _voting_of(model)
    if found is None:
        raise ValueError(
            f"voting='auto' knows crossentropies and Keras' losses of regression; the loss is {getattr(model, 'loss', None)!r}. Give "
            "voting='soft', 'hard' or 'mean'."
        )
    return found.value


def check_votes(model: keras.Model, voting: Voting) -> None:
    """Do nothing if such models can vote so.

    Raises:
        ValueError: votes for classes of a model that puts out one number of any size, by a loss of Keras' own.
    """
    loss = single_loss(model)
    known = isinstance(loss, str) or str(getattr(loss, "__module__", "")).startswith("keras.")
    numbers = output_width(model) == 1 and last_activation(model) == "linear"
    if voting is not Voting.MEAN and known and numbers and _voting_of(model) is Voting.MEAN:
        raise ValueError(
            f"voting={voting.value!r} is for classes, and the model puts out one number of any size, trained with {loss!r}. Take "
            "voting='mean', which 'auto' takes for it; for classes give the last layer a sigmoid."
        )


def _voting_of(model: keras.Model) -> Voting | None:
    """How an ensemble of such models votes; None where the loss does not say."""
    loss = single_loss(model)
    for words in _names(loss):
        if "crossentropy" in words:
            # Each column has a probability of its own, which do not sum to 1.
            apart = last_activation(model) == "sigmoid" or gives_logits(model)
            labels = "binary" in words and (output_width(model) or 1) > 1 and apart
            return Voting.MEAN if labels else Voting.SOFT
        if any(part in words for part in ("error", "huber", "cosh", "poisson", "tweedie")) or words in _REGRESSION:
            return Voting.MEAN
    return None


def _names(loss: object) -> list[str]:
    """What a loss is called: by its class, by those that it derives from, and last by its user."""
    if loss is None:
        return []
    known = type(loss).__mro__ if isinstance(loss, keras.losses.Loss) else ()
    return [loss_name(loss), *(loss_name(kind) for kind in known), str(getattr(loss, "name", "")).lower()]


def check_models(models: Sequence[object]) -> None:
    """Do nothing if models can vote together.

    Raises:
        ValueError: there is none, or one has several outputs, or they differ in their inputs or outputs.
        TypeError: something that is no Keras model.
    """
    if not models:
        raise ValueError("an ensemble needs at least one model; got an empty list.")
    for model in models:
        if not isinstance(model, keras.Model):
            raise TypeError(f"models must be Keras models; got {type(model).__module__}.{type(model).__name__}.")
    first = models[0]
    for number, model in enumerate(models):
        outputs = getattr(model, "outputs", None) or [None]
        if len(outputs) != 1:
            raise ValueError(f"models must have one output each; model {number} ({model.name!r}) has {len(outputs)}.")  # type: ignore[attr-defined]
        if isinstance(getattr(model, "output", None), dict):
            raise ValueError(
                f"models must put out one array, which members' are averaged with; model {number} ({model.name!r}) puts out a dict. "  # type: ignore[attr-defined]
                "Build the model with the output alone: keras.Model(inputs, output)."
            )
        for what in ("input_shape", "output_shape"):
            expected, found = (_shape(each, what) for each in (first, model))
            if None not in (expected, found) and expected != found:
                raise ValueError(
                    f"models must have equal {what.split('_')[0]}s: model 0 has shape {expected}, and model {number} "
                    f"({model.name!r}) {found}."  # type: ignore[attr-defined]
                )


def _shape(model: object, what: str) -> object:
    """A model's shape of input or output; None where it has none yet."""
    try:
        return repr(getattr(model, what))
    except (AttributeError, ValueError):
        return None
