"""What a search keeps: each trial as a line of JSON, written when it ends, and the models of the best trials."""

from __future__ import annotations

import json
import math
import os
import re
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from io import RawIOBase
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np

from elephas_like.core import checks
from elephas_like.core.errors import ElephasError, ElephasWarning, Failure
from elephas_like.core.objective import Objective
from elephas_like.core.trials import TrialResult, TrialStatus
from elephas_like.spark.files import driver_path
from elephas_like.tuning.space import Point

VERSION = 1


class SearchLog:
    """The directory of a search: `search.json` says which search it is, `trials.jsonl` holds the trials that ended.

    A line that a dying driver left unfinished is dropped when the search is resumed, and its trial runs again.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._trials = directory / "trials.jsonl"
        self.models = directory / "models"

    @contextmanager
    def kept_to_this_search(self) -> Iterator[None]:
        """Hold the directory against other searches, of this process and of others.

        Raises:
            ElephasError: another one holds it.
        """
        place, is_ours, file = os.path.realpath(self._directory), False, None
        try:  # also around what takes it: Ctrl-C may come at once
            with _guard:
                if place in _held:
                    raise _one_too_many("another search of this process", self._directory)
                file = _locked(self._directory)
                is_ours = True
                _held.add(place)
            yield
        finally:
            if is_ours:
                try:
                    if file is not None:
                        file.close()
                finally:  # only now: closing any file of that name gives the process's lock back
                    _held.discard(place)

    def begin(
        self, identity: Mapping[str, object], resume: Literal["never", "auto"]
    ) -> list[tuple[TrialResult, Point]]:
        """The trials of earlier sessions.

        Args:
            identity: what makes it the same search: space, algorithm, seed, objective, data.

        Raises:
            FileExistsError: there are trials, and `resume` is "never".
            ValueError: they are another search's; the message says in what.
            ElephasError: a file of the search is damaged; the message says where.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        self._trials.touch()  # before search.json: a driver that dies between them leaves a search without trials
        described = {"version": VERSION, **identity}
        about = self._directory / "search.json"
        if not about.exists():
            if self._trials.stat().st_size:
                raise ElephasError(
                    f"{self._trials} has trials, and {about} is gone, which says of which search. Restore it from a copy, or begin anew in "
                    "another checkpoint_dir."
                )
            write_whole(about, json.dumps(described, indent=1).encode())
            return []
        if resume == "never":
            raise FileExistsError(
                f"{self._directory} holds a search already: pass resume='auto' to go on with it, or another checkpoint_dir."
            )
        found = self._about()
        for name in described:
            if found.get(name) != described[name]:
                was, now = _apart(found.get(name), described[name])
                raise ValueError(
                    f"the search in {self._directory} is another one: its {name} is {was}, and this one's {now}. Give the same arguments, or another checkpoint_dir."
                )
        return self._read()

    def seed(self) -> int | None:
        """The seed of the search that is here, if there is one."""
        about = self._directory / "search.json"
        return int(self._about()["seed"]) if about.exists() else None

    def _about(self) -> dict[str, Any]:
        about = self._directory / "search.json"
        try:
            return dict(json.loads(about.read_text()))
        except (ValueError, TypeError) as error:
            raise ElephasError(
                f"{about} is damaged: {error}. Restore it from a copy, or begin anew in another checkpoint_dir."
            ) from None

    def write(self, result: TrialResult, point: Point) -> None:
        """Adds a trial; it is on the disk when this returns. A failure is a warning: the search goes on, and has its trials in memory."""
        line = json.dumps(_as_plain(result, point), allow_nan=False) + "\n"
        try:
            _append_whole(self._trials, line.encode())
        except OSError as error:
            _warn(
                f"trial {result.number} is not kept in {self._directory}: {error}. The search goes on; one that is resumed there runs this "
                "trial again."
            )

    def note_begun(self, number: int) -> None:
        """Keep that a trial has begun, so that a search that goes on can say how many it runs again."""
        with suppress(OSError):  # the trial itself says so when it ends
            (self._directory / "begun").write_text(str(max(number + 1, self.begun())))

    def begun(self) -> int:
        """How many trials have begun, those that ended among them."""
        try:
            return int((self._directory / "begun").read_text())
        except (FileNotFoundError, ValueError):  # an earlier version's directory; or the driver died as it wrote
            return 0

    def _read(self) -> list[tuple[TrialResult, Point]]:
        whole, trials = 0, []
        for number, line in enumerate(self._trials.read_bytes().splitlines(keepends=True), 1):
            if not line.endswith(b"\n"):
                break
            try:
                trials.append(_from_plain(json.loads(line)))
            except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
                raise ElephasError(
                    f"{self._trials}, line {number} is no trial of a search: {type(error).__name__}: {error}. Restore the file "
                    "from a copy, or delete the line: its trial is then missing from the search."
                ) from None
            whole += len(line)
        os.truncate(self._trials, whole)
        return trials


