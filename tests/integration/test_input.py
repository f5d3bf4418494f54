"""What rows may be: kinds, shapes and dtypes, and how they lie in partitions. Every row is trained on once an epoch."""

from __future__ import annotations

import json
from collections.abc import Callable

import keras
import numpy as np
import pytest
from small import line, points, trained

from elephas_like import SparkModel
from elephas_like.core.types import Update
from elephas_like.strategies import Context, Strategy, Total

layers = keras.layers
RANDOM = np.random.default_rng(0)
FLOATS = RANDOM.normal(size=(24, 4)).astype("float32")
LABELS = RANDOM.integers(0, 3, 24)


class Autoencoder(keras.Model):
    """A model whose rows need no target: its own train_step compares what comes out with what went in."""

    def __init__(self, width: int = 4, **options: object) -> None:
        super().__init__(**options)
        self.width = width
        self.code = layers.Dense(2)
        self.back = layers.Dense(width)
        self.tracker = keras.metrics.Mean(name="loss")

    def call(self, x):
        return self.back(self.code(x))

    @property
    def metrics(self):
        return [self.tracker]

    def train_step(self, data):
        import tensorflow as tf

        x = keras.utils.unpack_x_y_sample_weight(data)[0]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - x) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.tracker.update_state(loss, sample_weight=tf.cast(tf.shape(x)[0], tf.float32))
        return {"loss": self.tracker.result()}

    def get_config(self):
        return {"width": self.width}


class Reconstruction(layers.Layer):
    """Adds the loss of a functional autoencoder."""

    def call(self, inputs):
        x, again = inputs
        self.add_loss(keras.ops.mean((x - again) ** 2))
        return again


def functional_autoencoder() -> keras.Model:
    x = keras.Input((4,))
    model = keras.Model(x, Reconstruction()([x, layers.Dense(4)(layers.Dense(2)(x))]))
    model.compile("adam")
    return model


def subclassed_autoencoder() -> keras.Model:
    model = Autoencoder()
    model.compile("adam")
    return model


def dense(units: int = 1, activation: str | None = None, loss: str = "mse", **compiled: object) -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(units, activation)])
    model.compile("adam", loss, **compiled)
    return model


def several(named: bool) -> keras.Model:
    """An image of bytes and a vector of floats go in; a number and a class come out."""
    image = keras.Input((4, 4, 1), dtype="uint8", name="image")
    numbers = keras.Input((3,), name="numbers")
    both = layers.Concatenate()([layers.Flatten()(layers.Rescaling(1 / 255)(image)), numbers])
    number, kind = layers.Dense(1, name="number")(both), layers.Dense(3, "softmax", name="kind")(both)
    if named:
        model = keras.Model({"image": image, "numbers": numbers}, {"number": number, "kind": kind})
        model.compile("adam", {"number": "mse", "kind": "sparse_categorical_crossentropy"})
    else:
        model = keras.Model([image, numbers], [number, kind])
        model.compile("adam", ["mse", "sparse_categorical_crossentropy"])
    return model


