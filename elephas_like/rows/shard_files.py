"""Where shards lie on a host: directories of datasets, references of finished shards, and their removal."""

from __future__ import annotations

import glob
import json
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np

from elephas_like.core.columns import TEXT, verify
from elephas_like.core.errors import ShardMissing
from elephas_like.core.types import Column, ShardRef

REFERENCE = "shard.json"
IN_USE = ".in-use"
"""The file in the directory of an attempt that its process has locked."""

logger = logging.getLogger(__name__)


def draft_directory(home: str, worker: int) -> str:
    """Make a new directory in `home`, which may vanish at any moment: removing the last shard removes it."""
    for _ in range(100):
        with suppress(FileNotFoundError, FileExistsError):  # it was there and is not, or the other way round
            os.makedirs(home, exist_ok=True)
            return tempfile.mkdtemp(prefix=f".worker-{worker}-", dir=home)
    os.makedirs(home, exist_ok=True)
    return tempfile.mkdtemp(prefix=f".worker-{worker}-", dir=home)


@contextmanager
def attempt_directory(dataset: str, worker: int) -> Iterator[str]:
    """Yield a new directory of one attempt's own, in the dataset's; it is deleted at the end, with the last one the dataset's.

    Two attempts of one task so never share files. `remove_dataset` deletes those of killed tasks, and so does the next attempt of
    any dataset in the same local directory: nobody at the driver knows when an action on predictions that were not collected ends.
    """
    base = roomy_directory(dataset, worker)
    _remove_abandoned(base)
    home = dataset_directory(base, dataset)
    own = draft_directory(home, worker)
    try:
        with _in_use(own):
            yield own
    finally:
        _delete(own)
        with suppress(OSError):
            os.rmdir(home)


@contextmanager
def _in_use(directory: str) -> Iterator[None]:
    """Hold a lock on a file in a directory. It ends with the process, however that ends. Windows has none."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    mark = os.path.join(directory, IN_USE)
    with open(f"{mark}-soon", "w") as file:
        with suppress(OSError):  # of a filesystem that has no locks
            fcntl.flock(file, fcntl.LOCK_EX)
            os.rename(file.name, mark)  # nobody sees it before it is locked
        yield


def _remove_abandoned(base: str) -> None:
    """Delete the directories of attempts below `base` whose processes were killed: whoever uses one has its lock."""
    try:
        import fcntl
    except ImportError:
        return
    for mark in glob.iglob(os.path.join(glob.escape(os.path.abspath(base)), "elephas_like-*", ".worker-*", IN_USE)):
        with suppress(OSError), open(mark) as file:  # in use, of another user, or gone
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(os.path.dirname(mark), ignore_errors=True)
            os.rmdir(os.path.dirname(os.path.dirname(mark)))


def to_json(ref: ShardRef) -> str:
    """Return the reference as JSON, without its directory. It lies in the shard beside the columns."""
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
    """Return the reference that `to_json` wrote, of a shard that lies in `directory`.

    Raises:
        ValueError: the text is another one.
    """
    try:
        fields = json.loads(text)
        columns = tuple(_column(directory, *column) for column in fields["columns"])
        ref = ShardRef(**{**fields, "columns": columns, "directory": directory})
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"expected the reference of a shard in {directory}: {error!r}.") from error
    if not (isinstance(ref.dataset, str) and isinstance(ref.host, str) and _counts(ref.worker, ref.rows, ref.checksum)):
        raise ValueError(f"expected the reference of a shard in {directory}, got {text[:200]!r}.")
    return ref


def _column(directory: str, name: str, dtype: str, shape: list[int]) -> Column:
    """Return a column of a reference. Its file lies in the shard's directory, and holds plain numbers or text."""
    if os.path.basename(name) != name or not _counts(*shape):
        raise ValueError(f"expected a column in {directory}, got {name!r} of shape {shape}.")
    if dtype != TEXT and (not isinstance(dtype, str) or np.dtype(dtype).kind not in "biufc"):
        raise ValueError(f"expected a column of numbers or text in {directory}, got {dtype!r}.")
    return Column(os.path.join(directory, name), dtype, tuple(shape))


def _counts(*numbers: object) -> bool:
    return all(isinstance(number, int) and 0 <= number < 2**63 for number in numbers)


