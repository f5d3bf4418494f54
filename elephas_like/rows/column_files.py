"""Columns of a shard being written: raw files of numbers or text, a batch in memory at a time.

core/columns.py reads these files and says what they look like.
"""

from __future__ import annotations

import errno
import math
import os
import platform
import shutil
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from elephas_like.core.columns import ENDS, TEXT
from elephas_like.core.types import Array, Column, Integers
from elephas_like.rows.shard_files import spark_directories

BATCH_BYTES = 4 * 2**20


class RawFile:
    """A file being written, with the CRC-32 of its bytes."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.crc = 0
        self._file = open(path, "wb")  # noqa: SIM115  closed by close()

    def write(self, data: memoryview | bytearray) -> None:
        """Append bytes."""
        self.crc = zlib.crc32(data, self.crc)
        with _naming_the_disk(self.path):
            self._file.write(data)

    def close(self) -> None:
        """Write what is left in the buffer, and close the file."""
        with _naming_the_disk(self.path):
            self._file.close()


@contextmanager
def _naming_the_disk(path: str) -> Iterator[None]:
    """Add to the error of a disk that takes no more which one it is, and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        folder = os.path.dirname(path)
        of_spark = any(os.path.join(folder, "").startswith(os.path.join(place, "")) for place in spark_directories())
        advice = (
            "give Spark (spark.local.dir, or the cluster manager's local directories) larger disks, or the fit more workers on more nodes."
            if of_spark
            else "set TMPDIR to a directory on a larger disk before Python starts."
        )
        raise OSError(
            error.errno,
            f"{os.strerror(error.errno)} in {folder} on {platform.node()}, where the rows of a worker are written "
            f"({shutil.disk_usage(folder).free / 2**30:.1f} GiB free). Expected room for all of its rows: {advice}",
        ) from error


class NumberColumn:
    """A column of numbers being written. fits: the dtypes it takes without being widened."""

    def __init__(self, path: str, *, name: str, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> None:
        self.name, self.dtype, self.shape = name, dtype, shape
        self.fits = {dtype}
        self._file = RawFile(path)

    @property
    def dtype_name(self) -> str:
        """The dtype's name in a shard's reference."""
        return self.dtype.name

    @property
    def row_nbytes(self) -> int:
        """Bytes of one row in the batch."""
        return self.dtype.itemsize * math.prod(self.shape)

    def allocate(self, capacity: int) -> None:
        """Make room for a batch of so many rows."""
        self._batch: Array = np.empty((capacity, *self.shape), self.dtype)

    def put(self, slot: int, value: Array | np.generic | complex) -> None:
        """Set one row of the batch."""
        self._batch[slot] = value

    def put_all(self, slot: int, values: Sequence[Any]) -> None:
        """Set rows of the batch, from `slot` on: arrays of one shape, or numbers of one type.

        Raises:
            OverflowError: an int of more than 64 bits.
        """
        part = self._batch[slot : slot + len(values)]
        if self.shape:
            np.concatenate(values, out=part.reshape(len(values) * self.shape[0], *self.shape[1:]), casting="unsafe")
        else:
            part[:] = np.array(values, self.dtype)

    def append(self, rows: Array) -> None:
        """Write whole rows, past the batch."""
        self._file.write(np.ascontiguousarray(rows, self.dtype).data)

    def flush(self, filled: int) -> None:
        """Write the filled part of the batch."""
        self._file.write(self._batch[:filled].data)

    def widen(self, dtype: np.dtype[np.generic]) -> None:
        """Rewrite the file as `dtype`, chunk by chunk."""
        narrow = self._file
        narrow.close()
        self._file = RawFile(narrow.path + ".wider")
        with open(narrow.path, "rb") as written:
            while (values := np.fromfile(written, self.dtype, BATCH_BYTES // dtype.itemsize)).size:
                self._file.write(values.astype(dtype).data)
        os.replace(self._file.path, narrow.path)  # stays open under its new name
        self._file.path = narrow.path
        self.dtype, self.fits = dtype, {dtype}

    def described(self) -> Column:
        """Return the column for a shard's reference."""
        return Column(self._file.path, self.dtype_name, self.shape)

    def checksums(self) -> list[int]:
        """Return the CRC-32 of each file."""
        return [self._file.crc]

    def close(self) -> None:
        """Close the files."""
        self._file.close()


class TextColumn:
    """A column of text being written: the bytes of the values, and where each of them ends."""

    dtype_name = TEXT
    dtype: np.dtype[np.generic] = np.dtype(object)

    def __init__(self, path: str, *, name: str, shape: tuple[int, ...]) -> None:
        self.name, self.shape = name, shape
        self.fits = {self.dtype}
        self._texts, self._ends = RawFile(path), RawFile(path + ENDS)
        self._bytes = bytearray()
        self._end = 0

    @property
    def row_nbytes(self) -> int:
        """Bytes of one row in the batch."""
        return 8 * math.prod(self.shape)  # of the ends: the text itself is written whenever there is enough of it

    def allocate(self, capacity: int) -> None:
        """Make room for a batch of so many rows."""
        self._batch: Integers = np.empty((capacity, *self.shape), np.int64)

    def put(self, slot: int, value: Array) -> None:
        """Set one row of the batch."""
        self._batch[slot] = self._encoded(value)

    def append(self, rows: Array) -> None:
        """Write whole rows, past the batch."""
        self._ends.write(self._encoded(rows).data)

    def flush(self, filled: int) -> None:
        """Write the filled part of the batch."""
        self._ends.write(self._batch[:filled].data)
        self._write_bytes()

    def described(self) -> Column:
        """Return the column for a shard's reference."""
        return Column(self._texts.path, TEXT, self.shape)

    def checksums(self) -> list[int]:
        """Return the CRC-32 of each file."""
        return [self._texts.crc, self._ends.crc]

    def close(self) -> None:
        """Close the files."""
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
