"""Who takes which shard. What gangs train: tests/model/test_gang_fit.py."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from elephas_like.engine.gang_rounds import Datasets, assigned


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


def test_all_datasets_of_a_fit_are_named_for_deletion() -> None:
    assert Datasets("a", None, "m").all() == ["a", "m"]
    assert Datasets("a", "v", "m").all() == ["a", "m", "v"]
