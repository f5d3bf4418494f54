"""Rows become a shard: an iterator of any length streams into one raw file per column, a batch in memory at a time.

A shard is written beside its place and renamed into it when it is complete, so that whoever finds the directory finds all
of it, and two attempts of one Spark task cannot mix. What the files look like is said in core/columns.py, which reads them.
"""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import shutil
import tempfile
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import numpy as np

from elephas_like.core.columns import ENDS, TEXT, verify
from elephas_like.core.errors import DataError, ShardMissing
from elephas_like.core.structure import flatten
from elephas_like.core.types import Array, Column, Integers, ShardRef, Structure

BATCH_BYTES = 4 * 2**20
BATCH_ROWS = 4096
REFERENCE = "shard.json"

# bfloat16 is no NumPy dtype; float32 holds its values exactly.
FLOATS = {"float16": "float16", "bfloat16": "float32", "float32": "float32", "float64": "float64"}
_PARTS = ("x", "y", "sample_weight")
_SPELLED = {"x": "feature", "y": "label", "sample_weight": "sample weight"}

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Block:
    """Many rows at once: whole arrays with the rows along their first axis.

    columns: `(xs,)`, `(xs, ys)` or `(xs, ys, sample_weights)`, each an array or a tree of arrays.
    rows: how many; every array is as long.
    """

    columns: tuple[object, ...]
    rows: int


def spool(
    rows: Iterable[object],
    *,
    dataset: str,
    worker: int,
    base: str | None = None,
    floatx: str = "float32",
    expect_target: bool = True,
    place: str = "partition",
) -> ShardRef:
    """The reference of the shard that now holds `rows`; spooling the same rows again gives the shard that is there.

    Floats are stored as `floatx`, as Keras takes arrays; integers and booleans keep their dtype, and a column widens when a
    later row needs it. Memory is bounded by a batch of about 4 MiB, or one row where that is larger.

    Args:
        rows: `(x, y)` or `(x, y, sample_weight)`, or x alone without `expect_target`; x and y are numbers, text, lists,
            arrays of any shape, or tuples and dicts of them. `Block`s may stand among the rows.
        dataset: the dataset's id, part of a directory's name.
        worker: whose shard it is.
        base: the directory in which the dataset's directory is made; Spark's first local one by default.
        place: what error messages call the source that `worker` numbers.

    Raises:
        DataError: for rows that are no pairs, or differ from the rows before in structure, shape or kind; it says where.
    """
    if floatx not in FLOATS:
        raise ValueError(f"floatx must be one of {', '.join(map(repr, FLOATS))}; got {floatx!r}.")
    home = _home(base if base is not None else _candidates()[0], dataset)
    draft = _draft(home, worker)
    try:
        with _Spool(
            draft, floatx=np.dtype(FLOATS[floatx]), expect_target=expect_target, place=f"{place} {worker}"
        ) as open_spool:
            for row in rows:
                if isinstance(row, Block):
                    open_spool.add_block(row)
                else:
                    open_spool.add(row)
        ref = ShardRef(
            dataset=dataset,
            worker=worker,
            directory=draft,
            host=platform.node(),
            rows=open_spool.rows,
            columns=tuple(column.described() for column in open_spool.columns),
            structure=open_spool.structure,
            checksum=open_spool.checksum(),
        )
        with open(os.path.join(draft, REFERENCE), "w", encoding="utf-8") as file:
            file.write(to_json(ref))
        return _settle(ref, os.path.join(home, f"worker-{worker}"))
    finally:
        shutil.rmtree(draft, ignore_errors=True)  # gone already where it was renamed
        with suppress(OSError):  # not empty, unless this was the only attempt and it failed
            os.rmdir(home)


def _draft(home: str, worker: int) -> str:
    """A new directory in `home`, which whoever removes the dataset's last shard may take away at any moment."""
    for _ in range(100):
        with suppress(FileNotFoundError, FileExistsError):  # it was there and is not, or the other way round
            os.makedirs(home, exist_ok=True)
            return tempfile.mkdtemp(prefix=f".worker-{worker}-", dir=home)
    os.makedirs(home, exist_ok=True)
    return tempfile.mkdtemp(prefix=f".worker-{worker}-", dir=home)


