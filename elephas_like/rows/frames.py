"""DataFrame columns as the rows of a shard: a plan made on the driver from the schema, and batches read by it.

Columns cross from Spark to Python as Arrow batches and become `Block`s of at most a few MiB, which the spool takes as it
takes rows. What is wrong with a schema is said before any job; what is wrong with a row is said with its column and place.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import numpy as np
import pyarrow as pa
from pyspark import RDD, TaskContext
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import VectorUDT
from pyspark.mllib.linalg import VectorUDT as OldVectorUDT
from pyspark.sql import Column, DataFrame, functions
from pyspark.sql import types as sql

from elephas_like.core import checks
from elephas_like.core.errors import DataError
from elephas_like.core.structure import flatten, unflatten
from elephas_like.core.types import Array, Slot, Structure
from elephas_like.rows.spool import BATCH_BYTES, FLOATS, Block
from elephas_like.rows.vectors import Unfit, as_arrow, binaries, images, nested, numbers, texts, vectors

Choice = str | Sequence[str] | Mapping[str, str | Sequence[str]]
_IMAGE_FIELDS = {"origin", "height", "width", "nChannels", "mode", "data"}
_PACKED = "block binary, error string"


class Kind(StrEnum):
    """What a column holds."""

    NUMBER = "number"
    TEXT = "text"
    VECTOR = "vector"
    ARRAY = "array"
    BINARY = "binary"
    IMAGE = "image"


@dataclass(frozen=True)
class ColumnChoice:
    """Which columns are what.

    features, label: a name, several names, or a mapping from the model's input or output names to those. "a.b" is the field
        b of the struct a. label None: no target.
    shapes: what one value of a column is reshaped to. dtypes: of the bytes in binary columns.
    """

    features: Choice = "features"
    label: Choice | None = "label"
    sample_weight: str | None = None
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One column, or field of a struct, and how it is read."""

    path: tuple[str, ...]
    kind: Kind
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    decimal: bool = False

    @property
    def name(self) -> str:
        """The column's name, with the names of fields after dots."""
        return ".".join(self.path)

    def selected(self) -> Column:
        """The column for `select`."""
        column = functions.col(f"`{self.path[0].replace('`', '``')}`")
        for name in self.path[1:]:
            column = column.getField(name)
        return column.cast("double") if self.decimal else column

    def read(self, array: pa.Array, floatx: str) -> Array:
        """The values of a batch, rows first."""
        match self.kind:
            case Kind.NUMBER:
                values = numbers(array)
            case Kind.TEXT:
                values = texts(array)
            case Kind.VECTOR:
                values = vectors(array, floatx)
            case Kind.ARRAY:
                values = nested(array)
            case Kind.BINARY:
                values = binaries(array, str(self.dtype))
            case Kind.IMAGE:
                values = images(array)
        if self.shape is not None:
            values = _reshaped(values, self.shape, "column_shapes says")
        return values.astype(floatx, copy=False) if values.dtype.kind == "f" else values


@dataclass(frozen=True)
class Leaf:
    """One array of the rows: the columns that make it up.

    shape: of one row as the model takes it; None leaves the columns' own. classes: labels become one-hot rows of so many.
    part: (which, of how many) equal parts of a row this is; Elephas cuts one column for several inputs so.
    """

    cells: tuple[Cell, ...]
    shape: tuple[int | None, ...] | None = None
    classes: int | None = None
    part: tuple[int, int] | None = None


