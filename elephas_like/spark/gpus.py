"""GPUs: tasks ask Spark for one each, and a Python process on an executor computes on one card for as long as it lives.

TensorFlow takes all the memory of all the cards that it sees, and a process cannot change its cards once it computes. But Spark gives
the next task of a process another card than the last one. So processes claim cards: by a lock on a file, which ends with the process.
Where Spark offers a process another card than its own, whoever is offered that one takes the first's in exchange. And tasks that have
cards run in processes of their own, of which there are no more than cards: each keeps one that no other has.
"""

from __future__ import annotations

import inspect
import logging
import os
import platform
import re
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from pyspark import RDD, SparkContext, TaskContext
from pyspark.resource import ResourceProfile, ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import DataFrame, SparkSession

from elephas_like.core.errors import CapacityError
from elephas_like.core.extras import BACKENDS, chosen_backend
from elephas_like.core.types import Resources
from elephas_like.spark.session import Conf, conf_of, context_of, is_local, is_local_master, settings_of
from elephas_like.spark.slots import slots, task_cpus, task_gpus

log = logging.getLogger(__name__)

Batches = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]
VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The variable with which a process chooses its cards, before it first computes on one."""
_MEMORY = {
    "tensorflow": {"TF_FORCE_GPU_ALLOW_GROWTH": "true"},
    "jax": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
}
"""By Keras' backend: memory as it is needed, and the rest left to other processes on the same card. PyTorch takes it so anyway."""


class Claims:
    """The cards of this process, claimed on this host.

    Args:
        pool: a directory of lock files, for the processes of one daemon of Spark's. They exchange cards among each other.
        host: one for all processes of a user on this host: where Spark gives tasks no cards, the pools share them out by it.
        patience: seconds to wait for the note of a process that may be about to take another card than its own.

    The directories are made where they are missing.
    """

    def __init__(self, pool: Path, host: Path, patience: float = 5.0) -> None:
        self._pool, self._host, self._patience = pool, host, patience
        self._locks: dict[Path, int] = {}
        self.cards: tuple[str, ...] = ()

    def take(self, offered: Sequence[str], others: Sequence[str] = ()) -> tuple[str, ...]:
        """Return this process' cards: those of earlier calls, or else as many as are offered, or else one of the others.

        Args:
            offered: addresses that Spark has given to the task.
            others: cards of this host, where Spark gives none to tasks. If all are claimed, by processes of this pool too, one of
                them is shared.
        """
        try:
            if not self.cards and offered:
                for card in offered:
                    self.cards = tuple(dict.fromkeys([*self.cards, self._exchanged(card)]))
                for card in self.cards:
                    self._claim(self._host, card)  # so that those who are offered none choose others
            elif not self.cards and others:
                self.cards = (self._chosen(others),)
            for place, card in enumerate(self.cards if offered else ()):
                lock = self._locks.get(_file(self._pool, card))
                if lock is not None:
                    os.pwrite(lock, offered[min(place, len(offered) - 1)].ljust(_NOTE).encode(), 0)
        except OSError as error:  # also of a directory that somebody else has made
            log.warning("cards are not claimed on this host, and processes may share one: %s", error)
            self.cards = self.cards or tuple(offered) or tuple(others[:1])
        return self.cards

    def _exchanged(self, offered: str) -> str:
        """Return the card that is offered; if another of the pool has it, what that one was offered last; and so on."""
        end = time.monotonic() + self._patience
        while True:
            card, seen = offered, set[str]()
            while card not in seen:
                if self._claim(self._pool, card):
                    return card
                seen.add(card)
                card = self._note(card) or card
            if time.monotonic() > end:
                log.warning("GPU %s is used by another process, too: Spark offers it to both, or one is idle", offered)
                return offered
            time.sleep(0.1)

    def _chosen(self, others: Sequence[str]) -> str:
        """Return a card that no process of this host has; or else no other of the pool; or else any."""
        for place in (self._host, self._pool):
            for card in others:
                if self._claim(place, card):
                    self._claim(self._pool, card)
                    return card
        return others[os.getpid() % len(others)]

    def _claim(self, place: Path, card: str) -> bool:
        """Return whether the card is this process' own from now on, and was not before."""
        import fcntl  # on Unix only

        file = _file(place, card)
        if file in self._locks:
            return False
        lock = _opened(file)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it ends with the process, however that ends
        except BlockingIOError:
            os.close(lock)
            return False
        os.pwrite(lock, card.ljust(_NOTE).encode(), 0)
        self._locks[file] = lock
        return True

    def _note(self, card: str) -> str:
        """Return what the process of the pool that has a card was offered last."""
        lock = _opened(_file(self._pool, card))
        try:
            return os.pread(lock, _NOTE, 0).decode().strip()
        finally:
            os.close(lock)


