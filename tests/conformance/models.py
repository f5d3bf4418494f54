"""Models that Keras trains: each entry makes one with its rows. A new kind of model is one function here.

This file is also run as a script's `__main__`, so that its classes and functions are nowhere to be imported from.
"""

from __future__ import annotations

import functools
from collections import OrderedDict, namedtuple
from collections.abc import Callable

import keras
import numpy as np

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf
else:

    class Absent:
        """In place of TensorFlow where Keras runs on another backend: the entries that use it are left out there."""

        def __getattr__(self, name: str) -> Absent:
            return self

        def __call__(self, *_: object) -> Absent:
            return self

    tf = Absent()

L = keras.layers
ops = keras.ops
Rows = tuple[object, ...]
TABLE: dict[str, Callable[[], tuple[keras.Model, Rows]]] = {}
DRAWS = np.random.default_rng(0)
X = DRAWS.normal(size=(24, 4)).astype("float32")
Y = (X @ [[1.0], [-2.0], [0.5], [0.0]] + 0.1).astype("float32")
CLASSES = DRAWS.integers(0, 3, 24)
IMAGES = DRAWS.normal(size=(24, 6, 6, 2)).astype("float32")
STEPS = DRAWS.normal(size=(24, 3, 4)).astype("float32")
TOKENS = DRAWS.integers(0, 10, (24, 3))
WORDS = np.array([["red green"], ["blue"], ["green blue"], ["red"]] * 6, dtype=object)


def entry(make: Callable[[], tuple[keras.Model, Rows]]) -> Callable[[], tuple[keras.Model, Rows]]:
    TABLE[make.__name__] = make
    return make


def small(*layers: keras.layers.Layer, shape: tuple[int, ...] = (4,), **compiled: object) -> keras.Model:
    """Runs eagerly, which spares both sides a trace; an entry for which graphs matter says run_eagerly=False."""
    model = keras.Sequential([keras.Input(shape), *layers])
    model.compile(**({"optimizer": keras.optimizers.SGD(0.05), "loss": "mse", "run_eagerly": True} | compiled))
    return model


# Keras' own layers, losses and optimizers


@entry
def mlp_with_accuracy():
    model = small(
        L.Dense(5, "relu"),
        L.Dense(3, "softmax"),
        optimizer="adam",
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        run_eagerly=False,
    )
    return model, (X, CLASSES)


@entry
def one_hot_labels():
    model = small(
        L.Dense(3, "softmax"), loss="categorical_crossentropy", metrics=["acc", keras.metrics.AUC(name="auc")]
    )
    return model, (X, np.eye(3, dtype="float32")[CLASSES])


@entry
def dropout_and_batch_normalization():
    return small(
        L.Dense(6, "relu"), L.BatchNormalization(), L.Dropout(0.3), L.Dense(1), optimizer="adam", run_eagerly=False
    ), (X, Y)


@entry
def layer_and_group_normalization():
    return small(L.Dense(6), L.LayerNormalization(), L.GroupNormalization(2), L.Dense(1), optimizer="rmsprop"), (X, Y)


@entry
def noise():
    return small(L.GaussianNoise(0.1), L.GaussianDropout(0.2), L.Dense(1)), (X, Y)


@entry
def convolution():
    layers = [L.Conv2D(4, 3, activation="relu"), L.MaxPooling2D(), L.Flatten(), L.Dense(3, "softmax")]
    return small(*layers, shape=(6, 6, 2), loss="sparse_categorical_crossentropy", run_eagerly=False), (IMAGES, CLASSES)


@entry
def separable_and_depthwise_convolution():
    layers = [L.SeparableConv2D(4, 3), L.DepthwiseConv2D(2), L.GlobalAveragePooling2D(), L.Dense(1)]
    return small(*layers, shape=(6, 6, 2), optimizer="adam"), (IMAGES, Y)


@entry
def image_augmentation():
    layers = [L.RandomFlip(), L.RandomContrast(0.1), L.Rescaling(0.5), L.Flatten(), L.Dense(1)]
    return small(*layers, shape=(6, 6, 2)), (IMAGES, Y)


@entry
def lstm_with_dropout():
    return small(L.LSTM(3, dropout=0.2), L.Dense(1), shape=(3, 4), optimizer="adam", run_eagerly=False), (STEPS, Y)