@dataclass(frozen=True)
class Plan:
    """How batches of a DataFrame become (x,), (x, y) or (x, y, sample_weight).

    structure: of those over `leaves`, as core/structure.py reads it.
    """

    leaves: tuple[Leaf, ...]
    structure: Structure
    floatx: str

    def selected(self) -> list[Column]:
        """What to select from the DataFrame: one column per cell, in the order in which `read` wants them."""
        return [cell.selected().alias(f"c{index}") for index, cell in enumerate(self.cells)]

    @property
    def cells(self) -> list[Cell]:
        """The cells of all leaves."""
        return [cell for leaf in self.leaves for cell in leaf.cells]

    @property
    def has_target(self) -> bool:
        """Whether rows are pairs."""
        return isinstance(self.structure, list) and len(self.structure) > 1

    def read(self, arrays: Sequence[pa.Array]) -> list[Array]:
        """The leaves of a batch.

        Raises:
            _BadCell: a value that does not fit.
        """
        found, columns = [], iter(arrays)
        for leaf in self.leaves:
            values = []
            for cell in leaf.cells:
                try:
                    values.append(cell.read(next(columns), self.floatx))
                except Unfit as error:
                    raise _BadCell(cell.name, error) from error
            try:
                found.append(_together(values, leaf, self.floatx))
            except Unfit as error:
                raise _BadCell(", ".join(cell.name for cell in leaf.cells), error) from error
        return found

    def blocks(self, arrays: Sequence[pa.Array], rows: int, seen: _Seen) -> Iterator[tuple[list[Array], int]]:
        """(leaves, rows) of parts of a batch that are at most about 4 MiB each, in order.

        seen: what is carried from batch to batch.

        Raises:
            DataError: naming the column and the row.
        """
        begin = 0
        while begin < rows:
            count = min(seen.rows_at_once or 1, rows - begin)  # the first row says how large rows are
            try:
                leaves = self.read([array.slice(begin, count) for array in arrays])
                probing = not seen.rows_at_once
                seen.check([cells_of(leaf) for leaf in self.leaves], leaves)
            except _BadCell as error:
                place = f"{seen.place}row {seen.rows + error.row}"
                raise DataError(f"column {error.column!r}, {place}: {error}") from error.__cause__
            if probing:
                continue
            yield leaves, count
            seen.rows += count
            begin += count

    def tree(self, leaves: Sequence[Array]) -> tuple[object, ...]:
        """(x,), (x, y) or (x, y, sample_weight) of leaves."""
        tree = unflatten(self.structure, leaves)
        assert isinstance(tree, tuple)
        return tree


class _BadCell(Exception):
    def __init__(self, column: str, error: Unfit) -> None:
        super().__init__(str(error))
        self.column, self.row = column, error.row


