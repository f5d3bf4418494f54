"""Spaces and samplers."""

from __future__ import annotations

from functools import partial

import hyperopt
import keras
import numpy as np
import pytest
from hyperopt import hp

from elephas_like.core.trials import TrialResult, TrialStatus
from elephas_like.tuning.space import Sampler, Space, described

PLAIN = {
    "units": [16, 32],
    "rate": ("loguniform", -9, -2),
    "inner": {"depth": ("randint", 1, 4), "kept": "yes"},
    "size": ("quniform", 8, 64, 8),
}


def search(space: object, algo: object, seed: int, count: int) -> list[dict]:
    """The points of a search for a low `rate`."""
    sampler = Sampler(Space(space), algo, seed)  # type: ignore[arg-type]
    points = []
    for number in range(count):
        point = sampler.suggest(number)
        assert point is not None
        points.append(point)
        sampler.tell(TrialResult(number, TrialStatus.OK, loss=float(sampler.space.at(point)["rate"])))
    return points


def test_a_plain_dict_becomes_a_space() -> None:
    space = Space(PLAIN)
    assert space.labels == ["inner.depth", "rate", "size", "units"]
    found = space.at({"units": 1, "rate": 0.01, "inner.depth": 2, "size": 16.0})
    assert found == {"units": 32, "rate": 0.01, "inner": {"depth": 2, "kept": "yes"}, "size": 16.0}
    assert all(type(value) in (int, float) for value in (found["units"], found["rate"], found["size"]))


def test_hyperopts_own_spaces_are_taken_and_may_be_mixed() -> None:
    nodes = {"rate": hp.loguniform("rate", -9, -2), "kind": hp.choice("kind", [{"deep": hp.randint("depth", 3)}, None])}
    assert Space(nodes).labels == ["depth", "kind", "rate"]
    assert Space(nodes).at({"rate": 0.1, "kind": 1}) == {"rate": 0.1, "kind": None}
    assert Space({**nodes, "units": [1, 2]}).at({"rate": 0.1, "kind": 0, "depth": 2, "units": 0})["units"] == 1
    assert Space(hp.uniform("x", 0, 1)).at({"x": 0.5}) == 0.5


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ({}, "the space is empty"),
        ([], "the space is empty"),
        ([1, 2], "no parameters, only constants"),
        ({"head": {}}, "no parameters, only constants"),
        ({"units": 32}, "no parameters, only constants"),
        ({"x": ("unifrom", 0, 1)}, "unknown kind 'unifrom'. Did you mean 'uniform'"),
        ({"x": ("uniform", 0)}, "parameter 'x': uniform"),
        ({"x": ("quniform", 0, 9, 0)}, r"parameter 'x': quniform\(0, 9, 0\) is not one: it draws nan"),
        (
            {"x": ("pchoice", [(0.3, 1), (0.3, 2)])},
            "parameter 'x': pchoice.*: the probabilities add up to 0.6, expected 1",
        ),
        ({"x": []}, "at least one option"),
        ({"x": {1, 2}}, "parameter 'x': expected"),
        ({"x": (0, 1)}, "parameter 'x': expected"),
        ({"a": hp.uniform("x", 0, 1), "b": hp.uniform("x", 0, 2)}, "the label 'x'"),
    ],
)
def test_what_is_no_space_is_refused(space: object, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=said):
        Space(space)
    assert capsys.readouterr().out == ""  # hyperopt prints the node that it could not draw from


@pytest.mark.parametrize("space", [None, "units", 3, {32, 64}])
def test_what_is_neither_a_dict_nor_hyperopts_is_refused(space: object) -> None:
    with pytest.raises(TypeError, match=r"space must be a dict of parameters.*or hyperopt's; got"):
        Space(space)


def test_a_list_of_hyperopts_is_a_space() -> None:
    assert Space([hp.uniform("x", 0, 1), 7]).at({"x": 0.5}) == (0.5, 7)


