from __future__ import annotations

import math

import numpy as np
import pytest

from elephas_like.core import checks
from elephas_like.core.types import Frequency, Mode, OnNaN


def test_choice_takes_names_and_members() -> None:
    assert checks.choice("mode", "hogwild", Mode) is Mode.HOGWILD
    assert checks.choice("mode", Mode.HOGWILD, Mode) is Mode.HOGWILD


def test_choice_lists_the_names_and_guesses() -> None:
    with pytest.raises(ValueError) as caught:
        checks.choice("mode", "asynchronus", Mode)
    assert str(caught.value) == (
        "mode must be one of 'synchronous', 'asynchronous', 'hogwild'; got 'asynchronus'. Did you mean 'asynchronous'?"
    )


@pytest.mark.parametrize("value", [None, 3, ["raise"], "RAISE", ""])
def test_choice_takes_nothing_else(value: object) -> None:
    with pytest.raises(ValueError, match=r"on_nan must be one of 'raise', 'drop'; got "):
        checks.choice("on_nan", value, OnNaN)


def test_near_keeps_quiet_where_nothing_is() -> None:
    assert checks.did_you_mean("xyz", ["epoch", "batch"]) == ""
    assert checks.did_you_mean("epochs", ["epoch", "batch"]) == " Did you mean 'epoch'?"
    assert checks.did_you_mean("mobile_net", ["mobilenet", "MobileNet"]) == " Did you mean 'mobilenet'?"
    assert checks.did_you_mean("EPOCHS", ["epochs", "batch_size"]) == " Did you mean 'epochs'?"


@pytest.mark.parametrize("value", [1, np.int64(1), np.uint8(1)])
def test_positive_int(value: object) -> None:
    number = checks.positive_int("epochs", value)
    assert number == 1
    assert type(number) is int


@pytest.mark.parametrize("value", [0, -1, 1.0, "1", None, True, np.float32(1), int, np.array([1, 2])], ids=repr)
def test_not_a_positive_int(value: object) -> None:
    with pytest.raises(ValueError, match=r"epochs must be a whole number of at least 1; got "):
        checks.positive_int("epochs", value)


def test_a_flag_is_one_of_two_and_no_array() -> None:
    assert [checks.flag("shuffle", value) for value in (True, 0, np.True_)] == [True, False, True]
    for value in ("yes", 2, None, np.array([True, False])):
        with pytest.raises(TypeError, match="shuffle must be True or False; got "):
            checks.flag("shuffle", value)


def test_least_may_be_another() -> None:
    assert checks.positive_int("seed", 0, least=0) == 0
    with pytest.raises(ValueError, match="seed must be a whole number of at least 0; got -1"):
        checks.positive_int("seed", -1, least=0)


@pytest.mark.parametrize(
    ("value", "kept", "tried"),
    [
        (0, 0, [0]),
        (np.int64(7080), 7080, [7080]),
        ("7080", 7080, [7080]),  # as a setting or the environment has it
        (65535, 65535, [65535]),
        ("40000:40002", "40000:40002", [40000, 40001, 40002]),
        (" 40000 : 40001 ", "40000:40001", [40000, 40001]),
        ("1:1", "1:1", [1]),
    ],
)
def test_a_port_or_a_range_of_them(value: object, kept: int | str, tried: list[int]) -> None:
    found = checks.port("port", value)
    assert (type(found), found) == (type(kept), kept)
    assert list(checks.ports(found)) == tried
    assert checks.port("port", found) == found  # what is kept is checked again


@pytest.mark.parametrize(
    "value",
    ["40100:40000", "0:10", "65000:65536", "40000:", ":1", "1:2:3", "a:b", "", "40000-40100", 65536, "65536", -1, 1.5, True, None,
     (40000, 40100), "\u0664\u0660:50"],
)  # fmt: skip
def test_what_is_no_port(value: object) -> None:
    with pytest.raises(ValueError, match=r"port must be a port from 0 .* to 65535, or a range .*'40000:40100'.*; got "):
        checks.port("port", value)


def test_positive_seconds() -> None:
    seconds = checks.positive_seconds("round_timeout", 2)
    assert seconds == 2.0
    assert type(seconds) is float
    for value in (0, -1.5, math.nan, "2", None, True):
        with pytest.raises(ValueError, match=r"round_timeout must be a time in seconds above 0; got "):
            checks.positive_seconds("round_timeout", value)


def test_share() -> None:
    assert checks.share("validation_split", 0) == 0.0
    assert checks.share("validation_split", 0.25) == 0.25
    for value in (1, 1.0, -0.1, math.nan, "0.2", None, False):
        with pytest.raises(ValueError, match=r"validation_split must be a share from 0 to below 1; got "):
            checks.share("validation_split", value)


def test_frequency() -> None:
    assert checks.frequency("epoch") is Frequency.EPOCH
    assert checks.frequency(Frequency.AUTO) is Frequency.AUTO
    assert checks.frequency(np.int32(7)) == 7


def test_frequency_says_what_it_takes() -> None:
    with pytest.raises(ValueError) as caught:
        checks.frequency("epochs")
    assert str(caught.value) == (
        "frequency must be one of 'auto', 'epoch', 'batch', 'fit', or a number of steps; got 'epochs'. "
        "Did you mean 'epoch'?"
    )
    for value in (0, 2.5, True, None):
        with pytest.raises(ValueError, match=r"frequency must be a whole number of at least 1; got "):
            checks.frequency(value)
