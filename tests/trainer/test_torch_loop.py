"""The loop of PyTorch takes the steps of Keras' `fit(shuffle=False)` on the same backend. Run by `make test-torch`."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from elephas_like.core.structure import flatten
from elephas_like.trainer.backends.torch_loop import TorchLoop
from elephas_like.trainer.building import build
from elephas_like.trainer.metric_results import metrics_of
from elephas_like.trainer.state import Variables
from elephas_like.trainer.tensors import row_numbers, tensors
from trainer.small import mlp, rows

X, Y = rows(22)
WEIGHTS = np.linspace(0, 2, 22).astype("float32")
BATCH = 4  # 22 rows: five whole batches and one of two


def run(loop: TorchLoop, data: tuple[object, ...], first: int, last: int, order: np.ndarray | None = None) -> None:
    leaves, structure = flatten(data)
    numbers = row_numbers(len(leaves[0]) if order is None else order)
    loop.run(tensors(leaves), structure, numbers, BATCH, first, last)


@pytest.mark.parametrize("cuts", [(0, 6), (0, 2, 6), (0, 1, 2, 3, 4, 5, 6)])
@pytest.mark.parametrize("data", [(X, Y), (X, Y, WEIGHTS)], ids=["x, y", "weights"])
def test_the_steps_are_those_of_keras_fit_however_they_are_cut(
    data: tuple[np.ndarray, ...], cuts: tuple[int, ...]
) -> None:
    ours, theirs = (mlp("adam", metrics=["mae"], weighted_metrics=["mse"]) for _ in range(2))
    for model in (ours, theirs):
        build(model, data)
    loop = TorchLoop(ours, ours.train_step)
    for first, last in itertools.pairwise(cuts):
        run(loop, data, first, last)
    history = theirs.fit(
        X, Y, sample_weight=data[2] if len(data) > 2 else None, batch_size=BATCH, shuffle=False, verbose=0
    ).history
    np.testing.assert_array_equal(Variables(ours).read().weights, Variables(theirs).read().weights)
    found = metrics_of(ours)
    assert {name: float(value) for name, value in found.items()} == pytest.approx(
        {name: values[-1] for name, values in history.items()}, rel=1e-6
    )
    assert loop.done == 6
    assert set(loop.returned) == set(history)


def test_a_step_sees_the_rows_that_the_order_names() -> None:
    model, seen = mlp(), []
    build(model, (X, Y))
    order = np.random.default_rng(0).permutation(22)

    def step(data):
        seen.append([part.cpu().numpy() for part in data])
        return {}

    run(TorchLoop(model, step), (X, Y), 4, 6, order)
    for batch, begin in zip(seen, (16, 20), strict=True):
        np.testing.assert_array_equal(batch[0], X[order[begin : begin + BATCH]])
        np.testing.assert_array_equal(batch[1], Y[order[begin : begin + BATCH]])


def test_modules_train_while_steps_train_and_no_gradient_is_kept_of_tests() -> None:
    model, seen = mlp(), []
    build(model, (X, Y))

    def note(step):
        def noted(data):
            seen.append((model.training, torch.is_grad_enabled()))
            return step(data)

        return noted

    run(TorchLoop(model, note(model.train_step)), (X, Y), 0, 1)
    assert not model.training
    model.test_step = note(model.test_step)
    with torch.enable_grad():
        run(TorchLoop(model, model.test_step), (X, Y), 0, 1)
    assert seen == [(True, True), (False, False)]


def test_a_step_that_raises_leaves_the_model_in_order() -> None:
    model = mlp()
    build(model, (X, Y))

    def step(data):
        raise ZeroDivisionError

    loop = TorchLoop(model, step)
    with pytest.raises(ZeroDivisionError):
        run(loop, (X, Y), 0, 1)
    assert (loop.done, model.training, torch.is_grad_enabled()) == (0, False, True)


def test_a_model_compiled_with_jit_compile_has_its_steps_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda step: compiled.append(step.__name__) or step)
    for options in ({"jit_compile": True}, {"jit_compile": False}, {}):
        model = mlp()
        model.compile("sgd", "mse", **options)
        TorchLoop(model, model.train_step)
    assert compiled == ["train_step"]