OPTIONS = {
    "opt": [
        {"name": "sgd", "rate": ("loguniform", -9, -2), "more": {"nesterov": [False, True]}},
        {
            "name": "adam",
            "units": [1, (2, 3)],
            "betas": (0.9, 0.99),
            "on": {1, 2},
            "say": ("a", "b"),
            "own": hp.uniform("x", 0, 1),
        },
        "none",
        [64, ("uniform", 0, 1)],
    ],
    "size": [("uniform", 0, 1), 7, (8, 9)],
    "some": ("pchoice", [(0.5, {"depth": ("randint", 1, 4)}), (0.5, None)]),
    "also": ("choice", [{"wide": [1, 2]}, ("lognormal", 0, 1)]),
}


def test_what_an_option_holds_is_read_as_an_entry_is() -> None:
    space = Space(OPTIONS)
    assert space.labels == [
        "also",
        "also.0.wide",
        "also.1",
        "opt",
        "opt.0.more.nesterov",
        "opt.0.rate",
        "opt.1.units",
        "size",
        "size.0",
        "some",
        "some.0.depth",
        "x",
    ]
    left = {"size": 2, "some": 1, "also": 1, "also.1": 2.5}
    got = {"size": (8, 9), "some": None, "also": 2.5}
    sgd = {"opt": 0, "opt.0.rate": 0.01, "opt.0.more.nesterov": 1}
    assert space.at({**left, **sgd}) == {**got, "opt": {"name": "sgd", "rate": 0.01, "more": {"nesterov": True}}}
    constants = {"name": "adam", "betas": (0.9, 0.99), "on": {1, 2}, "say": ("a", "b")}
    adam = {"opt": 1, "opt.1.units": 1, "x": 0.5}
    assert space.at({**left, **adam}) == {**got, "opt": {**constants, "units": (2, 3), "own": 0.5}}
    assert space.at({**left, "opt": 3})["opt"] == (64, ("uniform", 0, 1))  # a list in a list is a constant
    other = {"size": 0, "size.0": 0.25, "some": 0, "some.0.depth": 3, "also": 0, "also.0.wide": 1, "opt": 2}
    assert space.at(other) == {"size": 0.25, "some": {"depth": 3}, "also": {"wide": 2}, "opt": "none"}


