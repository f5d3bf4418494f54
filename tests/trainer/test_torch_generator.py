"""PyTorch's own generator as a variable: read, set, and seeded by numbers that are no state. Run by `make test-torch`."""

from __future__ import annotations

import keras
import numpy as np
import torch

from elephas_like.trainer.backends.torch_generator import ProcessGenerator

DEVICE = keras.ops.convert_to_tensor(0).device


def test_the_process_generator_goes_on_where_it_was_read() -> None:
    generator = ProcessGenerator()
    torch.manual_seed(3)
    torch.rand(7, device=DEVICE)
    state = generator.read()
    assert state.shape == generator.shape
    drawn = torch.rand(5, device=DEVICE)
    generator.write(state)
    assert torch.equal(torch.rand(5, device=DEVICE), drawn)
    np.testing.assert_array_equal(generator.read(), generator.read())


def test_other_numbers_seed_the_process_generator() -> None:
    generator = ProcessGenerator()
    folded = np.random.SeedSequence([1, 2]).generate_state(generator.shape[0], np.uint32).astype(np.int64)
    of_another_device = np.concatenate([[-24], np.arange(generator.shape[0] - 1)])
    draws = []
    for value in (folded, folded, folded + 1, of_another_device, np.zeros(generator.shape, np.int64)):
        generator.write(value)
        draws.append(torch.rand(3, device=DEVICE).tolist())
    assert draws[0] == draws[1]
    assert len({tuple(draw) for draw in draws}) == 4
