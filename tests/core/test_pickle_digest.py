"""Equal objects have equal digests, whichever of their constants are one object."""

from __future__ import annotations

import io
import pickle

import pytest

from elephas_like.core.pickle_digest import digest


def written(*things: object) -> list[bytes]:
    """The pickles of some things by one Pickler, which remembers what it has written."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=5)
    streams = []
    for thing in things:
        file.seek(0)
        file.truncate()
        pickler.dump(thing)
        streams.append(file.getvalue())
    return streams


def fresh(text: str) -> str:
    """An equal string that is another object."""
    return "".join(list(text))


def test_strings_count_by_what_they_say() -> None:
    shared = fresh("rate")
    one, other = [shared, shared], [fresh("rate"), fresh("rate")]
    assert pickle.dumps(one) != pickle.dumps(other)
    assert digest(written(one)) == digest(written(other))
    assert digest(written(one)) != digest(written([fresh("rate"), fresh("date")]))


@pytest.mark.parametrize("size", range(6))
def test_tuples_of_constants_count_by_what_they_hold(size: int) -> None:
    def made(last: object = "x") -> tuple[object, ...]:
        return (*[(number, b"b", 0.5, None) for number in range(size)], last)

    shared = made()
    assert digest(written([shared, shared, [1]])) == digest(written([made(), made(), [1]]))
    assert digest(written([shared, shared, [1]])) != digest(written([made(), made("y"), [1]]))
    assert digest(written([made(), made()])) != digest(written([list(made()), list(made())]))


def test_tuples_of_objects_count_by_where_these_are_shared() -> None:
    part = [1]
    assert digest(written([(1, part), (1, part)])) != digest(written([(1, [1]), (1, [1])]))
    assert digest(written([(1, 2, 3, 4, part), part])) != digest(written([(1, 2, 3, 4, [1]), [1]]))


def test_objects_count_by_where_they_are_shared() -> None:
    part = [1]
    assert digest(written([part, part])) != digest(written([[1], [1]]))
    assert digest(written([part, part])) == digest(written([(other := [1]), other]))


def test_a_later_pickle_refers_to_an_earlier_one() -> None:
    part, name = [1], fresh("name")
    assert digest(written([part, name], [part, name])) == digest(written([part, fresh("name")], [part, fresh("name")]))
    assert digest(written([part], [part])) != digest(written([part], [[1]]))


@pytest.mark.parametrize("other", [2, 1.0, True, None, b"1", "1", (1,), {1: 1}])
def test_values_count(other: object) -> None:
    assert digest(written([1])) != digest(written([other]))


def test_names_stand_for_others_alone_and_in_paths() -> None:
    names = [{"dense_7": "dense#0", "model_2": "model#0"}, {"dense": "dense#0", "model": "model#0"}]
    digests = [
        digest(written([name, f"{model}/{name}/kernel", "kernel"]), renaming)
        for name, model, renaming in (("dense_7", "model_2", names[0]), ("dense", "model", names[1]))
    ]
    assert digests[0] == digests[1]
    assert digest(written(["dense_70"]), names[0]) != digest(written(["dense_7"]), names[0])