_guard = threading.Lock()
_held: set[str] = set()
"""The directories that searches of this process hold. The system's locks are a process's: they tell its searches not apart."""


def _one_too_many(holder: str, directory: Path) -> ElephasError:
    return ElephasError(
        f"{holder} is at the search in {directory}, and both would write the same trials. End one of the two, or give each a checkpoint_dir "
        "of its own."
    )


def _locked(directory: Path) -> IO[str] | None:
    """Return a file that this process holds a lock on as long as it is open; None where there are no locks.

    Raises:
        ElephasError: another process holds it.
    """
    try:
        import fcntl
    except ImportError:  # on Unix only
        return None
    directory.mkdir(parents=True, exist_ok=True)
    file = (directory / ".lock").open("w")
    try:
        # It ends with the process, however that ends, and no fork inherits it.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # which of them is the system's choice
        file.close()
        raise _one_too_many("another process", directory) from None
    except OSError:  # a filesystem without locks
        file.close()
        return None
    return file


_appending = threading.Lock()
"""Trials may end in several threads: none cuts off what another has just added."""


def _append_whole(path: Path, content: bytes) -> None:
    """Add to a file, on the disk and whole, or not at all: a full disk takes a part of a line, to which the next trial would be joined."""
    with _appending, path.open("ab", buffering=0) as file:
        before = file.tell()
        try:
            _write_all(file, content)
        except OSError:
            with suppress(OSError):
                file.truncate(before)
            raise


def _write_all(file: RawIOBase, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[file.write(left) or 0 :]
    os.fsync(file.fileno())


def _warn(text: str) -> None:
    warnings.warn(text, ElephasWarning, stacklevel=2)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file that is there whole or not at all."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        with draft.open("wb", buffering=0) as file:
            _write_all(file, content)
        draft.replace(path)
    except BaseException:  # Ctrl-C as well
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def _as_plain(result: TrialResult, point: Point) -> dict[str, Any]:
    failure = result.failure
    return {
        "trial": result.number,
        "status": result.status.value,
        "point": dict(point),
        "loss": result.loss,
        "best_epoch": result.best_epoch,
        "history": [{k: v if math.isfinite(v) else repr(v) for k, v in logs.items()} for logs in result.history],
        "seconds": result.seconds,
        "host": result.host,
        "failure": None if failure is None else [failure.type_name, failure.message, failure.traceback_text],
        "notes": json.loads(json.dumps(result.notes, allow_nan=False)) if result.notes else {},
    }


def _from_plain(plain: Mapping[str, Any]) -> tuple[TrialResult, Point]:
    failure = plain["failure"]
    result = TrialResult(
        number=plain["trial"],
        status=TrialStatus(plain["status"]),
        history=tuple({name: float(value) for name, value in logs.items()} for logs in plain["history"]),
        best_epoch=plain["best_epoch"],
        loss=plain["loss"],
        seconds=plain["seconds"],
        host=plain["host"],
        failure=None if failure is None else Failure(failure[0], failure[1], failure[2], plain["trial"]),
        notes=plain["notes"],
    )
    return result, plain["point"]


def _apart(was: object, now: object) -> tuple[str, str]:
    """How two values differ: whole if they are short; of spaces, which are many lines, the place at which they part."""
    if not (isinstance(was, str) and isinstance(now, str) and "\n" in was + now):
        return _short(was), _short(now)
    # Lines are numbered: "29       Literal{x}".
    parted = [re.sub(r"Literal\{(.*)\}", r"\1", line.lstrip("0123456789 ")) for line in was.splitlines()]
    others = [re.sub(r"Literal\{(.*)\}", r"\1", line.lstrip("0123456789 ")) for line in now.splitlines()]
    place = next((at for at, (one, other) in enumerate(zip(parted, others, strict=False)) if one != other), None)
    if place is None:
        place = min(len(parted), len(others))
    above = [parted[at + 1] for at in range(min(place, len(parted)) - 1) if parted[at] == "hyperopt_param"]
    label = f"{above[-1]}: " if above else ""
    return tuple(
        f"'... {label}{' '.join(lines[place : place + 3]) or 'nothing more'} ...'" for lines in (parted, others)
    )  # type: ignore[return-value]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


class ModelStore:
    """The models of the best trials: in a directory, or in memory where there is none. Of equal losses the first wins.

    keep: how many.
    """

    def __init__(self, keep: int, directory: Path | None = None) -> None:
        self._keep = keep
        self._directory = directory
        self._losses: dict[int, float] = {}
        self._files: dict[int, tuple[bytes, str]] = {}
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)

    @property
    def threshold(self) -> float:
        """Worst loss that is still kept."""
        return max(self._losses.values()) if len(self._losses) >= self._keep else math.inf

    def offer(self, result: TrialResult) -> None:
        """Keep the model of a trial if it is among the best, beside those that it will replace when `settle` is called."""
        if not result.counts or not result.model or result.loss is None:
            return
        worst = self.numbers[-1] if len(self._losses) >= self._keep else None
        if worst is None or (result.loss, result.number) <= (self._losses[worst], worst):
            self._keep_model(result)
            self._losses[result.number] = result.loss

    def settle(self, without: int | None = None) -> None:
        """Drop the models that are no longer among the best, and that of trial `without`."""
        if without in self._losses:
            self._drop(without)
        for number in self.numbers[self._keep :]:
            self._drop(number)

    def _keep_model(self, result: TrialResult) -> None:
        if self._directory is not None:
            try:
                write_whole(self._directory / f"{_stem(result.number)}{result.suffix}", result.model)
                return
            except OSError as error:
                _warn(
                    f"the model of trial {result.number} is kept in memory, and is gone with this process: it was not written to "
                    f"{self._directory}: {error}."
                )
        self._files[result.number] = result.model, result.suffix

    def recall(self, result: TrialResult) -> None:
        """Note a model that an earlier session left in the directory."""
        if result.counts and result.loss is not None and self._path(result.number) is not None:
            self._losses[result.number] = result.loss
            self._keep = max(self._keep, len(self._losses))  # none that an earlier session kept is deleted

    def forget(self, number: int) -> None:
        """Delete the model of a trial that is to be run again: an earlier session died before it said that the trial had ended."""
        if self._path(number) is not None:
            self._losses.setdefault(number, math.inf)
            self._drop(number)

    @property
    def numbers(self) -> list[int]:
        """The trials whose models are here, the best first."""
        return sorted(self._losses, key=lambda number: (self._losses[number], number))

    def read(self, number: int) -> tuple[bytes, str]:
        """(content, suffix) of a trial's model."""
        if number in self._files:
            return self._files[number]
        path = self._path(number)
        if path is None:
            raise FileNotFoundError(f"the model of trial {number} is not in {self._directory} any more.")
        return path.read_bytes(), path.name.removeprefix(_stem(number))

    def _path(self, number: int) -> Path | None:
        found = [] if self._directory is None else sorted(self._directory.glob(f"{_stem(number)}.*"))
        return found[0] if found else None

    def _drop(self, number: int) -> None:
        del self._losses[number]
        self._files.pop(number, None)
        path = self._path(number)
        if path is not None:
            with suppress(OSError):  # it stays, where the directory takes no changes any more
                path.unlink()


