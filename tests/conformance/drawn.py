"""Models that nobody thought of: layers, ways to build, optimizers, losses and rows, drawn by a seed.

What no test names is found by drawing: each hunt of this kind has met a defect that entries written by hand had not. A kind of layer,
optimizer or loss is one line here; every seed draws others then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

L = keras.layers
ROWS = 21  # the last batch is smaller
Layers = Sequence[Callable[[], keras.layers.Layer]]

VECTORS: Layers = (
    lambda: L.Dense(5, "relu"),
    lambda: L.Dense(4, "tanh", use_bias=False, kernel_regularizer="l2"),
    lambda: L.Dense(4, "gelu", activity_regularizer=keras.regularizers.L1(0.01)),
    lambda: L.Dense(3, kernel_constraint=keras.constraints.MaxNorm(0.8), bias_regularizer="l1"),
    lambda: L.Dense(3, kernel_constraint="non_neg"),
    lambda: L.BatchNormalization(momentum=0.7),
    lambda: L.BatchNormalization(trainable=False),
    lambda: L.LayerNormalization(),
    lambda: L.UnitNormalization(),
    lambda: L.PReLU(),
    lambda: L.Dense(4, trainable=False),
    lambda: L.EinsumDense("ab,bc->ac", output_shape=3, bias_axes="c"),
    lambda: L.SpectralNormalization(L.Dense(4)),
    lambda: keras.Sequential([L.Dense(4, "elu"), L.BatchNormalization(scale=False), L.Dense(3)]),
    lambda: Counting(),
    lambda: Penalized(),
)
STEPS: Layers = (
    lambda: L.LSTM(3, return_sequences=True),
    lambda: L.GRU(3, return_sequences=True, reset_after=False),
    lambda: L.Bidirectional(L.SimpleRNN(2, return_sequences=True)),
    lambda: L.Conv1D(3, 2, padding="causal"),
    lambda: L.SeparableConv1D(3, 2, padding="same"),
    lambda: L.TimeDistributed(L.Dense(3, "relu")),
    lambda: L.BatchNormalization(),
    lambda: L.LayerNormalization(),
)
IMAGES: Layers = (
    lambda: L.Conv2D(3, 3, activation="relu", padding="same"),
    lambda: L.DepthwiseConv2D(2, depth_multiplier=2),
    lambda: L.SeparableConv2D(3, 2),
    lambda: L.Conv2DTranspose(2, 2),
    lambda: L.AveragePooling2D(2, padding="same"),
    lambda: L.BatchNormalization(axis=-1),
    lambda: L.GroupNormalization(1),
    lambda: L.Rescaling(0.5, 0.1),
)
OPTIMIZERS: Sequence[Callable[[], keras.optimizers.Optimizer]] = (
    lambda: keras.optimizers.SGD(0.05),
    lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, clipnorm=0.5),
    lambda: keras.optimizers.Adam(0.01),
    lambda: keras.optimizers.Adam(0.01, amsgrad=True, global_clipnorm=0.5),
    lambda: keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.02, 5, warmup_steps=2, warmup_target=0.03)),
    lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    lambda: keras.optimizers.RMSprop(0.01, centered=True, momentum=0.5),
    lambda: keras.optimizers.Nadam(0.01, use_ema=True, ema_momentum=0.5),
    lambda: keras.optimizers.Adamax(0.01, clipvalue=0.1),
    lambda: keras.optimizers.Adagrad(0.05, gradient_accumulation_steps=2),
    lambda: keras.optimizers.Adadelta(1.0, use_ema=True, ema_overwrite_frequency=2),
    lambda: keras.optimizers.Lion(0.001),
    lambda: keras.optimizers.Adafactor(0.01),
)


@keras.saving.register_keras_serializable("drawn")
class Counting(keras.layers.Layer):
    """Counts its training steps in a variable, and computes with the count."""

    def build(self, shape: tuple[int | None, ...]) -> None:
        self.steps = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.steps.assign(self.steps + 1)
        return x * (1 + 0.1 * keras.ops.cast(self.steps % 3, x.dtype))


@keras.saving.register_keras_serializable("drawn")
class Penalized(keras.layers.Layer):
    """Adds a loss of its inputs and one of its weights."""

    def build(self, shape: tuple[int | None, ...]) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x: Any) -> Any:
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
        self.add_loss(0.01 * keras.ops.sum(keras.ops.square(self.scale)))
        return x * self.scale


class Chain(keras.Model):
    """Layers in a list, of a model that says nothing of its inputs."""

    def __init__(self, layers: Sequence[keras.layers.Layer]) -> None:
        super().__init__()
        self.chain = list(layers)

    def call(self, x: Any, training: bool = False) -> Any:
        for layer in self.chain:
            x = layer(x, training=training) if isinstance(layer, (L.BatchNormalization, Counting)) else layer(x)
        return x


@dataclass
class Draw:
    """What a seed draws, noted in the order in which it was drawn."""

    random: np.random.Generator
    noted: list[str] = field(default_factory=list)

    def one(self, what: str, of: Sequence[Any]) -> Any:
        """Return one of several things."""
        number = int(self.random.integers(len(of)))
        self.noted.append(f"{what} {number}" if callable(of[number]) else f"{what} {of[number]}")
        return of[number]

    def layers(self, what: str, of: Layers, most: int) -> list[keras.layers.Layer]:
        """Return up to so many new layers."""
        return [self.one(what, of)() for _ in range(int(self.random.integers(1, most + 1)))]


def drawn(seed: int) -> tuple[keras.Model, tuple[object, ...], str]:
    """Return a compiled model with rows that fit it, and what was drawn in words."""
    draw = Draw(np.random.default_rng(seed))
    kind = draw.one("rows of", ("vectors", "steps", "images", "tokens"))
    x, chain = _rows_and_layers(kind, draw)
    chain += draw.layers("layer", VECTORS, 3)
    task = draw.one("task", ("value", "class", "classes"))
    y, head, loss, metrics = _task(task, draw)
    chain.append(head)
    model = _built(draw.one("built as", ("list", "added", "functional", "nested", "class")), chain, x)
    weighted = draw.one("sample weights", (False, False, True))
    optimizer, eagerly = draw.one("optimizer", OPTIMIZERS)(), draw.one("eagerly", (False, True))
    model.compile(
        optimizer,
        loss,
        metrics=metrics,
        weighted_metrics=["mae"] if weighted and task == "value" else None,
        run_eagerly=eagerly and keras.backend.backend() != "jax",  # where half a minute is not enough for some
    )
    rows: tuple[object, ...] = (x, y)
    if weighted:
        rows += (draw.random.random(ROWS).astype("float32"),)
    return model, rows, f"seed {seed}: {', '.join(draw.noted)}"


def _rows_and_layers(kind: str, draw: Draw) -> tuple[np.ndarray, list[keras.layers.Layer]]:
    random = draw.random
    if kind == "vectors":
        return random.normal(size=(ROWS, 4)).astype("float32"), []
    if kind == "images":
        ends = (L.Flatten, L.GlobalAveragePooling2D, L.GlobalMaxPooling2D)
        layers = draw.layers("image layer", IMAGES, 3)
        return random.normal(size=(ROWS, 6, 6, 2)).astype("float32"), [*layers, draw.one("end", ends)()]
    ends = (L.Flatten, L.GlobalAveragePooling1D, lambda: L.LSTM(3), lambda: L.GRU(2, go_backwards=True))
    layers = draw.layers("step layer", STEPS, 2)
    if kind == "steps":
        return random.normal(size=(ROWS, 5, 4)).astype("float32"), [*layers, draw.one("end", ends)()]
    masked = draw.one("masked", (False, True))
    layers = [L.Embedding(10, 4, mask_zero=masked)]
    layers += [L.LSTM(3, return_sequences=True)] if masked else draw.layers("step layer", STEPS, 1)
    end = L.GRU(3) if masked else draw.one("end", ends)()
    return random.integers(0, 10, (ROWS, 5)).astype("int32"), [*layers, end]


def _task(task: str, draw: Draw) -> tuple[np.ndarray, keras.layers.Layer, object, list[object]]:
    random = draw.random
    if task == "value":
        loss = draw.one("loss", ("mse", "mae", keras.losses.Huber(0.5), keras.losses.LogCosh(reduction="sum")))
        return random.normal(size=(ROWS, 1)).astype("float32"), L.Dense(1), loss, ["mae"]
    labels = random.integers(0, 3, ROWS)
    if task == "class":
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return labels, L.Dense(3), loss, ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2, name="top")]
    losses = ("categorical_crossentropy", keras.losses.CategoricalFocalCrossentropy(), "kl_divergence")
    metrics = ["acc", keras.metrics.AUC(name="auc"), keras.metrics.F1Score(average="macro", name="f1")]
    return np.eye(3, dtype="float32")[labels], L.Dense(3, "softmax"), draw.one("loss", losses), metrics


def _built(way: str, chain: list[keras.layers.Layer], x: np.ndarray) -> keras.Model:
    given = keras.Input(x.shape[1:], dtype=str(x.dtype))
    if way == "class":
        model = Chain(chain)
        model(x[:1])
        return model
    if way == "list":
        return keras.Sequential([given, *chain])
    if way == "added":
        model = keras.Sequential([given])
        for layer in chain:
            model.add(layer)
        return model
    out = given
    masks = 3 if isinstance(chain[0], L.Embedding) and chain[0].mask_zero else 1  # a model inside takes none
    if way == "nested" and len(chain) > masks + 1:
        for layer in chain[:masks]:
            out = layer(out)
        chain = chain[masks:]
        inner = keras.Input(out.shape[1:])
        middle = inner
        for layer in chain[:-1]:
            middle = layer(middle)
        out, chain = keras.Model(inner, middle)(out), chain[-1:]
    for layer in chain:
        out = layer(out)
    return keras.Model(given, out)
