"""Keras' global settings, and its backend's: models are built and trained under those of the driver, wherever that is done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import keras

from elephas_like.trainer.backends.chosen import BACKEND


@dataclass(frozen=True)
class KerasSettings:
    """Keras' global settings as plain data.

    dtype_policy: JSON. Keras keeps the policy for each thread: threads that a program starts have the default one.
    arithmetic: JSON. How exactly the backend computes, such as with TensorFloat-32 on GPUs, and whether deterministically.
    """

    floatx: str
    epsilon: float
    image_data_format: str
    dtype_policy: str
    arithmetic: str

    @classmethod
    def current(cls) -> KerasSettings:
        """Return the settings of this thread."""
        policy, arithmetic = _policy(keras.config.dtype_policy()), json.dumps(BACKEND.arithmetic(), sort_keys=True)
        return cls(keras.config.floatx(), keras.config.epsilon(), keras.config.image_data_format(), policy, arithmetic)

    @property
    def plain(self) -> bool:
        """Whether they are those that Keras begins with."""
        policy = _policy(keras.dtype_policies.get("float32"))
        return self == KerasSettings(
            "float32", 1e-7, "channels_last", policy, json.dumps(BACKEND.ARITHMETIC, sort_keys=True)
        )

    def apply(self) -> None:
        """Set them for this process, but for the policy, which is of use only while layers are made."""
        keras.config.set_floatx(self.floatx)
        keras.config.set_epsilon(self.epsilon)
        keras.config.set_image_data_format(self.image_data_format)
        BACKEND.use_arithmetic(json.loads(self.arithmetic))

    @contextmanager
    def policy_applied(self) -> Iterator[None]:
        """Set the policy of this thread for a while."""
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(keras.dtype_policies.deserialize(json.loads(self.dtype_policy)))
        try:
            yield
        finally:
            keras.config.set_dtype_policy(before)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Set them all for a while."""
        before = KerasSettings.current()
        self.apply()
        try:
            with self.policy_applied():
                yield
        finally:
            before.apply()

    def __str__(self) -> str:
        """Return them all, always in one order."""
        return json.dumps(asdict(self), sort_keys=True)


def _policy(policy: keras.dtype_policies.DTypePolicy) -> str:
    if (
        type(policy) is keras.dtype_policies.DTypePolicy
    ):  # as Keras would write it, which imports TensorFlow, on any backend, to ask about types
        config = {"name": policy.name}
        return json.dumps({"module": "keras", "class_name": "DTypePolicy", "config": config, "registered_name": None})
    return json.dumps(keras.dtype_policies.serialize(policy))