def recurrent(whole: bool) -> keras.Model:
    layer = layers.LSTM(3, return_sequences=whole)
    model = keras.Sequential([keras.Input((5,), dtype="int32"), layers.Embedding(10, 4), layer, layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def texts() -> keras.Model:
    words = layers.TextVectorization(output_mode="int", output_sequence_length=4)
    words.adapt(["spark is fast", "keras is simple"])
    model = keras.Sequential([keras.Input((), dtype="string"), words, layers.Embedding(10, 3)])
    model.add(layers.GlobalAveragePooling1D())  # Flatten behind words fails in Keras 3.8 itself
    model.add(layers.Dense(1, "sigmoid"))
    model.compile("adam", "binary_crossentropy")
    return model


WORDS = RANDOM.integers(0, 10, (24, 5)).astype("int32")
KINDS: dict[str, tuple[Callable[[], keras.Model], list]] = {
    "pairs": (dense, [(x, float(x.sum())) for x in FLOATS]),
    "triples": (dense, [(x, float(x.sum()), 0.5) for x in FLOATS]),
    "lists": (dense, [[x.tolist(), [float(x.sum())]] for x in FLOATS]),
    "add_loss, no target": (functional_autoencoder, list(FLOATS)),
    "train_step, no target": (subclassed_autoencoder, list(FLOATS)),
    "tuples": (
        lambda: several(False),
        [((np.full((4, 4, 1), i, "uint8"), FLOATS[i, :3]), (FLOATS[i, 3:], int(LABELS[i]))) for i in range(24)],
    ),
    "dicts": (
        lambda: several(True),
        [
            (
                {"numbers": FLOATS[i, :3], "image": np.full((4, 4, 1), i, "uint8")},
                {"kind": int(LABELS[i]), "number": FLOATS[i, 3:]},
            )
            for i in range(24)
        ],
    ),
    "sequences": (lambda: recurrent(False), [(row, float(row.sum())) for row in WORDS]),
    "sequence labels": (lambda: recurrent(True), [(row, row[:, None].astype("float32")) for row in WORDS]),
    "strings": (texts, [("spark is fast" if i % 2 else "keras is simple", i % 2) for i in range(24)]),
    "one-hot": (
        lambda: dense(3, "softmax", "categorical_crossentropy"),
        list(zip(FLOATS, np.eye(3, dtype="float32")[LABELS], strict=True)),
    ),
    "multi-label": (
        lambda: dense(3, "sigmoid", "binary_crossentropy"),
        list(zip(FLOATS, (FLOATS[:, :3] > 0).astype("int32"), strict=True)),
    ),
}


QUICK = ("pairs", "train_step, no target", "tuples", "dicts", "strings")
"""Kinds of the fast run: what a row may be made of. Pairs are compared with Keras number by number."""


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_rows_of_every_kind_train_as_in_keras(sc, kind: str) -> None:
    make, rows = KINDS[kind]
    keras.utils.set_random_seed(4)
    model = make()
    alone = keras.models.clone_model(model) if kind == "pairs" else None
    if alone is not None:
        alone.set_weights(model.get_weights())
        alone.compile("adam", "mse")
    before = [w.copy() for w in model.get_weights()]
    fitted = SparkModel(model, 2 if alone is None else 1, engine="server", seed=1, strategy="average")
    history = fitted.fit(sc.parallelize(rows, 2), epochs=2, batch_size=5, verbose=0, shuffle=alone is None)
    assert trained(history) == 2 * len(rows)
    assert np.isfinite(history.history["loss"]).all()
    after = model.get_weights()
    if before:
        assert any((a != b).any() for a, b in zip(before, after, strict=True))
    if alone is not None:
        x, y = np.stack([x for x, _ in rows]), np.array([y for _, y in rows], "float32")
        alone.fit(x, y, epochs=2, batch_size=5, shuffle=False, verbose=0)
        for ours, theirs in zip(after, alone.get_weights(), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)


class Adding(Strategy):
    """Adds the workers' changes up, so that counts stay counts."""

    name = "adding"
    reduces = Total()

    def weight(self, update: Update, context: Context) -> float:
        return 1.0


class Counting(keras.Model):
    """Learns which rows it has seen how often: weight i becomes the number of times that row i came."""

    def __init__(self, rows: int, **options: object) -> None:
        super().__init__(**options)
        self.rows = rows

    def build(self, shape: object) -> None:
        self.seen = self.add_weight(shape=(self.rows,), initializer="zeros", name="seen")
        self.built = True

    def call(self, x):
        return keras.ops.take(self.seen, keras.ops.cast(x[:, 0], "int32"))

    def train_step(self, data):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        ids = keras.ops.cast(x[:, 0], "int32")
        self.seen.assign_add(keras.ops.sum(keras.ops.one_hot(ids, self.rows), axis=0))
        return {}

    def get_config(self):
        return {"rows": self.rows}


def counting(rows: int) -> keras.Model:
    model = Counting(rows)
    model.compile("sgd", "mse")
    model(np.zeros((1, 1), "float32"))
    return model


def partitioned(sc, sizes: list[int]):
    """An RDD of row ids with partitions of these sizes."""
    ends = np.cumsum([0, *sizes]).tolist()

    def part(index: int, _: object):
        return ((([float(i)], 0.0)) for i in range(ends[index], ends[index + 1]))

    return sc.parallelize(range(len(sizes)), len(sizes)).mapPartitionsWithIndex(part)


SPLITS = [
    ([7, 9], 2, "server"),  # neither a multiple of the batch
    ([0, 13], 2, "jobs"),  # an empty partition
    ([13, 0], 2, ""),
    ([1, 1], 2, "jobs"),  # one row each
    ([2, 11], 2, ""),  # less than a batch
    ([3, 0, 4, 1, 5], 2, "server"),  # more partitions than slots
    ([11], 2, "jobs"),  # fewer partitions than workers
    ([4, 3, 2], 1, ""),
    ([1], 2, "server"),  # a worker without rows
]
"""Partitions' sizes, workers, and the engine on which the fast run has them; the slow one has all on both."""


@pytest.mark.parametrize(
    ("engine", "sizes", "num_workers"),
    [
        pytest.param(
            engine, sizes, workers, marks=() if engine == fast else pytest.mark.slow, id=f"{engine}-{sizes}-{workers}"
        )
        for sizes, workers, fast in SPLITS
        for engine in ("server", "jobs")
    ],
)
def test_every_row_is_trained_on_exactly_once_per_epoch(sc, engine: str, sizes: list[int], num_workers: int) -> None:
    rows = sum(sizes)
    model = counting(16)
    fitted = SparkModel(model, num_workers, engine=engine, batch_size=4, strategy=Adding())
    history = fitted.fit(partitioned(sc, sizes), epochs=3, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], [3.0] * rows + [0.0] * (16 - rows), atol=1e-5)
    per_epoch = [sum(r.samples for r in history.rounds if r.epoch == epoch) for epoch in range(3)]
    assert per_epoch == [rows] * 3


@pytest.mark.slow
def test_more_workers_than_partitions_on_jobs(sc) -> None:
    model = counting(16)
    fitted = SparkModel(model, 5, engine="jobs", batch_size=2, strategy=Adding())
    fitted.fit(partitioned(sc, [7, 8]), epochs=1, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], [1.0] * 15 + [0.0], atol=1e-5)


