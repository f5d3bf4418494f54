"""Arrays of the driver's: labels are compared with the model before anything starts, and NaN is found where it did harm."""

from __future__ import annotations

import keras

from elephas_like.core.errors import DataError, NonFiniteError
from elephas_like.core.row_checks import check_labels, names_of_leaves, not_finite
from elephas_like.model.source import Source
from elephas_like.model.sources import Arrays
from elephas_like.trainer.label_rules import label_rules


def check_label_arrays(model: keras.Model, source: Source | None, validation: Source | None = None) -> None:
    """Do nothing if the model takes the labels of rows given as arrays. Other rows are looked at where they are written.

    Raises:
        DataError: naming the first row with a label that the model does not take.
    """
    rules = label_rules(model)
    for given, place in ((source, ""), (validation, "validation_data: ")):
        if rules is None or not isinstance(given, Arrays) or not given.has_target:
            continue
        try:
            check_labels(rules, given.columns[1])
        except DataError as error:
            raise DataError(f"{place}{error}") from None


def raise_named(error: NonFiniteError, source: Source) -> None:
    """Do nothing unless rows given as arrays hold NaN or infinity, which is looked for only when an update had some.

    Raises:
        NonFiniteError: naming the first such row.
    """
    found = not_finite(names_of_leaves(source.columns)) if isinstance(source, Arrays) else None
    if found is not None:
        row, column = found
        raise NonFiniteError(
            f"{str(error).partition('. Expected')[0]}: row {row} has NaN or infinity in {column!r}. Fill such values, or leave such "
            "rows out, or begin the model with a layer that replaces them. on_nan='drop' goes on without such updates."
        ) from None