@entry
def dropout_with_seeds():
    layers = [L.Dropout(0.3, seed=4), L.LSTM(3, dropout=0.2, recurrent_dropout=0.1, seed=5), L.Dense(1)]
    return small(*layers, shape=(3, 4), optimizer="adam"), (STEPS, Y)


@entry
def bidirectional_gru():
    return small(L.Bidirectional(L.GRU(3, return_sequences=True)), L.GlobalMaxPooling1D(), L.Dense(1), shape=(3, 4)), (
        STEPS,
        Y,
    )


@entry
def stateful_rnn():
    model = keras.Sequential([keras.Input(batch_shape=(12, 3, 4)), L.LSTM(3, stateful=True), L.Dense(1)])
    model.compile("sgd", "mse")
    return model, (STEPS, Y)


@entry
def embedding_with_mask():
    return small(L.Embedding(10, 3, mask_zero=True), L.LSTM(2), L.Dense(1), shape=(3,), run_eagerly=False), (TOKENS, Y)


@entry
def pretrained_embedding():
    matrix = np.random.default_rng(1).normal(size=(10, 200)).astype("float32")
    embedding = L.Embedding(10, 200, embeddings_initializer=keras.initializers.Constant(matrix), trainable=False)
    return small(embedding, L.GlobalAveragePooling1D(), L.Dense(1), shape=(3,)), (TOKENS, Y)


@entry
def attention():
    inputs = keras.Input((3, 4))
    hidden = L.LayerNormalization()(L.MultiHeadAttention(2, 3, dropout=0.1)(inputs, inputs) + inputs)
    model = keras.Model(inputs, L.Dense(1)(L.GlobalAveragePooling1D()(hidden)))
    model.compile("sgd", "mse", jit_compile=True)
    return model, (STEPS, Y)


@entry
def time_distributed():
    return small(L.TimeDistributed(L.Dense(2, "tanh")), L.Flatten(), L.Dense(1), shape=(3, 4)), (STEPS, Y)


@entry
def text_vectorization():
    vectorize = L.TextVectorization(8, output_sequence_length=3)
    vectorize.adapt(["red green", "blue green"])
    model = keras.Sequential([keras.Input((1,), dtype="string"), vectorize, L.Embedding(8, 3), L.Flatten(), L.Dense(1)])
    model.compile("adam", "mse")
    return model, (WORDS, Y)


@entry
def normalization_and_discretization():
    normalize, bins = L.Normalization(), L.Discretization(num_bins=3, output_mode="one_hot")
    normalize.adapt(5 + 2 * X)
    bins.adapt(X[:, :1])
    inputs = keras.Input((4,))
    model = keras.Model(inputs, L.Dense(1)(L.Concatenate()([normalize(inputs), bins(inputs[:, :1])])))
    model.compile("sgd", "mse")
    return model, (X, Y)


@entry
def residual_graph_with_shared_layer():
    inputs = keras.Input((4,))
    shared = L.Dense(4, "tanh")
    model = keras.Model(inputs, L.Dense(1)(L.Add()([shared(shared(inputs)), inputs])))
    model.compile("adam", "mse")
    return model, (X, Y)


@entry
def nested_models():
    inner = keras.Sequential([keras.Input((4,)), L.Dense(3, "relu"), L.BatchNormalization()])
    inputs = keras.Input((4,))
    model = keras.Model(inputs, L.Dense(1)(inner(inputs)))
    model.compile("adam", "mse")
    return model, (X, Y)


@entry
def two_inputs_by_name():
    a, b = keras.Input((4,), name="a"), keras.Input((1,), name="b")
    model = keras.Model({"a": a, "b": b}, L.Dense(1)(L.Concatenate()([a, b])))
    model.compile("sgd", "mse")
    return model, ({"a": X, "b": Y}, Y)


@entry
def two_outputs_with_loss_weights():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, {"a": L.Dense(1, name="a")(inputs), "b": L.Dense(1, name="b")(inputs)})
    model.compile("sgd", {"a": "mse", "b": "mae"}, loss_weights={"a": 0.25, "b": 4.0}, metrics={"a": ["mae"]})
    return model, (X, {"a": Y, "b": -Y})


@entry
def sample_weights_and_weighted_metrics():
    return small(L.Dense(1), weighted_metrics=["mae"], metrics=["mse"]), (X, Y, np.linspace(0, 2, 24).astype("float32"))


