"""Which row cannot be trained on: labels that a model has no output for, and numbers that are not finite. In NumPy alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from elephas_like.core.checks import shortly
from elephas_like.core.columns import TEXT, open_column, verify
from elephas_like.core.errors import DataError
from elephas_like.core.structure import flatten
from elephas_like.core.types import Array, ShardRef, Structure

Booleans = np.ndarray[Any, np.dtype[np.bool_]]
BYTES_AT_ONCE = 2**22
"""Of a column that is looked at together: it may be longer than memory."""
NO_VALIDATION_ROWS = "validation_data has no rows: nothing would be validated. Give rows, or leave it out."


class LabelKind(StrEnum):
    """How a loss reads its labels."""

    INDEX = "index"
    ONE_HOT = "one_hot"
    NUMBER = "number"


@dataclass(frozen=True)
class LabelRule:
    """What the labels of one output may be.

    classes: outputs along the last axis. rank: axes of a row's output. loss: its name, for messages.
    ignored: a label that the loss leaves out (`ignore_class`).
    """

    kind: LabelKind
    loss: str
    classes: int = 0
    rank: int = 1
    ignored: int | None = None

    def kind_problem(self, shape: tuple[int, ...], *, text: bool) -> str:
        """Return what is wrong with labels of this shape as a whole; "" if nothing is."""
        if text:
            numbered = (
                f"the numbers 0 to {self.classes - 1}"
                if self.kind is LabelKind.INDEX
                else f"one-hot rows of {self.classes} numbers"
                if self.kind is LabelKind.ONE_HOT
                else "numbers"
            )
            return f"the labels are text, and the loss {self.loss!r} takes {numbered}. Number the classes first; if the text is of numbers, float() reads them."
        if self.kind is LabelKind.INDEX and len(shape) == self.rank and shape[-1] == self.classes > 1:
            return (
                f"the labels are one-hot, of shape {shape}, and the loss {self.loss!r} takes the number of the class. For "
                "one-hot labels: use categorical_crossentropy; or turn them into numbers with argmax(axis=-1)."
            )
        if self.kind is LabelKind.ONE_HOT:
            if len(shape) < self.rank or (len(shape) == self.rank and shape[-1] == 1):
                return (
                    f"the labels are single numbers, of shape {shape}, and the loss {self.loss!r} takes one-hot rows of "
                    f"{self.classes}. For numbers of classes: use sparse_categorical_crossentropy; or one-hot labels, "
                    f"keras.utils.to_categorical(y, {self.classes})."
                )
            if len(shape) == self.rank and shape[-1] != self.classes:
                return (
                    f"the labels have {shape[-1]} columns each, and the model has {self.classes} outputs: they must be as "
                    "many."
                )
        return ""

    def bad_row(self, labels: Array) -> int | None:
        """Return the first row with a label that the model has no output for; None if there is none."""
        if self.kind is not LabelKind.INDEX or not labels.size or labels.dtype.kind not in "iuf":
            return None
        if np.greater_equal(labels.min(), 0) and np.less(labels.max(), self.classes):  # false where there is a NaN
            return None
        bad = self._beyond(labels)
        if self.ignored is not None:
            bad &= labels != self.ignored
        found = np.flatnonzero(bad.reshape(len(labels), -1).any(axis=1))
        return int(found[0]) if len(found) else None

    def _beyond(self, labels: Array) -> Booleans:
        """Return where a label has no output; NaN has none."""
        return ~(np.greater_equal(labels, 0) & np.less(labels, self.classes))

    def value_problem(self, row: Array) -> tuple[str, str]:
        """Return (the label, what the model takes) for a row that `bad_row` found."""
        values = np.asarray(row).reshape(-1)
        bad = values[self._beyond(values)].tolist()
        value = next((each for each in bad if each != self.ignored), bad[0])
        return f"label {int(value) if value == value // 1 else value}", (
            f"the model has {self.classes} outputs (0-{self.classes - 1}). Number the classes from 0, or give the model an output "
            "for each."
        )


def check_labels(rules: object, labels: object, place: str = "", begin: int = 0) -> None:
    """Do nothing if labels in memory are what a model takes.

    Args:
        rules: a LabelRule, or a tree of them as the labels are put together; None where nothing is known.
        labels: an array, or a tree of arrays.
        place: what messages call the rows, such as "partition 3".
        begin: the number of the first row.

    Raises:
        DataError: naming the first row with a label that is none, or what all labels are.
    """
    for rule, array in _beside(rules, labels):
        found = np.asarray(array)
        problem = rule.kind_problem(found.shape[1:], text=found.dtype.kind in "OUST" and _is_text(found))
        if problem:
            raise DataError(f"{place}{': ' if place else ''}{problem}{_first(found)}")
        if found.dtype.kind != "O":
            _check_rows(rule, found, f"{place}{', ' if place else ''}row {{row}}", begin)


def check_shard_labels(rules: object, ref: ShardRef, place: str) -> None:
    """Do nothing if the labels of a shard are what a model takes; it raises as `check_labels`.

    Args:
        place: what messages call the shard's rows, such as "partition 3".

    Raises:
        DataError, ShardMissing: the labels do not fit; the files are not here.
    """
    structure = ref.structure
    if rules is None or not ref.rows or not isinstance(structure, list) or len(structure) < 2:
        return
    verify(ref)
    for rule, number in _beside(rules, _numbers(structure[1])):
        assert isinstance(number, int)
        column = ref.columns[number]
        problem = rule.kind_problem(column.shape, text=column.dtype == TEXT)
        reader = open_column(column, ref.rows)
        if problem:
            raise DataError(f"{place}: {problem}{_first(reader.take(np.arange(1)))}")
        if rule.kind is not LabelKind.INDEX:
            continue
        values = reader.whole()
        for begin in range(0, ref.rows, _rows_at_once(values)):
            _check_rows(rule, values[begin : begin + _rows_at_once(values)], f"{place}, row {{row}}", begin)


def _check_rows(rule: LabelRule, labels: Array, place: str, begin: int) -> None:
    row = rule.bad_row(labels)
    if row is not None:
        label, expected = rule.value_problem(labels[row])
        raise DataError(f"{label} in {place.format(row=begin + row)}: {expected}")


def _numbers(structure: Structure) -> object:
    """Return the tree of a part's columns, by their numbers in the shard."""
    if isinstance(structure, list):
        return tuple(map(_numbers, structure))
    return {name: _numbers(part) for name, part in structure.items()} if isinstance(structure, dict) else structure


