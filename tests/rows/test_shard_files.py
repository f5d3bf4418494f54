"""Where shards lie: which disk, whose attempt counts, and that they are removed as a whole."""

from __future__ import annotations

import json
import os
import pickle
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spooling import Spool, columns

from elephas_like.core.columns import verify
from elephas_like.core.errors import ShardMissing
from elephas_like.core.types import ShardRef
from elephas_like.rows.shard_files import (
    IN_USE,
    attempt_directory,
    find_shard,
    from_json,
    read_ref,
    remove,
    remove_dataset,
    roomy_directory,
    to_json,
)
from elephas_like.rows.spool import spool


def test_spooling_again_gives_the_shard_that_is_there(spooled: Spool) -> None:
    rows = [([1.0, 2.0], "a"), ([3.0, 4.0], "b")]
    first = spooled(rows)
    inode = os.stat(first.columns[0].path).st_ino
    assert spooled(iter(rows)) == first
    assert os.stat(first.columns[0].path).st_ino == inode
    assert os.listdir(os.path.dirname(first.directory)) == ["worker-0"]


def test_a_second_attempt_that_is_faster_wins(spooled: Spool) -> None:
    fast: list[ShardRef] = []

    def slow() -> Iterator[object]:
        yield 1, 1
        fast.append(spooled([(1, 1), (2, 2)]))
        yield 2, 2

    assert spooled(slow()) == fast[0]
    assert os.listdir(os.path.dirname(fast[0].directory)) == ["worker-0"]


def test_other_rows_go_beside_the_shard_that_is_there(spooled: Spool) -> None:
    first, second = spooled([(1, 1)]), spooled([(2, 1)])
    assert second.directory.startswith(first.directory + "-")
    assert [column.tolist() for column in columns(first)] == [[1], [1]]
    assert [column.tolist() for column in columns(second)] == [[2], [1]]
    assert read_ref(second.directory) == second


@pytest.mark.parametrize("damage", ["unlink", "truncate", "reference"])
def test_a_damaged_shard_is_not_taken(spooled: Spool, damage: str) -> None:
    first = spooled([(1, 1)])
    path = Path(first.columns[0].path)
    if damage == "unlink":
        path.unlink()
    elif damage == "truncate":
        path.write_bytes(b"")
    else:
        (Path(first.directory) / "shard.json").write_text("{")
    second = spooled([(1, 1)])
    assert second.directory != first.directory
    assert columns(second)[0].tolist() == [1]
    assert second.checksum == first.checksum


def test_references_travel(spooled: Spool) -> None:
    ref = spooled([({"a": 1, "b": "t"}, [1.0], 0.5)])
    assert from_json(to_json(ref), ref.directory) == ref == read_ref(ref.directory) == pickle.loads(pickle.dumps(ref))  # noqa: S301
    assert ref.directory not in json.dumps(to_json(ref))


def test_remove_is_idempotent_and_leaves_the_others(spooled: Spool, tmp_path: Path) -> None:
    one, two = spooled([(1, 1)]), spooled([(1, 1)], worker=1)
    remove(one)
    remove(one)
    assert os.listdir(tmp_path / "elephas_like-d") == ["worker-1"]
    remove(two)
    assert not list(tmp_path.iterdir())


def test_remove_dataset_takes_all_of_one_dataset(spooled: Spool, tmp_path: Path) -> None:
    spooled([(1, 1)])
    spooled([(2, 1)])
    spooled([(1, 1)], dataset="e")
    remove_dataset("d", str(tmp_path))
    remove_dataset("d", str(tmp_path))
    assert os.listdir(tmp_path) == ["elephas_like-e"]


@pytest.mark.parametrize(
    ("environment", "chosen"),
    [
        ({"SPARK_EXECUTOR_DIRS": "{}/a,{}/b", "SPARK_LOCAL_DIRS": "{}/c"}, "a"),
        ({"SPARK_EXECUTOR_DIRS": "", "SPARK_LOCAL_DIRS": "{}/c,{}/d"}, "c"),
        ({}, "tmp"),
    ],
)
def test_the_default_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], chosen: str
) -> None:
    for name in ("SPARK_EXECUTOR_DIRS", "SPARK_LOCAL_DIRS"):
        monkeypatch.setenv(name, environment.get(name, "").replace("{}", str(tmp_path)))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    ref = spool([(1, 1)], dataset="d", worker=0)
    assert ref.directory == str(tmp_path / chosen / "elephas_like-d" / "worker-0")
    remove_dataset("d")
    assert not os.path.exists(os.path.dirname(ref.directory))


