"""Buffers of PyTorch's modules by module and name, whatever tensor is there. Run by `make test-torch`."""

from __future__ import annotations

import torch

from elephas_like.trainer.backends.torch_buffers import buffer_of, buffers_in


def module() -> torch.nn.Module:
    made = torch.nn.BatchNorm1d(2)
    made.register_buffer("wide", torch.tensor([7.0]).expand(3))
    made.register_buffer("later", None)
    made.register_buffer("shape_only", torch.zeros(2, device="meta"))
    return made


def test_buffers_have_keras_names_and_are_the_same_objects_each_time() -> None:
    made = module()
    found = list(buffers_in(made))
    assert [buffer.name for buffer in found] == ["moving_mean", "moving_variance", "num_batches_tracked", "wide"]
    assert all(one is other for one, other in zip(found, buffers_in(made), strict=True))
    assert all(one is not other for one, other in zip(found, buffers_in(module()), strict=True))


def test_a_buffer_is_the_tensor_that_its_module_has_now() -> None:
    made = module()
    mean = next(iter(buffers_in(made)))
    before = made.running_mean
    assert buffer_of(before) is mean
    made.running_mean = torch.ones(2)
    assert mean.value is made.running_mean
    assert buffer_of(before) is None
    mean.put(torch.full((2,), 3.0))
    assert made.running_mean.tolist() == [3, 3]
    assert before.tolist() == [0, 0]
    assert buffer_of(torch.zeros(2)) is None


def test_a_buffer_of_complex_numbers_is_read_as_an_array() -> None:
    made = torch.nn.Module()
    made.register_buffer("phases", torch.tensor([1 + 2j, 3 - 1j]).conj())
    (phases,) = buffers_in(made)
    assert phases.numpy().tolist() == [1 - 2j, 3 + 1j]


def test_a_tensor_whose_elements_share_memory_is_replaced() -> None:
    made = module()
    wide = list(buffers_in(made))[-1]
    wide.put(torch.tensor([1.0, 2.0, 3.0]))
    assert made.wide.tolist() == [1, 2, 3]


def test_a_buffer_of_a_module_that_is_gone_is_no_buffer() -> None:
    made = module()
    list(buffers_in(made))
    held = made.running_var
    assert buffer_of(held) is not None
    del made
    assert buffer_of(held) is None
