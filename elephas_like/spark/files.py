"""Write files and directories atomically, on local paths and on any Hadoop filesystem that Spark can reach.

Content is written under a hidden name beside its target and renamed when it is complete, so that nobody reads half of
it. URLs go through Spark's JVM, with its Hadoop configuration and credentials; no `hadoop` command is needed.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # two letters at least: C:/ is a Windows path
_BEFORE_PATH = re.compile(r"^[^/]+:(//(?P<host>[^/]*))?")


def is_url(path: str) -> bool:
    """Return whether a path names its filesystem: hdfs://, s3a://, abfss://, dbfs:/, viewfs://, file:/ ..."""
    return _SCHEME.match(path) is not None


def on_hadoop(path: str, hadoop: bool, context: SparkContext | None) -> bool:
    """Return whether a path is reached through Spark: a URL, or with `hadoop` any path (of the default filesystem).

    Without a SparkContext `file:` URLs are local paths.

    Raises:
        ValueError: it is, and there is no SparkContext.
    """
    if not (hadoop or is_url(path)):
        return False
    if context is None:
        if is_url(path) and urlparse(path).scheme == "file":
            return False
        raise ValueError(f"{path!r} is reached through Spark; start a SparkSession first.")
    return True


_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
"""What says that there is no file of a name."""


def exists(path: str, context: SparkContext | None = None, *, hadoop: bool = False) -> bool:
    """Return whether there is a file or directory.

    Raises:
        OSError: nobody can tell, as while a mounted disk does not answer.
    """
    if not on_hadoop(path, hadoop, context):
        place = local_path(path)
        try:
            os.stat(place)
        except OSError as error:  # os.path.exists would say of any that nothing is there
            if error.errno in _ABSENT:
                return False
            raise
        except ValueError:  # of a name with a null byte
            return False
        return True
    with os_errors(f"cannot look at {path}"):
        files, place = _resolve(context, path)
        return bool(files.exists(place))


_FULL = (errno.ENOSPC, errno.EDQUOT)


def put(
    local: str,
    target: str,
    context: SparkContext | None = None,
    *,
    overwrite: bool = False,
    hadoop: bool = False,
    move: bool = False,
) -> None:
    """Copy a local file or directory to its target, completely or not at all.

    Args:
        target: a path or URL; missing parent directories are created.
        overwrite: replace an existing target, a file in one step where the filesystem can.
        hadoop: a target without a scheme belongs to Spark's default filesystem.
        move: `local` is on the same filesystem as a local target and may be renamed.

    Raises:
        FileExistsError: the target exists, and `overwrite` is False.
        OSError: with the filesystem's reason.
    """
    refuse_existing(target, context, overwrite=overwrite, hadoop=hadoop)
    if on_hadoop(target, hadoop, context):
        with os_errors(f"cannot write {target}"):
            _put_hadoop(local, target, context)
    else:
        _put_local(local, local_path(target), move)


def put_written(
    write: Callable[[str], None],
    name: str,
    target: str,
    context: SparkContext | None = None,
    *,
    overwrite: bool = False,
    hadoop: bool = False,
) -> None:
    """Have a file or directory written to a local path that ends in `name`, and put it in its place, as `put` does.

    It is written in the system's temporary directory: mounted object stores take whole files only. Where there is no room for
    it, it is written again beside a local target.

    Raises:
        FileExistsError: the target exists, and `overwrite` is False.
        OSError: with the filesystem's reason, and the target's name where a disk is full.
    """
    try:
        try:
            with tempfile.TemporaryDirectory(prefix="elephas_like-") as folder:
                write(local := os.path.join(folder, name))
                put(local, target, context, overwrite=overwrite, hadoop=hadoop)
        except OSError as error:
            if error.errno not in _FULL or on_hadoop(target, hadoop, context):
                raise
            above = Path(local_path(target)).absolute().parent
            above.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".elephas_like-", dir=above) as folder:
                write(local := os.path.join(folder, name))
                put(local, target, context, overwrite=overwrite, hadoop=hadoop, move=True)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise OSError(error.errno, f"{error.strerror}: not written", target) from error


