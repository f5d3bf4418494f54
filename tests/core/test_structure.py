from __future__ import annotations

import gc
import json
import weakref

import numpy as np
import pytest

from elephas_like.core.structure import flatten, unflatten, written


@pytest.mark.parametrize(
    ("tree", "leaves", "structure"),
    [
        (5, [5], 0),
        ((1, 2), [1, 2], [0, 1]),
        (({"b": 1, "a": 2}, 3), [2, 1, 3], [{"a": 0, "b": 1}, 2]),  # dicts by name
        ((1, None, 2), [1, 2], [0, None, 1]),
        (((1, (2,)), ()), [1, 2], [[0, [1]], []]),
        (([0.1, 0.2], 1), [[0.1, 0.2], 1], [0, 1]),  # a list of numbers is a value
        ({3: "x", 1: "y"}, ["y", "x"], {"1": 0, "3": 1}),
        (None, [], None),
    ],
)
def test_flatten(tree: object, leaves: list[object], structure: object) -> None:
    assert flatten(tree) == (leaves, structure)


def test_a_dict_keeps_its_order_and_its_leaves_are_sorted() -> None:
    leaves, structure = flatten(({"b": 1, "a": {"d": 2, "c": 3}}, 4))
    assert leaves == [3, 2, 1, 4]
    assert json.dumps(structure) == '[{"b": 2, "a": {"d": 1, "c": 0}}, 3]'
    assert str(unflatten(structure, leaves)) == "({'b': 1, 'a': {'d': 2, 'c': 3}}, 4)"
    assert structure == flatten(({"a": {"c": 0, "d": 0}, "b": 0}, 0))[1]


def test_the_order_in_which_a_tree_was_written() -> None:
    assert written(flatten(({"b": 1, "a": {"d": 2, "c": 3}}, None, 4))[1]) == [2, 1, 0, 3]
    assert written(flatten(1)[1]) == [0]
    assert written(None) == []


def test_a_list_of_arrays_is_a_branch() -> None:
    one, two = np.zeros(2), np.ones(3)
    leaves, structure = flatten(([one, two], 1))
    assert structure == [[0, 1], 2]
    assert leaves[0] is one
    assert leaves[1] is two


def test_a_list_of_numpy_scalars_is_a_value() -> None:
    numbers = [np.float32(1), np.float32(2)]
    assert flatten((numbers, 1)) == ([numbers, 1], [0, 1])


def test_branches_come_back_as_tuples_and_dicts() -> None:
    tree = ({"a": 1, "b": (2, None)}, 3)
    leaves, structure = flatten(tree)
    assert unflatten(structure, leaves) == tree
    assert unflatten([[0, 1]], "xy") == (("x", "y"),)


def test_other_leaves_take_the_places() -> None:
    _, structure = flatten(({"a": 1, "b": 2}, 3))
    assert unflatten(structure, ["A", "B", "C"]) == ({"a": "A", "b": "B"}, "C")


def test_leaves_are_let_go() -> None:
    class Leaf:
        pass

    leaf = Leaf()
    gone = weakref.ref(leaf)
    gc.disable()
    try:
        flatten(((leaf,),))
        del leaf
        assert gone() is None  # no cycle that waits for the garbage collector
    finally:
        gc.enable()
