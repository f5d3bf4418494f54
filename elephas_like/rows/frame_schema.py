"""Columns of a DataFrame matched with a model's inputs and outputs, on the driver.

What is wrong with a schema is said here, before any job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from pyspark.sql import types as sql

from elephas_like.core import checks
from elephas_like.core.structure import flatten, unflatten, written
from elephas_like.core.types import Slot
from elephas_like.rows.frame_plan import AS_IMAGES, Cell, Choice, ColumnChoice, FramePlan, Kind, Leaf
from elephas_like.rows.row_values import FLOATS
from elephas_like.rows.vector_columns import is_vector
from elephas_like.rows.vectors import WHOLE_DIGITS

_IMAGES = (Kind.IMAGE, Kind.IMAGE_FILE)
_IMAGE_FIELDS = {"origin", "height", "width", "nChannels", "mode", "data"}
_TEXTS = sql.StringType | sql.CharType | sql.VarcharType


def plan(
    schema: sql.StructType, choice: ColumnChoice, inputs: object, outputs: object, *, floatx: str, classes: int | None
) -> FramePlan:
    """Plan how a DataFrame of this schema is read for a model.

    Args:
        inputs: the model's, a Slot or a tuple or dict of Slots. outputs: likewise, None where there is no target.
        floatx: the dtype of floats, as Keras calls it.
        classes: scalar labels become one-hot rows of so many; None leaves them.

    Raises:
        ValueError: names that are not there, or that do not fit the model. TypeError: columns of a type that holds no data
            to train on. Both name the columns that there are.
    """
    planner = _Planner(schema, choice)
    parts: list[object] = [planner.tree("features_col", choice.features, inputs)]
    if choice.label is not None and outputs is not None:
        parts.append(planner.tree("label_col", choice.label, outputs, classes))
    if choice.sample_weight is not None:
        if len(parts) == 1:
            raise ValueError(f"sample_weight_col={choice.sample_weight!r} needs a label_col.")
        parts.append(Leaf((planner.number("sample_weight_col", choice.sample_weight),), ()))
    planner.check_formats(parts)
    leaves, structure = flatten(tuple(parts))
    return FramePlan(tuple(leaves), structure, FLOATS[floatx], choice.invalid)  # type: ignore[arg-type]  # the leaves are Leafs


class _Planner:
    """Matches columns with a model's inputs and outputs, or says why they do not fit."""

    def __init__(self, schema: sql.StructType, choice: ColumnChoice) -> None:
        self._schema, self._choice = _SchemaReader(schema, choice), choice

    def tree(self, argument: str, chosen: Choice, slots: object, classes: int | None = None) -> object:
        """The leaves for a model's inputs or outputs, in the model's structure."""
        found, structure = flatten(slots)
        places: list[Slot] = found  # type: ignore[assignment]  # the leaves are Slots
        if len(places) == 1 and not isinstance(slots, dict):
            return self._single(argument, chosen, places[0], classes)
        if len(places) == 1 and not isinstance(chosen, Mapping) and not self._is_struct(argument, chosen):
            # A dict of one: Keras takes its entry alone, too.
            return unflatten(structure, [self._leaf(argument, chosen, places[0], classes)])
        order = written(structure)
        if isinstance(chosen, str) and (cell := self._wide_column(argument, chosen)) is not None:
            at = {number: place for place, number in enumerate(order)}
            cut = [Leaf((cell,), place.shape, part=(at[i], len(places))) for i, place in enumerate(places)]
            return unflatten(structure, cut)
        names = [places[number].name for number in order]
        columns = dict(zip(order, self._columns_by_slot(argument, chosen, names), strict=True))
        leaves = [self._leaf(argument, columns[number], slot) for number, slot in enumerate(places)]
        return unflatten(structure, leaves)

    def _is_struct(self, argument: str, chosen: str | Sequence[str]) -> bool:
        """Return whether what is chosen is a column of structs."""
        return isinstance(chosen, str) and bool(self._schema.members(argument, chosen))

    def _wide_column(self, argument: str, name: str) -> Cell | None:
        """Return a vector or array column, which is cut into equal parts for several inputs; None for any other column."""
        column = None if self._schema.members(argument, name) else self._schema.column(argument, name)
        return column if column is not None and column.kind in (Kind.VECTOR, Kind.ARRAY) else None

    def _columns_by_slot(self, argument: str, chosen: Choice, names: list[str]) -> Sequence[str | Sequence[str]]:
        """Return the columns chosen for each of a model's several inputs or outputs, in the order of `names`."""
        if isinstance(chosen, Mapping):
            if set(chosen) != set(names):
                raise ValueError(f"{argument} must name the model's {_listed(names)}; got {_listed(chosen)}.")
            return [chosen[name] for name in names]
        if isinstance(chosen, str):
            members = self._schema.members(argument, chosen)
            if set(members) != set(names):
                raise ValueError(
                    f"the model has several ({_listed(names)}), and {argument}={chosen!r} is "
                    f"{'a struct of ' + _listed(members) if members else 'one column'}. Give a column for each, as a "
                    "list in their order or as a dict by their names, or a struct with these fields."
                )
            return [f"{chosen}.{name}" for name in names]
        if len(chosen) != len(names):
            raise ValueError(
                f"{argument} must have a column for each of the model's {_listed(names)}; got {_listed(chosen)}. "
                "Several columns for one of them: a dict, as in {'" + names[0] + "': ['a', 'b']}."
            )
        return list(names if set(chosen) == set(names) else chosen)

    def number(self, argument: str, name: str) -> Cell:
        """A column of numbers."""
        cell = self._schema.column(argument, name)
        if cell.kind is not Kind.NUMBER:
            raise TypeError(f"{argument}={name!r} must hold numbers; it holds {_article(cell.kind)}.")
        return cell

    def check_formats(self, parts: Sequence[object]) -> None:
        """Sees that shapes and dtypes are said of columns that are read, and of such as need them."""
        leaves, _ = flatten(tuple(parts))
        cells = {cell.name: cell for leaf in leaves for cell in leaf.cells}  # type: ignore[attr-defined]  # Leafs
        for argument, said in (("column_shapes", self._choice.shapes), ("column_dtypes", self._choice.dtypes)):
            for name in said:
                if name not in cells:
                    raise ValueError(f"{argument} names {name!r}, which is not read; read are {_listed(cells)}.")
        for name in self._choice.dtypes:
            if cells[name].kind is not Kind.BINARY and not cells[name].resized:
                raise ValueError(f"column_dtypes is for binary columns; {name!r} holds {_article(cells[name].kind)}.")

    def _single(self, argument: str, chosen: Choice, slot: Slot, classes: int | None) -> object:
        """The leaf of a model's only input or output: or a tree, where the model does not say what it takes."""
        if isinstance(chosen, Mapping):
            if list(chosen) == [slot.name]:
                return self._single(argument, chosen[slot.name], slot, classes)
            if slot.shape is None:
                return {name: self._leaf(argument, columns, Slot(name)) for name, columns in chosen.items()}
            raise ValueError(f"{argument}: the model has one, {slot.name!r}; got {_listed(chosen)}.")
        if isinstance(chosen, str) and self._schema.members(argument, chosen):
            members = self._schema.members(argument, chosen)
            if slot.shape is None:
                return {name: self._leaf(argument, f"{chosen}.{name}", Slot(name)) for name in members}
            raise ValueError(
                f"{argument}={chosen!r} is a struct of {_listed(members)}, and the model has one, {slot.name!r}. Name "
                f"its fields, as in {argument}={[f'{chosen}.{name}' for name in members]}."
            )
        return self._leaf(argument, chosen, slot, classes)

    def _leaf(self, argument: str, chosen: str | Sequence[str], slot: Slot, classes: int | None = None) -> Leaf:
        names = [chosen] if isinstance(chosen, str) else list(chosen)
        if not names:
            raise ValueError(f"{argument} names no column.")
        cells = tuple(self._sized(argument, self._schema.column(argument, name), slot) for name in names)
        scalar = len(cells) == 1 and cells[0].kind is Kind.NUMBER
        if argument == "label_col":
            self._check_labels(cells)
            return Leaf(cells, None, classes if scalar else None)
        self._check_features(argument, cells, slot)
        # Layers want an axis of features, also where the model does not say what it takes.
        return Leaf(cells, (1,) if slot.shape is None and scalar else slot.shape)

    def _sized(self, argument: str, cell: Cell, slot: Slot) -> Cell:
        """Return a cell with the size that its images get: the one that was said, or else the model's."""
        if not cell.resized:
            return cell
        if cell.kind not in _IMAGES:
            raise TypeError(
                f"{argument}: {cell.name!r} holds {_article(cell.kind)}, no images: files in a binary column, or the structs of "
                "Spark's image source."
            )
        shape = cell.shape or slot.shape or ()
        if len(shape) != 3 or None in shape or shape[-1] not in (1, 3):
            raise ValueError(
                f"{argument}: the images in {cell.name!r} become arrays of (height, width, channels), with 1 or 3 channels; "
                f"the model's {slot.name!r} has the shape {slot.shape}. Say a size, as in column_shapes={{{cell.name!r}: "
                "(224, 224, 3)}."
            )
        return replace(cell, shape=shape)  # type: ignore[arg-type]  # no None

    def _check_labels(self, cells: Sequence[Cell]) -> None:
        for cell in cells:
            if cell.resized:
                raise TypeError(
                    f"label_col={cell.name!r} would be decoded as images, which are resized by averaging: what stands for classes, as "
                    "in masks, does not survive that. Give numbers, arrays or bytes of the right size."
                )
            if cell.kind is Kind.TEXT:
                raise TypeError(
                    f"label_col={cell.name!r} holds text. Index it first: pyspark.ml.feature.StringIndexer("
                    f"inputCol={cell.name!r}, outputCol='label')."
                )

    def _check_features(self, argument: str, cells: Sequence[Cell], slot: Slot) -> None:
        """Sees that columns go together, and into a model's input."""
        names = [cell.name for cell in cells]
        for cell in cells:
            if len(cells) > 1 and cell.kind in (Kind.BINARY, *_IMAGES):
                raise TypeError(
                    f"{argument}: {cell.name!r} holds {_article(cell.kind)}, which cannot be put together with other columns "
                    f"of {_listed(names)}. Give the model an input for it."
                )
            if cell.kind is Kind.ARRAY:  # may be of text or of numbers
                continue
            if slot.shape is not None and (cell.kind is Kind.TEXT) != slot.text:
                raise TypeError(
                    f"{argument}: {cell.name!r} is {'no text' if slot.text else _article(cell.kind)}, and the model's input "
                    f"{slot.name!r} takes {'text' if slot.text else 'numbers'}.{_advice_on_text(cell)}"
                )
        width, shape = self._schema.width(cells), slot.shape
        if shape is None or width is None or None in shape:
            return
        if width != int(np.prod(shape)):  # type: ignore[arg-type]  # no None
            raise ValueError(
                f"{argument}: {_listed(names)} {'hold' if len(names) > 1 else 'holds'} {width} numbers a row, and the "
                f"model's input {slot.name!r} takes shape {shape}."
            )