def refuse_existing(
    target: str, context: SparkContext | None = None, *, overwrite: bool = False, hadoop: bool = False
) -> None:
    """Raise if a target exists and must not be replaced. Call it before expensive work.

    Raises:
        FileExistsError: the target exists, and `overwrite` is False.
    """
    if not overwrite and exists(target, context, hadoop=hadoop):
        raise FileExistsError(f"{target} exists; pass overwrite=True to replace it.")


def get(source: str, local: str, context: SparkContext | None = None, *, hadoop: bool = False) -> None:
    """Copy a file or directory to a local path that does not exist yet.

    Raises:
        FileNotFoundError: the source does not exist.
        OSError: with the filesystem's reason.
    """
    if not exists(source, context, hadoop=hadoop):
        raise FileNotFoundError(f"{source} does not exist.")
    if on_hadoop(source, hadoop, context):
        with os_errors(f"cannot read {source}"):
            files, place = _resolve(context, source)
            files.copyToLocalFile(False, place, _path(context, _as_url(local)), True)
    else:
        _copy(local_path(source), local)


def remove(path: str, context: SparkContext | None = None, *, hadoop: bool = False) -> None:
    """Delete a file or directory, if it is there.

    Raises:
        OSError: with the filesystem's reason.
    """
    if on_hadoop(path, hadoop, context):
        with os_errors(f"cannot delete {path}"):
            files, place = _resolve(context, path)
            files.delete(place, True)
    else:
        _remove(Path(local_path(path)))


@contextmanager
def staged(target: str, context: SparkContext | None) -> Iterator[str]:
    """Yield a hidden path beside `target` on its Hadoop filesystem; at the end rename it to `target`.

    The caller, or Spark, writes to that path. An existing target is replaced; after an error nothing has changed.
    Missing parent directories are created. A target without a scheme belongs to Spark's default filesystem.
    """
    files, place = _resolve(context, target)
    above = place.getParent()
    draft = _path(context, f"{above.toString().rstrip('/')}/.{place.getName()}.{uuid.uuid4().hex}")
    try:
        files.mkdirs(above)
        yield draft.toString()
        _rename(context, files, draft, place)
    finally:
        files.delete(draft, True)


def remove_drafts(target: str, context: SparkContext | None) -> None:
    """Delete what is left beside `target`, on its Hadoop filesystem, of writes that were killed. One that is under way fails.

    Raises:
        OSError: with the filesystem's reason.
    """
    with os_errors(f"cannot look for what is left of writes to {target}"):
        files, place = _resolve(context, target)
        above, draft = place.getParent(), re.compile(rf"\.{re.escape(place.getName())}\.[0-9a-f]{{32}}")
        if files.exists(above):
            for found in [status.getPath() for status in files.listStatus(above)]:
                if draft.fullmatch(found.getName()):
                    files.delete(found, True)


def local_path(path: str) -> str:
    """Return the path of a `file:` URL; a path with its `~` as the home directory, as shells read it.

    `#`, `?` and `%` are letters of a name, as to Spark: so a URL is the same place with a session and without.

    Raises:
        ValueError: the URL names a host, as one with a slash too few does.
    """
    if not is_url(path):
        return os.path.expanduser(path)
    before = _BEFORE_PATH.match(path)
    host = "" if before is None else (before["host"] or "")
    if host.lower() not in ("", "localhost"):
        raise ValueError(
            f"{path!r} names a host, {host!r}, and a file: URL is of this machine: file:/// and an absolute path, or a path alone."
        )
    return _BEFORE_PATH.sub("", path)


def driver_path(path: str | os.PathLike[str], what: str) -> Path:
    """Return the absolute path of what is kept on the driver's own disks: of a path, or a `file:` URL.

    Args:
        what: what is kept there, for the error.

    Raises:
        ValueError: nothing, or a URL of another filesystem.
    """
    text = os.fspath(path)
    if not text:
        raise ValueError(f"{what} must be a path; got {text!r}.")
    if is_url(text) and urlparse(text).scheme != "file":
        raise ValueError(
            f"{what} is kept on a disk of the driver; got {text!r}. Give a local path, which may be of a mounted disk, and "
            "copy it there afterwards."
        )
    return Path(local_path(text)).absolute()