def _stem(number: int) -> str:
    return f"trial-{number:05d}"


class Kept(NamedTuple):
    """What is kept of a search, and its seed: the given one, an earlier session's, or a fresh one."""

    log: SearchLog | None
    resume: str
    seed: int

    def alone(self) -> AbstractContextManager[None]:
        """A context in which no other process or thread is at this search.

        Raises:
            ElephasError: one is.
        """
        return nullcontext() if self.log is None else self.log.kept_to_this_search()

    def begin(self, identity: Mapping[str, object], keep: int) -> tuple[ModelStore, list[tuple[TrialResult, Point]]]:
        """The place of the best models, and the trials of earlier sessions."""
        if self.log is None:
            return ModelStore(keep), []
        earlier = self.log.begin(identity, "auto" if self.resume == "auto" else "never")
        return ModelStore(keep, self.log.models), earlier


def identity_of(objective: Objective) -> dict[str, object]:
    """What a resumed search compares of its objective."""
    first, *more = ([one.name, "max" if one.maximize else "min"] for one in objective.all)
    return {"objective": first, "more_objectives": more or None}


def kept_of(directory: Any, resume: str, seed: int | None) -> Kept:
    """What is kept of a search whose arguments are these.

    Raises:
        ValueError: `resume` is unknown, or there is no directory to go on from, or it is a URL of another filesystem.
    """
    if resume not in ("never", "auto"):
        raise ValueError(f"resume must be 'never' or 'auto'; got {resume!r}.")
    if resume == "auto" and directory is None:
        raise ValueError("resume='auto' needs a checkpoint_dir to go on from.")
    # Absolute, because a trial or a callback may change the working directory.
    found = None if directory is None else SearchLog(driver_path(directory, "checkpoint_dir of a search"))
    if seed is not None:
        return Kept(found, resume, checks.positive_int("seed", seed, least=0))
    earlier = found.seed() if found is not None and resume == "auto" else None
    return Kept(found, resume, int(np.random.randint(2**31 - 1)) if earlier is None else earlier)