def to_json(ref: ShardRef) -> str:
    """The reference as JSON, without its directory: what lies in the shard beside its columns."""
    return json.dumps(
        {
            "dataset": ref.dataset,
            "worker": ref.worker,
            "host": ref.host,
            "rows": ref.rows,
            "columns": [[os.path.basename(column.path), column.dtype, column.shape] for column in ref.columns],
            "structure": ref.structure,
            "checksum": ref.checksum,
        }
    )


def from_json(text: str, directory: str) -> ShardRef:
    """The reference that `to_json` wrote, for a shard that lies in `directory`."""
    fields = json.loads(text)
    columns = (Column(os.path.join(directory, name), dtype, tuple(shape)) for name, dtype, shape in fields["columns"])
    return ShardRef(**{**fields, "columns": tuple(columns), "directory": directory})


def read_ref(directory: str) -> ShardRef:
    """The reference of the finished shard in `directory`."""
    with open(os.path.join(directory, REFERENCE), encoding="utf-8") as file:
        return from_json(file.read(), directory)


def find(dataset: str, worker: int) -> ShardRef | None:
    """The reference of a finished shard of this host, or None."""
    return _finished(os.path.join(_home(_candidates()[0], dataset), f"worker-{worker}"))


@contextmanager
def alone(dataset: str) -> Iterator[None]:
    """One process of this host at a time; without file locks (Windows) all at once, which costs time and no more."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    home = _home(_candidates()[0], dataset)
    os.makedirs(home, exist_ok=True)
    with open(os.path.join(home, ".lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # it ends with the process, however that ends
        yield


def remove(ref: ShardRef) -> None:
    """Deletes the shard's directory if it is there, and the dataset's if that was its last shard."""
    _delete(ref.directory)
    with suppress(OSError):
        os.rmdir(os.path.dirname(ref.directory))


def remove_dataset(dataset: str, base: str | None = None) -> None:
    """Deletes everything of a dataset on this host, under `base` or under every directory where it could lie."""
    for candidate in [base] if base is not None else _candidates():
        _delete(_home(candidate, dataset))


def _candidates() -> list[str]:
    """The local directories that Spark gives an executor, its first choice first, then the system's temporary one."""
    listed = [os.environ.get(name, "") for name in ("SPARK_EXECUTOR_DIRS", "SPARK_LOCAL_DIRS")]
    return [entry.strip() for entry in ",".join(listed).split(",") if entry.strip()] + [tempfile.gettempdir()]


def _home(base: str, dataset: str) -> str:
    if not dataset or os.path.basename(dataset) != dataset:  # it is deleted as a whole: it must stay in `base`
        raise ValueError(f"dataset must be a name without path separators, got {dataset!r}.")
    return os.path.join(os.path.abspath(base), f"elephas_like-{dataset}")


def _delete(directory: str) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    if os.path.exists(directory):
        logger.warning("could not delete %s; its files are of no use any more.", directory)


def _settle(ref: ShardRef, final: str) -> ShardRef:
    """The reference to use once `ref`'s draft is finished: an equal shard that is there, or the draft, renamed."""
    try:
        os.rename(ref.directory, final)
    except OSError:
        if not os.path.exists(final):
            raise
        finished = _finished(final)
        if finished is not None and (finished.checksum, finished.rows) == (ref.checksum, ref.rows):
            return finished
        final = f"{final}-{uuid.uuid4().hex}"
        os.rename(ref.directory, final)
    columns = (replace(column, path=os.path.join(final, os.path.basename(column.path))) for column in ref.columns)
    return replace(ref, directory=final, columns=tuple(columns))


def _finished(directory: str) -> ShardRef | None:
    try:
        ref = read_ref(directory)
        verify(ref)
    except (OSError, ValueError, KeyError, TypeError, ShardMissing):
        return None
    return ref