def read_ref(directory: str) -> ShardRef:
    """Read the reference of the finished shard in `directory`."""
    with open(os.path.join(directory, REFERENCE), encoding="utf-8") as file:
        return from_json(file.read(), directory)


def find_shard(dataset: str, worker: int) -> ShardRef | None:
    """Return the reference of a finished shard on this host, or None."""
    places = (os.path.join(dataset_directory(base, dataset), f"worker-{worker}") for base in local_directories())
    return next((found for found in map(_read_finished, places) if found is not None), None)


@contextmanager
def host_lock(dataset: str) -> Iterator[None]:
    """Let one process of this host in at a time. Without file locks (Windows) all go at once, which only costs time."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    home = dataset_directory(local_directories()[0], dataset)
    os.makedirs(home, exist_ok=True)
    with open(os.path.join(home, ".lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # it ends with the process, however that ends
        yield


def remove(ref: ShardRef) -> None:
    """Delete the shard's directory if it exists, and the dataset's if that was its last shard."""
    _delete(ref.directory)
    with suppress(OSError):
        os.rmdir(os.path.dirname(ref.directory))


def remove_dataset(dataset: str, base: str | None = None) -> None:
    """Delete everything of a dataset on this host, under `base` or under every directory where it could lie."""
    for candidate in [base] if base is not None else local_directories():
        _delete(dataset_directory(candidate, dataset))


def spark_directories() -> list[str]:
    """Return the local directories that Spark gives an executor, in its order."""
    listed = [os.environ.get(name, "") for name in ("SPARK_EXECUTOR_DIRS", "SPARK_LOCAL_DIRS")]
    return [entry.strip() for entry in ",".join(listed).split(",") if entry.strip()]


def local_directories() -> list[str]:
    """Return the local directories that Spark gives an executor, in its order, then the system's temporary one."""
    return [*spark_directories(), tempfile.gettempdir()]


def roomy_directory(dataset: str, worker: int) -> str:
    """Return the local directory for a worker's shard: workers take turns among those with enough free space.

    Enough is half of what the emptiest disk has. The system's temporary directory is used only if Spark gives none. A shard
    that an earlier attempt has left is replaced where it lies.
    """
    places = local_directories()[:-1] or local_directories()
    for place in places:
        if os.path.exists(os.path.join(dataset_directory(place, dataset), f"worker-{worker}")):
            return place
    free = {place: _free_bytes(place) for place in places}
    roomy = [place for place in places if 2 * free[place] >= max(free.values())]
    return roomy[worker % len(roomy)]


def roomiest_directory() -> tuple[str, int]:
    """Return the local directory whose disk has most space for this process, and its free bytes."""
    places = local_directories()[:-1] or local_directories()
    return max(((place, _free_bytes(place)) for place in places), key=lambda found: found[1])


def _free_bytes(place: str) -> int:
    with suppress(OSError):
        if os.access(place, os.W_OK):
            return shutil.disk_usage(place).free
    return 0


def dataset_directory(base: str, dataset: str) -> str:
    """Return the dataset's directory in `base`."""
    if not dataset or os.path.basename(dataset) != dataset:  # it is deleted as a whole: it must stay in `base`
        raise ValueError(f"dataset must be a name without path separators, got {dataset!r}.")
    return os.path.join(os.path.abspath(base), f"elephas_like-{dataset}")


def _delete(directory: str) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    if os.path.exists(directory):
        logger.warning("could not delete %s; its files are of no use any more.", directory)


def publish(ref: ShardRef, final: str) -> ShardRef:
    """Rename a finished draft into its place and return its reference; or that of an equal shard that is there already."""
    try:
        os.rename(ref.directory, final)
    except OSError:
        if not os.path.exists(final):
            raise
        finished = _read_finished(final)
        if finished is not None and (finished.checksum, finished.rows) == (ref.checksum, ref.rows):
            return finished
        final = f"{final}-{uuid.uuid4().hex}"
        os.rename(ref.directory, final)
    columns = (replace(column, path=os.path.join(final, os.path.basename(column.path))) for column in ref.columns)
    return replace(ref, directory=final, columns=tuple(columns))


def _read_finished(directory: str) -> ShardRef | None:
    try:
        ref = read_ref(directory)
        verify(ref)
    except (OSError, ValueError, KeyError, TypeError, ShardMissing):
        return None
    return ref