def _file(place: Path, card: str) -> Path:
    return place / quote(card, safe="")


def _opened(file: Path) -> int:
    """Open a lock file, in a directory that is this user's own."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = os.lstat(file.parent)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{file.parent} is not this user's own directory")
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


@dataclass(frozen=True)
class GpuTasks:
    """Tasks that have a GPU each, of which no more run at once than there are cards.

    profile: what Spark is asked for; None in local mode, which gives tasks no cards: there processes claim those of this machine.
    """

    profile: ResourceProfile | None

    @contextmanager
    def processes(self, context: SparkContext | None) -> Iterator[None]:
        """Have Spark run the Python functions of what is defined inside in processes of their own: as many as run at once.

        It keeps processes apart by their environment, and hands those of one kind out in turn. Shared with tasks that compute on no
        card there are more of them than cards, and two that have claimed the same one are given the next two tasks. Over Spark
        Connect (None) the server decides.
        """
        if context is None:
            yield
            return
        with _defining:
            before = context.environment
            context.environment = {**before, _OF_GPUS: "1"}
            try:
                yield
            finally:
                context.environment = before


_profiles: dict[tuple[str, int], ResourceProfile] = {}
"""The one profile of an application: Spark numbers each object anew, keeps executors for one number, and mixes none in a stage."""
_defining = threading.RLock()
_OF_GPUS = "ELEPHAS_LIKE_GPU_TASKS"
_NOTE = 128
"""Bytes of a note: one write of them is seen whole."""


@cache
def _claims() -> Claims:
    """Return this process' claims. The daemon, which may have imported this module, asks for none."""
    mine, temporary = f"{platform.node()}-{os.getuid() if hasattr(os, 'getuid') else 0}", Path(tempfile.gettempdir())
    home = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0].strip()  # goes with the executor
    pool = Path(home or temporary) / f"elephas_like_gpus-{mine}-{os.getppid()}"
    return Claims(pool, temporary / f"elephas_like-gpus-{mine}")


def take_gpu(*, unasked: bool = True) -> tuple[str, ...]:
    """Have this process compute on one card of its own, where there is one, and return its address.

    Every task that has TensorFlow compute calls this before it does. Without a card, or outside of tasks, nothing changes: the
    driver has all cards that its user has given it.

    Args:
        unasked: whether to choose a card also where Spark has given the task none.
    """
    if TaskContext.get() is None:
        return ()
    offered = offered_gpus()
    claims = _claims()
    others = host_gpus() if unasked and not claims.cards else ()
    if not offered and not others and not claims.cards:
        return ()
    cards = claims.take(offered, others)
    show(cards, os.environ)
    return cards


def show(cards: Sequence[str], environment: MutableMapping[str, str]) -> None:
    """Have CUDA see these cards alone, and TensorFlow and JAX take memory as they need it, unless the user has said otherwise."""
    environment[VISIBLE] = ",".join(cards)
    environment.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the order in which discovery scripts count
    for settings in _MEMORY.values():
        for name, value in settings.items():
            environment.setdefault(name, value)


def offered_gpus() -> tuple[str, ...]:
    """Return the addresses of the GPUs that Spark has given to the task of this process; none outside of tasks."""
    context = TaskContext.get()
    found = None if context is None else context.resources().get(Resources.GPU)
    return () if found is None else tuple(found.addresses)


def host_gpus(environment: MutableMapping[str, str] | None = None, devices: Path = Path("/dev")) -> tuple[str, ...]:
    """Return the NVIDIA GPUs that this process could see: what CUDA_VISIBLE_DEVICES names, or else those with a device file.

    Args:
        environment: of the process; None for this one's.
        devices: where device files lie.
    """
    named = (os.environ if environment is None else environment).get(VISIBLE)
    if named is not None:
        cards = [card.strip() for card in named.split(",")]
        end = next((at for at, card in enumerate(cards) if card in ("", "-1", "NoDevFiles")), len(cards))
        return tuple(cards[:end])  # as CUDA reads it: what follows a card that is none does not count
    count = sum(re.fullmatch(r"nvidia\d+", each.name) is not None for each in devices.glob("nvidia*"))
    return tuple(map(str, range(count)))


