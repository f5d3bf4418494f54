"""Equal objects have equal digests, whichever of their constants are one object."""

from __future__ import annotations

import hashlib
import io
import pickle
import pickletools

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


def by_genops(streams: list[bytes]) -> str:
    """The digest of objects that are neither shared nor within tuples, with the standard library's reader of opcodes."""
    found = hashlib.blake2b(digest_size=16)
    for stream in streams:
        for opcode, argument, _ in pickletools.genops(stream):
            if opcode.name in ("SHORT_BINUNICODE", "BINUNICODE"):
                found.update(f"'{argument}';".encode())
            elif opcode.name not in ("FRAME", "PROTO", "MEMOIZE"):
                found.update(
                    f"{opcode.name};".encode() if argument is None else f"{opcode.name} {argument!r};".encode()
                )
    return found.hexdigest()


@pytest.mark.parametrize(
    "thing",
    [
        [0, 255, 256, 65535, 65536, -1, 2**31, -(2**63), 2**100, 2**3000],
        [0.0, -1.5, float("inf"), 1e-300, None, True, False],
        ["", "a", "ü" * 200, "x" * 70_000],
        [b"", b"a" * 300, bytearray(b"b" * 300), {1, 2}, frozenset([3])],
        {"a": {"b": [{}]}, 2: []},
    ],
    ids=str,
)
def test_opcodes_are_read_as_the_standard_library_reads_them(thing: object) -> None:
    streams = [pickle.dumps(thing, 5)]
    assert digest(streams) == by_genops(streams)


def test_objects_beyond_the_first_256_are_shared_too() -> None:
    parts = [[number] for number in range(300)]
    assert digest(written([parts, parts[299]])) != digest(written([parts, [299]]))
    assert digest(written([parts, parts[299]])) != digest(written([parts, parts[298]]))
    names = [fresh(f"name {number}") for number in range(300)]
    assert digest(written([names, names[299]])) == digest(written([names, fresh("name 299")]))