@entry
def regularizers_constraints_and_activity():
    dense = L.Dense(
        3, kernel_regularizer="l2", bias_regularizer="l1", kernel_constraint="max_norm", activity_regularizer="l2"
    )
    return small(dense, L.Dense(1)), (X, Y)


@entry
def losses_with_arguments():
    loss = keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.1)
    return small(L.Dense(1), loss=loss, metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)]), (
        X,
        (Y > 0).astype("float32"),
    )


@entry
def schedule():
    rate = keras.optimizers.schedules.CosineDecay(0.1, 6, warmup_target=0.2, warmup_steps=2)
    return small(L.Dense(1), optimizer=keras.optimizers.Adam(rate), run_eagerly=False), (X, Y)


@entry
def learning_rate_by_function():
    return small(L.Dense(1), optimizer=keras.optimizers.SGD(lambda: 0.03, momentum=0.9), run_eagerly=False), (X, Y)


@entry
def clipping_and_nesterov():
    return small(L.Dense(1), optimizer=keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, clipnorm=0.5)), (X, Y)


@entry
def moving_average_of_weights():
    return small(L.Dense(1), optimizer=keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.5)), (X, Y)


@entry
def gradient_accumulation():
    return small(L.Dense(1), optimizer=keras.optimizers.Adam(0.1, gradient_accumulation_steps=3), run_eagerly=False), (
        X,
        Y,
    )


@entry
def decay_of_some_variables():
    model = small(L.Dense(3), L.Dense(1), run_eagerly=False)
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=5.0)
    optimizer.exclude_from_weight_decay(var_list=[model.layers[0].kernel], var_names=["bias"])
    model.compile(optimizer, "mse")
    return model, (X, Y)


@entry
def adafactor():
    return small(L.Dense(3), L.Dense(1), optimizer="adafactor"), (X, Y)


def muon():
    return small(L.Dense(6, "relu"), L.Dense(1), optimizer=keras.optimizers.Muon(0.01)), (X, Y)


def schedule_free():
    return small(L.Dense(6, "relu"), L.Dense(1), optimizer=keras.optimizers.ScheduleFreeAdamW(0.01)), (X, Y)


if hasattr(keras.optimizers, "ScheduleFreeAdamW"):  # of a later Keras than the lowest
    entry(muon)
    entry(schedule_free)


@entry
def lion_and_ftrl_by_name():
    return small(L.Dense(1), optimizer=keras.optimizers.Lion(0.01)), (X, Y)


@entry
def mixed_precision_that_overflows():
    """Of four steps the second overflows, and the scale grows at the last."""
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.01), initial_scale=64.0, dynamic_growth_steps=2
    )
    return small(L.Dense(4, dtype="mixed_float16"), L.Dense(1), optimizer=optimizer, run_eagerly=False), (X, 100 * Y)


@entry
def mixed_precision_that_grows():
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(), initial_scale=8.0, dynamic_growth_steps=3)
    return small(L.Dense(4, dtype="mixed_float16"), L.Dense(1), optimizer=optimizer), (X, Y)


@entry
def float64():
    return small(L.Dense(3, dtype="float64"), L.Dense(1, dtype="float64")), (X, Y)


@entry
def frozen_layers():
    return small(L.Dense(4, trainable=False), L.BatchNormalization(trainable=False), L.Dense(1)), (X, Y)


@entry
def run_eagerly_set_after_compile():
    model = small(L.Dense(1), run_eagerly=False)
    model.run_eagerly = True
    return model, (X, Y)


@entry
def compiled_to_xla():
    return small(L.Dense(3, "relu"), L.Dense(1), jit_compile=True, run_eagerly=False), (X, Y)


@entry
def base_partly_frozen():
    images = keras.Input((6, 6, 2))
    hidden = L.ReLU(6.0)(L.BatchNormalization()(L.Conv2D(3, 3)(images)))
    base = keras.Model(images, L.GlobalAveragePooling2D()(L.BatchNormalization()(L.Conv2D(3, 2)(hidden))))
    for layer in base.layers[:3]:
        layer.trainable = False
    return small(base, L.Dense(1), shape=(6, 6, 2)), (IMAGES, Y)


@entry
def trained_before():
    model = small(L.Dense(3, "relu"), L.Dense(1), optimizer="adam")
    model.fit(X, Y, verbose=0)
    return model, (X, Y)


