"""What a written shard holds, and how much memory writing it took."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from elephas_like.core.columns import open_column, verify
from elephas_like.core.types import ShardRef

Spool = Callable[..., ShardRef]


def columns(ref: ShardRef) -> list[np.ndarray]:
    verify(ref)
    return [open_column(column, ref.rows).take(np.arange(ref.rows)) for column in ref.columns]


def dtypes(ref: ShardRef) -> list[str]:
    return [column.dtype for column in ref.columns]


def contents(ref: ShardRef) -> list[bytes]:
    return [Path(column.path).read_bytes() for column in ref.columns]


def peak(rows: Iterable[object], spooled: Spool) -> int:
    tracemalloc.start()
    try:
        spooled(rows)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
