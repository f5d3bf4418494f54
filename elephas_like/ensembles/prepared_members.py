"""Members whose preprocessors make their rows, as those of KerasHub do: they train on rows that one of them has prepared, and are judged by what
each makes of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import keras
import numpy as np

from elephas_like.core.errors import ElephasError
from elephas_like.core.structure import flatten
from elephas_like.core.types import Array
from elephas_like.trainer.preparing import Preparation, Preparer, preparer_of

Batch = tuple[list[object], object, object, int]
"""(features by member, targets, weights, rows)."""


def preparers_of(models: Sequence[keras.Model]) -> list[Preparer]:
    """Return what prepares the rows of each model; nothing where all of them take rows as they are.

    Raises:
        ElephasError: some prepare rows, and some do not.
    """
    found = [preparer_of(model) for model in models]
    preparers = [each for each in found if each is not None]
    if preparers and len(preparers) < len(models):
        having, without = (next(n for n, each in enumerate(found) if (each is None) is none) for none in (False, True))
        raise ElephasError(
            f"members take the same rows: model {having} ({models[having].name!r}) has a preprocessor, and model {without} "
            f"({models[without].name!r}) has none. Give it one, or take it from the others and prepare the rows first."
        )
    return preparers


def check_prepared_alike(models: Sequence[keras.Model]) -> None:
    """Do nothing if models can be trained on the same rows, those that the first one's preprocessor makes. It must not have been used, nor the others.

    Raises:
        ElephasError: the preprocessor of one makes other rows than the first one's, or cannot be pickled; or it is as `preparers_of` says.
    """
    preparers = preparers_of(models)
    for number, other in enumerate(preparers):
        if other.preprocessor is not preparers[0].preprocessor and _key(other) != _key(preparers[0]):
            raise ElephasError(
                f"members are trained on the same rows, of which the preprocessors of model 0 ({models[0].name!r}) and of model "
                f"{number} ({models[number].name!r}) may make different ones. Make one preprocessor, outside of the function that builds "
                "the models, and give it to all of them."
            )


def _key(preparer: Preparer) -> str:
    return Preparation.of(preparer, 0).content_key()


def _kinds(preparers: Sequence[Preparer]) -> list[object]:
    """Return a key for each preparer, equal for those that are known to do the same: use may add layers to a preprocessor, and change its key."""
    if len({id(each.preprocessor) for each in preparers}) > 1:
        with suppress(ElephasError):  # one that cannot be pickled
            return [_key(each) for each in preparers]
    return [id(each.preprocessor) for each in preparers]


def prepared_batches(
    preparers: Sequence[Preparer], columns: tuple[object, ...], batch_size: int, *, labelled: bool = True
) -> Iterator[Batch]:
    """Yield batches of arrays as each member's steps take them. Targets and weights are those of the first one.

    Preprocessors that do the same are called once.

    Args:
        columns: (x,), (x, y) or (x, y, sample_weight), as they were given.
        labelled: whether targets are wanted.

    Raises:
        DataError: there are no labels, and the preprocessor makes none.
    """
    members = _kinds(preparers)
    once = dict(zip(members, preparers, strict=True))
    batches = (each.batches(columns, batch_size, labelled=labelled) for each in once.values())
    for parts in zip(*batches, strict=True):
        found = dict(zip(once, parts, strict=True))
        _, targets, weights = (*found[members[0]], None, None)[:3]
        features = [found[member][0] for member in members]
        yield features, targets, weights, len(flatten(features[0])[0][0])  # type: ignore[arg-type]  # arrays


def prepared_rows(
    preparer: Preparer, columns: tuple[object, ...], batch_size: int, *, labelled: bool = True
) -> tuple[object, object, object]:
    """Return (x, y, sample_weight) of all rows of arrays as steps take them, None for what there is not; it raises as `prepared_batches`."""
    batches = preparer.batches(columns, batch_size, labelled=labelled)
    x, y, sample_weight = (*keras.tree.map_structure(_joined, *batches), None, None)[:3]
    return x, y, sample_weight


def _joined(*parts: Array) -> Array:
    return np.concatenate(parts)
