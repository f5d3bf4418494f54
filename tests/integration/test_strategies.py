"""The catalogue at work on small Keras models: one of each family in one process, elastic workers and codecs over Spark.

The catalogue itself is NumPy: tests/core/test_learning.py has all of it learn without Keras.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import keras
import numpy as np
import pytest
from small import classifier, digits, rows, trained

from elephas_like import SparkModel
from elephas_like.strategies import (
    EASGD,
    Average,
    Clipped,
    FixedSteps,
    KerasOuter,
    Median,
    MomentumLookAhead,
    Nesterov,
    PostLocal,
    QuadraticSynchronization,
    TopK,
    TrimmedMean,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "strategies.md"
X, Y = digits()


def fitted(epochs: int = 4, optimizer: object = None, **options: object) -> tuple[float, object]:
    """Accuracy on 297 digits after some epochs on 600, four workers of one process, and the history."""
    model = classifier(optimizer=optimizer or keras.optimizers.Adam(0.01))
    spark_model = SparkModel(model, 4, engine="in_process", seed=3, batch_size=8, **options)
    history = spark_model.fit(X[:600], Y[:600], epochs=epochs, verbose=0)
    assert trained(history) >= 600 * epochs
    return model.evaluate(X[1500:], Y[1500:], verbose=0)[1], history


@pytest.mark.parametrize("name", ["rda", "easgd"])
def test_synchronous_strategies_learn(name: str) -> None:
    assert fitted(strategy=name)[0] > 0.55


@pytest.mark.parametrize("name", ["heloco", "eamsgd"])
def test_asynchronous_strategies_learn(name: str) -> None:
    optimizer = {"eamsgd": keras.optimizers.SGD(0.01, 0.95, nesterov=True)}  # as its paper has it
    accuracy, _ = fitted(optimizer=optimizer.get(name), strategy=name, mode="asynchronous")
    assert accuracy > (0.4 if name == "eamsgd" else 0.6)


slow = pytest.mark.slow


@slow
@pytest.mark.parametrize(
    "strategy",
    [
        KerasOuter(keras.optimizers.Adam(0.01)),
        Nesterov(reduce=Median()),
        Nesterov(reduce=Clipped(0.5, then=TrimmedMean())),
        Average(reduce=Clipped(1e-6)),
    ],
    ids=["keras-adam", "median", "clipped-trimmed", "clipped-to-nothing"],
)
def test_parts_and_keras_optimizers_as_the_outer_step(strategy: object) -> None:
    accuracy, _ = fitted(strategy=strategy)
    if strategy == Average(reduce=Clipped(1e-6)):
        assert accuracy < 0.3
    else:
        assert accuracy > 0.45


@cache
def plain() -> float:
    """What the default, "nesterov" without a codec, comes to."""
    return fitted()[0]


def test_an_outer_keras_sgd_is_nesterov() -> None:
    theirs, _ = fitted(strategy=KerasOuter(keras.optimizers.SGD(1.0, momentum=0.7, nesterov=True)))
    assert theirs > 0.55
    assert abs(plain() - theirs) < 0.02


@pytest.mark.parametrize(
    "codec",
    [
        "fp32",
        pytest.param("fp16", marks=slow),
        "int8",
        *(pytest.param(c, marks=slow) for c in ("int4", "one_bit", TopK(0.05))),
    ],
)
def test_codecs_lose_little(codec: object) -> None:
    packed, _ = fitted(codec=codec)
    assert packed > plain() - 0.12
    if codec == "fp32":
        assert packed == plain()


@pytest.mark.parametrize("options", [{"mode": "asynchronous"}, {"mode": "hogwild", "frequency": 3}], ids=str)
def test_codecs_in_the_other_modes(options: dict) -> None:
    assert fitted(codec="int8", **options)[0] > 0.6


def test_elastic_workers_go_their_own_way() -> None:
    # the center is not where any worker is: one more round from it differs from going on
    accuracy, history = fitted(strategy=EASGD(beta=0.5))
    assert accuracy > 0.4
    assert [record.samples for record in history.rounds][:1] != [0]


@pytest.mark.parametrize(
    ("schedule", "rounds"),
    [
        (FixedSteps(7), [3, 3]),  # 150 rows a worker, 19 steps: 7 + 7 + 5
        pytest.param(PostLocal(10, after=1), [19, 2], marks=slow),
        pytest.param(QuadraticSynchronization(alpha=0.03), [3, 3], marks=slow),  # (0.03 / 0.01)^2 = 9 steps, or 8
    ],
)
def test_schedules_make_rounds(schedule: object, rounds: list[int]) -> None:
    accuracy, history = fitted(frequency=schedule, epochs=2)
    assert [sum(record.epoch == epoch for record in history.rounds) for epoch in (0, 1)] == rounds
    assert accuracy > 0.4


def test_a_schedule_sees_keras_own_learning_rate_schedule() -> None:
    # 1e-3 for 19 steps, then 1e-4: one step a round in the first epoch, ten in the second
    decay = keras.optimizers.schedules.PiecewiseConstantDecay([18], [1e-3, 1e-4])
    _, history = fitted(frequency=PostLocal(10), epochs=2, optimizer=keras.optimizers.Adam(decay))
    assert [sum(record.epoch == epoch for record in history.rounds) for epoch in (0, 1)] == [19, 2]


def test_what_does_not_go_together_is_told_before_anything_starts() -> None:
    model = classifier()
    for options, message in [
        ({"strategy": "easgd", "engine": "jobs"}, "'easgd' needs workers that keep their own weights"),
        ({"codec": "one_bit", "engine": "jobs"}, "'one_bit' needs workers that keep what their messages lost"),
        ({"strategy": "fedasync", "mode": "asynchronous", "codec": "int8"}, "'fedasync' sends weights"),
        ({"frequency": FixedSteps(3), "mode": "asynchronous"}, "a schedule as frequency is for mode 'synchronous'"),
        ({"codec": "zip"}, "codec must be one of"),
    ]:
        with pytest.raises(ValueError, match=message):
            SparkModel(model, 2, **options)


def test_the_documents_own_code_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.S)
    assert len(blocks) == 2
    names: dict[str, object] = {"model": classifier(), "x": X[:200], "y": Y[:200]}
    for block in blocks:
        exec(block, names)
    # lengths 1, 2, 10: the longest is cut to 2: (1 + 2 + 2)/3 in one direction
    part = names["MedianNorm"]()
    deltas = [np.array([length, 0], np.float32) for length in (1, 2, 10)]
    assert part.combine(deltas, [1.0, 1.0, 1.0], None).tolist() == pytest.approx([5 / 3, 0])
    stepped, _ = names["SignMomentum"]().step(deltas[0], deltas[1], {"momentum": deltas[0] * 0}, None)
    assert stepped.tolist() == pytest.approx([1.002, 0])


# --- over Spark


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "server", "strategy": "aeasgd", "mode": "asynchronous"},
        pytest.param({"engine": "server", "codec": "int8"}, marks=slow),
        pytest.param({"engine": "server", "codec": "one_bit", "parameter_server_mode": "socket"}, marks=slow),
        {"engine": "server", "codec": "top_k", "mode": "asynchronous", "strategy": MomentumLookAhead(1.0, 0.5)},
    ],
    ids=lambda options: "-".join(str(value) for value in options.values() if isinstance(value, str)),
)
def test_elastic_workers_and_codecs_over_spark(sc, options: dict) -> None:
    model = classifier(optimizer=keras.optimizers.Adam(0.01))
    rdd = sc.parallelize(rows(X[:600], Y[:600]), 2)
    history = SparkModel(model, 2, seed=3, batch_size=8, **options).fit(rdd, epochs=4, verbose=0)
    assert trained(history) >= 4 * 600
    assert model.evaluate(X[1500:], Y[1500:], verbose=0)[1] > 0.5


@pytest.mark.parametrize("options", [{"codec": "int8", "strategy": "rda"}, {"strategy": "easgd"}])
def test_spark_and_one_process_agree(sc, options: dict) -> None:
    halves = np.stack([np.arange(100), np.arange(100, 200)], axis=1).ravel()
    ends = []
    for engine in ("in_process", "server"):
        model = classifier()
        data = (X[halves], Y[halves]) if engine == "in_process" else (sc.parallelize(rows(X[:200], Y[:200]), 2),)
        SparkModel(model, 2, seed=3, batch_size=16, engine=engine, **options).fit(*data, epochs=2, verbose=0)
        ends.append(model.get_weights())
    for one, other in zip(*ends, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