def test_a_dataset_whose_last_shard_is_removed_while_another_begins(tmp_path: Path) -> None:
    """One worker writes and removes its shard over and over; another's must not lose its directory in between."""
    done = threading.Event()

    def churn() -> None:
        while not done.is_set():
            remove(spool([(1.0, 2.0)], dataset="shared", worker=0, base=str(tmp_path)))

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(300):
            ref = spool([(3.0, 4.0)], dataset="shared", worker=1, base=str(tmp_path))
            verify(ref)
            remove(ref)
    finally:
        done.set()
        thread.join()
    assert not list(tmp_path.iterdir())


def test_workers_take_turns_among_disks_with_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disks = [tmp_path / name for name in ("one", "two", "three")]
    for disk in disks:
        disk.mkdir()
    monkeypatch.setenv("SPARK_EXECUTOR_DIRS", ",".join(map(str, disks)))
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    free = {str(disks[0]): 100, str(disks[1]): 49, str(disks[2]): 60}
    monkeypatch.setattr(
        "elephas_like.rows.shard_files.shutil.disk_usage", lambda place: SimpleNamespace(free=free[place])
    )
    rows = [([1.0], 2.0)]
    refs = [spool(rows, dataset="disks", worker=worker) for worker in range(4)]
    homes = [Path(ref.directory).parent.parent.name for ref in refs]
    assert homes == ["one", "three", "one", "three"]
    assert [find_shard("disks", worker) for worker in range(4)] == refs
    remove_dataset("disks")
    assert not list(tmp_path.rglob("elephas_like-*"))


def test_a_directory_that_is_not_there_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.setenv("SPARK_EXECUTOR_DIRS", f"{tmp_path / 'gone'},{tmp_path / 'there'}")
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    assert {roomy_directory("disks", worker) for worker in range(3)} == {str(tmp_path / "there")}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["../column-0", "object", "V8", "string"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=80)
@given(st.data())
def test_any_change_of_a_reference_is_another_shard_or_none(spooled: Spool, data: st.DataObject) -> None:
    """Nothing but the documented error comes of a reference that was damaged, and no file elsewhere is read."""
    ref = spooled([([1.0, 2.0], "a"), ([3.0, 4.0], "b")])
    whole = to_json(ref)
    fields = json.loads(whole)
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(whole) - 1))
        text = whole[:place] + data.draw(st.text(max_size=3)) + whole[place + data.draw(st.integers(0, 200)) :]
    else:
        parents = [fields, fields["columns"], *fields["columns"]]
        parent = data.draw(st.sampled_from(parents))
        key = data.draw(st.sampled_from(sorted(parent) if parent is fields else range(len(parent))))
        parent[key] = data.draw(JSON)
        text = json.dumps(fields)
    try:
        found = from_json(text, ref.directory)
        verify(found)
    except (ValueError, ShardMissing):
        return
    assert all(os.path.dirname(column.path) == ref.directory for column in found.columns)


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "{}", '{"columns": 5}', "\ud800"])
def test_a_text_that_is_no_reference_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError):
        from_json(text, str(tmp_path))


@settings(max_examples=60)
@given(st.integers(0, 2), st.integers(0, 40), st.binary(max_size=4))
def test_files_of_another_size_are_missing(spooled: Spool, which: int, place: int, data: bytes) -> None:
    ref = spooled([([1.0, 2.0], "a"), ([3.0, 4.0], "b")], dataset="changed")
    path = Path(ref.directory, ("column-0", "column-1", "column-1.ends")[which])
    kept = path.read_bytes()
    changed = kept[:place] + data
    path.write_bytes(changed)
    try:
        if changed == kept:
            assert len(columns(ref)) == 2
        elif len(changed) != len(kept):
            with pytest.raises(ShardMissing):
                columns(ref)
    finally:
        path.write_bytes(kept)


@pytest.mark.skipif(sys.platform == "win32", reason="no locks")
def test_an_attempt_deletes_what_killed_ones_have_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    monkeypatch.delenv("SPARK_EXECUTOR_DIRS", raising=False)
    killed, unknown = (tmp_path / "elephas_like-lazy" / f".worker-{number}-x" for number in range(2))
    for each in (killed, unknown):
        (each / "elephas_like-chunk").mkdir(parents=True)
    (killed / IN_USE).touch()  # and no process that has locked it
    with attempt_directory("lazy", 2) as alive:
        assert not killed.exists()
        with attempt_directory("other", 0) as other:
            assert Path(alive, IN_USE).exists()
            assert Path(other, IN_USE).exists()
    assert [path.name for path in tmp_path.glob("*/.*")] == [unknown.name]