# Functions, wherever they come from


@entry
def functions_of_tensorflow():
    return small(
        L.Dense(3, activation=tf.nn.silu), L.Lambda(tf.sin), L.Dense(1, activation=ops.square), run_eagerly=False
    ), (X, Y)


@entry
def softmax_of_tensorflow():
    return small(L.Dense(3, activation=tf.nn.softmax), loss="sparse_categorical_crossentropy"), (X, CLASSES)


@tf.function
def compiled_loss(y_true, y_pred):
    if tf.reduce_sum(y_true) > 0:  # AutoGraph reads the source of this
        return tf.reduce_mean(tf.abs(y_true - y_pred), axis=-1)
    return tf.reduce_mean(tf.square(y_true - y_pred), axis=-1)


@entry
def compiled_function_as_loss():
    return small(L.Dense(1), loss=compiled_loss), (X, Y)


class Distances:
    def __init__(self, power: float) -> None:
        self.power = power

    def distance(self, y_true, y_pred):
        return ops.mean(ops.abs(y_true - y_pred) ** self.power, axis=-1)


@entry
def bound_method_as_loss():
    return small(L.Dense(1), loss=Distances(1.5).distance), (X, Y)


def powered(y_true, y_pred, power):
    return ops.mean(ops.abs(y_true - y_pred) ** power, axis=-1)


@entry
def partial_as_loss_and_metric():
    return small(L.Dense(1), loss=functools.partial(powered, power=3.0)), (X, Y)


def weighted(weight: float):
    def loss(y_true, y_pred):
        return weight * ops.mean(ops.square(y_true - y_pred), axis=-1)

    return loss


@entry
def two_losses_of_one_name():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, [L.Dense(1, name="a")(inputs), L.Dense(1, name="b")(inputs)])
    model.compile("sgd", [weighted(0.0), weighted(2.0)])
    return model, (X, (Y, Y))


def mse(y_true, y_pred):
    return 7.0 * ops.mean(ops.abs(y_true - y_pred), axis=-1)


@entry
def own_function_called_like_a_string():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, [L.Dense(1, name="a")(inputs), L.Dense(1, name="b")(inputs)])
    model.compile("sgd", [mse, "mse"])
    return model, (X, (Y, Y))


def _blocks():
    class First:
        class Block(L.Layer):
            def call(self, x):
                return 2.0 * x

    class Second:
        class Block(L.Layer):
            def call(self, x):
                return -x

    for kind in (First.Block, Second.Block):
        kind.__qualname__ = "Block"
    return First.Block, Second.Block


@entry
def two_layers_of_one_name():
    first, second = _blocks()
    return small(first(), L.Dense(3, "relu"), second(), L.Dense(1)), (X, Y)


@entry
def loss_that_closes_over_a_kernel():
    model = keras.Sequential([keras.Input((4,)), L.Dense(1)])
    kernel = model.layers[0].kernel
    model.compile("sgd", lambda y, p: ops.mean((y - p) ** 2) + ops.sum(kernel**2))
    return model, (X, Y)


@entry
def loss_that_differentiates_the_model():
    """A physics-informed loss: the model's own output at other points."""
    model = keras.Sequential([keras.Input((4,)), L.Dense(3, "tanh"), L.Dense(1)])

    def loss(y_true, y_pred):
        points = tf.constant(X[:5])
        with tf.GradientTape() as tape:
            tape.watch(points)
            there = model(points)
        return ops.mean((y_true - y_pred) ** 2) + ops.mean(tape.gradient(there, points) ** 2)

    model.compile("adam", loss)
    return model, (X, Y)


@entry
def metric_of_the_learning_rate():
    optimizer = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.9))

    def lr(y_true, y_pred):
        return optimizer.learning_rate

    return small(L.Dense(1), optimizer=optimizer, metrics=[lr], run_eagerly=False), (X, Y)


# Classes of the user's


class Plain(L.Layer):
    """Takes no keywords, and has no get_config."""

    def __init__(self, units, function):
        super().__init__()
        self.dense, self.function, self.scale = L.Dense(units), function, 1.0

    def call(self, x):
        return self.function(self.dense(x)) * self.scale


@entry
def layer_without_keywords():
    factor = 2.0
    model = small(Plain(3, lambda t: ops.sin(t) * factor), L.Dense(1), optimizer="adam", run_eagerly=False)
    model.layers[0].scale = 0.5
    return model, (X, Y)