def test_options_without_parameters_are_constants_and_hyperopts_choices_are_its_own() -> None:
    plain = {"opt": [{"name": "sgd", "shape": (3, 3), "deep": {"kept": None}}, {"name": "adam"}]}
    assert Space(plain).labels == ["opt"]
    assert Space(plain).at({"opt": 0})["opt"] == {"name": "sgd", "shape": (3, 3), "deep": {"kept": None}}
    nodes = {"opt": hp.choice("opt", [{"units": [1, 2]}, 3])}
    assert Space(nodes).labels == ["opt"]
    assert Space(nodes).at({"opt": 0}) == {"opt": {"units": (1, 2)}}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([{"rate": ("loguniform", -9)}, 1], "parameter 'opt.0.rate': loguniform"),
        ([1, {"deep": {"units": []}}], "parameter 'opt.1.deep.units': choice takes one list of at least one option"),
        (("pchoice", [1, 2]), "parameter 'opt': pchoice"),
        (("choice",), "parameter 'opt': choice takes one list"),
    ],
)
def test_what_is_no_parameter_of_an_option_is_refused(options: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Space({"opt": options})


@pytest.mark.parametrize("algo", ["random", "tpe", "anneal"])
def test_algorithms_draw_what_hangs_on_an_option_only_where_it_is_chosen(algo: str) -> None:
    space = Space(OPTIONS)
    sampler = Sampler(space, algo, 0)
    for number in range(30):
        point = sampler.suggest(number)
        assert point is not None
        assert space.walk(lambda one, point=point: point[one.label]).keys() == point.keys()
        sampler.tell(TrialResult(number, TrialStatus.OK, loss=float(number)))


@pytest.mark.parametrize("algo", ["random", "tpe", "anneal", hyperopt.rand.suggest])
def test_a_seed_gives_the_same_points(algo: object) -> None:
    assert search(PLAIN, algo, 1, 25) == search(PLAIN, algo, 1, 25)
    assert search(PLAIN, algo, 1, 3) != search(PLAIN, algo, 2, 3)


def test_tpe_learns_from_every_trial_and_random_does_not() -> None:
    tpe, random = (search(PLAIN, algo, 0, 60) for algo in ("tpe", "random"))
    assert tpe[:20] == random[:20]  # hyperopt's start-up trials are random ones
    assert sum(point["rate"] for point in tpe[20:]) < 0.5 * sum(point["rate"] for point in random[20:])


def test_a_later_trial_of_a_random_search_needs_no_earlier_ones() -> None:
    sampler = Sampler(Space(PLAIN), "random", 5)
    assert sampler.suggest(7) == search(PLAIN, "random", 5, 8)[7]


def test_recalled_trials_are_as_if_just_tried() -> None:
    points = search(PLAIN, "tpe", 0, 30)
    sampler = Sampler(Space(PLAIN), "tpe", 0)
    for number, point in enumerate(points[:29]):
        loss = float(sampler.space.at(point)["rate"])
        sampler.recall(TrialResult(number, TrialStatus.OK, loss=loss), point)
    assert sampler.suggest(29) == points[29]


def test_hyperopts_trials_say_what_came_of_them() -> None:
    sampler = Sampler(Space(PLAIN), "random", 0)
    results = [
        TrialResult(0, TrialStatus.OK, loss=0.5, notes={"seen": 3}),
        TrialResult(1, TrialStatus.FAILED),
        TrialResult(2, TrialStatus.PRUNED, loss=0.9),
    ]
    for result in results:
        sampler.suggest(result.number)
        sampler.tell(result)
    assert [r["status"] for r in sampler.trials.results] == ["ok", "fail", "ok"]
    assert sampler.trials.losses() == [0.5, None, 0.9]
    assert sampler.trials.results[0]["seen"] == 3
    assert sampler.trials.best_trial["tid"] == 0


def test_algorithms_are_checked_and_may_end() -> None:
    with pytest.raises(
        ValueError, match=r"algo must be one of 'tpe', 'random', 'anneal'.*got 'tpes'. Did you mean 'tpe'"
    ):
        Sampler(Space(PLAIN), "tpes", 0)
    with pytest.raises(TypeError, match="a name, a sampler of Optuna's, or a function"):
        Sampler(Space(PLAIN), 3, 0)  # type: ignore[arg-type]
    assert Sampler(Space(PLAIN), lambda ids, domain, trials, seed: [], 0).suggest(0) is None


def test_a_space_is_described_alike_everywhere() -> None:
    class Option:
        pass

    one, other = Space({"x": [Option(), 1]}), Space({"x": [Option(), 1]})
    assert one.described() == other.described()
    assert one.described() != Space({"x": [Option(), 2]}).described()


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0]), False),  # hyperopt tells shape, least and largest
        (np.arange(3), np.arange(3), True),
        ({"a", "b", "c"}, {"c", "b", "a"}, True),
        ({"a"}, {"b"}, False),
        (keras.layers.LeakyReLU(), keras.layers.LeakyReLU(), True),  # leaky_re_lu and leaky_re_lu_1
        (keras.layers.LeakyReLU(0.1), keras.layers.LeakyReLU(0.2), False),
        (keras.regularizers.L2(0.1), keras.regularizers.L2(0.2), False),
        (keras.layers.Bidirectional(keras.layers.LSTM(2)), keras.layers.Bidirectional(keras.layers.LSTM(2)), True),
    ],
    ids=["arrays", "one array", "sets", "two sets", "layers", "two layers", "two penalties", "layers in layers"],
)
def test_options_are_told_apart_by_what_they_are(one: object, other: object, alike: bool) -> None:
    first, second = (Space({"x": [option, 1]}).described() for option in (one, other))
    assert (first == second) is alike


