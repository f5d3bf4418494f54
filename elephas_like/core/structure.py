"""Rows as trees: an input is one array, a tuple of arrays or a dict of arrays. A shard stores the leaves as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from elephas_like.core.types import Structure


def flatten(tree: object) -> tuple[list[object], Structure]:
    """Return the leaves of nested tuples, lists of arrays and dicts, depth first, and their structure for `unflatten`.

    Tuples and dicts are branches. The leaves of a dict come by its sorted keys, whereas the structure keeps the dict's own order, as
    a model may go by it; structures of two orders are equal. A list is a branch only if it holds arrays: a list of numbers is a value, as in
    `([0.1, 0.2], 1)`. None stays None.
    """
    leaves: list[object] = []
    return leaves, _visit(tree, leaves)


def _visit(node: object, leaves: list[object]) -> Structure:
    # A module's function: one that closed over `leaves` would keep the arrays alive until the garbage collector runs.
    if node is None:
        return None
    if isinstance(node, dict):
        found = {key: _visit(node[key], leaves) for key in sorted(node)}
        return {str(key): found[key] for key in node}
    if isinstance(node, tuple) or (isinstance(node, list) and any(getattr(item, "shape", ()) for item in node)):
        return [_visit(item, leaves) for item in node]
    leaves.append(node)
    return len(leaves) - 1


def written(structure: Structure) -> list[int]:
    """Return the numbers of the leaves in the order in which the tree was written: that of its dicts, not of their sorted keys."""
    if structure is None or isinstance(structure, int):
        return [] if structure is None else [structure]
    branches = structure.values() if isinstance(structure, dict) else structure
    return [number for branch in branches for number in written(branch)]


Leaf = TypeVar("Leaf")


def unflatten(structure: Structure, leaves: Sequence[Leaf]) -> object:
    """Return the tree of `structure` with `leaves` at their numbers. Branches come back as tuples and as dicts in its order."""
    if structure is None:
        return None
    if isinstance(structure, int):
        return leaves[structure]
    if isinstance(structure, list):
        return tuple(unflatten(item, leaves) for item in structure)
    return {key: unflatten(item, leaves) for key, item in structure.items()}
