"""Pauses of the garbage collector end, one inside another and on errors too; imports of Keras' backends are one."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

from elephas_like.core.extras import require
from elephas_like.core.garbage import collection_paused


def test_the_last_of_several_pauses_ends_them() -> None:
    """The second begins while the first is at it, and ends after it."""
    one, other = collection_paused(), collection_paused()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert not gc.isenabled()
    other.__exit__(None, None, None)
    assert gc.isenabled()


def test_what_stays_for_good_is_old_and_nothing_else() -> None:
    """Python would not begin a full collection for dead models among the old."""
    gc.unfreeze()  # what other tests froze
    for all_stay in (False, True):
        with collection_paused(all_stay=all_stay):
            made = [[]]
        assert any(each is made for each in gc.get_objects(generation=2)) is all_stay


def test_an_error_ends_a_pause() -> None:
    with pytest.raises(ZeroDivisionError), collection_paused():
        assert not gc.isenabled()
        _ = 1 / 0
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_no_garbage_is_looked_for_while_a_backend_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sixth of the seconds that TensorFlow takes went there."""
    (tmp_path / "torch.py").write_text("import gc\n__version__, looked_for = '99.0', gc.isenabled()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    require("torch")
    assert sys.modules.pop("torch").looked_for is False
    assert gc.isenabled()