class Scaled(keras.Model):
    def __init__(self, k=1.0):
        super().__init__()
        self.k, self.out = k, L.Dense(1)

    def call(self, x):
        return self.k * self.out(x)


@entry
def subclassed_with_arguments():
    model = Scaled(k=10.0)
    model.compile(keras.optimizers.SGD(0.001), "mse")
    return model, (X, Y)


@entry
def attribute_set_later():
    model = Scaled()
    model.k = 4.0
    model.compile(keras.optimizers.SGD(0.001), "mse")
    return model, (X, Y)


class Halves(namedtuple("Halves", "left right")):
    """Its arguments come in another order than its fields."""

    def __new__(cls, right, left):
        return super().__new__(cls, left, right)


class Two(tuple):
    def summed(self, x):
        return self[0](x) - self[1](x)


class Containers(keras.Model):
    """Keeps layers in a namedtuple, in a tuple of a class of its own, and in an ordered dict."""

    def __init__(self):
        super().__init__()
        self.halves = Halves(L.Dense(3, "tanh"), L.Dense(3))
        self.two = Two((L.Dense(2), L.Dense(2)))
        self.ordered = OrderedDict(last=L.Dense(1), first=L.Dense(2))
        self.ordered.move_to_end("last")

    def call(self, x):
        x = self.two.summed(self.halves.left(x) * self.halves.right(x))
        return self.ordered["last"](self.ordered["first"](x))


@entry
def layers_in_containers_of_other_classes():
    model = Containers()
    model.compile("sgd", "mse")
    return model, (X, Y)


@entry
def patched_train_step():
    model = small(L.Dense(1), run_eagerly=False)

    def train_step(data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = 3.0 * ops.mean((model(x, training=True) - y) ** 2)
        model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        model._loss_tracker.update_state(loss)
        return {"loss": model._loss_tracker.result()}

    model.train_step = train_step
    return model, (X, Y)


class Focal(keras.losses.Loss):
    def __init__(self, gamma=0.0):
        super().__init__()
        self.gamma = gamma

    def call(self, y_true, y_pred):
        return ops.mean(ops.abs(y_true - y_pred) ** (1 + self.gamma), axis=-1)


class Bias(keras.metrics.Metric):
    def __init__(self, sign=1.0):
        super().__init__(name="bias")
        self.sign, self.total = sign, self.add_weight(name="total", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(self.sign * ops.sum(y_pred - y_true))

    def result(self):
        return self.total


class Slow(keras.optimizers.SGD):
    def __init__(self, by):
        super().__init__(0.1)
        self.by = by

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate / self.by)


class AtLeast(keras.constraints.Constraint):
    def __init__(self, bound=0.0):
        self.bound = bound

    def __call__(self, weights):
        return ops.maximum(weights, self.bound)


@entry
def loss_metric_optimizer_and_constraint_without_get_config():
    dense = L.Dense(1, kernel_constraint=AtLeast(-0.3))
    return small(dense, optimizer=Slow(by=4.0), loss=Focal(2.0), metrics=[Bias(-1.0)]), (X, Y)


class Frozen(keras.Model):
    def __init__(self):
        super().__init__()
        self.base, self.head = L.Dense(4, "relu"), L.Dense(1)

    def call(self, x):
        return self.head(self.base(x))


@entry
def frozen_inside_a_subclass():
    model = Frozen()
    model(X[:1])
    model.base.trainable = False
    model.compile("adam", "mse")
    return model, (X, Y)


@entry
def quantized_inside_a_subclass():
    model = Frozen()
    model(X[:1])
    model.base.quantize("int8")
    model.base.trainable = False
    model.compile("adam", "mse")
    return model, (X, Y)


class FixedBatch(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = L.Dense(1)

    def call(self, x):
        return self.dense(tf.reshape(x, (12, 4)))


@entry
def batch_size_in_a_reshape():
    model = FixedBatch()
    model.compile("sgd", "mse")
    return model, (X, Y)


class BatchSizeIfKnown(L.Layer):
    """Keras tells it, of arrays whose rows divide by the batch size."""

    def call(self, x):
        return x if x.shape[0] is None else x * (1.0 + 0.1 * x.shape[0])


@entry
def batch_size_where_it_is_known():
    return small(BatchSizeIfKnown(), L.Dense(1), run_eagerly=False), (X, Y)


class Gan(keras.Model):
    def __init__(self, rate):
        super().__init__()
        self.g, self.d = keras.Sequential([L.Dense(4)]), keras.Sequential([L.Dense(4, "relu"), L.Dense(1)])
        self.rate, self.tracker = rate, keras.metrics.Mean(name="loss")

    def compile(self):
        super().compile()
        self.go, self.do = keras.optimizers.Adam(0.01), keras.optimizers.SGD(self.rate)

    @property
    def metrics(self):
        return [self.tracker]

    def call(self, x):
        return self.d(self.g(x))

    def train_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            of_d = ops.mean(self.d(self.g(x)) ** 2) + ops.mean((self.d(x) - 1) ** 2)
        self.do.apply_gradients(
            zip(tape.gradient(of_d, self.d.trainable_weights), self.d.trainable_weights, strict=True)
        )
        with tf.GradientTape() as tape:
            of_g = ops.mean((self.d(self.g(x)) - 1) ** 2)
        self.go.apply_gradients(
            zip(tape.gradient(of_g, self.g.trainable_weights), self.g.trainable_weights, strict=True)
        )
        self.tracker.update_state(of_d + of_g)
        return {"loss": self.tracker.result()}


@entry
def two_optimizers():
    model = Gan(0.02)
    model.compile()
    model(X[:1])
    return model, (X, Y)


@entry
def two_optimizers_one_at_rest():
    model = Gan(0.0)
    model.compile()
    model(X[:1])
    return model, (X, Y)


class Variational(keras.Model):
    """Has parts and a train step, and no call: the pattern of keras.io's VAE."""

    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.seed = keras.random.SeedGenerator(3)
        self.total = keras.metrics.Mean(name="total")

    @property
    def metrics(self):
        return [self.total]

    def train_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            mean = self.encoder(x)
            code = mean + 0.1 * keras.random.normal(ops.shape(mean), seed=self.seed)
            loss = ops.mean((self.decoder(code) - x) ** 2) + 0.01 * ops.mean(mean**2)
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.trainable_weights), self.trainable_weights, strict=True)
        )
        self.total.update_state(loss)
        return {"total": self.total.result()}


