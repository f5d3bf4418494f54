"""What is shipped to executors once, and may refer to broadcasts of the user's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from pyspark import Broadcast, SparkContext

Value = TypeVar("Value")


def ship(context: SparkContext, value: Value) -> Broadcast[Value]:
    """Broadcast a value. The broadcasts of the user's that it refers to are `unlisted`."""
    with unlisted(context):
        return context.broadcast(value)


@contextmanager
def unlisted(context: SparkContext) -> Iterator[None]:
    """Leave PySpark's list of the broadcasts that were pickled in this thread as it was.

    PySpark ships those with the thread's next job, whatever that is: one that the user has destroyed by then would fail it. There
    is no public name for the list. The job that needs them names them itself (trainer.code.broadcasts_of).
    """
    listed = context._pickled_broadcast_vars
    before = list(listed)
    try:
        yield
    finally:
        listed.clear()
        for broadcast in before:
            listed.add(broadcast)