def test_the_description_of_a_set_does_not_hang_on_the_hashes_of_a_process() -> None:
    names = {f"name {number}" for number in range(10, 60)}
    assert f"{{{', '.join(map(repr, sorted(names)))}}}" in Space({"x": [names, 1]}).described()


def test_plain_spaces_are_described_as_they_were() -> None:
    """Searches of earlier versions go on."""
    space = Space({**PLAIN, "again": hp.choice("again", [None, 1.5, "x", {"y": ("uniform", 0, 1)}])})
    assert space.described() == str(space.expression)


def test_the_point_of_options_that_are_numpy_s_numbers() -> None:
    space = Space({"units": list(2 ** np.arange(4, 7)), "rate": list(np.array([0.001, 0.01, 0.1]))})
    for seed in range(5):
        point = space.drawn(seed)
        assert space.point_of(space.at(point)) == point
    assert space.point_of({"units": np.int64(32), "rate": 0.1}) == {"units": 1, "rate": 2}


def test_an_algorithm_is_described_alike_in_every_process() -> None:
    class Own:
        def __call__(self, ids, domain, trials, seed):
            return []

    tpe = hyperopt.tpe.suggest
    assert described(tpe) == "hyperopt.tpe.suggest"
    assert described(partial(tpe, n_startup_jobs=5, gamma=0.2)) == (
        "partial(hyperopt.tpe.suggest, gamma=0.2, n_startup_jobs=5)"
    )
    assert described(partial(tpe, gamma=0.2)) != described(partial(tpe, gamma=0.3))
    assert described(partial(hyperopt.mix.suggest, p_suggest=[(1.0, tpe)])) == (
        "partial(hyperopt.mix.suggest, p_suggest=[(1.0, <function suggest>)])"
    )
    assert described(Own()) == described(Own())


NESTED = {
    **PLAIN,
    "count": ("uniformint", 1, 5),
    "way": hp.choice("way", [{"kind": "sgd", "momentum": hp.uniform("momentum", 0, 1)}, {"kind": "adam"}]),
    "some": hp.pchoice("some", [(0.3, "a"), (0.7, "b")]),
    "shift": hp.qnormal("shift", 0, 5, 2),
}


def test_a_walk_asks_for_the_parameters_that_count() -> None:
    space = Space(NESTED)
    kinds = {one.label: (one.kind, one.bounds, one.step) for one in space.parameters}
    assert kinds == {
        "count": ("quniform", (1, 5), 1),
        "inner.depth": ("randint", (1, 4), None),
        "momentum": ("uniform", (0, 1), None),
        "rate": ("loguniform", (-9, -2), None),
        "shift": ("qnormal", (0, 5), 2),
        "size": ("quniform", (8, 64), 8),
        "some": ("pchoice", (0, 2), None),
        "units": ("choice", (0, 2), None),
        "way": ("choice", (0, 2), None),
    }
    chosen = {"units": 1, "rate": 0.01, "inner.depth": 2, "size": 16.0, "count": 3.0, "some": 1, "shift": -2.0}
    assert space.walk(lambda one: {**chosen, "way": 1}[one.label]) == {**chosen, "way": 1}
    assert space.walk(lambda one: {**chosen, "way": 0, "momentum": 0.5}[one.label])["momentum"] == 0.5


@pytest.mark.parametrize("space", [PLAIN, NESTED, OPTIONS, [hp.uniform("x", 0, 1), 7]])
def test_the_point_of_parameters_is_the_inverse_of_at(space: object) -> None:
    made = Space(space)
    for seed in range(20):
        point = made.drawn(seed)
        assert made.point_of(made.at(point)) == point


