"""A script: fits and a search whose SparkContext is stopped under way, by Python or in the JVM: what is said and left.

Also what is said, once it is stopped, by fits and searches that need no Spark: that they run in this process.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
from pyspark import SparkContext
from pyspark.sql import SparkSession
from session import say, started
from small import line, points

import elephas_like
from elephas_like import ElephasEstimator, SparkModel
from elephas_like.core.errors import ElephasError
from elephas_like.core.objective import Objective
from elephas_like.core.trials import TrialResult, TrialStatus
from elephas_like.tuning.log import ModelStore, SearchLog
from elephas_like.tuning.runner import Limits, PruningMonitor, Search, summary
from elephas_like.tuning.space import Sampler, Space
from elephas_like.tuning.trial_runs import opened


def searched(context: SparkContext, how: str, folder: Path) -> dict[str, object]:
    """A search of two trials at a time; when the first has ended, and the second waits for nothing, the context ends."""

    def waits(order, shards, report):
        if order.number:
            threading.Event().wait(600)
        return TrialResult(order.number, TrialStatus.OK, ({"loss": 1.0},), 0, 1.0)

    def size(params: dict) -> int:
        sizes.append(1)
        if len(sizes) == 3:
            context.stop() if how == "python" else context._jsc.sc().stop()
        return 1

    sizes: list[int] = []
    goal, kept = Objective("loss"), SearchLog(folder)
    kept.begin({"seed": 0}, "never")
    monitor, sampler = PruningMonitor(goal, None, 1, None), Sampler(Space({"x": ("uniform", 0, 1)}), "random", 0)
    search = Search(sampler, goal, monitor, Limits(20), ModelStore(1), kept, size, 0)
    said = ""
    try:
        with opened(context, waits, (), monitor, parallelism=2, reports=False, name="stopped") as slots:
            search.run(slots)
    except ElephasError as error:
        said = str(error)
    if how == "jvm":
        context.stop()
    return {"said": said, "trials": summary(search.records), "kept": (folder / "trials.jsonl").read_text().count("\n")}


def warned(*uses: Callable[[], object]) -> list[str]:
    """What is said of the SparkContext, each time that it is."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for use in uses:
            use()
    return [str(each.message) for each in found if "SparkContext" in str(each.message)]


def main(how: str) -> None:
    scratch = Path(tempfile.gettempdir())
    held = (np.zeros((4, 2)), np.zeros(4))
    answer: dict[str, object] = {"warned before": warned(lambda: SparkModel(line(), 2).fit(*held, verbose=0))}
    context = started("local[2]", "stopped")
    logging.basicConfig(level=logging.WARNING)
    model = line()
    finished: list[list[np.ndarray]] = []

    class Stops(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict) -> None:
            finished.append(self.model.get_weights())
            if epoch == 1:
                context.stop() if how == "python" else context._jsc.sc().stop()

    dataset = elephas_like.shard(context.parallelize(points(20), 2), 2)
    frame = SparkSession(context).createDataFrame([([1.0, 2.0], 3.0)] * 4, ["features", "label"])
    try:
        SparkModel(model, 2, engine="jobs").fit(
            dataset, epochs=4, verbose=0, callbacks=[Stops()], validation_data=held, validation_freq=4
        )
    except Exception as error:
        answer |= {"type": type(error).__name__, "said": str(error), "context": error.__context__ is not None}
    same = zip(model.get_weights(), finished[-1], strict=True)
    answer["weights_of_the_last_round"] = all((a == b).all() for a, b in same)
    try:
        SparkModel(model, 2).fit(dataset, verbose=0)
    except Exception as error:
        answer["again"] = str(error)
    rows, arrays = dataset.source, (np.zeros((4, 2)), np.zeros((4, 1)))
    for name, use in {
        "predict": lambda: SparkModel(model, 2).predict(rows),
        "search of its rows": lambda: elephas_like.search(
            lambda params: line(), {"x": [1, 2]}, rows, max_evals=2, validation_split=0.2, verbose=0
        ),
        "validation rows": lambda: SparkModel(model, 2).fit(*arrays, validation_data=rows, verbose=0),
        "fit of columns": lambda: SparkModel(model, 2).fit(frame, verbose=0),
        "columns of predictions": lambda: SparkModel(model, 2).predict(frame, collect=False),
        "stage": lambda: ElephasEstimator(kerasModelConfig=model.to_json(), loss="mse").fit(frame),
        "ensemble": lambda: elephas_like.train_ensemble(line, rows, 2, verbose=0),
    }.items():
        try:
            use()
        except Exception as error:
            answer[name] = str(error)
    dataset.release()
    if how == "jvm":
        context.stop()
    answer["warned before"] += warned(lambda: SparkModel(line(), 2, engine="in_process").fit(*held, verbose=0))
    answer["warned"] = warned(
        lambda: SparkModel(line(), 2).fit(*held, verbose=0),
        lambda: elephas_like.search(
            lambda point: line(), {"a": [1]}, held, objective="loss", max_evals=1, epochs=1, verbose=0
        ),
        lambda: elephas_like.search(lambda point: 1.0, {"a": [1]}, max_evals=1, verbose=0),
        lambda: elephas_like.train_ensemble(line(), held, num_members=1, epochs=1, verbose=0),
    )
    answer["search"] = searched(started("local[2]", "stopped too"), how, scratch / "search")
    answer["files"] = [str(path) for path in scratch.rglob("elephas_like-*")]
    answer["threads"] = [t.name for t in threading.enumerate() if t.name.startswith("elephas")]
    say(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