def gpu_tasks(session: SparkSession | SparkContext, resources: str | None, *, limited: bool = True) -> GpuTasks | None:
    """Return how the tasks of a stage have one GPU each, if resources="gpu" asks for that.

    None where nothing is asked for, and where tasks have a GPU anyway (`spark.task.resource.gpu.amount`).

    Args:
        limited: whether no more tasks run at once than there are cards, as of workers. Of others local mode runs as many as it has
            cores: they share the cards, and None is returned.

    Raises:
        CapacityError: executors have no GPUs that Spark knows of; in local mode, this machine has none.
    """
    if resources is None:
        return None
    conf: Conf = settings_of(session) if isinstance(session, SparkContext) else conf_of(session)
    if is_local_master(conf.get("spark.master", "") or ""):
        if isinstance(session, SparkContext) or context_of(session) is not None:
            check_host()
        return GpuTasks(None) if limited else None
    profile = task_profile(conf)
    return None if profile is None else GpuTasks(profile)


def task_profile(conf: Conf) -> ResourceProfile | None:
    """Return what gives a GPU to each task of a stage on a cluster with these settings; None if each has one anyway.

    Raises:
        CapacityError: executors have no GPUs that Spark knows of.
    """
    if task_gpus(conf):
        return None
    if not float(conf.get("spark.executor.resource.gpu.amount", "0") or 0):
        raise CapacityError(
            "resources='gpu' wants a GPU for each worker, and Spark knows of none: set spark.executor.resource.gpu.amount and "
            "spark.executor.resource.gpu.discoveryScript before Spark starts (docs/deploy.md), or leave resources out."
        )
    application = conf.get("spark.app.id", "") or ""
    key = application, task_cpus(conf)
    profile = _profiles.get(key)
    if profile is None:
        wanted = TaskResourceRequests().cpus(task_cpus(conf)).resource(Resources.GPU, 1)
        profile = ResourceProfileBuilder().require(wanted).build
        if application:  # which not every platform shows
            _profiles[key] = profile
    return profile


def worker_slots(
    context: SparkContext, wait: float = 30.0, wanted: int | None = None, resources: str | None = None
) -> int:
    """Return the number of workers that can run at the same time, as `slots` does; with resources="gpu", one for each GPU.

    Raises:
        CapacityError: resources="gpu", and there is no GPU.
    """
    tasks = gpu_tasks(context, resources)
    found = slots(context, wait, wanted, tasks and tasks.profile)
    return found if resources is None or not is_local(context) else min(found, len(host_gpus()))


def check_host() -> None:
    """Raise CapacityError if this machine shows no GPU."""
    if not host_gpus():
        shown = os.environ.get(VISIBLE)
        hidden = "" if shown is None else f" ({VISIBLE} is {shown!r})"
        raise CapacityError(
            f"resources='gpu' wants a GPU for each worker, and this machine has none that can be seen{hidden}. Leave resources out."
        )
    _warn_of_memory(chosen_backend())


@cache
def _warn_of_memory(backend: str) -> None:
    """Warn once if this process takes the memory of all cards as soon as it computes."""
    as_needed = os.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR") == "platform"  # JAX, likewise
    for name, value in _MEMORY.get(backend, {}).items():
        if name not in os.environ and not (backend == "jax" and as_needed):
            log.warning(
                "%s is not set: if this process has computed with Keras on %s, it holds most of the memory of its GPUs, and workers "
                "beside it find little left. Set it to %r before Python starts.",
                name,
                BACKENDS[backend],
                value,
            )


def on_gpus(rdd: RDD, tasks: GpuTasks | None) -> RDD:
    """Return an RDD whose tasks have a GPU each. To be called last: what follows runs in another Python process."""
    if tasks is None:
        return rdd
    with tasks.processes(rdd.context):
        if tasks.profile is not None:
            return rdd.withResources(tasks.profile)
        rdd.has_resource_profile = True  # PySpark joins no function of another process to its own then
        rdd.getResourceProfile()  # which has that one made now, as `withResources` does
        return rdd


def map_on_gpus(
    df: DataFrame, tasks: GpuTasks | None, function: Batches, schema: str, *, barrier: bool = False
) -> DataFrame:
    """Return `df.mapInArrow(function, schema)` whose tasks have a GPU each.

    Raises:
        CapacityError: this Spark's `mapInArrow` asks for none.
    """
    # Spark 3.5 has no profile, and PySpark's stubs of it differ.
    more: dict[str, Any] = {"barrier": True} if barrier else {}
    if tasks is None:
        return df.mapInArrow(function, schema, **more)
    if tasks.profile is not None:
        if "profile" not in inspect.signature(DataFrame.mapInArrow).parameters:
            raise CapacityError(
                "resources='gpu' needs Spark 4 for DataFrames' own stages (engine='gang'): before, set "
                "spark.task.resource.gpu.amount=1, which gives a GPU to every task."
            )
        more["profile"] = tasks.profile
    with tasks.processes(context_of(df.sparkSession)):
        return df.mapInArrow(function, schema, **more)