@pytest.mark.parametrize(
    "wrong",
    [
        {"units": 17},
        {"rate": 0.5},
        {"size": 9.0},
        {"inner": {"depth": 4}},
        {"inner": {"depth": 1.5}},
        {"inner": {"depth": 2, "kept": "no"}},
        {"rate": "low"},
        {"other": 3},
    ],
)
def test_parameters_that_are_not_in_the_space_are_refused(wrong: dict) -> None:
    right = {"units": 16, "rate": 0.01, "inner": {"depth": 3}, "size": 8}
    space = Space(PLAIN)
    assert space.at(space.point_of(right)) == {
        **right,
        "inner": {"depth": 3, "kept": "yes"},
    }  # constants may be left out
    with pytest.raises(ValueError, match=r"is not in the space: give every parameter .* for example \{'inner'"):
        space.point_of({**right, **wrong})
    with pytest.raises(ValueError, match="not in the space"):
        space.point_of({"units": 16})


def test_the_first_points_are_tried_first_and_told_to_the_algorithm() -> None:
    space = Space(PLAIN)
    points = [space.drawn(7), space.drawn(8)]
    sampler = Sampler(space, "tpe", 0, points)
    assert [sampler.suggest(0), sampler.suggest(1)] == points
    assert sampler.suggest(2) == search(PLAIN, "random", 0, 3)[2]  # as if they had been drawn
    sampler.tell(TrialResult(0, TrialStatus.OK, loss=0.5))
    assert sampler.trials.losses()[0] == 0.5


def test_parameters_are_shown_as_the_function_got_them() -> None:
    space = Space({"d": [0.5, None, 0.9], "head": {"units": [16, 32]}, "way": hp.choice("other", ["a", "b"])})
    point = {"d": 1, "head.units": 1, "other": 0}
    assert space.values(point, space.at(point)) == {"d": None, "head.units": 32, "other": 0}
    space = Space({"opt": [{"units": [16, 32]}, {"more": {"units": [16, 32]}}], "rate": [0.5, ("choice", [1, None])]})
    point = {"opt": 1, "opt.1.more.units": 1, "rate": 1, "rate.1": 1}
    assert space.values(point, space.at(point)) == {"opt": 1, "opt.1.more.units": 32, "rate": None, "rate.1": None}
    point = {"opt": 0, "opt.0.units": 1, "rate": 0}
    assert space.values(point, space.at(point)) == {"opt": 0, "opt.0.units": 32, "rate": 0.5}


def test_a_parameter_is_shown_by_its_own_value_whatever_else_bears_its_name() -> None:
    space = Space({"rate": hp.loguniform("lr", -9, -2), "lr": "cosine"})
    assert space.values({"lr": 0.01}, space.at({"lr": 0.01})) == {"lr": 0.01}
    swapped = Space({"a": hp.uniform("b", 0, 1), "b": hp.uniform("a", 2, 3), "n": hp.uniform("m", 0, 1), "m": 7})
    point = {"a": 2.5, "b": 0.5, "m": 0.25}
    assert swapped.values(point, swapped.at(point)) == point
    dotted = Space({"a.b": [16, 32], "a": {"b": "kept"}})
    assert dotted.values({"a.b": 1}, dotted.at({"a.b": 1})) == {"a.b": 32}
    options = hp.choice("opt", [{"name": "sgd", "lr": hp.uniform("lr", 0, 1)}, {"name": "adam"}])
    inner = Space({"opt": options, "lr": "cosine", "units": hyperopt.pyll.scope.int(hp.quniform("units", 8, 64, 8))})
    point = {"opt": 0, "lr": 0.5, "units": 16.0}
    assert inner.values(point, inner.at(point)) == {"opt": 0, "lr": 0.5, "units": 16}
    assert inner.values({"opt": 1, "units": 8.0}, inner.at({"opt": 1, "units": 8.0})) == {"opt": 1, "units": 8}