def absolute(path: str) -> str:
    """Return a path that stays the same when the working directory changes; a URL without the slash at its end."""
    return path.rstrip("/") if is_url(path) else os.path.abspath(os.path.expanduser(path))


def canonical(path: str) -> str:
    """Return one name for all spellings of a path or URL: `a/`, `./a`, `file:/tmp/a` and a link to it are one place.

    A URL of another filesystem is compared as text, without superfluous slashes: what `hdfs:///a` means only Spark knows.
    """
    if not is_url(path) or urlparse(path).scheme.lower() == "file":
        return os.path.realpath(local_path(path))
    scheme, _, rest = path.partition(":")
    slashes = "//" if rest.startswith("//") else ""
    return f"{scheme}:{slashes}{re.sub('/+', '/', rest[len(slashes) :]).rstrip('/')}"


def _put_local(local: str, target: str, move: bool) -> None:
    place = Path(target).absolute()
    place.parent.mkdir(parents=True, exist_ok=True)
    draft, aside = (place.with_name(f".{place.name}.{uuid.uuid4().hex}") for _ in range(2))
    try:
        (os.rename if move else _copy)(local, str(draft))
        if place.exists() and (place.is_dir() or draft.is_dir()):
            os.rename(place, aside)
        os.replace(draft, place)
    except BaseException:
        if aside.exists():
            os.rename(aside, place)
        raise
    finally:
        _remove(draft)
    _remove(aside)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _copy(source: str, target: str) -> None:
    if os.path.isdir(source):
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)


def _put_hadoop(local: str, target: str, context: SparkContext | None) -> None:
    with staged(target, context) as draft:
        files, place = _resolve(context, draft)
        files.copyFromLocalFile(False, True, _path(context, _as_url(local)), place)


def _rename(context: SparkContext | None, files: Any, draft: Any, place: Any) -> None:
    """Rename over an existing target: in one step for a file, by way of a third name for a directory."""
    hadoop = _hadoop(context)
    if not files.exists(place):
        _check_renamed(files.rename(draft, place), place)
        return
    if not any(files.getFileStatus(path).isDirectory() for path in (draft, place)):
        options = context._gateway.new_array(hadoop.Options.Rename, 1)  # type: ignore[union-attr]  # see _hadoop
        options[0] = hadoop.Options.Rename.OVERWRITE
        try:
            contexts = hadoop.FileContext.getFileContext(place.toUri(), _configuration(context))
            contexts.rename(draft, place, options)
            return
        except (Py4JJavaError, PySparkException) as error:
            if "UnsupportedFileSystem" not in str(error):  # not every filesystem has a FileContext
                raise
    aside = _path(context, f"{draft.toString()}.old")
    _check_renamed(files.rename(place, aside), place)
    try:
        _check_renamed(files.rename(draft, place), place)
    except BaseException:
        if not files.exists(place):
            files.rename(aside, place)
        raise
    files.delete(aside, True)


def _check_renamed(done: bool, place: Any) -> None:
    if not done:
        raise OSError(f"the filesystem did not rename to {place.toString()}, and does not say why.")


def _resolve(context: SparkContext | None, url: str) -> tuple[Any, Any]:
    """Return the filesystem of a URL and the path on it."""
    path = _path(context, url)
    return path.getFileSystem(_configuration(context)), path


def _path(context: SparkContext | None, url: str) -> Any:
    return _hadoop(context).Path(url)


def _as_url(local: str) -> str:
    return "file:" + os.path.abspath(local)


def _configuration(context: SparkContext | None) -> Any:
    java = context._jsc  # type: ignore[union-attr]  # see _hadoop
    if java is None:
        raise OSError("the SparkContext was stopped, and no filesystem can be reached through it.")
    return java.hadoopConfiguration()


def _hadoop(context: SparkContext | None) -> Any:
    """Return the JVM's package of Hadoop filesystems. Spark has no public Python name for it."""
    return context._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]  # on_hadoop has checked it


@contextmanager
def os_errors(what: str) -> Iterator[None]:
    """Translate errors of the JVM to OSErrors that say what was tried and why it failed."""
    try:
        yield
    except Py4JJavaError as error:
        raise OSError(f"{what}: {error.java_exception.toString()}") from None
    except PySparkException as error:
        raise OSError(f"{what}: {error}") from None
