"""What cancels the caller's job group ends the fits and searches in it: a notebook's stop button. (Stopped queries: test_streams.py)"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import keras
import pytest
from small import classifier, digits, line, points, rows

from elephas_like import SparkModel, search
from elephas_like.core.errors import ElephasError

FOREVER = 1_000_000


@contextmanager
def cancelled(sc, group: str) -> Iterator[threading.Event]:
    """Put the jobs of this thread into a group, which is cancelled again and again as soon as the event is set."""
    begun, ended = threading.Event(), threading.Event()

    def cancel() -> None:
        begun.wait(240)
        while not ended.wait(0.1):
            sc.cancelJobGroup(group)

    cancelling = threading.Thread(target=cancel)
    sc.setJobGroup(group, "what a notebook's cell runs")
    cancelling.start()
    try:
        yield begun
    finally:
        begun.set()
        ended.set()
        cancelling.join()
        sc.setLocalProperty("spark.jobGroup.id", None)
        sc.setLocalProperty("spark.job.description", None)


@pytest.mark.parametrize(
    ("mode", "engine"), [("synchronous", "server"), ("asynchronous", "server"), ("synchronous", "jobs")]
)
def test_a_fit_ends_with_the_group_that_it_was_started_in(sc, mode: str, engine: str) -> None:
    with cancelled(sc, "a-cell") as begun, pytest.raises(ElephasError, match="cancelled"):
        SparkModel(line(), 2, mode=mode, engine=engine).fit(
            sc.parallelize(points(20), 2),
            epochs=FOREVER,
            verbose=0,
            callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: begun.set())],
        )
    assert not sc.statusTracker().getActiveJobsIds()


def build(params: dict) -> keras.Model:
    return classifier(optimizer=keras.optimizers.Adam(params["rate"]))


def test_a_search_ends_with_the_group_that_it_was_started_in(sc, tmp_path: Path) -> None:
    x, y = (part[:100] for part in digits())

    class Begun(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            (tmp_path / "begun").touch()

    with cancelled(sc, "a-cell") as begun:

        def look() -> None:
            while not (tmp_path / "begun").exists() and not begun.wait(0.1):
                pass
            begun.set()

        looking = threading.Thread(target=look)
        looking.start()
        with pytest.raises(ElephasError, match=r"job group of the caller was cancelled\. Trials that had ended: 0"):
            search(
                build,
                {"rate": ("loguniform", -6, -3)},
                sc.parallelize(rows(x, y), 2),
                max_evals=4,
                epochs=FOREVER,
                objective="loss",
                callbacks=[Begun()],
                verbose=0,
            )
        begun.set()
        looking.join()
    assert not sc.statusTracker().getActiveJobsIds()
