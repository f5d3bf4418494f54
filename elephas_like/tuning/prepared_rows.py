"""The rows of a trial whose model prepares them, as models of KerasHub do: prepared once by each process that runs trials, until a model
comes that prepares them in another way.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence

import keras

from elephas_like.core.structure import flatten
from elephas_like.core.types import ShardRef
from elephas_like.rows.shard_files import remove
from elephas_like.rows.spool import Block, spool
from elephas_like.trainer.preparing import Preparation, preparer_of

_held: tuple[tuple[str, ...], list[ShardRef]] = ((), [])
"""What the rows were made of and how, and the rows of the last trial that prepared some."""
_lock = threading.Lock()


def rows_for(model: keras.Model, shards: Sequence[ShardRef], seed: int) -> Sequence[ShardRef]:
    """Return shards as a model's steps take them: those given, or what its preprocessor makes of them, beside them on the disk.

    Args:
        seed: of what a preprocessor draws.

    Raises:
        DataError: the preprocessor does not take the rows. ElephasError: it cannot be pickled.
    """
    global _held
    preparer = preparer_of(model)
    if preparer is None:
        return shards
    preparation = Preparation.of(preparer, seed)
    key = (preparation.content_key(), *(shard.directory for shard in shards))
    with _lock:
        if _held[0] != key or not all(os.path.exists(ref.directory) for ref in _held[1]):
            for old in _held[1]:
                remove(old)
            _held = ((), [])
            _held = (key, [_prepared(shard, preparation) for shard in shards])
        return _held[1]


def prepared_sample(model: keras.Model, sample: tuple[object, ...]) -> tuple[object, ...]:
    """Return a few rows as a model's steps take them."""
    preparer = preparer_of(model)
    return sample if preparer is None else next(Preparation.of(preparer, 0).preparer.batches(sample, 1))


def _prepared(shard: ShardRef, preparation: Preparation) -> ShardRef:
    """Write the prepared rows of a shard below the directory of its dataset, which goes when the search ends."""

    def blocks() -> Iterator[Block]:
        for columns in preparation(shard):
            yield Block(columns, len(flatten(columns)[0][0]))  # type: ignore[arg-type]  # arrays

    return spool(
        blocks(),
        dataset=f"prepared-{os.getpid()}-{preparation.content_key()}",
        worker=shard.worker,
        base=os.path.dirname(shard.directory),
        floatx=keras.config.floatx(),
        expect_target=None,
        place="the prepared data, shard",
    )
