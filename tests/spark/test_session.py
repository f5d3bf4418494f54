"""What a session says of itself. Those of Spark Connect: tests/connect."""

from __future__ import annotations

import pytest

from elephas_like.core.types import EngineName
from elephas_like.spark.session import (
    active_context,
    active_remote,
    active_session,
    conf_of,
    context_of,
    is_local,
    is_local_master,
    is_on,
    is_remote,
)


@pytest.mark.parametrize(
    ("master", "local"),
    [("local", True), ("local[2]", True), ("local[*]", True), ("local-cluster[2,1,1024]", False), ("yarn", False)],
)
def test_which_masters_run_tasks_in_the_driver(master: str, local: bool) -> None:
    assert is_local_master(master) is local


def test_a_classic_session(spark, sc) -> None:
    assert not is_remote(spark)
    assert context_of(spark) is sc
    assert is_local(sc)
    assert conf_of(spark).get("spark.master", "") == "local[2]"
    assert active_session() is spark
    assert active_remote() is None
    assert active_context(EngineName.GANG) is sc
    assert active_context(EngineName.IN_PROCESS) is None


def test_a_setting_is_on_in_any_case_and_off_if_it_is_not_set() -> None:
    class Settings:
        def get(self, name: str, default: str) -> str:
            return {"a": "TRUE", "b": "false"}.get(name, default)

    assert [is_on(Settings(), name) for name in "abc"] == [True, False, False]
