"""Checkpoints of a fit: all that it needs to go on after its driver has died, in two files that are written in turn.

A checkpoint is an `.npz` of arrays and a `.json` that is written after it and holds its digest. Each is put in place whole, and the
checkpoint before is kept until the next one is complete. So there is a whole one at every moment, also where renaming is
copying (object stores). Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import time
import uuid
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from pyspark import SparkContext

from elephas_like.core import plain_data
from elephas_like.core.errors import ElephasError, ElephasWarning
from elephas_like.core.progress import FitProgress
from elephas_like.core.types import Array, Joined, TrainState
from elephas_like.spark import files
from elephas_like.trainer.callback_states import CallbackStates
from elephas_like.trainer.callbacks import DriverHooks
from elephas_like.trainer.request import FitRequest, FitSeeds

log = logging.getLogger(__name__)

FORMAT = 1
ADDED = (
    "optimizer",
    "other_optimizers",
    "loss",
    "loss_weights",
    "state_codec",
    "optimizer_state_every",
    "control_variates",
)
"""What checkpoints of earlier versions do not say: it counts as equal there."""
SLOTS = 2
"""Checkpoints that are kept: while one is written, the other is whole."""
UNFINISHED = ".unfinished"
"""How the names of files begin that are being written beside their place, or were when a fit was killed."""


@dataclass(frozen=True)
class Found:
    """A checkpoint that was read.

    number: counts the checkpoints of a fit. place: its file, for messages.
    described: what the fit that wrote it was asked for. initial_epoch, num_workers, seeds: of that fit.
    shards: rows and checksum of each worker's shard; None for one that writes none.
    learning_rate: of each optimizer when that fit began; None in a checkpoint of an earlier version.
    """

    number: int
    place: str
    described: Mapping[str, Any]
    initial_epoch: int
    num_workers: int
    seeds: FitSeeds
    shards: list[list[int]]
    history: Any
    callbacks: Any
    arrays: Mapping[str, Array]
    learning_rate: list[float] | None = None

    def progress(self, like: TrainState) -> FitProgress:
        """The progress of the fit.

        Args:
            like: a state of the model that is to go on.

        Raises:
            ElephasError: it is of another model.
        """
        try:
            return FitProgress.from_arrays(self.arrays, like)
        except ElephasError as error:
            raise ElephasError(f"{self.place} is a checkpoint of another model: {error}") from None

    def callback_names(self) -> list[str]:
        """The names by which `CallbackStates` knows the callbacks of the fit."""
        return list(plain_data.decode(self.callbacks, self.arrays))


_DAMAGE = (OSError, ValueError, KeyError, TypeError, ArithmeticError, RuntimeError, EOFError, BadZipFile, zlib.error)
"""What reading a file may raise that is not what was written: RuntimeError is JSON's, nested too deep, and zipfile's."""


class Checkpoints:
    """The checkpoints of one fit (core.progress.Saving). Call `found`, `begin`, `save` after rounds and epochs, then `end`.

    Args:
        directory: a path (a relative one is made absolute now), or a URL of any Hadoop filesystem. If another fit begins to use it,
            of a driver that was started again while the first one was still alive, it is the other's from then on.
        seconds: at least so much time between two of them; None for one after every epoch.
        clock: seconds; for tests.
    """

    def __init__(
        self,
        directory: str,
        seconds: float | None,
        context: SparkContext | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = files.absolute(directory)  # once: a callback may change the working directory
        self._seconds, self._context, self._clock = seconds, context, clock
        self._number = 0
        self._written = -np.inf
        self._content: dict[str, Any] = {}
        self._callbacks: tuple[Any, dict[str, Array]] = ({}, {})
        self._run = uuid.uuid4().hex
        self._writers: set[str | None] = set()  # known when the first workers have joined
        self._is_ours = True
        if self._is_local and Path(files.local_path(self._directory)).is_file():
            raise NotADirectoryError(f"checkpoint_dir must be a directory; {directory} is a file.")

    @classmethod
    def of(cls, request: FitRequest, context: SparkContext | None) -> Checkpoints | None:
        """The checkpoints that a fit is asked for, if any."""
        if request.checkpoint_dir is None:
            return None
        seconds = None if request.checkpoint_freq == "epoch" else float(request.checkpoint_freq)
        return cls(request.checkpoint_dir, seconds, context)

    def found(self, resume: bool | str) -> Found | None:
        """The newest checkpoint that is whole, to go on from; None to begin anew.

        Args:
            resume: "auto" to go on if there is a checkpoint, True to insist on one, False to begin anew.

        Raises:
            FileNotFoundError: there is none, and `resume` is True.
            ElephasError: none of those that are there is whole.
        """
        if (
            resume is False
        ):  # what is there is deleted when the new fit's first checkpoint is due: until then it may fail
            return None
        broken: list[str] = []
        for number, place, marker in sorted(self._markers(broken), key=lambda one: one[0], reverse=True):
            try:
                found = self._read(number, place, marker)
            except _DAMAGE as error:
                broken.append(f"{place}: {error}")
                continue
            if broken:
                warnings.warn(
                    f"going on from {place}, because a newer checkpoint is damaged ({broken[0]}).",
                    ElephasWarning,
                    stacklevel=4,
                )
            self._number = found.number + 1
            return found
        if broken:
            raise ElephasError(
                f"the checkpoints in {self._directory} are damaged, and none can be gone on from ({'; '.join(broken)}). "
                "Restore the directory from a copy, or begin anew with resume=False, which deletes them."
            )
        if resume is True:
            raise FileNotFoundError(
                f"there is no checkpoint in {self._directory}; use resume='auto' to begin without one."
            )
        return None

    def begin(
        self,
        described: Mapping[str, Any],
        seeds: FitSeeds,
        initial_epoch: int,
        hooks: DriverHooks,
        found: Found | None,
        learning_rate: list[float] | None = None,
    ) -> None:
        """Takes what every checkpoint of this fit says, and gives callbacks and History what was found.

        Args:
            described: what the fit is asked for: plain values by name. It must be what the checkpoint's fit was asked for.
            hooks: after `train_begin`.
            learning_rate: of each optimizer when the fit began for the first time.

        Raises:
            ElephasError: the checkpoint is of another fit.
        """
        self._content = {
            "described": dict(described),
            "seeds": asdict(seeds),
            "initial_epoch": initial_epoch,
            "learning_rate": learning_rate,
        }
        self._hooks, self._states, self._found = hooks, CallbackStates(hooks.callbacks), found
        if found is None:
            return
        asked = dict(self._content["described"])
        _check_variables(found, asked.pop("variables", None))
        for name, value in asked.items():
            if found.described.get(name, value if name in ADDED else None) != value:
                raise ElephasError(
                    f"{found.place} is a checkpoint of another fit: {name} was {found.described.get(name)!r}, and is "
                    f"{value!r}. Give each fit a checkpoint_dir of its own, or begin anew with resume=False."
                )
        logged = plain_data.decode(found.history["logs"], found.arrays)
        history = found.history
        hooks.history.go_on(logged, history["epoch"], history["epoch_seconds"], history.get("metrics"))
        gone = self._states.restore(plain_data.decode(found.callbacks, found.arrays))
        if gone:
            _warn(f"the checkpoint has states of callbacks that this fit does not have: {', '.join(gone)}.")
        log.info("going on from %s, at epoch %d", found.place, int(found.arrays["numbers"][-1]) + 1)

    def workers_joined(self, joined: Sequence[Joined], progress: FitProgress) -> None:
        """Compares the workers' rows with those of the checkpoint, and writes the first checkpoint.

        If there are other workers or rows, the epoch that was under way begins again. What workers remember goes to as many
        workers as it came from, or is dropped.
        """
        shards = [[worker.rows, worker.checksum] for worker in joined]
        self._content |= {"num_workers": len(shards), "shards": shards}
        found = self._found
        if found is not None and found.shards != shards:
            differ = [
                index for index, (one, other) in enumerate(zip(found.shards, shards, strict=False)) if one != other
            ]
            what = (
                f"{found.num_workers} workers then, {len(shards)} now"
                if found.num_workers != len(shards)
                else f"the rows of worker {differ[0]} ({found.shards[differ[0]][0]} then, {shards[differ[0]][0]} now)"
            )
            dropped = ""
            if found.num_workers != len(shards) and progress.memories:
                progress.memories = None
                dropped = " What workers remember of their own between rounds begins anew."
            _warn(
                f"the fit goes on with other workers or rows than its checkpoint's: {what}. It will not end with the weights "
                f"of a fit that was never interrupted.{dropped}"
            )
            if [rows for rows, _ in found.shards] != [rows for rows, _ in shards]:
                progress.begin_epoch_again()
        self._found = None  # a second attempt begins like this one
        self._keep_callbacks()
        if not self._writers:  # who wrote here before is known before anything is deleted: it may still be writing
            self._writers = self._found_writers() | {self._run}
            self._remove_unfinished()
        if not self._number:
            self.remove()  # checkpoints that resume=False passed over
        if not self._taken_over():
            try:
                self._write_first(progress)
            except OSError as error:  # another fit that begins has just deleted what was unfinished: once
                words = () if self._is_local else ("FileNotFound", "did not rename")  # of Hadoop's filesystems
                if not isinstance(error, FileNotFoundError) and not any(word in str(error) for word in words):
                    raise
                self._write_first(progress)

    def _write_first(self, progress: FitProgress) -> None:
        try:
            self._write(progress)
        except OSError as error:
            if error.errno is None or error.filename is not None:
                raise
            text = f"{error.strerror}, as the first checkpoint was written"  # a full disk's own text does not say where
            raise OSError(error.errno, text, self._directory) from None

    def due(self, amid_epoch: bool) -> bool:
        """Whether a checkpoint is to be written now, between the rounds of an epoch or at the end of one."""
        if self._seconds is None:
            return not amid_epoch
        return self._clock() - self._written >= self._seconds

    def save(self, progress: FitProgress, due: bool) -> None:
        """Writes a checkpoint, if it is due. A failure is a warning: the fit goes on, and the next one is tried."""
        # Amid an epoch callbacks are as they were before it: on_epoch_begin will be called again.
        if progress.span is None:
            self._keep_callbacks()
        if not due or self._taken_over():
            return
        try:
            self._write(progress)
        except (OSError, TypeError) as error:  # TypeError: a callback has put an object into the logs
            _warn(f"no checkpoint was written after epoch {progress.epoch}, round {len(progress.rounds)}: {error}")

    def end(self) -> None:
        """Deletes the checkpoints: the fit is over. A failure is a warning: what was trained is worth more."""
        try:
            self.remove()
        except OSError as error:
            _warn(
                f"the fit is over, and its checkpoints could not be deleted: {error}. Delete {self._directory}, or the next fit there goes on "
                "from them."
            )

    def remove(self) -> None:
        """Deletes the checkpoints. Those of a fit that took over stay."""
        if self._taken_over():
            return
        for slot in range(SLOTS):  # markers first: what they name is whole as long as they are there
            for ending in ("json", "npz"):
                files.remove(self._place(slot, ending), self._context)

    def _taken_over(self) -> bool:
        """Whether another fit writes here now. It is said once: two that write in turn would leave no whole checkpoint."""
        if self._is_ours and self._writers:
            with suppress(OSError):  # it is asked again before the next checkpoint
                self._is_ours = self._found_writers() <= self._writers
            if not self._is_ours:
                _warn(
                    f"another fit now writes its checkpoints to {self._directory}; was this fit's driver started a second time? This fit "
                    "goes on, and writes no more of them. Give each fit a checkpoint_dir of its own, or end one of the two."
                )
        return not self._is_ours

    def _found_writers(self) -> set[str | None]:
        """The fits that wrote what is here. Those of earlier versions have no name, nor has a file that is damaged."""
        found: set[str | None] = set()
        for place in (self._place(slot, "json") for slot in range(SLOTS)):
            if not files.exists(place, self._context):
                continue
            try:
                with self._fetched(place) as local, open(local, "rb") as file:
                    found.add(dict(json.load(file)).get("run"))
            except FileNotFoundError:  # deleted in this moment
                continue
            except (ValueError, TypeError):
                found.add(None)
        return found

    def _remove_unfinished(self) -> None:
        """Deletes what fits left that were killed as they wrote. If one of them is still alive, its write fails."""
        if self._is_local:
            for file in Path(files.local_path(self._directory)).glob(f"{UNFINISHED}*"):
                file.unlink(missing_ok=True)
            return
        with suppress(OSError):  # who may not list them pays for their room
            for slot in range(SLOTS):
                for ending in ("json", "npz"):
                    files.remove_drafts(self._place(slot, ending), self._context)

    @property
    def _is_local(self) -> bool:
        return not files.on_hadoop(self._directory, False, self._context)

    def _keep_callbacks(self) -> None:
        arrays: dict[str, Array] = {}
        encoded = plain_data.encode(self._states.changed(), arrays, "callbacks")
        self._callbacks = encoded, {name: array.copy() for name, array in arrays.items()}

    def _write(self, progress: FitProgress) -> None:
        history = self._hooks.history
        encoded, arrays = self._callbacks
        arrays = {**progress.arrays(), **arrays}
        logs = plain_data.encode(dict(history.history), arrays, "history")
        slot = self._number % SLOTS
        with self._local_file() as local:
            with open(local, "wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]  # the stubs expect a bool
                file.flush()
                os.fsync(file.fileno())
            content = {
                "format": FORMAT,
                "number": self._number,
                "run": self._run,
                "written": datetime.now(UTC).isoformat(timespec="seconds"),
                "bytes": os.path.getsize(local),
                "sha256": _sha256(local),
                **self._content,
                "history": {
                    "logs": logs,
                    "epoch": list(history.epoch),
                    "epoch_seconds": list(history.epoch_seconds),
                    "metrics": sorted(history.metrics),
                },
                "callbacks": encoded,
            }
            self._put(local, self._place(slot, "npz"))
            with open(local, "w", encoding="utf-8") as file:
                json.dump(content, file)
            self._put(local, self._place(slot, "json"))
        self._number += 1
        self._written = self._clock()

    def _markers(self, broken: list[str]) -> Iterator[tuple[int, str, dict[str, Any]]]:
        """The number, file and content of each checkpoint that says it is complete; the others are added to `broken`."""
        for slot in range(SLOTS):
            place = self._place(slot, "json")
            if not files.exists(place, self._context):
                continue
            try:
                with self._fetched(place) as local, open(local, encoding="utf-8") as file:
                    marker = json.load(file)
                if marker["format"] != FORMAT:
                    raise ElephasError(
                        f"{place} has format {marker['format']}; this version of elephas_like reads format {FORMAT}. Go on "
                        "with the version that wrote it, or begin anew with resume=False."
                    )
                yield int(marker["number"]), self._place(slot, "npz"), marker
            except _DAMAGE as error:
                broken.append(f"{place}: {error}")

    def _read(self, number: int, place: str, marker: Mapping[str, Any]) -> Found:
        with self._fetched(place) as local:
            if os.path.getsize(local) != marker["bytes"] or _sha256(local) != marker["sha256"]:
                raise ValueError("it is not what was written")
            with np.load(local, allow_pickle=False) as file:
                arrays = dict(file)
        _check_marker(marker)
        same = ("initial_epoch", "num_workers", "shards", "history", "callbacks")
        described = dict(marker["described"])
        if isinstance(described.get("seed"), list):  # of three, in older files, the first was that of the fit
            described["seed"] = described["seed"][-2:]
        seeds = FitSeeds(**marker["seeds"])
        return Found(
            number=number,
            place=place,
            described=described,
            seeds=seeds,
            arrays=arrays,
            learning_rate=marker.get("learning_rate"),
            **{name: marker[name] for name in same},
        )

    def _place(self, slot: int, ending: str) -> str:
        return f"{self._directory}/checkpoint-{slot}.{ending}"

    @contextmanager
    def _local_file(self) -> Iterator[str]:
        """A file to write: in a local directory beside its target, so that it is renamed and not copied."""
        if self._is_local:
            directory = files.local_path(self._directory)
            os.makedirs(directory, exist_ok=True)
            unfinished = os.path.join(directory, f"{UNFINISHED}-{self._run}")
            try:
                yield unfinished
            finally:
                with suppress(FileNotFoundError):  # moved to its place, as a rule
                    os.remove(unfinished)
            return
        with tempfile.TemporaryDirectory(prefix="elephas_like-") as folder:
            yield os.path.join(folder, "checkpoint")

    def _put(self, local: str, target: str) -> None:
        files.put(local, target, self._context, overwrite=True, move=True)

    @contextmanager
    def _fetched(self, place: str) -> Iterator[str]:
        if not files.on_hadoop(place, False, self._context):
            yield files.local_path(place)
            return
        with tempfile.TemporaryDirectory(prefix="elephas_like-") as folder:
            local = os.path.join(folder, "checkpoint")
            files.get(place, local, self._context)
            yield local


def _check_variables(found: Found, variables: list[str]) -> None:
    """Raise ElephasError if a checkpoint's model has other variables. Those of earlier versions do not say which they have."""
    before = found.described.get("variables", variables)
    for place, (was, now) in enumerate(zip_longest(before, variables, fillvalue="not there"), 1):
        if was != now:
            raise ElephasError(
                f"{found.place} is a checkpoint of another model: variable {place} was {was}, and is {now}. Give each fit a checkpoint_dir of "
                "its own, or begin anew with resume=False."
            )


def _check_marker(marker: Mapping[str, Any]) -> None:
    """Raise ValueError if what a fit goes on with is of another kind than what was written."""
    kinds = {
        "described": dict,
        "initial_epoch": int,
        "num_workers": int,
        "shards": list,
        "history": dict,
        "seeds": dict,
    }
    wrong = [name for name, kind in kinds.items() if not isinstance(marker[name], kind)]
    history, shards = marker["history"], marker["shards"]
    if not wrong and not all(isinstance(history[name], list) for name in ("epoch", "epoch_seconds")):
        wrong = ["history"]
    if not wrong and not all(isinstance(shard, list) and len(shard) == 2 for shard in shards):
        wrong = ["shards"]
    if wrong:
        raise ValueError(f"{wrong[0]} is not what was written: {str(marker[wrong[0]])[:100]}")


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _warn(text: str) -> None:
    warnings.warn(text, ElephasWarning, stacklevel=2)
