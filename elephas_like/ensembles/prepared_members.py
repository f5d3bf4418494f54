"""Members whose preprocessors make their rows, as those of KerasHub do: they train on rows that one of them has prepared, and are judged by what
each makes of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import keras
import numpy as np

from elephas_like.core.errors import ElephasError
from elephas_like.core.structure import flatten
from elephas_like.model.prepared import single_texts
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
        having, without = found.index(preparers[0]), found.index(None)
        raise ElephasError(
            f"members take the same rows: model {having} ({models[having].name!r}) has a preprocessor, and model {without} "
            f"({models[without].name!r}) has none. Give it one, or take it from the others and prepare the rows first."
        )
    return preparers


def check_prepared_alike(models: Sequence[keras.Model]) -> None:
    """Do nothing if models can be trained on the same rows, those that the first one's preprocessor makes.

    Preprocessors of which one was used, and another was not, may count as different.

    Raises:
        ElephasError: a preprocessor makes other rows than the first one's, or cannot be pickled; or some models have none.
    """
    keys = _keys(preparers_of(models))
    other = next((number for number, key in enumerate(keys) if key != keys[0]), None)
    if other is not None:
        raise ElephasError(
            f"members are trained on the same rows, of which the preprocessors of model 0 ({models[0].name!r}) and of model {other} "
            f"({models[other].name!r}) may make different ones. Make one preprocessor, outside of the function that builds the models, "
            "and give it to all of them."
        )


def _keys(preparers: Sequence[Preparer]) -> list[object]:
    """Return a key for each, equal for those that do the same. Use may add layers to a preprocessor, which then has another key.

    Raises:
        ElephasError: one of several preprocessors cannot be pickled.
    """
    own = _ids(preparers)
    return own if len(set(own)) < 2 else [Preparation.of(each, 0).content_key() for each in preparers]


def _ids(preparers: Sequence[Preparer]) -> list[object]:
    return [id(each.preprocessor) for each in preparers]


def prepared_batches(preparers: Sequence[Preparer], columns: tuple[object, ...], batch_size: int) -> Iterator[Batch]:
    """Yield batches of arrays as each member's steps take them, with the targets and weights of all of them.

    Preprocessors that do the same are called once.

    Args:
        columns: (x,), (x, y) or (x, y, sample_weight), as they were given.

    Raises:
        DataError: there are no labels, and the preprocessor makes none.
        ElephasError: preprocessors make different labels or weights, such as those of words that each of them masks at random.
    """
    members = _ids(preparers)
    with suppress(ElephasError):
        members = _keys(preparers)
    once: dict[object, Preparer] = {}
    for member, preparer in zip(members, preparers, strict=True):
        once.setdefault(member, preparer)
    for parts in zip(*(each.batches(columns, batch_size) for each in once.values()), strict=True):
        found = dict(zip(once, parts, strict=True))
        first, *others = parts
        if not all(_equal(first[1:], other[1:]) for other in others):
            raise ElephasError(
                "the members' preprocessors make different labels, or weights, of the same rows, so that no label is that of all members. "
                "Give all of them one preprocessor."
            )
        _, targets, weights = (*first, None, None)[:3]
        features = [found[member][0] for member in members]
        yield features, targets, weights, len(flatten(features[0])[0][0])  # type: ignore[arg-type]  # arrays


def _equal(one: object, other: object) -> bool:
    (leaves, structure), (others, as_structure) = flatten(one), flatten(other)
    return structure == as_structure and all(map(np.array_equal, leaves, others))  # type: ignore[arg-type]  # arrays


@contextmanager
def taking_prepared_rows(
    models: Sequence[keras.Model], columns: tuple[object, ...], batch_size: int
) -> Iterator[tuple[list[object], object, object]]:
    """Give (features by model, targets, weights) of arrays as the models' steps take them, which are prepared once; models take such rows meanwhile.

    It raises as `prepared_batches`.

    Args:
        columns: (x,), (x, y) or (x, y, sample_weight), as they were given.
    """
    preparers = preparers_of(models)
    if not preparers:
        x, y, sample_weight = (*columns, None, None)[:3]
        yield [x] * len(models), y, sample_weight
        return
    batches = list(prepared_batches(preparers, (single_texts(columns[0]), *columns[1:]), batch_size))
    y, sample_weight = _joined([batch[1:3] for batch in batches])
    features: list[object] = []
    for number, own in enumerate(batches[0][0]):
        alike = next(place for place, other in enumerate(batches[0][0]) if other is own)
        features.append(features[alike] if alike < number else _joined([batch[0][number] for batch in batches]))
    preprocessors = [model.preprocessor for model in models]
    try:
        for model in models:
            model.preprocessor = None
        yield features, y, sample_weight
    finally:
        for model, preprocessor in zip(models, preprocessors, strict=True):
            model.preprocessor = preprocessor


def prepared_features(preparer: Preparer, features: object, batch_size: int) -> object:
    """Return the features that a preprocessor makes of arrays."""
    batches = preparer.batches((single_texts(features),), batch_size, labelled=False)
    return _joined([batch[0] for batch in batches])


def _joined(batches: Sequence[Any]) -> Any:
    return keras.tree.map_structure(lambda *parts: None if parts[0] is None else np.concatenate(parts), *batches)
