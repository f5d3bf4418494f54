"""Templates of hyperas: what they mean, and what they may hold."""

from __future__ import annotations

import linecache
import math
import traceback

import cloudpickle
import pytest

from elephas_like.core.errors import ElephasError
from elephas_like.tuning.space import Space
from elephas_like.tuning.templates import from_templates, has_templates

# ruff: noqa: F821, C408  templates name distributions that nobody imports
LOW = 1e-4
OPTIONS = [16, 32]


class Dropout:
    def __init__(self, rate: float) -> None:
        self.rate = rate


def network(x, y):
    first = Dropout({{uniform(0, 1)}})  # type: ignore
    second = Dropout({{uniform(0, 0.5)}})  # type: ignore
    units = {{choice([256, 512])}}  # type: ignore
    kind = dict(activation={{choice(["relu", "tanh"])}}, rate={{loguniform(log(LOW), -2)}})  # type: ignore
    deep = {{choice(["three", "four"])}} == "four"  # type: ignore
    layer = [].append({{choice([Dropout(0.5), None])}}) or {{choice([Dropout(0.25), "linear"])}}  # type: ignore
    size = dict(batch={{choice(OPTIONS)}}, whole={{quniform(2 * 4, 64, q=8)}})  # type: ignore
    return x + y, first.rate, second.rate, units, kind, deep, layer, size


def test_templates_become_a_space_and_look_ups() -> None:
    assert has_templates(network)
    function, nodes = from_templates(network)
    space = Space(nodes)
    assert space.labels == sorted(
        ["Dropout", "Dropout_1", "units", "activation", "rate", "rate_1", "append", "append_1", "batch", "whole"]
    )
    point = {
        "Dropout": 0.1,
        "Dropout_1": 0.2,
        "units": 1,
        "activation": 0,
        "rate": 0.01,
        "rate_1": 1,
        "append": 1,
        "append_1": 0,
        "batch": 1,
        "whole": 16.0,
    }
    total, first, second, units, kind, deep, layer, size = function(space.at(point), 1, 2)
    assert (total, first, second, units) == (3, 0.1, 0.2, 512)
    assert kind == {"activation": "relu", "rate": 0.01}
    assert deep
    assert layer.rate == 0.25  # an option that is no plain value is made where it stands
    assert size == {"batch": 32, "whole": 16.0}


def test_errors_name_the_lines_of_the_users_file() -> None:
    def fails(x):
        rate = {{uniform(0, 1)}}  # type: ignore
        raise KeyError(rate)

    made, _ = from_templates(fails)
    with pytest.raises(KeyError) as caught:
        made({"rate": 0.5}, None)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.lineno) == (__file__, fails.__code__.co_firstlineno + 2)


def test_a_file_that_is_edited_after_its_import_is_refused(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def tried():\n    return {{uniform(0, 1)}}\n"
    (tmp_path / "edited_templates.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    from edited_templates import tried

    from_templates(tried)
    (tmp_path / "edited_templates.py").write_text(text.replace("1)", "999)"))
    assert "999" not in str(from_templates(tried)[1])  # its lines were read before
    linecache.clearcache()
    with pytest.raises(ElephasError, match=r"edited_templates\.py was edited after it was imported"):
        from_templates(tried)


def test_the_function_travels() -> None:
    function, nodes = from_templates(network)
    params = Space(nodes).at(dict.fromkeys(Space(nodes).labels, 0))
    assert cloudpickle.loads(cloudpickle.dumps(function))(params, 1, 2)[0] == 3


def test_a_function_of_a_function_sees_what_it_closes_over() -> None:
    scale = 10

    def inner():
        return scale * {{uniform(0, 1)}}  # type: ignore

    function, nodes = from_templates(inner)
    assert function({"uniform": 0.5}) == 5.0
    assert list(nodes) == ["uniform"]


def test_limits_may_be_computed() -> None:
    def rates():
        return {{uniform(-sqrt(4), (1 + 3) ** 2 / 8)}}  # type: ignore

    _, nodes = from_templates(rates)
    text = str(nodes["uniform"])
    assert "Literal{-2.0}" in text
    assert "Literal{2.0}" in text
    assert math.isclose(Space(nodes).at({"uniform": 1.5})["uniform"], 1.5)


def plain(x):
    return {x}


def unknown():
    return {{unifrom(0, 1)}}  # type: ignore


def evil():
    return {{uniform(0, __import__("os").getpid())}}  # type: ignore


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (plain, "plain has no templates"),
        (unknown, "unknown kind. Did you mean 'uniform'"),
        (evil, "a template takes plain values.*got .*getpid"),
        (lambda: 0, "defined with def"),
        (len, "source of 'len' was not found"),
    ],
)
def test_what_is_no_template_is_refused(function, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        from_templates(function)
