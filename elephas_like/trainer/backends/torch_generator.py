"""PyTorch's own random generator as a variable of a model's state.

Keras' Dropout without a seed, and PyTorch's layers, draw from the one generator of the process. So its state travels with the
model's: a worker that is tried again draws the same numbers, and all engines do.
"""

from __future__ import annotations

import hashlib
from typing import Any

from elephas_like.core.extras import require
from elephas_like.core.types import Array

require("torch")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

_BYTES = 5056
"""Of the state of a generator on a CPU, a Mersenne twister; those on cards are shorter."""


class ProcessGenerator:
    """The generator of this process on Keras' device.

    Its value is minus the number of bytes of a state, and these bytes. Other numbers, such as those that are drawn for each worker and
    round, are a seed.
    """

    name = "seed_generator_state"
    shape = (1 + _BYTES // 8,)
    dtype = "int64"

    def read(self) -> Array:
        """Return the state."""
        state = _device().get_rng_state().cpu().numpy().tobytes()
        padded = np.frombuffer(state.ljust(_BYTES, b"\0"), np.int64)
        return np.concatenate([np.array([-len(state)]), padded])

    def write(self, value: Array) -> None:
        """Set the state, or seed the generator: also by the state of another device's."""
        words = np.ascontiguousarray(value, np.int64)
        content, size = words[1:].tobytes(), int(-words[0])
        if size == _device().get_rng_state().numel():
            _device().set_rng_state(torch.from_numpy(np.frombuffer(content[:size], np.uint8).copy()))
        else:
            torch.manual_seed(int.from_bytes(hashlib.blake2b(words.tobytes(), digest_size=7).digest(), "big"))


def _device() -> Any:
    """Return the module of PyTorch's that has the generator of Keras' device."""
    kind = keras.ops.convert_to_tensor(0).device.type
    return torch if kind == "cpu" else getattr(torch, kind)