class _SchemaReader:
    """Finds columns in a schema and says what they hold."""

    def __init__(self, schema: sql.StructType, choice: ColumnChoice) -> None:
        self._schema, self._choice = schema, choice

    def column(self, argument: str, name: object) -> Cell:
        if not isinstance(name, str):
            raise TypeError(f"{argument} must be column names; got {name!r}.")
        path, found = self._find(argument, name)
        shape = self._choice.shapes.get(name)
        inner, depth = _innermost(found.dataType)
        return Cell(
            path,
            self._kind(argument, name, found.dataType),
            dtype=self._choice.dtypes.get(name),
            shape=None if shape is None else tuple(checks.positive_int("column_shapes", axis) for axis in shape),
            cast=_read_as(inner) if isinstance(inner, sql.DecimalType) else None,
            depth=depth,
        )

    def members(self, argument: str, name: str) -> list[str]:
        """The fields of a struct column that is no image; [] for any other."""
        _, found = self._find(argument, name)
        if not isinstance(found.dataType, sql.StructType) or is_image(found.dataType):
            return []
        return found.dataType.fieldNames()

    def width(self, cells: Sequence[Cell]) -> int | None:
        """Numbers a row that columns hold together, where the schema says it: vectors may carry their size."""
        total = 0
        for cell in cells:
            if cell.shape is not None:
                total += int(np.prod(cell.shape))
            elif cell.kind in (Kind.NUMBER, Kind.TEXT):
                total += 1
            else:
                _, found = self._find("features_col", cell.name)
                size = (found.metadata or {}).get("ml_attr", {}).get("num_attrs")
                if cell.kind is not Kind.VECTOR or size is None:
                    return None
                total += int(size)
        return total

    def _find(self, argument: str, name: str) -> tuple[tuple[str, ...], sql.StructField]:
        """The path and field of a column, or of a struct's field by its dotted name."""
        names = self._schema.fieldNames()
        if names.count(name) > 1:
            raise ValueError(f"{argument}={name!r}: the DataFrame has {names.count(name)} columns of this name.")
        if name in names:
            return (name,), self._schema[name]
        found = _field(self._schema, name)
        if found is None:
            raise ValueError(
                f"{argument}: there is no column {name!r}; the DataFrame has {_listed(names)}.{checks.did_you_mean(name, names)}"
            )
        return found

    def _kind(self, argument: str, name: str, kind: sql.DataType) -> Kind:
        if is_vector(kind):
            return Kind.VECTOR
        if isinstance(kind, sql.NumericType | sql.BooleanType):
            return Kind.NUMBER
        if isinstance(kind, _TEXTS):
            return Kind.TEXT
        if isinstance(kind, sql.BinaryType):
            if name not in self._choice.dtypes:
                raise ValueError(
                    f"{argument}: {name!r} is binary; say what its bytes are, as in column_dtypes={{{name!r}: 'uint8'}}, or "
                    "'image' for files of images."
                )
            if self._choice.dtypes[name] == AS_IMAGES:
                return Kind.IMAGE_FILE
            try:
                if np.dtype(self._choice.dtypes[name]).kind not in "biuf":
                    raise TypeError("no number")
            except TypeError as error:
                raise ValueError(
                    f"column_dtypes[{name!r}] must be a dtype of numbers, as 'uint8' or 'float32', or 'image'; got "
                    f"{self._choice.dtypes[name]!r}."
                ) from error
            return Kind.BINARY
        if isinstance(kind, sql.StructType) and is_image(kind):
            return Kind.IMAGE
        inner, depth = _innermost(kind)
        if depth and isinstance(inner, sql.NumericType | sql.BooleanType | _TEXTS):
            return Kind.ARRAY
        raise TypeError(
            f"{argument}: {name!r} is of type {kind.simpleString()}, which is none to train on. Columns may hold numbers, "
            "booleans, text, vectors, arrays of those, binary, or images of Spark's image source; for a struct name its "
            "fields."
        )