_Look = tuple[Any, np.dtype[np.generic] | None, tuple[int, ...]]
"""Type, dtype and shape of a number or an array of numbers; the type of a scalar says all."""


def _look(part: object) -> _Look | None:
    """What a part of a row looks like, where it is numbers that are stored as they are."""
    if type(part) is np.ndarray and part.dtype.kind in "biuf":
        return np.ndarray, part.dtype, part.shape
    if type(part) in (bool, int, float) or (isinstance(part, np.generic) and part.dtype.kind in "biuf"):
        return type(part), None, ()
    return None


class _Unfit(Exception):
    """What is wrong with a row, without the place where it was found."""


class _Spool:
    """The open files of a shard under way, and the batch that waits to be written."""

    def __init__(self, directory: str, *, floatx: np.dtype[np.generic], expect_target: bool, place: str) -> None:
        self.rows = 0
        self.columns: list[_Numbers | _Texts] = []
        self.structure: Structure = None
        self._names: list[str] = []
        self._directory, self._floatx, self._expect_target, self._place = directory, floatx, expect_target, place
        self._capacity = self._filled = 0
        self._look: tuple[_Look, ...] = ()

    def __enter__(self) -> _Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._flush()
        finally:
            for column in self.columns:
                column.close()

    def add(self, row: object) -> None:
        """Takes one row."""
        if not self._add_alike(row):
            self._add_checked(row)
        self.rows += 1
        self._filled += 1
        if self._filled == self._capacity:
            self._flush()

    def _add_alike(self, row: Any) -> bool:
        """Takes a row whose parts look as those of the row before, so that they need no second look; False for others."""
        look = self._look
        if not look or type(row) is not tuple or len(row) != len(look):
            return False
        for part, (kind, dtype, shape) in zip(row, look, strict=True):
            if kind is not type(part) or (dtype is not None and (part.dtype != dtype or part.shape != shape)):
                return False
        try:
            for column, part in zip(self.columns, row, strict=True):
                column.put(self._filled, part)
        except OverflowError:  # an int of more than 64 bits
            return False
        return True

    def _add_checked(self, row: Any) -> None:
        try:
            leaves = self._leaves(_parts(row, self._expect_target))
            arrays = [_array(leaf, name) for leaf, name in zip(leaves, self._names, strict=True)]
            if not self.columns:
                self._open(arrays)
            for column, array in zip(self.columns, arrays, strict=True):
                if array.dtype not in column.fits or array.shape != column.shape:
                    self._fit(column, array.dtype, array.shape)
        except _Unfit as error:
            raise DataError(f"{self._place}, row {self.rows}: {error}") from error.__cause__
        for column, array in zip(self.columns, arrays, strict=True):
            column.put(self._filled, array)
        looks = [_look(part) for part in row] if type(row) is tuple and self.structure == list(range(len(row))) else []
        self._look = tuple(look for look in looks if look is not None) if None not in looks else ()

    def add_block(self, block: Block) -> None:
        """Takes whole arrays of rows, in slices of a batch."""
        if block.rows == 0:
            return
        self._look = ()
        try:
            leaves = self._leaves(_block_parts(block, self._expect_target))
            arrays = [_whole(leaf, name, block.rows) for leaf, name in zip(leaves, self._names, strict=True)]
            if not self.columns:
                self._open([_array(array[:1], name)[0, ...] for array, name in zip(arrays, self._names, strict=True)])
            self._flush()
            for column, array in zip(self.columns, arrays, strict=True):
                begin = 0
                while begin < block.rows:
                    rows = _array(array[begin : begin + self._capacity], column.name)
                    self._fit(column, rows.dtype, rows.shape[1:])
                    column.append(rows)
                    begin += len(rows)
        except _Unfit as error:
            raise DataError(f"{self._place}, rows from {self.rows}: {error}") from error.__cause__
        self.rows += block.rows

    def checksum(self) -> int:
        """One number for all that was written, however it was batched; 0 for nothing."""
        if not self.columns:
            return 0
        contents = [(column.dtype_name, column.shape, column.checksums()) for column in self.columns]
        return zlib.crc32(json.dumps([self.structure, contents]).encode())

    def _leaves(self, parts: tuple[object, ...]) -> list[object]:
        """The leaves of a row, which has the structure of the rows before."""
        found, structure = flatten(tuple(map(_settled, parts)))
        leaves = found.copy()
        found.clear()  # `flatten` is a closure that refers to itself: its list lives until the garbage collector comes
        if structure == self.structure:
            return leaves
        names = _names(structure)
        if self.structure is not None:
            raise _Unfit(
                f"expected {_listed(self._names)}, as in the rows before, got {_listed(names)}. "
                "All rows of an RDD must have one structure."
            )
        self.structure, self._names = structure, names
        return leaves

    def _open(self, row: list[Array]) -> None:
        """Makes the columns that a first row asks for."""
        for index, (name, array) in enumerate(zip(self._names, row, strict=True)):
            path = os.path.join(self._directory, f"column-{index}")
            if array.dtype != object:
                dtype = _stored(array.dtype, self._floatx)
                self.columns.append(_Numbers(path, name=name, dtype=dtype, shape=array.shape))
            elif name.startswith("sample_weight"):
                raise _Unfit(f"{_spelled(name)} expected numbers, got text.")
            else:
                self.columns.append(_Texts(path, name=name, shape=array.shape))
        self._allocate()

    def _fit(self, column: _Numbers | _Texts, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> None:
        """Sees that a value goes into its column, which is widened if it must be."""
        if shape != column.shape:
            raise _Unfit(
                f"{_spelled(column.name)} expected shape {column.shape}, got {shape}. "
                "All rows of an RDD must have one shape."
            )
        if dtype in column.fits:
            return
        if "O" in (column.dtype.kind, dtype.kind):
            expected, got = ("text" if each.kind == "O" else f"numbers ({each})" for each in (column.dtype, dtype))
            raise _Unfit(f"{_spelled(column.name)} expected {expected}, got {got}. A column is either text or numbers.")
        assert isinstance(column, _Numbers)
        wider = _common(column.dtype, dtype, self._floatx)
        if wider != column.dtype:
            self._flush()
            column.widen(wider)
            self._allocate()
        column.fits.add(dtype)

    def _allocate(self) -> None:
        row_nbytes = sum(column.row_nbytes for column in self.columns)
        self._capacity = min(BATCH_ROWS, max(1, BATCH_BYTES // max(1, row_nbytes)))
        for column in self.columns:
            column.allocate(self._capacity)

    def _flush(self) -> None:
        for column in self.columns:
            column.flush(self._filled)
        self._filled = 0


class _RawFile:
    """A file being written, with the CRC-32 of its bytes."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.crc = 0
        self._file = open(path, "wb")  # noqa: SIM115  closed by close()

    def write(self, data: memoryview | bytearray) -> None:
        self.crc = zlib.crc32(data, self.crc)
        self._file.write(data)

    def close(self) -> None:
        self._file.close()


class _Numbers:
    """A column of numbers being written. `fits` is the dtypes that go into it as it is."""

    def __init__(self, path: str, *, name: str, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> None:
        self.name, self.dtype, self.shape = name, dtype, shape
        self.fits = {dtype}
        self._file = _RawFile(path)

    @property
    def dtype_name(self) -> str:
        return self.dtype.name

    @property
    def row_nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    def allocate(self, capacity: int) -> None:
        self._batch: Array = np.empty((capacity, *self.shape), self.dtype)

    def put(self, slot: int, value: Array | np.generic | complex) -> None:
        self._batch[slot] = value

    def append(self, rows: Array) -> None:
        self._file.write(np.ascontiguousarray(rows, self.dtype).data)

    def flush(self, filled: int) -> None:
        self._file.write(self._batch[:filled].data)

    def widen(self, dtype: np.dtype[np.generic]) -> None:
        """Rewrites what is in the file, chunk by chunk, as `dtype`."""
        narrow = self._file
        narrow.close()
        self._file = _RawFile(narrow.path + ".wider")
        with open(narrow.path, "rb") as written:
            while (values := np.fromfile(written, self.dtype, BATCH_BYTES // dtype.itemsize)).size:
                self._file.write(values.astype(dtype).data)
        os.replace(self._file.path, narrow.path)  # stays open under its new name
        self._file.path = narrow.path
        self.dtype, self.fits = dtype, {dtype}

    def described(self) -> Column:
        return Column(self._file.path, self.dtype_name, self.shape)

    def checksums(self) -> list[int]:
        return [self._file.crc]

    def close(self) -> None:
        self._file.close()


class _Texts:
    """A column of text being written: the values' bytes, and where each of them ends."""

    dtype_name = TEXT
    dtype: np.dtype[np.generic] = np.dtype(object)

    def __init__(self, path: str, *, name: str, shape: tuple[int, ...]) -> None:
        self.name, self.shape = name, shape
        self.fits = {self.dtype}
        self._texts, self._ends = _RawFile(path), _RawFile(path + ENDS)
        self._bytes = bytearray()
        self._end = 0

    @property
    def row_nbytes(self) -> int:
        return 8 * math.prod(self.shape)  # of the ends: the text itself is written whenever there is enough of it

    def allocate(self, capacity: int) -> None:
        self._batch: Integers = np.empty((capacity, *self.shape), np.int64)

    def put(self, slot: int, value: Array) -> None:
        self._batch[slot] = self._encoded(value)

    def append(self, rows: Array) -> None:
        self._ends.write(self._encoded(rows).data)

    def flush(self, filled: int) -> None:
        self._ends.write(self._batch[:filled].data)
        self._write_bytes()

    def described(self) -> Column:
        return Column(self._texts.path, TEXT, self.shape)

    def checksums(self) -> list[int]:
        return [self._texts.crc, self._ends.crc]

    def close(self) -> None:
        self._texts.close()
        self._ends.close()

    def _encoded(self, values: Array) -> Integers:
        ends = np.empty(values.size, np.int64)
        for place, value in enumerate(values.reshape(-1).tolist()):
            self._bytes += value
            self._end += len(value)
            ends[place] = self._end
            if len(self._bytes) >= BATCH_BYTES:
                self._write_bytes()
        return ends.reshape(values.shape)

    def _write_bytes(self) -> None:
        self._texts.write(self._bytes)
        self._bytes = bytearray()


def _parts(row: object, expect_target: bool) -> tuple[object, ...]:
    """x, y and sample weight of a row, as many as there are."""
    if not expect_target:
        return row if isinstance(row, tuple) and len(row) == 1 else (row,)
    if isinstance(row, tuple | list) and len(row) in (2, 3):
        return _without_none(tuple(row))
    got = type(row).__name__
    if isinstance(row, np.ndarray):
        got = f"ndarray of shape {row.shape}"
    elif isinstance(row, tuple | list | dict):
        got = f"{got} of {len(row)}"
    raise _Unfit(
        f"expected a pair (features, label) or a triple (features, label, sample_weight), got {got}. "
        "Map the rows to pairs first, as in rdd.map(lambda row: (row[:-1], row[-1])); several inputs go into a tuple or "
        "dict as features: ((a, b), label)."
    )


def _block_parts(block: Block, expect_target: bool) -> tuple[object, ...]:
    parts = _without_none(block.columns)
    if len(parts) in ((2, 3) if expect_target else (1,)):
        return parts
    expected = "(features, labels) or (features, labels, sample_weights)" if expect_target else "(features,)"
    raise _Unfit(f"expected a Block of {expected}, got {len(parts)} parts.")


def _without_none(parts: tuple[object, ...]) -> tuple[object, ...]:
    return parts[:2] if len(parts) == 3 and parts[2] is None else parts


def _settled(tree: object) -> object:
    """The tree with lists of NumPy's scalars as arrays: `flatten` would take their `shape` for that of inputs."""
    if isinstance(tree, list):
        if not (tree and isinstance(tree[0], np.generic)) or any(getattr(item, "shape", ()) for item in tree):
            return tree
        try:
            return np.asarray(tree)
        except ValueError as error:
            raise _Unfit(f"expected numbers of one shape in a list, got {_shortly(tree)}: {error}") from error
    if isinstance(tree, tuple):
        return tuple(map(_settled, tree))
    if isinstance(tree, dict):
        if not all(isinstance(key, str) for key in tree):
            raise _Unfit(f"expected the names of inputs as keys of a dict, got {list(tree)}.")
        return {key: _settled(value) for key, value in tree.items()}
    return tree


def _names(structure: Structure) -> list[str]:
    """What to call the leaves, in their order: x, x[1], x['image'], y, sample_weight.

    Raises:
        _Unfit: for a None or an empty branch in the place of an array.
    """
    names: list[str] = []

    def visit(node: Structure, name: str) -> None:
        if isinstance(node, int):
            names.append(name)
        elif isinstance(node, list) and node:
            for index, item in enumerate(node):
                visit(item, f"{name}[{index}]")
        elif isinstance(node, dict) and node:
            for key, item in node.items():
                visit(item, f"{name}[{key!r}]")
        else:
            got = "None" if node is None else "an empty tuple or dict"
            raise _Unfit(f"{_spelled(name)} expected a number, text or an array, got {got}.")

    assert isinstance(structure, list)  # rows are flattened as tuples of their parts
    for part, name in zip(structure, _PARTS, strict=False):
        visit(part, name)
    return names


def _spelled(name: str) -> str:
    return f"{_SPELLED[name.split('[', 1)[0]]} {name!r}"


def _listed(names: Sequence[str]) -> str:
    return f"({', '.join(names)})"


def _array(value: object, name: str) -> Array:
    """A leaf as an array of numbers, or as an object array of UTF-8 bytes where it is text."""
    if isinstance(value, str | bytes):
        array: Array = np.array(value, dtype=object)
    else:
        try:
            array = np.asarray(value)
        except (ValueError, TypeError) as error:
            raise _Unfit(
                f"{_spelled(name)} expected numbers or text in an array, got {_shortly(value)}: {error}"
            ) from error
        if array.dtype.kind in "biuf":
            return array
        if array.dtype.kind in "SUT":  # NumPy makes text of [1, "a"], and drops zeros at the end of a value
            array = np.array(value, dtype=object)
    if array.dtype != object:
        raise _Unfit(f"{_spelled(name)} expected integers, floats, booleans or text, got dtype {array.dtype}.")
    encoded = np.empty(array.size, dtype=object)
    encoded[:] = [_utf8(item, name) for item in array.reshape(-1).tolist()]
    return encoded.reshape(array.shape)


def _utf8(value: object, name: str) -> bytes:
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, bytes):
            return value.decode().encode()
    except UnicodeError as error:
        raise _Unfit(f"{_spelled(name)} expected UTF-8 text, got {value!r}.") from error
    raise _Unfit(
        f"{_spelled(name)} expected integers, floats, booleans or text of one kind and length, got "
        f"{type(value).__name__} in an array of dtype object."
    )


def _whole(value: object, name: str, rows: int) -> Array:
    """A leaf of a block as an array; text is converted later, slice by slice."""
    array = np.asarray(value) if hasattr(value, "shape") else _array(value, name)
    if array.ndim == 0 or len(array) != rows:
        raise _Unfit(f"{_spelled(name)} expected {rows} rows along the first axis, got shape {array.shape}.")
    return array


def _stored(dtype: np.dtype[np.generic], floatx: np.dtype[np.generic]) -> np.dtype[np.generic]:
    return floatx if dtype.kind == "f" else dtype.newbyteorder("=")


def _common(
    one: np.dtype[np.generic], other: np.dtype[np.generic], floatx: np.dtype[np.generic]
) -> np.dtype[np.generic]:
    """The dtype that stores numbers of both; floats, and integers that only a float holds together, are `floatx`."""
    return _stored(np.promote_types(one, other), floatx)


def _shortly(value: object) -> str:
    text: str = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
