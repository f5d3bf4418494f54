"""The table of constructor options, and that whatever else names them agrees with it."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import get_overloads, get_type_hints

import keras
import numpy as np
import pytest

from elephas_like import AsynchronousSparkModel, SparkModel
from elephas_like.core.types import EngineName, Frequency, Mode
from elephas_like.model.options import NAMES, Options
from elephas_like.stages.param_table import COLUMNS, FITTING

DEFAULTS = {each.name: None if each.default is MISSING else each.default for each in fields(Options)}


def line() -> keras.Model:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def defaults_of(signature: inspect.Signature) -> dict[str, object]:
    skipped = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = [each for each in signature.parameters.values() if each.kind not in skipped]
    return {each.name: each.default for each in parameters if each.name not in ("self", "model")}


def test_the_typed_signature_of_the_constructor_has_every_option_and_its_default() -> None:
    today, elephas = (inspect.signature(each) for each in get_overloads(SparkModel.__init__))
    assert defaults_of(today) == DEFAULTS
    given = defaults_of(elephas)
    assert given.pop("mode") is inspect.Parameter.empty  # a text in its place says which order it is
    assert given == {name: DEFAULTS[name] for name in given}
    given = defaults_of(inspect.signature(AsynchronousSparkModel.__init__))
    assert given == {name: DEFAULTS[name] for name in given} | {"mode": "asynchronous"}


def test_every_option_is_an_attribute_of_the_same_type() -> None:
    assert {name: kind for name, kind in get_type_hints(SparkModel).items() if name in NAMES} == get_type_hints(Options)
    model = SparkModel(line(), 3, {"own": 1})
    assert {name: getattr(model, name) for name in NAMES} == DEFAULTS | {
        "num_workers": 3,
        "custom_objects": {"own": 1},
    }


def test_every_option_is_said_in_the_constructor_s_docstring() -> None:
    said = inspect.getdoc(SparkModel) or ""
    assert [name for name in NAMES if f"\n    {name}: " not in said] == []


def test_the_estimator_has_a_param_for_every_option_with_its_default() -> None:
    params = {entry.name: entry.default for entry in (*COLUMNS, *FITTING)}
    camel = {name: re.sub(r"_(\w)", lambda letter: letter[1].upper(), name) for name in NAMES}
    assert {name: params[camel[name]] for name in NAMES} == DEFAULTS | {"custom_objects": {}}


def test_a_configuration_makes_the_same_options_again() -> None:
    options = Options.checked(mode="hogwild", codec="int8", frequency=7, host=3, max_staleness=2, join_timeout=1)
    assert (options.mode, options.host, options.join_timeout) == (Mode.HOGWILD, "3", 1.0)
    config = options.config()
    assert set(config) == set(NAMES) - {"custom_objects"}
    assert (type(config["mode"]), config["engine"]) == (str, "auto")
    assert Options.checked(**config) == options


def test_tls_is_a_flag_or_two_files_also_as_a_file_has_them() -> None:
    assert [Options.checked(tls=value).tls for value in (None, True, False)] == [None, True, False]
    options = Options.checked(tls=[Path("server.crt"), "server.key"])
    assert options.tls == ("server.crt", "server.key")
    assert Options.checked(**json.loads(json.dumps(options.config()))) == options
    for wrong in ("server.pem", ("a", "b", "c"), 1, {"key": "a"}):
        with pytest.raises(TypeError, match=r"tls must be True, False, None, or the paths .* both PEM: .*; got"):
            Options.checked(tls=wrong)
    with pytest.raises(TypeError, match="allow_plain_text must be True or False; got 'yes'"):
        Options.checked(allow_plain_text="yes")


def test_a_range_of_ports_is_kept_as_text_and_has_room_for_a_second_server() -> None:
    options = Options.checked(port=" 40000:40100")
    assert options.port == "40000:40100"
    assert Options.checked(**json.loads(json.dumps(options.config()))) == options
    assert options.beside() is options
    for single in (7080, "7080", "7080:7080", 0):
        assert Options.checked(port=single).beside() == Options.checked(port=0)
    with pytest.raises(ValueError, match=r"port must be a port .* or a range of ports .*; got '40100:40000'"):
        SparkModel(line(), port="40100:40000")


MODEL = object()
POSITIONAL = [
    ((2, {"own": 1}, 16), {}, {"num_workers": 2, "custom_objects": {"own": 1}, "batch_size": 16}),
    (("hogwild", "batch", "socket", 3, None, 16, 4000), {}, {"mode": Mode.HOGWILD, "num_workers": 3, "port": 4000}),
    (("asynchronous",), {"num_workers": 4}, {"mode": Mode.ASYNCHRONOUS, "num_workers": 4}),
    ((), {"engine": "jobs"}, {"engine": EngineName.JOBS, "frequency": Frequency.AUTO}),
]


@pytest.mark.parametrize(("args", "named", "expected"), POSITIONAL)
def test_arguments_by_position_and_by_name(args: tuple, named: dict, expected: dict[str, object]) -> None:
    model, options = Options.from_arguments(MODEL, args, named)
    assert model is MODEL
    assert {name: getattr(options, name) for name in expected} == expected


REFUSED = [
    ((1, None, 32, "auto"), {}, TypeError, "takes 3 positional arguments after the model .*got 4"),
    (("hogwild", *[1] * 7), {}, TypeError, "takes 7 positional arguments after the model .*got 8"),
    ((2,), {"num_workers": 2}, TypeError, "got num_workers twice, by position and by name"),
    ((), {"num_worker": 2}, TypeError, "no argument 'num_worker'. Did you mean 'num_workers'"),
    ((), {"epochs": 2}, TypeError, "epochs= is an argument of fit, not of SparkModel"),
    ((), {"elephas_optimizer": "adam"}, ValueError, "elephas_optimizer= is no more"),
]


@pytest.mark.parametrize(("args", "named", "kind", "message"), REFUSED)
def test_arguments_that_cannot_be_placed(args: tuple, named: dict, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        Options.from_arguments(MODEL, args, named)


@pytest.mark.spark
def test_a_spark_context_comes_before_the_model_as_in_elephas_0_x(sc) -> None:
    model, options = Options.from_arguments(sc, (MODEL, None, "asynchronous", "epoch", 3), {})
    assert (model, options.mode, options.num_workers) == (MODEL, Mode.ASYNCHRONOUS, 3)
    model, options = Options.from_arguments(sc, (), {"master_network": MODEL, "num_workers": 2})
    assert (model, options.num_workers) == (MODEL, 2)


def test_what_a_user_sets_on_the_model_is_checked_and_counts() -> None:
    model = SparkModel(line(), 2, engine="in_process")
    model.mode = "asynchronous"  # type: ignore[assignment]  # users do
    assert model.get_config()["mode"] == "asynchronous"
    model.batch_size = 0
    with pytest.raises(ValueError, match="batch_size must be a whole number of at least 1; got 0"):
        model.get_config()


def test_what_is_shown_of_a_model_is_what_differs_from_the_defaults() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)], name="line")
    model.compile("sgd", "mse")
    assert repr(SparkModel(model)) == "SparkModel('line')"
    shown = SparkModel(model, 2, mode="asynchronous", engine="in_process")
    assert repr(shown) == "SparkModel('line', num_workers=2, mode='asynchronous', engine='in_process')"
    history = shown.fit(np.ones((8, 2)), np.ones(8), epochs=2, verbose=0)
    assert repr(history).startswith("History(2 epochs; loss: ")
    assert history._repr_html_().count("<tr>") == 1 + 2
    assert shown._repr_html_().count("<tr>") == 1 + 2