def is_image(kind: sql.StructType) -> bool:
    """Return whether structs are images of Spark's image source."""
    return set(kind.fieldNames()) >= _IMAGE_FIELDS


def _read_as(kind: sql.DecimalType) -> str:
    """Return what decimals become: keys of a bank's tables are whole numbers, which float32 would round from the eighth digit on."""
    return "bigint" if kind.scale == 0 and kind.precision <= WHOLE_DIGITS else "double"


def _field(struct: sql.StructType, name: str) -> tuple[tuple[str, ...], sql.StructField] | None:
    """Return the path and the field that a dotted name leads to; names may have dots of their own. None if there is no such field."""
    if name in struct.fieldNames():
        return (name,), struct[name]
    dots = [place for place, letter in enumerate(name) if letter == "."]
    for head, rest in ((name[:dot], name[dot + 1 :]) for dot in dots):
        inner = struct[head].dataType if head in struct.fieldNames() else None
        found = _field(inner, rest) if isinstance(inner, sql.StructType) else None
        if found is not None:
            return (head, *found[0]), found[1]
    return None


def _innermost(kind: sql.DataType) -> tuple[sql.DataType, int]:
    """Return what arrays of a type hold in the end, and how deep; the type itself and 0 if it is no array."""
    depth = 0
    while isinstance(kind, sql.ArrayType):
        kind, depth = kind.elementType, depth + 1
    return kind, depth


def _listed(names: Iterable[object]) -> str:
    return ", ".join(map(repr, names))


def _advice_on_text(cell: Cell) -> str:
    if cell.kind is not Kind.TEXT:
        return ""
    return (
        f" If it holds numbers, read the file with them as such (spark.read.csv(path, header=True, inferSchema=True)), or cast the "
        f"column; for names use StringIndexer(inputCol={cell.name!r}, ...) and OneHotEncoder of pyspark.ml.feature."
    )


def _article(kind: Kind) -> str:
    return {"number": "numbers", "text": "text", "binary": "bytes"}.get(kind.value, f"{kind.value}s")
