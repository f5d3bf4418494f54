"""Who takes which shard. What gangs train: tests/model/test_gang_fit.py."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from elephas_like.engine.gang_rounds import Datasets, _here, assigned, validation_name
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


def spooled(dataset: str, worker: int, rows: int) -> tuple[int, int]:
    ref = spool(
        [(float(row), 1.0) for row in range(rows)], dataset=dataset, worker=worker, floatx="float32", expect_target=True
    )
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


def test_memory_lies_under_the_first_name() -> None:
    assert Datasets(("a-0", "a-1"), (), None).memory == "a-0-memory"
    assert validation_name("a-1") == "a-1-val"
