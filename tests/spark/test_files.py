"""Files on local paths, on file:// and on viewfs:// with a mount table: one suite for all."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from elephas_like.spark import files


@pytest.fixture(params=["local", "file", "viewfs"])
def base(request: pytest.FixtureRequest, sc, tmp_path: Path) -> str:
    place = tmp_path / "there"
    place.mkdir()
    if request.param == "local":
        return str(place)
    if request.param == "file":
        return f"file://{place}"
    cluster = f"cluster{abs(hash(str(tmp_path)))}"  # Hadoop keeps a filesystem that it has made by its name
    sc._jsc.hadoopConfiguration().set(f"fs.viewfs.mounttable.{cluster}.link./data", f"file://{place}")
    return f"viewfs://{cluster}/data"


def written(folder: Path, text: str = "one") -> str:
    file = folder / "source.txt"
    file.write_text(text)
    return str(file)


def names(tmp_path: Path) -> list[str]:
    return sorted(str(path.relative_to(tmp_path / "there")) for path in (tmp_path / "there").rglob("*"))


def test_a_file_goes_there_and_comes_back(base, sc, tmp_path) -> None:
    target = f"{base}/deep/er/model.txt"
    files.put(written(tmp_path), target, sc)
    assert files.exists(target, sc)
    files.get(target, str(tmp_path / "back.txt"), sc)
    assert (tmp_path / "back.txt").read_text() == "one"
    assert [name for name in names(tmp_path) if not name.endswith(".crc")] == ["deep", "deep/er", "deep/er/model.txt"]


def test_what_is_there_is_replaced_only_where_that_was_said(base, sc, tmp_path) -> None:
    target = f"{base}/model.txt"
    files.put(written(tmp_path), target, sc)
    with pytest.raises(FileExistsError, match="pass overwrite=True"):
        files.put(written(tmp_path, "two"), target, sc)
    assert (tmp_path / "there" / "model.txt").read_text() == "one"
    files.put(written(tmp_path, "two"), target, sc, overwrite=True)
    files.get(target, str(tmp_path / "back.txt"), sc)
    assert (tmp_path / "back.txt").read_text() == "two"
    assert [name for name in names(tmp_path) if not name.endswith(".crc")] == ["model.txt"]


def test_a_directory_goes_there_and_comes_back(base, sc, tmp_path) -> None:
    source = tmp_path / "source"
    (source / "inner").mkdir(parents=True)
    (source / "inner" / "a").write_text("a")
    target = f"{base}/saved"
    files.put(str(source), target, sc)
    (source / "b").write_text("b")
    with pytest.raises(FileExistsError):
        files.put(str(source), target, sc)
    files.put(str(source), target, sc, overwrite=True)
    files.get(target, str(tmp_path / "back"), sc)
    found = {path.name: path.read_text() for path in (tmp_path / "back").rglob("*") if path.is_file()}
    assert {name: text for name, text in found.items() if not name.endswith(".crc")} == {"a": "a", "b": "b"}


def test_what_somebody_else_writes_takes_its_place_whole_or_not_at_all(base, sc, tmp_path) -> None:
    target = f"{base}/deep/saved"

    def write(text: str) -> None:
        with files.staged(target, sc) as draft:
            files.put(written(tmp_path, text), f"{draft}/a", sc, hadoop=True)
            if text == "bad":
                raise KeyError

    write("one")
    with pytest.raises(KeyError):
        write("bad")
    assert (tmp_path / "there" / "deep" / "saved" / "a").read_text() == "one"
    write("two")
    assert [name for name in names(tmp_path) if not name.endswith(".crc")] == ["deep", "deep/saved", "deep/saved/a"]
    assert (tmp_path / "there" / "deep" / "saved" / "a").read_text() == "two"


def test_what_is_not_there_is_not_found(base, sc, tmp_path) -> None:
    assert not files.exists(f"{base}/none", sc)
    with pytest.raises(FileNotFoundError, match="none does not exist"):
        files.get(f"{base}/none", str(tmp_path / "back"), sc)


def test_half_a_file_is_never_seen(base, sc, tmp_path) -> None:
    """The source is gone: what was there stays, and nothing is left beside it."""
    target = f"{base}/model.txt"
    files.put(written(tmp_path), target, sc)
    with pytest.raises(OSError, match="gone"):
        files.put(str(tmp_path / "gone"), target, sc, overwrite=True)
    assert (tmp_path / "there" / "model.txt").read_text() == "one"
    assert [name for name in names(tmp_path) if not name.endswith(".crc")] == ["model.txt"]


def test_a_filesystem_that_nobody_has_says_so(sc, tmp_path) -> None:
    with pytest.raises(OSError, match=r"cannot .* nosuch://x/y: .*No FileSystem for scheme"):
        files.put(written(tmp_path), "nosuch://x/y", sc)


def test_without_spark_urls_are_refused_but_for_files(tmp_path) -> None:
    with pytest.raises(ValueError, match="start a SparkSession first"):
        files.exists("hdfs://x/y")
    files.put(written(tmp_path), f"file://{tmp_path}/a.txt")
    assert (tmp_path / "a.txt").read_text() == "one"


def test_signs_of_urls_are_letters_of_a_files_name() -> None:
    """As to Spark: cut there, runs of one name and two numbers would be one place."""
    for name in ("run#1", "run?of=1", "run;1", "a b", "at=12%3A00"):
        for url in (f"file:///tmp/{name}", f"file:/tmp/{name}", f"file://localhost/tmp/{name}"):
            assert files.local_path(url) == str(files.driver_path(url, "a file")) == f"/tmp/{name}"
    assert files.canonical("file:///tmp/run#1") != files.canonical("file:///tmp/run#2")


def test_a_url_of_a_file_is_one_place_with_spark_and_without(sc, tmp_path) -> None:
    url = f"file://{tmp_path}/there/a%20b#1.txt"
    files.put(written(tmp_path), url, sc)
    files.get(url, str(tmp_path / "back.txt"))
    assert (tmp_path / "back.txt").read_text() == "one"


def test_a_tilde_is_the_home_directory(tmp_path, monkeypatch) -> None:
    home = tmp_path / "there"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    files.put(written(tmp_path), "~/models/one.txt")
    assert names(tmp_path) == ["models", "models/one.txt"]
    assert files.exists("~/models/one.txt")
    files.get("~/models/one.txt", str(tmp_path / "back.txt"))
    assert (tmp_path / "back.txt").read_text() == "one"
    assert files.absolute("~/models/") == files.canonical("~/models") == str(home / "models")
    files.remove("~/models")
    assert names(tmp_path) == []


def test_what_is_kept_on_the_driver_goes_to_no_other_filesystem(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        files.driver_path("a/b", "a file") == files.driver_path(f"file://{tmp_path}/a/b", "a file") == tmp_path / "a/b"
    )
    with pytest.raises(ValueError, match=r"a file is kept on a disk of the driver; got 'hdfs:///a/b'"):
        files.driver_path("hdfs:///a/b", "a file")
    with pytest.raises(ValueError, match=r"a file must be a path; got ''"):  # it was the working directory
        files.driver_path("", "a file")


@pytest.mark.parametrize(
    "use", [files.local_path, files.canonical, files.exists, lambda url: files.driver_path(url, "")]
)
@pytest.mark.parametrize("url", ["file://runs", "file://runs/1"])
def test_a_file_url_with_a_slash_too_few_is_refused(use, url: str) -> None:
    """Without its host it was the working directory, or a directory of the root's."""
    with pytest.raises(ValueError, match="names a host, 'runs', and a file: URL is of this machine"):
        use(url)


