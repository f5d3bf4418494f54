"""One-hot rows and padded labels."""

from __future__ import annotations

import pytest

from elephas_like.compat.labels import encode_label, pad_labels


def test_a_class_is_a_one_among_zeros() -> None:
    assert encode_label(2.0, 4).tolist() == [0.0, 0.0, 1.0, 0.0]
    for label in (4, -1, 1.5):
        with pytest.raises(ValueError, match="a class from 0 to 3"):
            encode_label(label, 4)


def test_sequences_are_filled_up() -> None:
    assert pad_labels([[1, 2], [3]], 3, -100).tolist() == [[1, 2, -100], [3, -100, -100]]
    with pytest.raises(ValueError, match="shorter than the longest sequence of labels, 2"):
        pad_labels([[1, 2]], 1, 0)