def _beside(rules: object, labels: object) -> list[tuple[LabelRule, object]]:
    """Return each rule with its labels; nothing where they are put together in different ways, of which Keras knows more."""
    if isinstance(rules, LabelRule):
        return [] if labels is None or isinstance(labels, dict | tuple | list) else [(rules, labels)]
    if isinstance(rules, dict) and isinstance(labels, dict):
        return [pair for name, rule in rules.items() if name in labels for pair in _beside(rule, labels[name])]
    if isinstance(rules, tuple) and isinstance(labels, tuple | list) and len(rules) == len(labels):
        return [pair for rule, part in zip(rules, labels, strict=True) for pair in _beside(rule, part)]
    return []


def _is_text(labels: Array) -> bool:
    return labels.dtype.kind in "UST" or any(isinstance(value, str | bytes) for value in labels.reshape(-1)[:1])


def _first(labels: Array) -> str:
    value = np.asarray(labels[:1]).reshape(-1)[:1].tolist()
    return f" The first one is {shortly(value[0])}." if value and isinstance(value[0], str | bytes) else ""


def not_finite(columns: Sequence[tuple[str, Array]]) -> tuple[int, str] | None:
    """Return (the first row with NaN or infinity, the name of its column), or None.

    Args:
        columns: names and arrays with a leading axis of rows, of equal lengths.
    """
    found: tuple[int, str] | None = None
    for name, array in columns:
        if array.dtype.kind != "f":
            continue
        for begin in range(0, len(array), _rows_at_once(array)):
            part = array[begin : begin + _rows_at_once(array)]
            bad = np.flatnonzero(~np.isfinite(part).reshape(len(part), -1).all(axis=1))
            if len(bad):
                row = begin + int(bad[0])
                found = (row, name) if found is None or row < found[0] else found
                break
    return found


def not_finite_in_shard(ref: ShardRef) -> tuple[int, str] | None:
    """Return (the first row of a shard with NaN or infinity, the name of its column), or None."""
    numbers = [number for number, column in enumerate(ref.columns) if column.dtype != TEXT]
    names = dict(_named(ref.structure)) if isinstance(ref.structure, list) else {}
    return not_finite([(names[number], open_column(ref.columns[number], ref.rows).whole()) for number in numbers])


def not_finite_text(worker: int, number: int, place: str, column: str) -> str:
    """Return what is said where the numbers of a row made an update NaN."""
    return (
        f"worker {worker} brought NaN or infinity in round {number}: {place} has NaN or infinity in {column!r}. Fill such values, or "
        "leave such rows out (of a DataFrame: NaN by handle_invalid='skip', infinity by a filter), or begin the model with a layer that "
        "replaces them. "
        "on_nan='drop' goes on without such updates."
    )


def names_of_leaves(parts: Sequence[object]) -> list[tuple[str, Array]]:
    """Return the arrays of (x,), (x, y) or (x, y, sample_weight) with their names, as `not_finite` takes them."""
    leaves, structure = flatten(tuple(parts))
    names = dict(_named(structure)) if isinstance(structure, list) else {}
    return [(names[number], np.asarray(leaf)) for number, leaf in enumerate(leaves)]


def _named(structure: list[Structure]) -> Iterator[tuple[int, str]]:
    def visit(node: Structure, name: str) -> Iterator[tuple[int, str]]:
        if isinstance(node, int):
            yield node, name
        elif isinstance(node, list):
            for index, item in enumerate(node):
                yield from visit(item, f"{name}[{index}]")
        elif isinstance(node, dict):
            for key, item in node.items():
                yield from visit(item, f"{name}[{key!r}]")

    for part, name in zip(structure, ("x", "y", "sample_weight"), strict=False):
        yield from visit(part, name)


def _rows_at_once(array: Array) -> int:
    return max(1, BYTES_AT_ONCE // max(1, array[:1].nbytes))
