from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from plain_numpy import LAYOUT, floats, integers

from elephas_like.core.layout import Layout, LayoutEntry
from elephas_like.core.types import Role, TrainState

# Roles alternate on purpose: a variable's place in its vector is not its place among the variables.
MIXED = Layout(
    (
        LayoutEntry("kernel", Role.WEIGHT, (2, 3), "float32"),
        LayoutEntry("moving_mean", Role.STATISTIC, (2,), "float32"),
        LayoutEntry("gain", Role.WEIGHT, (), "float16"),
        LayoutEntry("moving_variance", Role.STATISTIC, (2,), "float32", variance_of=0),
        LayoutEntry("count", Role.COUNTER, (), "int32"),
        LayoutEntry("bias", Role.WEIGHT, (0,), "float32"),
        LayoutEntry("seed", Role.SEED, (2,), "uint32"),
    )
)
VALUES = [
    np.array([[1, 2, 3], [4, 5, 6]], np.float32),
    floats(10, 11),
    np.array(7, np.float16),
    floats(20, 21),
    np.array(3, np.int32),
    floats(),
    np.array([4_000_000_000, 1], np.uint32),
]


def test_sizes_and_places() -> None:
    assert MIXED.size(Role.WEIGHT) == 7  # 2 x 3, one scalar, one without numbers
    assert MIXED.slices(Role.WEIGHT) == [slice(0, 6), slice(6, 7), slice(7, 7)]
    assert MIXED.slices(Role.STATISTIC) == [slice(0, 2), slice(2, 4)]
    assert MIXED.size(Role.SLOT) == 0
    assert MIXED.slices(Role.SLOT) == []
    assert [entry.name for entry in MIXED.of(Role.WEIGHT)] == ["kernel", "gain", "bias"]


def test_flatten_puts_roles_together() -> None:
    flat = MIXED.flatten(VALUES)
    assert flat.weights.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert flat.statistics.tolist() == [10, 11, 20, 21]
    assert flat.counters.tolist() == [3]
    assert flat.seeds.tolist() == [4_000_000_000, 1]  # beyond int32
    assert flat.slots.size == flat.learning_rate.size == flat.loss_scale.size == 0
    assert {part.dtype.name for part in (flat.weights, flat.statistics, flat.slots)} == {"float32"}
    assert {part.dtype.name for part in (flat.counters, flat.seeds)} == {"int64"}


def test_a_role_is_float64_where_one_of_its_variables_is() -> None:
    layout = Layout((*MIXED.entries, LayoutEntry("since", Role.STATISTIC, (), "float64")))
    flat = layout.flatten([*VALUES, np.array(1_764_000_000.125)])
    assert flat.statistics.tolist() == [10, 11, 20, 21, 1_764_000_000.125]
    assert {role.value for role in Role if layout.dtype(role) == "float64"} == {"statistics"}
    assert {role: part.dtype.name for role, part in flat.parts().items()} == {
        role.value: layout.dtype(role) for role in Role
    }


def test_there_and_back() -> None:
    for value, back in zip(VALUES, MIXED.unflatten(MIXED.flatten(VALUES)), strict=True):
        assert back.shape == value.shape
        np.testing.assert_array_equal(back, value)


def test_a_state_is_a_copy_of_the_variables() -> None:
    values = [value.copy() for value in VALUES]
    flat = MIXED.flatten(values)
    values[1][0] = -1
    assert flat.statistics.tolist() == [10, 11, 20, 21]


def test_views_are_views() -> None:
    flat = np.arange(7, dtype=np.float32)
    kernel, gain, bias = MIXED.views(flat, Role.WEIGHT)
    kernel[1, 2] = 50
    gain[()] = 60
    assert flat.tolist() == [0, 1, 2, 3, 4, 50, 60]
    assert bias.shape == (0,)


def test_a_variable_too_few_is_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        MIXED.flatten(VALUES[:-1])


def test_variances_know_their_means() -> None:
    assert MIXED.variances() == [(slice(0, 2), slice(2, 4))]
    plain = Layout((LayoutEntry("x", Role.STATISTIC, (2,), "float32"),))
    assert plain.variances() == []


def test_mean_after_its_variance() -> None:
    turned = Layout(
        (
            LayoutEntry("variance", Role.STATISTIC, (3,), "float32", variance_of=1),
            LayoutEntry("mean", Role.STATISTIC, (3,), "float32"),
        )
    )
    assert turned.variances() == [(slice(3, 6), slice(0, 3))]


def changed(index: int, **fields: object) -> Layout:
    entries = list(LAYOUT.entries)
    entries[index] = replace(entries[index], **fields)
    return Layout(tuple(entries))


def test_the_hash_is_of_roles_shapes_and_dtypes() -> None:
    assert changed(0, name="kernel_17").hash == LAYOUT.hash
    others = [
        changed(0, shape=(3,)),
        changed(0, shape=(2, 1)),
        changed(0, dtype="float16"),
        changed(0, role=Role.SLOT),
        Layout(LAYOUT.entries[::-1]),
        Layout(LAYOUT.entries[:-1]),
        Layout(()),
    ]
    assert len({LAYOUT.hash, *(other.hash for other in others)}) == 8


def test_a_model_of_nothing() -> None:
    flat = Layout(()).flatten([])
    assert flat.nbytes == 0
    assert Layout(()).unflatten(flat) == []
    assert isinstance(flat, TrainState)
    assert flat.counters.dtype == integers().dtype