@entry
def model_without_call():
    encoder = keras.Sequential([keras.Input((4,)), L.Dense(2)])
    decoder = keras.Sequential([keras.Input((2,)), L.Dense(4)])
    model = Variational(encoder, decoder)
    model.compile(optimizer="adam")
    return model, (X,)


class TwoHeads(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return sum(ops.mean((y - head) ** 2) for head in y_pred)


@entry
def own_compute_loss_with_two_outputs():
    inputs = keras.Input((4,))
    model = TwoHeads(inputs, [L.Dense(1)(inputs), L.Dense(1)(inputs)])
    model.compile("sgd")
    return model, (X, Y)


class Scores(keras.Model):
    """Its test step is its own, and leaves the metrics of `compile` to the train step; so is its predict step, which gets x alone."""

    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        self.score = keras.metrics.Mean(name="score")

    def test_step(self, data):
        self.score.update_state(self(data[0], training=False))
        return {"score": self.score.result()}

    def predict_step(self, x):
        return self(x, training=False) / ops.cast(ops.shape(x)[0], "float32")


@entry
def own_test_step_alone():
    inputs = keras.Input((4,))
    model = Scores(inputs, L.Dense(1)(inputs))
    model.compile("sgd", "mse", metrics=["mae"], run_eagerly=True)
    return model, (X, Y)


class Ring(L.Layer):
    """A pointer that goes round, a mask that shrinks, and a raw variable that counts rows."""

    def build(self, shape):
        self.pointer = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="pointer")
        self.mask = self.add_weight(shape=(3,), dtype="bool", initializer="ones", trainable=False, name="mask")
        self.rows = tf.Variable(0.0, name="rows", trainable=False)

    def call(self, x, training=False):
        if training:
            self.pointer.assign((self.pointer + 1) % 5)
            self.mask.assign(ops.logical_and(self.mask, ops.arange(3) != self.pointer.value))
            self.rows.assign_add(tf.cast(tf.shape(x)[0], tf.float32))
        return x * (1.0 + ops.cast(self.pointer, "float32")) * ops.mean(ops.cast(self.mask, "float32"))


