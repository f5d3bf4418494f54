"""Which columns of a DataFrame become which arrays: a plan.

frame_schema.py makes it on the driver, and frame_read.py reads batches by it on the workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, functions

from elephas_like.core.structure import unflatten
from elephas_like.core.types import Array, Structure
from elephas_like.spark.plans import quoted, reads_names_as_patterns

Choice = str | Sequence[str] | Mapping[str, str | Sequence[str]]
AS_IMAGES = "image"
"""The dtype of a column whose images are decoded and resized: files in bytes, or Spark's image structs."""


class Kind(StrEnum):
    """What a column holds."""

    NUMBER = "number"
    TEXT = "text"
    VECTOR = "vector"
    ARRAY = "array"
    BINARY = "binary"
    IMAGE = "image"
    IMAGE_FILE = "image file"


class Invalid(StrEnum):
    """What becomes of rows with null, NaN or a wrong length, as Spark ML's `handleInvalid` says.

    ERROR: an error that names column and row. SKIP: they are left out. KEEP: they stay, without a prediction.
    """

    ERROR = "error"
    SKIP = "skip"
    KEEP = "keep"


@dataclass(frozen=True)
class ColumnChoice:
    """Which columns are what.

    features, label: a name, several names, or a mapping from the model's input or output names to those. "a.b" is the field
        b of the struct a. label None: no target.
    label_named: whether the user named the labels, which models that do without them then get.
    shapes: what one value of a column is reshaped to. dtypes: of the bytes in binary columns; "image" for images to resize.
    invalid: what becomes of rows with values that cannot be read, or with NaN. None: the former are errors, and NaN is read.
    """

    features: Choice = "features"
    label: Choice | None = "label"
    sample_weight: str | None = None
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    invalid: Invalid | None = None
    label_named: bool = False


@dataclass(frozen=True)
class Cell:
    """One column, or field of a struct, and what it holds.

    shape: what one value is reshaped to, or an image resized to; None leaves it. dtype: of the bytes in a binary column, or
        AS_IMAGES.
    cast: what decimals are read as, "bigint" where they are whole numbers and "double" otherwise; None for other columns.
    depth: of the arrays around the values.
    """

    path: tuple[str, ...]
    kind: Kind
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    cast: str | None = None
    depth: int = 0

    @property
    def resized(self) -> bool:
        """Whether it holds images that are read as RGB or gray, in the size of `shape`."""
        return self.dtype == AS_IMAGES

    @property
    def name(self) -> str:
        """The column's name, with the names of fields after dots."""
        return ".".join(self.path)

    def selected(self) -> SparkColumn:
        """Return the column for `select`."""
        column = functions.col(quoted(self.path[0]))
        for name in self.path[1:]:
            column = column.getField(name)
        return column.cast(self._type()) if self.cast else column

    def text(self) -> str | None:
        """Return the same as SQL.

        None for a field of a struct, which SQL may take for a column of another table, and for `${...}`, which Spark replaces, in names too.
        """
        if len(self.path) > 1 or "${" in self.path[0]:
            return None
        name = quoted(self.path[0])
        return f"CAST({name} AS {self._type()})" if self.cast else name

    def _type(self) -> str:
        return f"{'array<' * self.depth}{self.cast}{'>' * self.depth}"


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

    @property
    def name(self) -> str:
        """The names of its columns."""
        return ", ".join(cell.name for cell in self.cells)


@dataclass(frozen=True)
class FramePlan:
    """How batches of a DataFrame become (x,), (x, y) or (x, y, sample_weight).

    structure: of those over `leaves`, as core/structure.py reads it.
    invalid: as ColumnChoice has it.
    """

    leaves: tuple[Leaf, ...]
    structure: Structure
    floatx: str
    invalid: Invalid | None = None

    def selected(self) -> list[SparkColumn]:
        """Return what to select from the DataFrame: one column per cell, in order."""
        return [cell.selected().alias(f"c{index}") for index, cell in enumerate(self.cells)]

    def select(self, df: DataFrame) -> DataFrame:
        """Return what is read of a DataFrame, one column per cell, in order."""
        texts = [cell.text() for cell in self.cells]
        if None in texts or reads_names_as_patterns(df.sparkSession):
            return df.select(*self.selected())
        # A text takes one call to the JVM, a Column a dozen: 40 ms for 29 columns.
        return df.selectExpr(*(f"{text} AS c{index}" for index, text in enumerate(texts)))

    @property
    def cells(self) -> list[Cell]:
        """The cells of all leaves."""
        return [cell for leaf in self.leaves for cell in leaf.cells]

    @property
    def has_target(self) -> bool:
        """Whether rows are pairs."""
        return isinstance(self.structure, list) and len(self.structure) > 1

    def tree(self, leaves: Sequence[Array]) -> tuple[object, ...]:
        """Return leaves as (x,), (x, y) or (x, y, sample_weight)."""
        tree = unflatten(self.structure, leaves)
        assert isinstance(tree, tuple)
        return tree
