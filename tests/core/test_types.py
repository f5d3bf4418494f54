from __future__ import annotations

from dataclasses import FrozenInstanceError
from enum import StrEnum

import numpy as np
import pytest
from plain_numpy import floats, state, update

from elephas_like.core.types import (
    EngineName,
    FitConfig,
    Frequency,
    Mode,
    OnNaN,
    OptimizerState,
    Order,
    Role,
    RoundRecord,
    Span,
    WorkerRecord,
    last_average,
    seldom_changed,
)


def test_last_average() -> None:
    assert [last_average(version, 3) for version in range(8)] == [0, 0, 0, 3, 3, 3, 6, 6]
    assert [last_average(version, 1) for version in range(3)] == [0, 1, 2]
    assert [last_average(version, 0) for version in range(3)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("state", "every", "slots_every", "seldom"),
    [
        ("average", 1, 1, [Role.FROZEN]),
        ("average", 2, 2, [Role.FROZEN, Role.SLOT]),
        ("per_worker", 1, 0, [Role.FROZEN, Role.SLOT]),
        ("reset", 1, 1, [Role.FROZEN, Role.SLOT]),
    ],
)
def test_who_keeps_slots_and_which_parts_seldom_change(
    state: str, every: int, slots_every: int, seldom: list[Role]
) -> None:
    config = FitConfig(optimizer_state=OptimizerState(state), optimizer_state_every=every)
    assert config.slots_every == slots_every
    assert config.keeps_slots is (slots_every != 1)
    assert list(seldom_changed(config.optimizer_state, every)) == seldom


@pytest.mark.parametrize(
    ("member", "text"),
    [
        (Mode.SYNCHRONOUS, "synchronous"),
        (Mode.ASYNCHRONOUS, "asynchronous"),
        (Mode.HOGWILD, "hogwild"),
        (Frequency.AUTO, "auto"),
        (Frequency.FIT, "fit"),
        (EngineName.IN_PROCESS, "in_process"),
        (OptimizerState.PER_WORKER, "per_worker"),
        (OnNaN.DROP, "drop"),
        (Role.SLOT, "slots"),
    ],
)
def test_choices_are_their_names(member: StrEnum, text: str) -> None:
    assert member == text
    assert f"{member}" == text
    assert type(member)(text) is member


def test_parts_come_in_the_order_of_the_roles() -> None:
    whole = state(1, 2)
    names = ["weights", "statistics", "frozen", "slots", "counters", "learning_rate", "loss_scale", "seeds"]
    assert list(whole.parts()) == names
    assert [role.value for role in Role] == names
    assert whole.part(Role.WEIGHT) is whole.weights
    assert whole.part(Role.SEED) is whole.seeds


def test_nbytes_counts_every_vector() -> None:
    # float32: 2 weights, 2 statistics, 2 frozen, 2 slots, learning rate, loss scale and its counter: 11 x 4; int64: 3 x 8
    assert state().nbytes == 44 + 24


def test_but_exchanges_what_it_is_given_and_shares_the_rest() -> None:
    before = state(1, 2)
    after = before.but(weights=floats(3, 4), learning_rate=floats(0.25))
    assert after.weights.tolist() == [3, 4]
    assert after.learning_rate.tolist() == [0.25]
    assert after.statistics is before.statistics
    assert after.seeds is before.seeds
    assert before.weights.tolist() == [1, 2]
    assert before.learning_rate.tolist() == [0.5]


def test_but_knows_no_other_names() -> None:
    with pytest.raises(TypeError, match="wheights"):
        state().but(wheights=floats(1, 2))


@pytest.mark.parametrize(
    ("message", "name"),
    [(state(), "weights"), (update(), "delta"), (Order("wait"), "kind"), (Span(0), "epoch")],
)
def test_messages_are_not_changed(message: object, name: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(message, name, np.zeros(2))


def test_an_update_names_its_arrays() -> None:
    arrays = update(0, 5, 6).arrays()
    parts = ["statistics", "frozen", "slots", "counters", "learning_rate", "loss_scale", "seeds"]
    assert list(arrays) == ["delta", *parts, "metrics"]
    assert arrays["delta"].tolist() == [5, 6]


def test_a_round_counts_the_samples_of_its_workers() -> None:
    workers = (WorkerRecord(0, 3, 1, 0.1), WorkerRecord(1, 0, 0, 0.0), WorkerRecord(2, 4, 2, 0.2))
    assert RoundRecord(0, 0, workers).samples == 7


def test_a_span_is_a_whole_epoch_unless_told() -> None:
    assert Span(4) == Span(epoch=4, begin=0, end=1, of=1, epochs=1)
