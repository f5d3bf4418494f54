"""Arrow arrays as NumPy arrays: shapes and values worked out by hand, and rows that do not fit named."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from elephas_like.rows.vectors import Unfit, as_arrow, binaries, first_null, images, nested, numbers, texts, vectors

VECTOR = pa.struct(
    [("type", pa.int8()), ("size", pa.int32()), ("indices", pa.list_(pa.int32())), ("values", pa.list_(pa.float64()))]
)


def sparse(size: int, indices: list[int], values: list[float]) -> dict[str, object]:
    return {"type": 0, "size": size, "indices": indices, "values": values}


def dense(*values: float) -> dict[str, object]:
    return {"type": 1, "size": None, "indices": None, "values": list(values)}


def test_dense_and_sparse_vectors_mixed_also_in_a_slice() -> None:
    rows = [dense(9, 9, 9), sparse(3, [2], [5.0]), dense(1, 2, 3), sparse(3, [], []), sparse(3, [0, 1], [7.0, 8.0])]
    array = pa.array(rows, VECTOR)
    expected = [[9, 9, 9], [0, 0, 5], [1, 2, 3], [0, 0, 0], [7, 8, 0]]
    assert vectors(array, "float32").tolist() == expected
    for begin in range(5):
        for count in range(1, 6 - begin):
            assert vectors(array.slice(begin, count), "float32").tolist() == expected[begin : begin + count]
    assert vectors(array, "float64").dtype == np.float64
    assert vectors(array.slice(0, 0), "float32").shape == (0, 0)


def test_vectors_of_other_sizes_are_named() -> None:
    with pytest.raises(Unfit, match="expected 2 values, as in the rows before, got 3") as caught:
        vectors(pa.array([dense(1, 2), sparse(2, [0], [1.0]), sparse(3, [0], [1.0])], VECTOR), "float32")
    assert caught.value.row == 2


def test_lists_of_lists_become_one_array_also_in_a_slice() -> None:
    array = pa.array([[[1, 2], [3, 4], [5, 6]], [[7, 8], [9, 10], [11, 12]]], pa.list_(pa.list_(pa.int64())))
    assert nested(array).shape == (2, 3, 2)
    assert nested(array.slice(1)).tolist() == [[[7, 8], [9, 10], [11, 12]]]
    assert nested(pa.array([["a", "b"], ["c", "d"]])).tolist() == [["a", "b"], ["c", "d"]]


@pytest.mark.parametrize(
    ("rows", "row", "said"),
    [
        ([[[1, 2]], [[3, 4], [5, 6]]], 1, "expected 1 values, as in the rows before, got 2"),
        ([[[1, 2], [3, 4]], [[5, 6], [7]]], 1, "expected 2 values, as in the rows before, got 1"),
        ([[[1, 2], [3, 4]], None], 1, "got null"),
        ([[[1, 2], None], [[1, 2], [1, 2]]], 0, "null"),
        ([[[1, 2], [3, 4]], [[1, 2], [3, None]]], 1, "an array with a null in it"),
    ],
)
def test_ragged_rows_and_nulls_are_named(rows: list[object], row: int, said: str) -> None:
    with pytest.raises(Unfit, match=said) as caught:
        nested(pa.array(rows, pa.list_(pa.list_(pa.int64()))))
    assert caught.value.row == row


def test_numbers_keep_their_dtype_and_nulls_are_refused() -> None:
    assert numbers(pa.array([1, 2], pa.int16())).dtype == np.int16
    assert numbers(pa.array([True, False])).tolist() == [True, False]
    with pytest.raises(Unfit, match="got null") as caught:
        numbers(pa.array([1.0, None]))
    assert caught.value.row == 1
    assert texts(pa.array(["a", "bc"])).tolist() == ["a", "bc"]


def test_bytes_are_read_as_little_endian_values() -> None:
    parts = [np.array(row, "<f4").tobytes() for row in ([1.5, 2.5], [3.5, 4.5])]
    assert binaries(pa.array(parts), "float32").tolist() == [[1.5, 2.5], [3.5, 4.5]]
    with pytest.raises(Unfit, match="whole float64 values of 8 bytes, got 4 bytes"):
        binaries(pa.array([b"1234"]), "float64")


def test_images_of_one_size() -> None:
    kind = pa.struct(
        [
            ("origin", pa.string()),
            ("height", pa.int32()),
            ("width", pa.int32()),
            ("nChannels", pa.int32()),
            ("mode", pa.int32()),
            ("data", pa.binary()),
        ]
    )

    def image(height: int, width: int, data: bytes) -> tuple[object, ...]:
        return ("a.png", height, width, 3, 16, data)

    array = pa.array([image(1, 2, bytes(range(6))), image(1, 2, bytes(range(6, 12)))], kind)
    assert images(array).tolist() == [[[[0, 1, 2], [3, 4, 5]]], [[[6, 7, 8], [9, 10, 11]]]]
    assert images(array).dtype == np.uint8
    with pytest.raises(
        Unfit, match=r"expected an image of \(height, width, channels, mode\) \(1, 2, 3, 16\), got \(2, 1"
    ):
        images(pa.array([image(1, 2, bytes(6)), image(2, 1, bytes(6))], kind))
    with pytest.raises(Unfit, match="not decoded"):
        images(pa.array([("broken", -1, -1, -1, -1, b"")], kind))


def test_arrays_go_back_to_arrow_as_exactly_the_type_that_is_said() -> None:
    kind = pa.list_(pa.list_(pa.float32()))
    values = np.arange(12, dtype=np.float64).reshape(2, 3, 2)
    array = as_arrow(values, kind)
    assert array.type == kind
    assert array.to_pylist() == values.tolist()
    assert as_arrow(np.zeros((0, 3)), pa.list_(pa.float32())).to_pylist() == []
    assert as_arrow(np.array([1, 2], np.int32), pa.float64()).type == pa.float64()


@pytest.mark.parametrize("kind", [pa.list_(pa.list_(pa.int64())), pa.large_list(pa.list_(pa.int64(), 2))])
def test_the_first_row_with_a_null_is_found_in_lists_chunks_and_slices(kind: pa.DataType) -> None:
    full = pa.array([[[1, 2]], [[3, 4], [5, 6]], []], kind)
    holes = pa.array([[[1, 2]], [[3, 4], [5, None]], [None], None], kind)
    assert first_null(pa.chunked_array([full, full])) is None
    assert first_null(pa.chunked_array([full, holes])) == 4
    for begin, row in ((0, 1), (1, 0), (2, 0), (3, 0)):
        assert first_null(pa.chunked_array([holes.slice(begin)])) == row
    assert first_null(pa.chunked_array([holes.slice(0, 1)])) is None
    assert first_null(pa.chunked_array([holes.slice(0, 2).slice(1), full])) == 0
