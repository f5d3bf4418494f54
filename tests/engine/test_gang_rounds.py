"""Who takes which shard. What gangs train: tests/model/test_gang_fit.py."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from elephas_like.core.types import ShardRef
from elephas_like.engine.gang_rounds import Datasets, Shares, _here, assigned, own, validation_name
from elephas_like.rows.shard_files import remove_dataset
from elephas_like.rows.spool import spool


def test_everybody_takes_his_own_where_all_are_everywhere() -> None:
    assert assigned([[0, 1, 2]] * 3) == [0, 1, 2]


def test_members_that_came_elsewhere_take_what_is_there() -> None:
    assert assigned([[1], [0]]) == [1, 0]
    assert assigned([[0, 1], [0]]) == [1, 0]  # the first could take its own, and gives way
    assert assigned([[0, 2], [0, 2], [1]]) == [0, 2, 1]


def test_none_if_a_shard_or_a_member_is_left_over() -> None:
    assert assigned([[0], [0]]) is None
    assert assigned([[0, 1], []]) is None
    assert assigned([[0], [0], [1, 2]]) is None


@given(
    st.integers(1, 5).flatmap(lambda size: st.lists(st.sets(st.integers(0, size - 1)), min_size=size, max_size=size))
)
def test_an_assignment_is_found_if_there_is_one(found: list[set[int]]) -> None:
    size, given = len(found), [sorted(each) for each in found]
    taken = assigned(given)
    possible = any(all(shard in found[rank] for rank, shard in enumerate(order)) for order in permutations(range(size)))
    assert (taken is not None) == possible
    if taken is not None:
        assert sorted(taken) == list(range(size))
        assert all(shard in found[rank] for rank, shard in enumerate(taken))


def reference(dataset: str, worker: int, rows: int) -> ShardRef:
    told = [(float(row), 1.0) for row in range(rows)]
    return spool(told, dataset=dataset, worker=worker, floatx="float32", expect_target=True)


def spooled(dataset: str, worker: int, rows: int) -> tuple[int, int]:
    ref = reference(dataset, worker, rows)
    return ref.rows, ref.checksum


def test_any_copy_of_a_shard_will_do_if_it_holds_the_same(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    holds = (spooled("first", 0, 3), spooled("first", 1, 5))
    assert set(_here(["first"], holds)) == {0, 1}
    assert set(_here(["first"], (holds[1], holds[1]))) == {1}  # other rows than it should have
    assert set(_here(["second"], holds)) == set()
    spooled("second", 1, 5)
    remove_dataset("first")
    (found,) = _here(["first", "second"], holds).items()
    assert (found[0], found[1].dataset, found[1].rows) == (1, "second", 5)


def test_in_one_place_is_one_directory_of_one_host(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    first, second, held = reference("rows", 0, 3), reference("rows", 1, 5), reference("rows-val", 1, 2)
    alone = Datasets.of(["rows"], [first, second], None)
    assert alone == Datasets(("rows",), ((3, first.checksum), (5, second.checksum)), None, in_one_place=True)
    assert Datasets.of(["rows"], [first, second], [held, held]).in_one_place
    assert not Datasets.of(["rows"], [first, replace(second, host="another")], None).in_one_place
    assert not Datasets.of(["rows"], [first, second], [held, replace(held, host="another")]).in_one_place
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "executor-2"))
    assert not Datasets.of(["rows"], [first, reference("rows", 1, 5)], None).in_one_place


def test_each_opens_its_own_in_one_place(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    training, held = [reference("rows", worker, 3) for worker in (0, 1)], [reference("rows-val", 1, 2)] * 2
    second = SimpleNamespace(rank=1)
    assert own(second, Datasets.of(["rows"], training, None)) == Shares(1, (training[1], None), "")
    assert own(second, Datasets.of(["rows"], training, held)) == Shares(1, (training[1], held[1]), "")
    assert own(SimpleNamespace(rank=0), Datasets.of(["rows"], training, held)) is None  # no rows to validate with
    remove_dataset("rows")
    assert own(second, Datasets.of(["rows"], training, held)) is None


def test_memory_lies_under_the_first_name() -> None:
    assert Datasets(("a-0", "a-1"), (), None).memory == "a-0-memory"
    assert validation_name("a-1") == "a-1-val"