@pytest.mark.parametrize("mode", ["asynchronous", "hogwild"])
def test_each_asynchronous_worker_goes_through_its_own_rows_in_turn(sc, mode: str) -> None:
    model = counting(16)
    fitted = SparkModel(model, 2, mode=mode, engine="server", batch_size=4, strategy="downpour", frequency="epoch")
    history = fitted.fit(partitioned(sc, [6, 6]), epochs=4, verbose=0)
    seen = model.get_weights()[0]
    assert trained(history) == 48
    # A worker's span is its whole shard: all of its rows came equally often, and together all came four times.
    assert len(set(seen[:6].tolist())) == len(set(seen[6:12].tolist())) == 1
    assert seen.sum() == pytest.approx(48)


def test_rows_are_found_by_the_first_partition_that_has_any(sc) -> None:
    model = keras.Sequential([layers.Dense(1)])  # unbuilt: it learns its width from the first row
    model.compile("sgd", "mse")
    SparkModel(model, 2, engine="server").fit(partitioned(sc, [0, 0, 3]), verbose=0)
    assert model.get_weights()[0].shape == (1, 1)


def test_integers_in_one_partition_and_floats_in_another(sc) -> None:
    rows = [([i, 1], float(i)) for i in range(4)] + [([i + 0.5, 1], float(i)) for i in range(4)]
    history = SparkModel(line(), 2, engine="server").fit(sc.parallelize(rows, 2), verbose=0)
    assert trained(history) == 8


def test_a_model_and_its_rows_survive_a_second_fit_with_other_rows(sc) -> None:
    model = line()
    fitted = SparkModel(model, 2, engine="server")
    for count in (10, 33):
        assert trained(fitted.fit(sc.parallelize(points(count), 3), verbose=0)) == count
    assert json.dumps(fitted.training_histories)