def test_urls_are_told_from_paths() -> None:
    assert all(map(files.is_url, ("hdfs://a/b", "file:/a", "s3a://b", "dbfs:/a")))
    assert not any(map(files.is_url, ("/a/b", "a:b", "C:/a", "model.keras", "a/b://c")))


def test_a_plain_path_is_of_the_default_filesystem_where_hadoop_is_said(sc, tmp_path) -> None:
    target = str(tmp_path / "plain.txt")
    files.put(written(tmp_path), target, sc, hadoop=True)  # Spark's default is file:/// here
    assert os.path.exists(target)
    assert files.exists(target, sc, hadoop=True)


def test_a_directory_takes_the_place_of_a_file_and_a_file_that_of_a_directory(base, sc, tmp_path) -> None:
    source, target = tmp_path / "source", f"{base}/saved"
    source.mkdir()
    (source / "a").write_text("a")
    files.put(written(tmp_path), target, sc)
    files.put(str(source), target, sc, overwrite=True)
    files.get(target, str(tmp_path / "back"), sc)
    assert (tmp_path / "back" / "a").read_text() == "a"
    files.put(written(tmp_path, "two"), target, sc, overwrite=True)
    assert (tmp_path / "there" / "saved").read_text() == "two"
    assert [name for name in names(tmp_path) if not name.endswith(".crc")] == ["saved"]