class _Seen:
    """What is known of a partition from the batches before: rows, their shapes, and how many make 4 MiB."""

    def __init__(self) -> None:
        context = TaskContext.get()
        self.place = "" if context is None else f"partition {context.partitionId()}, "
        self.rows = 0
        self.rows_at_once = 0
        self._shapes: list[tuple[int, ...]] = []

    def check(self, columns: Sequence[str], leaves: Sequence[Array]) -> None:
        """Sees that rows look as those before."""
        shapes = [leaf.shape[1:] for leaf in leaves]
        if not self._shapes:
            self._shapes = shapes
            row_nbytes = sum(leaf.nbytes for leaf in leaves)
            self.rows_at_once = max(1, BATCH_BYTES // max(1, row_nbytes))
        for column, expected, got in zip(columns, self._shapes, shapes, strict=True):
            if expected != got:
                message = f"expected shape {expected}, as in the rows before, got {got}. All rows must have one shape."
                raise _BadCell(column, Unfit(0, message))


class Frame:
    """A DataFrame read by a plan, as an RDD of Blocks."""

    def __init__(self, df: DataFrame, plan: Plan) -> None:
        self.df, self.plan = df, plan

    @cached_property
    def blocks(self) -> RDD:
        """Blocks of rows, in order, in the DataFrame's partitions."""
        return self.dealt(1)

    def dealt(self, pieces: int) -> RDD:
        """Blocks, each part of a batch dealt to so many like cards: what a partition holds can then be split evenly."""
        plan = self.plan

        def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return _packed(plan, pieces, batches)

        return self.df.select(*plan.selected()).mapInArrow(pack, _PACKED).rdd.mapPartitions(_unpacked)

    def rows(self) -> RDD:
        """The rows one by one, in order: `(x, y)`, `(x, y, sample_weight)`, or x alone where there is no target."""
        plan = self.plan

        def each(blocks: Iterable[Block]) -> Iterator[object]:
            for row in one_by_one(plan, blocks):
                yield row if plan.has_target else row[0]  # type: ignore[index]  # (x,)

        return self.blocks.mapPartitions(each)


def _packed(plan: Plan, pieces: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    seen, error = _Seen(), None
    for batch in batches:
        if error is not None:
            continue  # read to the end: Spark does not reuse a process that leaves input behind
        try:
            for leaves, rows in plan.blocks(batch.columns, batch.num_rows, seen):
                for piece in range(pieces):
                    part = leaves if pieces == 1 else [leaf[piece::pieces] for leaf in leaves]
                    count = rows if pieces == 1 else len(range(piece, rows, pieces))
                    yield _record(pickle.dumps(Block(plan.tree(part), count), 5), None)
        except DataError as cause:  # as a value: raising it here would cost the process, and Spark would try again
            error = str(cause)
            yield _record(None, error)


def _record(block: bytes | None, error: str | None) -> pa.RecordBatch:
    return pa.record_batch([pa.array([block], pa.binary()), pa.array([error], pa.string())], ["block", "error"])


def _unpacked(rows: Iterable[sql.Row]) -> Iterator[Block]:
    error = None
    for row in rows:
        if row.error is not None:
            error = row.error
        elif error is None:
            yield pickle.loads(row.block)  # noqa: S301  Spark handed over what this module wrote
    if error is not None:
        raise DataError(error)


def one_by_one(plan: Plan, blocks: Iterable[Block]) -> Iterator[object]:
    """The rows of blocks as `(x, y)` or `(x, y, sample_weight)`, one by one."""
    for block in blocks:
        leaves, structure = flatten(block.columns)
        for row in range(block.rows):
            yield unflatten(structure, [leaf[row] for leaf in leaves])  # type: ignore[index]  # arrays


def plan(
    schema: sql.StructType, choice: ColumnChoice, inputs: object, outputs: object, *, floatx: str, classes: int | None
) -> Plan:
    """How to read a DataFrame of this schema for a model.

    Args:
        inputs: the model's, a Slot or a tuple or dict of Slots. outputs: likewise, None where there is no target.
        floatx: the dtype of floats, as Keras calls it.
        classes: scalar labels become one-hot rows of so many; None leaves them.

    Raises:
        ValueError: names that are not there, or that do not fit the model. TypeError: columns of a type that holds no data
            to train on. Both name the columns that there are.
    """
    reader = _SchemaReader(schema, choice)
    parts: list[object] = [reader.tree("features_col", choice.features, inputs)]
    if choice.label is not None and outputs is not None:
        parts.append(reader.tree("label_col", choice.label, outputs, classes))
    if choice.sample_weight is not None:
        if len(parts) == 1:
            raise ValueError(f"sample_weight_col={choice.sample_weight!r} needs a label_col.")
        parts.append(Leaf((reader.number("sample_weight_col", choice.sample_weight),), ()))
    reader.check_formats(parts)
    leaves, structure = flatten(tuple(parts))
    return Plan(tuple(leaves), structure, FLOATS[floatx])  # type: ignore[arg-type]  # the leaves are Leafs


class _SchemaReader:
    """Finds columns in a schema and says what they are, or what is wrong with them."""

    def __init__(self, schema: sql.StructType, choice: ColumnChoice) -> None:
        self._schema, self._choice = schema, choice

    def tree(self, argument: str, chosen: Choice, slots: object, classes: int | None = None) -> object:
        """The leaves for a model's inputs or outputs, in the model's structure."""
        found, structure = flatten(slots)
        places: list[Slot] = found  # type: ignore[assignment]  # the leaves are Slots
        if len(places) == 1 and not isinstance(slots, dict):
            return self._single(argument, chosen, places[0], classes)
        names = [place.name for place in places]
        if isinstance(chosen, Mapping):
            if set(chosen) != set(names):
                raise ValueError(f"{argument} must name the model's {_listed(names)}; got {_listed(chosen)}.")
            columns = [chosen[name] for name in names]
        elif isinstance(chosen, str):
            members = self._members(argument, chosen)
            cell = None if members else self._cell(argument, chosen)
            if cell is not None and cell.kind in (Kind.VECTOR, Kind.ARRAY):
                cut = [Leaf((cell,), place.shape, part=(i, len(places))) for i, place in enumerate(places)]
                return unflatten(structure, cut)
            if set(members) != set(names):
                raise ValueError(
                    f"the model has several ({_listed(names)}), and {argument}={chosen!r} is "
                    f"{'a struct of ' + _listed(members) if members else 'one column'}. Give a column for each, as a "
                    "list in their order or as a dict by their names, or a struct with these fields."
                )
            columns = [f"{chosen}.{name}" for name in names]
        else:
            if len(chosen) != len(names):
                raise ValueError(
                    f"{argument} must have a column for each of the model's {_listed(names)}; got {_listed(chosen)}. "
                    "Several columns for one of them: a dict, as in {'" + names[0] + "': ['a', 'b']}."
                )
            columns = list(names if set(chosen) == set(names) else chosen)
        leaves = [self._leaf(argument, column, slot) for column, slot in zip(columns, places, strict=True)]
        return unflatten(structure, leaves)

    def number(self, argument: str, name: str) -> Cell:
        """A column of numbers."""
        cell = self._cell(argument, name)
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
            if cells[name].kind is not Kind.BINARY:
                raise ValueError(f"column_dtypes is for binary columns; {name!r} holds {_article(cells[name].kind)}.")

    def _single(self, argument: str, chosen: Choice, slot: Slot, classes: int | None) -> object:
        """The leaf of a model's only input or output: or a tree, where the model does not say what it takes."""
        if isinstance(chosen, Mapping):
            if list(chosen) == [slot.name]:
                return self._single(argument, chosen[slot.name], slot, classes)
            if slot.shape is None:
                return {name: self._leaf(argument, columns, Slot(name)) for name, columns in chosen.items()}
            raise ValueError(f"{argument}: the model has one, {slot.name!r}; got {_listed(chosen)}.")
        if isinstance(chosen, str) and self._members(argument, chosen):
            members = self._members(argument, chosen)
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
        cells = tuple(self._cell(argument, name) for name in names)
        scalar = len(cells) == 1 and cells[0].kind is Kind.NUMBER
        if argument == "label_col":
            self._check_labels(cells)
            return Leaf(cells, None, classes if scalar else None)
        self._check_features(argument, cells, slot)
        # Layers want an axis of features, also where the model does not say what it takes.
        return Leaf(cells, (1,) if slot.shape is None and scalar else slot.shape)

    def _check_labels(self, cells: Sequence[Cell]) -> None:
        for cell in cells:
            if cell.kind is Kind.TEXT:
                raise TypeError(
                    f"label_col={cell.name!r} holds text. Index it first: pyspark.ml.feature.StringIndexer("
                    f"inputCol={cell.name!r}, outputCol='label')."
                )

    def _check_features(self, argument: str, cells: Sequence[Cell], slot: Slot) -> None:
        """Sees that columns go together, and into a model's input."""
        names = [cell.name for cell in cells]
        for cell in cells:
            if len(cells) > 1 and cell.kind in (Kind.BINARY, Kind.IMAGE):
                raise TypeError(
                    f"{argument}: {cell.name!r} holds {_article(cell.kind)}, which cannot be put together with other columns "
                    f"of {_listed(names)}. Give the model an input for it."
                )
            if cell.kind is Kind.ARRAY:  # may be of text or of numbers
                continue
            if slot.shape is not None and (cell.kind is Kind.TEXT) != slot.text:
                raise TypeError(
                    f"{argument}: {cell.name!r} is {'no text' if slot.text else _article(cell.kind)}, and the model's input "
                    f"{slot.name!r} takes {'text' if slot.text else 'numbers'}."
                )
        width, shape = self._width(cells), slot.shape
        if shape is None or width is None or None in shape:
            return
        if width != int(np.prod(shape)):  # type: ignore[arg-type]  # no None
            raise ValueError(
                f"{argument}: {_listed(names)} {'hold' if len(names) > 1 else 'holds'} {width} numbers a row, and the "
                f"model's input {slot.name!r} takes shape {shape}."
            )

    def _cell(self, argument: str, name: object) -> Cell:
        if not isinstance(name, str):
            raise TypeError(f"{argument} must be column names; got {name!r}.")
        path, found = self._find(argument, name)
        shape = self._choice.shapes.get(name)
        return Cell(
            path,
            self._kind(argument, name, found.dataType),
            dtype=self._choice.dtypes.get(name),
            shape=None if shape is None else tuple(checks.positive_int("column_shapes", axis) for axis in shape),
            decimal=isinstance(found.dataType, sql.DecimalType),
        )

    def _find(self, argument: str, name: str) -> tuple[tuple[str, ...], sql.StructField]:
        """The path and field of a column, or of a struct's field by its dotted name."""
        names = self._schema.fieldNames()
        if names.count(name) > 1:
            raise ValueError(f"{argument}={name!r}: the DataFrame has {names.count(name)} columns of this name.")
        if name in names:
            return (name,), self._schema[name]
        head, _, rest = name.partition(".")
        path: tuple[str, ...] = (head,)
        found = self._schema[head] if rest and head in names else None
        while found is not None and rest and isinstance(found.dataType, sql.StructType):
            part, _, rest = rest.partition(".")
            found = found.dataType[part] if part in found.dataType.fieldNames() else None
            path = (*path, part)
        if found is None or rest:
            raise ValueError(
                f"{argument}: there is no column {name!r}; the DataFrame has {_listed(names)}.{checks.near(name, names)}"
            )
        return path, found

    def _members(self, argument: str, name: str) -> list[str]:
        """The fields of a struct column that is no image; [] for any other."""
        _, found = self._find(argument, name)
        if not isinstance(found.dataType, sql.StructType) or set(found.dataType.fieldNames()) >= _IMAGE_FIELDS:
            return []
        return found.dataType.fieldNames()

    def _kind(self, argument: str, name: str, kind: sql.DataType) -> Kind:
        if isinstance(kind, VectorUDT | OldVectorUDT):
            return Kind.VECTOR
        if isinstance(kind, sql.NumericType | sql.BooleanType):
            return Kind.NUMBER
        if isinstance(kind, sql.StringType):
            return Kind.TEXT
        if isinstance(kind, sql.BinaryType):
            if name not in self._choice.dtypes:
                raise ValueError(
                    f"{argument}: {name!r} is binary; say what its bytes are, as in column_dtypes={{{name!r}: 'uint8'}}."
                )
            try:
                if np.dtype(self._choice.dtypes[name]).kind not in "biuf":
                    raise TypeError("no number")
            except TypeError as error:
                raise ValueError(
                    f"column_dtypes[{name!r}] must be a dtype of numbers, as 'uint8' or 'float32'; got "
                    f"{self._choice.dtypes[name]!r}."
                ) from error
            return Kind.BINARY
        if isinstance(kind, sql.StructType) and set(kind.fieldNames()) >= _IMAGE_FIELDS:
            return Kind.IMAGE
        inner = kind
        while isinstance(inner, sql.ArrayType):
            inner = inner.elementType
        plain = isinstance(inner, sql.NumericType | sql.BooleanType | sql.StringType)
        if inner is not kind and plain and not isinstance(inner, sql.DecimalType):
            return Kind.ARRAY
        raise TypeError(
            f"{argument}: {name!r} is of type {kind.simpleString()}, which is none to train on. Columns may hold numbers, "
            "booleans, text, vectors, arrays of those, binary, or images of Spark's image source; for a struct name its "
            "fields."
        )

    def _width(self, cells: Sequence[Cell]) -> int | None:
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


def _together(values: list[Array], leaf: Leaf, floatx: str) -> Array:
    """The array of a leaf from those of its cells."""
    if len(values) > 1:
        flat = [value.reshape(len(value), -1) for value in values]
        array: Array = np.concatenate(flat, axis=1)
        if array.dtype.kind == "f":  # integers beside floats: NumPy would make float64 of them
            array = array.astype(floatx, copy=False)
    else:
        array = values[0]
    if leaf.part is not None:
        array = _cut(array, *leaf.part)
    if leaf.classes is not None:
        return _one_hot(array, leaf.classes, floatx)
    return array if leaf.shape is None else _reshaped(array, leaf.shape, "the model takes")


def _cut(array: Array, which: int, of: int) -> Array:
    """One of equal parts along the second axis, as `np.hsplit` cuts."""
    width = array.shape[1] // of
    if width * of != array.shape[1]:
        raise Unfit(0, f"expected a row of {of} equal parts, one for each of the model's, got {array.shape[1]} values.")
    return array[:, which * width : (which + 1) * width]


def _reshaped(array: Array, shape: tuple[int | None, ...], who: str) -> Array:
    """The rows in the shape that is wanted, where they hold as many values."""
    got = array.shape[1:]
    if len(got) == len(shape) and all(want in (None, have) for want, have in zip(shape, got, strict=True)):
        return array
    if len(array) and (None in shape or int(np.prod(shape)) != int(np.prod(got))):  # type: ignore[arg-type]  # no None
        raise Unfit(0, f"{who} shape {shape}, got {got}.")
    return array.reshape(len(array), *shape)


def _one_hot(labels: Array, classes: int, floatx: str) -> Array:
    wrong = np.flatnonzero((labels < 0) | (labels >= classes) | (labels != np.floor(labels)))  # type: ignore[operator]
    if len(wrong):
        raise Unfit(
            int(wrong[0]),
            f"expected a class from 0 to {classes - 1}, got {labels[wrong[0]]}. The model has {classes} outputs.",
        )
    return np.eye(classes, dtype=floatx)[labels.astype(np.int64)]


def cells_of(leaf: Leaf) -> str:
    """The names of the columns that make up a leaf."""
    return ", ".join(cell.name for cell in leaf.cells)


def _listed(names: Iterable[object]) -> str:
    return ", ".join(map(repr, names))


def _article(kind: Kind) -> str:
    return {"number": "numbers", "text": "text", "binary": "bytes"}.get(kind.value, f"{kind.value}s")


@dataclass(frozen=True)
class Field:
    """A column that predictions add.

    source: its number among the arrays that a score returns. rank: axes of one value; 0 is a plain number.
    vector: whether it becomes an ml Vector.
    """

    name: str
    source: int
    rank: int = 0
    vector: bool = False
    dtype: str = "double"

    @property
    def type(self) -> sql.DataType:
        """Its type as it comes from Python."""
        kind: sql.DataType = {"double": sql.DoubleType(), "float": sql.FloatType(), "long": sql.LongType()}[self.dtype]
        for _ in range(self.rank):
            kind = sql.ArrayType(kind)
        return kind


Score = Callable[[object, int], Sequence[Array]]
"""Features of some rows, and how many; arrays with the rows first."""


def predicted(
    batches: Iterable[pa.StructArray], plan: Plan, score: Score, fields: Sequence[Field]
) -> Iterator[pa.Array]:
    """For each batch of the columns that a plan selects, a struct of the fields, one value a row."""
    kinds = [_arrow_type(one.type) for one in fields]
    schema = pa.struct([pa.field(one.name, kind) for one, kind in zip(fields, kinds, strict=True)])
    seen = _Seen()
    for batch in batches:
        columns = [batch.field(index) for index in range(batch.type.num_fields)]
        parts = []
        for leaves, rows in plan.blocks(columns, len(batch), seen):
            scores = score(plan.tree(leaves)[0], rows)
            arrays = [as_arrow(scores[one.source], kind) for one, kind in zip(fields, kinds, strict=True)]
            parts.append(pa.StructArray.from_arrays(arrays, fields=list(schema)))
        yield pa.concat_arrays(parts) if parts else pa.array([], schema)


def _arrow_type(kind: sql.DataType) -> pa.DataType:
    if isinstance(kind, sql.ArrayType):
        return pa.list_(_arrow_type(kind.elementType))
    return {"double": pa.float64(), "float": pa.float32(), "bigint": pa.int64()}[kind.simpleString()]


def with_predictions(df: DataFrame, plan: Plan, score: Score, fields: Sequence[Field]) -> DataFrame:
    """The DataFrame with the fields after its own columns, computed batch by batch when it is read.

    Where Spark has Arrow UDFs (4.1) only the columns of the plan cross to Python, and Spark may filter and prune before;
    elsewhere all columns go through `mapInArrow`.

    Raises:
        ValueError: a column of the name of a field is there already.
    """
    for one in fields:
        if one.name in df.columns:
            raise ValueError(
                f"the DataFrame has a column {one.name!r} already; drop it, or give the output another name."
            )
    if hasattr(functions, "arrow_udf"):
        return _by_udf(df, plan, score, fields)
    return _by_map(df, plan, score, fields)


def _by_udf(df: DataFrame, plan: Plan, score: Score, fields: Sequence[Field]) -> DataFrame:
    def scores(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return predicted(batches, plan, score, fields)

    # Spark reads what the function takes from its hints, which must be classes and not text.
    scores.__annotations__ = {"batches": Iterator[pa.Array], "return": Iterator[pa.Array]}
    kind = sql.StructType([sql.StructField(one.name, one.type) for one in fields])
    name = _unused("scores", df.columns)
    both = df.withColumn(name, functions.arrow_udf(scores, kind)(functions.struct(*plan.selected())))
    return both.select(*map(_quoted, df.columns), *[_field(one, f"`{name}`.`{one.name}`") for one in fields])


def _by_map(df: DataFrame, plan: Plan, score: Score, fields: Sequence[Field]) -> DataFrame:
    name = _unused("columns", df.columns)
    schema = sql.StructType([*df.schema.fields, *[sql.StructField(one.name, one.type) for one in fields]])

    def append(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            (scores,) = predicted([batch.column(name)], plan, score, fields)
            kept = [batch.column(column) for column in batch.schema.names if column != name]
            yield pa.record_batch([*kept, *scores.flatten()], [*schema.fieldNames()])

    both = df.withColumn(name, functions.struct(*plan.selected())).mapInArrow(append, schema)
    return both.select(*map(_quoted, df.columns), *[_field(one, f"`{one.name}`") for one in fields])


def needs_arrow_udf() -> None:
    """Nothing, if Spark has Arrow UDFs.

    Raises:
        RuntimeError: it has none.
    """
    if not hasattr(functions, "arrow_udf"):
        raise RuntimeError("Arrow UDFs need Spark 4.1 or later; ElephasTransformer.transform works with Spark 4.0 too.")


def _field(one: Field, path: str) -> Column:
    column = functions.col(path)
    return (array_to_vector(column) if one.vector else column).alias(one.name)


def _quoted(name: str) -> Column:
    return functions.col(f"`{name.replace('`', '``')}`")


def _unused(name: str, names: Sequence[str]) -> str:
    while name in names:
        name = f"_{name}"
    return name