@entry
def integers_bools_and_raw_variables():
    return small(L.Dense(1), Ring(), optimizer=keras.optimizers.SGD(0.01), run_eagerly=False), (X, Y)


class Masked(L.Layer):
    def build(self, shape):
        mask = np.where(np.arange(shape[-1]) < 2, 0.0, -np.inf)
        self.mask = self.add_weight(
            shape=(shape[-1],),
            initializer=lambda shape, dtype=None: ops.convert_to_tensor(mask, dtype),
            trainable=False,
        )

    def call(self, x):
        return ops.softmax(x + self.mask)


@entry
def infinite_mask():
    return small(L.Dense(4), Masked(), L.Dense(1)), (X, Y)


class Looked(keras.Model):
    """Keeps what it saw last, and looks words up in tables of its own."""

    def __init__(self):
        super().__init__()
        content = tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1, 2]), tf.constant([1.0, 2.0, 3.0]))
        self.table = tf.lookup.StaticHashTable(content, -1.0)
        self.offsets = tf.constant([[0.1, 0.2, 0.3, 0.4]])
        self.dense, self.last = L.Dense(1), None

    def call(self, x):
        self.last = x + self.offsets
        return self.dense(self.last) * self.table.lookup(tf.constant([1]))


@entry
def tables_constants_and_left_tensors():
    model = Looked()
    model.compile("sgd", "mse")
    return model, (X, Y)


class Smoothed(keras.Model):
    """A target network that follows the trained one."""

    def __init__(self):
        super().__init__()
        self.online, self.target = L.Dense(2), L.Dense(2)
        self.target.trainable = False

    def call(self, x):
        return self.online(x) - self.target(x)

    def train_step(self, data):
        logs = super().train_step(data)
        for mine, theirs in zip(self.target.weights, self.online.weights, strict=True):
            mine.assign(0.9 * mine + 0.1 * theirs)
        return logs


@entry
def target_network():
    model = Smoothed()
    model.compile("sgd", "mse")
    return model, (X, np.concatenate([Y, -Y], axis=1))


class AddsLosses(L.Layer):
    def call(self, x):
        self.add_loss(0.1 * ops.mean(x**2))
        return x


@entry
def losses_added_in_call():
    return small(L.Dense(3), AddsLosses(), L.Dense(1), run_eagerly=False), (X, Y)


class NestedLogs(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="both")
        self.total, self.count = (self.add_weight(name=name, initializer="zeros") for name in ("total", "count"))

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(ops.sum(y_pred))
        self.count.assign_add(ops.cast(ops.shape(y_pred)[0], "float32"))

    def result(self):
        return {"total": self.total, "mean": self.total / (self.count + 1e-9)}


@entry
def metric_of_several_numbers():
    return small(L.Dense(1), metrics=[NestedLogs()]), (X, Y)


class OwnCompile(keras.Sequential):
    def compile(self, optimizer, distance, factor):
        super().compile(optimizer=optimizer, loss=lambda y, p: factor * distance(y, p))


@entry
def compile_of_ones_own():
    model = OwnCompile([keras.Input((4,)), L.Dense(1)])
    model.compile("sgd", keras.losses.huber, 0.5)
    return model, (X, Y)


@entry
def unbuilt_sequential():
    model = keras.Sequential([L.Dense(3, "relu"), L.Dense(1)])
    model.compile("adam", "mse")
    return model, (X, Y)


@entry
def compiled_model_inside():
    """Its optimizer trains nothing, and the outer one's slots are part of the state."""
    inner = keras.Sequential([keras.Input((4,)), L.Dense(3)])
    inner.compile("adam", "mse")
    return small(inner, L.Dense(1), optimizer="adam"), (X, Y)


class ShrinksItsRate(keras.optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        super().apply(grads, trainable_variables)
        self._learning_rate.assign(self._learning_rate * 0.9)


@entry
def optimizer_that_sets_its_learning_rate():
    return small(L.Dense(1), optimizer=ShrinksItsRate(0.05)), (X, Y)


class OnlyTrained(keras.Model):
    """A model without a test step that works."""

    def __init__(self):
        super().__init__()
        self.dense = L.Dense(1)

    def call(self, x, training=False):
        if not training:
            raise NotImplementedError("trained only")
        return self.dense(x)


@entry
def model_that_can_only_be_trained():
    model = OnlyTrained()
    model.compile("sgd", "mse")
    return model, (X, Y)
