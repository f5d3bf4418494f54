"""What is shipped to executors may refer to broadcasts, which are no business of the next job."""

from __future__ import annotations

import pytest

from elephas_like.spark.broadcasts import ship

pytestmark = pytest.mark.classic


def test_a_broadcast_that_is_destroyed_fails_no_later_job(sc) -> None:
    inner = sc.broadcast(1)
    outer = ship(sc, [inner])
    inner.destroy()
    assert sc.range(2).map(lambda number: number + 1).collect() == [1, 2]
    outer.destroy()
