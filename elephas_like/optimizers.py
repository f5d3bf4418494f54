"""The import path of Elephas 0.x for optimizers: Keras' own. What happens on the driver is now a `strategy`."""

from elephas_like.core.extras import keras_backend, require

require(keras_backend())

from keras.optimizers import SGD, Adadelta, Adagrad, Adam, RMSprop, get  # noqa: E402

__all__ = ["SGD", "Adadelta", "Adagrad", "Adam", "RMSprop", "get"]
