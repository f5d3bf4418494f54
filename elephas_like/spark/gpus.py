"""GPUs: tasks ask Spark for one each, and a Python process on an executor computes on one card for as long as it lives.

TensorFlow takes all the memory of all the cards that it sees, and a process cannot change its cards once it computes. But Spark gives
the next task of a process another card than the last one. So processes claim cards: by a lock on a file, which ends with the process.
Where Spark offers a process another card than its own, whoever is offered that one takes the first's in exchange.
"""

from __future__ import annotations

import inspect
import logging
import os
import platform
import re
import stat
import tempfile
import time
from collections.abc import MutableMapping, Sequence
from functools import cache
from pathlib import Path
from urllib.parse import quote

from pyspark import RDD, SparkContext, TaskContext
from pyspark.resource import ResourceProfile, ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import DataFrame, SparkSession

from elephas_like.core.errors import CapacityError
from elephas_like.core.extras import BACKENDS, chosen_backend
from elephas_like.core.types import Resources
from elephas_like.spark.session import Conf, conf_of, context_of, is_local, is_local_master, settings_of
from elephas_like.spark.slots import slots, task_cpus, task_gpus

log = logging.getLogger(__name__)

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
        directory: of lock files, one for all processes of a user on this host. It is made where it is missing.
        patience: seconds to wait for the note of a process that may be about to take another card than its own.
    """

    def __init__(self, directory: Path, patience: float = 5.0) -> None:
        self._directory, self._patience = directory, patience
        self._locks: dict[str, int] = {}
        self.cards: tuple[str, ...] = ()

    def take(self, offered: Sequence[str], others: Sequence[str] = ()) -> tuple[str, ...]:
        """Return this process' cards: those of earlier calls, or else as many as are offered, or else one of the others.

        Args:
            offered: addresses that Spark has given to the task.
            others: cards of this host, where Spark gives none to tasks. If all are claimed, one of them is shared.
        """
        try:
            if not self.cards and offered:
                for card in offered:
                    self.cards = tuple(dict.fromkeys([*self.cards, self._exchanged(card)]))
            elif not self.cards and others:
                free = (card for card in others if self._claim(card))
                self.cards = (next(free, None) or others[os.getpid() % len(others)],)
            for card, lock in self._locks.items():
                if card in self.cards and offered:
                    os.pwrite(lock, offered[min(self.cards.index(card), len(offered) - 1)].ljust(_NOTE).encode(), 0)
        except OSError as error:  # also of a directory that somebody else has made
            log.warning("cards are not claimed on this host, and processes may share one: %s", error)
            self.cards = self.cards or tuple(offered) or tuple(others[:1])
        return self.cards

    def _exchanged(self, offered: str) -> str:
        """Return the card that is offered; if another process has it, what that one was offered last; and so on."""
        end = time.monotonic() + self._patience
        while True:
            card, seen = offered, set[str]()
            while card not in seen:
                if self._claim(card):
                    return card
                seen.add(card)
                card = self._note(card) or card
            if time.monotonic() > end:
                log.warning("GPU %s is used by another process, too: Spark offers it to both, or one is idle", offered)
                return offered
            time.sleep(0.1)

    def _claim(self, card: str) -> bool:
        """Return whether the card is this process' own from now on, and was not before."""
        import fcntl  # on Unix only

        if card in self._locks:
            return False
        lock = self._opened(card)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it ends with the process, however that ends
        except BlockingIOError:
            os.close(lock)
            return False
        os.pwrite(lock, card.ljust(_NOTE).encode(), 0)
        self._locks[card] = lock
        return True

    def _note(self, card: str) -> str:
        """Return what the process that has a card was offered last."""
        lock = self._opened(card)
        try:
            return os.pread(lock, _NOTE, 0).decode().strip()
        finally:
            os.close(lock)

    def _opened(self, card: str) -> int:
        """Return a lock file, in a directory that is this user's own."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = os.lstat(self._directory)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise PermissionError(f"{self._directory} is not this user's own directory")
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(self._directory / quote(card, safe=""), flags, 0o600)


_profiles: dict[tuple[str, int], ResourceProfile] = {}
"""The one profile of an application: Spark numbers each object anew, keeps executors for one number, and mixes none in a stage."""
_NOTE = 128
"""Bytes of a note: one write of them is seen whole."""
_claims = Claims(
    Path(tempfile.gettempdir()) / f"elephas_like-gpus-{platform.node()}-{os.getuid() if hasattr(os, 'getuid') else 0}"
)


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
    others = host_gpus() if unasked and not _claims.cards else ()
    if not offered and not others and not _claims.cards:
        return ()
    cards = _claims.take(offered, others)
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


def profile_for(session: SparkSession | SparkContext, resources: str | None) -> ResourceProfile | None:
    """Return what a stage is run with so that each of its tasks has one GPU, if resources="gpu" asks for that.

    None where nothing is asked for, where tasks have a GPU anyway (`spark.task.resource.gpu.amount`), and in local mode, which gives
    tasks none: there processes claim the cards of this machine.

    Raises:
        CapacityError: executors have no GPUs that Spark knows of; in local mode, this machine has none.
    """
    if resources is None:
        return None
    conf: Conf = settings_of(session) if isinstance(session, SparkContext) else conf_of(session)
    if is_local_master(conf.get("spark.master", "") or ""):
        if isinstance(session, SparkContext) or context_of(session) is not None:
            check_host()
        return None
    return task_profile(conf)


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
    found = slots(context, wait, wanted, profile_for(context, resources))
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


def on_gpus(rdd: RDD, profile: ResourceProfile | None) -> RDD:
    """Return an RDD whose stage is run with a profile. To be called last: what follows runs in another Python process."""
    return rdd if profile is None else rdd.withResources(profile)


def with_profile(profile: ResourceProfile | None) -> dict[str, ResourceProfile]:
    """Return the argument of `DataFrame.mapInArrow` for a profile.

    Raises:
        CapacityError: this Spark's has none.
    """
    if profile is None:
        return {}
    if "profile" not in inspect.signature(DataFrame.mapInArrow).parameters:
        raise CapacityError(
            "resources='gpu' needs Spark 4 for DataFrames' own stages (engine='gang'): before, set spark.task.resource.gpu.amount=1, "
            "which gives a GPU to every task."
        )
    return {"profile": profile}