def test_a_link_to_a_directory_is_replaced(tmp_path) -> None:
    source, version = tmp_path / "source", tmp_path / "v1"
    for folder in (source, version):
        folder.mkdir()
        (folder / "a").write_text(folder.name)
    (tmp_path / "current").symlink_to(version)
    files.put(str(source), str(tmp_path / "current"), None, overwrite=True)
    assert (tmp_path / "current" / "a").read_text() == "source"
    assert (version / "a").read_text() == "v1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current", "source", "v1"]


def test_a_directory_whose_replacement_fails_is_there_as_before(tmp_path, monkeypatch) -> None:
    source, target = tmp_path / "source", tmp_path / "saved"
    for folder, text in ((source, "new"), (target, "old")):
        folder.mkdir()
        (folder / "a").write_text(text)

    def full(*paths: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        files.put(str(source), str(target), overwrite=True)
    assert (target / "a").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved", "source"]


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.EACCES])
def test_what_cannot_be_looked_at_may_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def broken(path: object, *given: object, **named: object) -> os.stat_result:
        raise OSError(number, os.strerror(number), path)

    target = str(tmp_path / "model.txt")
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", broken)
        with pytest.raises(OSError, match=r"model\.txt") as caught:
            files.exists(target)
    assert caught.value.errno == number


def test_names_that_no_file_can_have_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    for name in ("missing", "file/below", "a" * 300, "nul\0", "loop", "gone"):
        assert not files.exists(str(tmp_path / name))
    assert files.exists(str(tmp_path / "file"))
    assert files.exists(str(tmp_path))


@pytest.mark.parametrize("use", [files.exists, files.remove])
def test_a_filesystem_of_a_session_that_was_stopped_is_said_to_be_so(sc, use: Callable) -> None:
    stopped = SimpleNamespace(_jvm=sc._jvm, _jsc=None)  # as SparkContext.stop leaves it
    with pytest.raises(OSError, match="the SparkContext was stopped"):
        use("hdfs://somewhere/checkpoints", stopped)


@pytest.mark.parametrize("base", ["file", "viewfs"], indirect=True)
def test_what_is_left_of_writes_to_a_target_is_deleted(base, sc, tmp_path) -> None:
    files.remove_drafts(f"{base}/nowhere/model.txt", sc)
    place, half = tmp_path / "there", "0" * 32
    others = {"model.txt", ".model.json." + half, ".model.txt." + half[1:], ".model-txt." + half, "model.txt." + half}
    for name in (*others, ".model.txt." + half, ".model.txt." + half[1:] + "f"):
        (place / name).write_text("half of it")
    files.remove_drafts(f"{base}/model.txt", sc)
    assert set(names(tmp_path)) == others
