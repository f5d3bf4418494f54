from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest

from elephas_like.core.schedules import FixedSteps
from elephas_like.core.strategies import (
    CODECS,
    EASGD,
    STRATEGIES,
    Average,
    Clipped,
    DownPour,
    DynSGD,
    FedAsync,
    FedBuff,
    Int8,
    Mean,
    Median,
    MomentumLookAhead,
    Nesterov,
    OneShot,
    Reduce,
    Strategy,
    TopK,
    resolve,
)
from elephas_like.core.strategies.registry import check_combination, combinations_table, default_frequency, engines
from elephas_like.core.types import EngineName, Frequency, Mode

OF_MODE = {
    "synchronous": {
        *(
            "average",
            "one_shot",
            "nesterov",
            "diloco",
            "slowmo",
            "bmuf",
            "bmuf_nesterov",
            "fedavgm",
            "fedadam",
            "fedyogi",
        ),
        *("fedadagrad", "rda", "median", "trimmed_mean", "easgd"),
    },
    "asynchronous": {
        *("mla", "heloco", "delayed_nesterov", "fedbuff", "fedasync", "dynsgd", "staleness_aware", "aeasgd", "eamsgd"),
        *("adag", "downpour_adagrad", "downpour"),
    },
    "hogwild": {"downpour", "adag"},
}
REMEMBER = {"easgd", "aeasgd", "eamsgd"}


def test_the_names() -> None:
    assert set(STRATEGIES) == set.union(*OF_MODE.values())
    assert all(resolve(name, Mode.SYNCHRONOUS, 2) == kind() for name, kind in STRATEGIES.items())
    assert all(name == kind.name for name, kind in STRATEGIES.items())
    assert STRATEGIES["mla"] is MomentumLookAhead


@pytest.mark.parametrize("kind", STRATEGIES.values())
def test_every_docstring_has_a_formula_and_a_paper(kind: type[Strategy]) -> None:
    # presets of another strategy, or of a part, name it instead
    text = kind.__doc__ or ""
    assert re.search(r"<-|\(reduce=|`fedadam`|`average`|`aeasgd`|`mla`|`nesterov`|x \+ eta D", text), kind
    assert re.search(r"(19|20)\d\d|arXiv:|\(reduce=", text), kind


@pytest.mark.parametrize("kind", [kind for kind in STRATEGIES.values() if kind.additive])
def test_additive_strategies_step_by_adding(kind: type[Strategy]) -> None:
    assert kind.step is Strategy.step
    assert kind.serve is Strategy.serve
    assert kind().quorum(8) == 1
    assert kind().init(np.zeros(2, np.float32)) == {}


@pytest.mark.parametrize(
    ("mode", "num_workers", "expected"),
    [
        (Mode.SYNCHRONOUS, 1, Average()),  # plain Keras
        (Mode.SYNCHRONOUS, 2, Nesterov()),
        (Mode.SYNCHRONOUS, 8, Nesterov()),
        (Mode.SYNCHRONOUS, 9, Nesterov()),
        (Mode.ASYNCHRONOUS, 2, MomentumLookAhead()),
        (Mode.ASYNCHRONOUS, 1, DownPour()),  # plain Keras
        (Mode.HOGWILD, 2, DownPour()),
    ],
)
def test_defaults(mode: Mode, num_workers: int, expected: Strategy) -> None:
    assert resolve(None, mode, num_workers) == expected


def test_objects_stay_what_they_are() -> None:
    mine = Nesterov(learning_rate=0.5)
    assert resolve(mine, Mode.SYNCHRONOUS, 4) is mine


def test_an_unknown_name_gets_the_nearest_one_or_all() -> None:
    with pytest.raises(ValueError, match=r"^no strategy is called 'nestrov'\. Did you mean 'nesterov'\?$"):
        resolve("nestrov", Mode.SYNCHRONOUS, 2)
    with pytest.raises(ValueError) as caught:
        resolve("xyz", Mode.SYNCHRONOUS, 2)
    known = ", ".join(map(repr, sorted(STRATEGIES)))
    assert str(caught.value) == f"no strategy is called 'xyz'. It must be one of {known}, or a Strategy object."


class MirroredStrategy:
    """What tf.distribute's looks like from outside."""


MirroredStrategy.__module__ = "tensorflow.python.distribute.mirrored_strategy"


def test_a_tf_distribute_strategy_gets_a_sentence() -> None:
    with pytest.raises(TypeError, match=r"strategy=MirroredStrategy is a tf\.distribute strategy.*'nesterov', or None"):
        resolve(MirroredStrategy(), Mode.SYNCHRONOUS, 2)


@pytest.mark.parametrize(("value", "name"), [(3, "int"), (Nesterov, "type"), (["average"], "list")])
def test_what_is_no_strategy(value: object, name: str) -> None:
    with pytest.raises(TypeError, match=f"strategy must be a name or a Strategy object; got {name}"):
        resolve(value, Mode.SYNCHRONOUS, 2)


def fits(mode: Mode, strategy: str, frequency: Frequency | int, engine: EngineName) -> bool:
    try:
        check_combination(mode, STRATEGIES[strategy](), frequency, engine)
    except ValueError:
        return False
    return True


def test_all_combinations() -> None:
    # written out: strategies of each mode, who may end rounds only with the fit, and who must find its worker again
    for mode, strategy, frequency, engine in product(Mode, STRATEGIES, [*Frequency, 1, 50, FixedSteps(3)], EngineName):
        expected = strategy in OF_MODE[mode]
        expected &= frequency == "fit" if strategy == "one_shot" else True
        expected &= mode == "synchronous" or (frequency != "fit" and engine != "jobs" and frequency != FixedSteps(3))
        expected &= strategy not in REMEMBER or (frequency != "fit" and engine != "jobs")
        assert fits(mode, strategy, frequency, engine) == expected, (mode, strategy, frequency, engine)


@pytest.mark.parametrize("part", [Mean(), Median(), Clipped(1.0, then=Mean())])
def test_a_mean_of_one_update_would_undo_its_weight(part: Reduce) -> None:
    mode, engine = Mode.ASYNCHRONOUS, EngineName.AUTO
    for strategy in (DynSGD(reduce=part), MomentumLookAhead(reduce=part), FedBuff(buffer=1, reduce=part)):
        with pytest.raises(
            ValueError, match=r"weighs each update by its staleness as it comes, which reduce=.* would undo"
        ):
            check_combination(mode, strategy, 50, engine)
    check_combination(mode, FedBuff(buffer=3, reduce=part), 50, engine)
    check_combination(mode, DynSGD(reduce=Clipped(1.0)), 50, engine)
    check_combination(mode, DownPour(reduce=part), 50, engine)
    check_combination(Mode.SYNCHRONOUS, Nesterov(reduce=part), 50, engine)


def test_codecs_go_with_what_sends_deltas() -> None:
    for (name, kind), (packed, codec), engine in product(STRATEGIES.items(), CODECS.items(), EngineName):
        mode = next(iter(kind.modes))
        frequency = default_frequency(kind(), Frequency.AUTO)
        expected = name != "fedasync" and not (engine == "jobs" and (mode != "synchronous" or name in REMEMBER))
        expected &= not (engine == "jobs" and packed in ("one_bit", "top_k"))
        try:
            check_combination(mode, kind(), frequency, engine, codec())
        except ValueError:
            assert not expected, (name, packed, engine)
        else:
            assert expected, (name, packed, engine)


def test_what_workers_remember_has_no_place_in_jobs() -> None:
    with pytest.raises(ValueError, match="strategy 'easgd' needs workers that keep their own weights between rounds"):
        check_combination(Mode.SYNCHRONOUS, EASGD(), Frequency.AUTO, EngineName.JOBS)
    with pytest.raises(
        ValueError, match=r"codec='top_k' do not go together: codec 'top_k' needs workers that keep what"
    ):
        check_combination(Mode.SYNCHRONOUS, Nesterov(), Frequency.AUTO, EngineName.JOBS, TopK())
    with pytest.raises(ValueError, match="strategy 'fedasync' sends weights, which codec 'int8' would round off"):
        check_combination(Mode.ASYNCHRONOUS, FedAsync(), Frequency.AUTO, EngineName.AUTO, Int8())
    with pytest.raises(ValueError, match="a schedule as frequency is for mode 'synchronous'"):
        check_combination(Mode.ASYNCHRONOUS, FedAsync(), FixedSteps(3), EngineName.AUTO)
    assert engines(Nesterov(), Mode.SYNCHRONOUS, Int8(error_feedback=True)) == {
        EngineName.SERVER,
        EngineName.GANG,
        EngineName.IN_PROCESS,
    }


@pytest.mark.parametrize(
    ("mode", "strategy", "frequency", "engine", "problem"),
    [
        (
            Mode.ASYNCHRONOUS,
            Nesterov(),
            Frequency.AUTO,
            EngineName.AUTO,
            "strategy 'nesterov' is for mode 'synchronous'",
        ),
        (
            Mode.SYNCHRONOUS,
            DownPour(),
            Frequency.AUTO,
            EngineName.AUTO,
            "strategy 'downpour' is for mode 'asynchronous' or 'hogwild'",
        ),
        (Mode.SYNCHRONOUS, OneShot(), 50, EngineName.AUTO, "strategy 'one_shot' needs frequency 'fit'"),
        (
            Mode.ASYNCHRONOUS,
            MomentumLookAhead(),
            Frequency.FIT,
            EngineName.AUTO,
            "strategy 'mla' needs frequency any frequency but 'fit'",
        ),
        (
            Mode.HOGWILD,
            DownPour(),
            Frequency.AUTO,
            EngineName.JOBS,
            "engine 'jobs' is not for mode 'hogwild'",
        ),
    ],
)
def test_what_does_not_go_together_is_told(
    mode: Mode, strategy: Strategy, frequency: Frequency | int, engine: EngineName, problem: str
) -> None:
    with pytest.raises(ValueError) as caught:
        check_combination(mode, strategy, frequency, engine)
    text = str(caught.value)
    assert text.startswith(f"mode='{mode}', strategy='{strategy.name}', frequency=")
    assert f"do not go together: {problem}. Valid combinations with '{strategy.name}':\n" in text
    assert combinations_table(strategy.name) in text
    assert len(text.splitlines()) <= 5
    assert (f"Strategies for mode '{mode}': " in text) == (mode not in strategy.modes)


def test_several_problems_are_told_at_once() -> None:
    with pytest.raises(ValueError) as caught:
        check_combination(Mode.HOGWILD, Nesterov(), 3, EngineName.JOBS)
    assert "frequency=3" in str(caught.value)
    assert "strategy 'nesterov' is for mode 'synchronous'; engine 'jobs' is not for mode 'hogwild'" in str(caught.value)


def test_the_table() -> None:
    lines = combinations_table().splitlines()
    assert len(lines) == 15 + 12 + 2
    for line in (
        "  mode synchronous | strategy average | frequency auto, epoch, batch, fit, steps, schedule"
        " | engine server, jobs, gang, in_process",
        "  mode synchronous | strategy one_shot | frequency fit | engine server, jobs, gang, in_process",
        "  mode synchronous | strategy easgd | frequency auto, epoch, batch, steps, schedule | engine server, gang, in_process",
        "  mode asynchronous | strategy mla | frequency auto, epoch, batch, steps | engine server, gang, in_process",
        "  mode hogwild | strategy downpour | frequency auto, epoch, batch, steps | engine server, gang, in_process",
    ):
        assert line in lines


def test_auto_becomes_the_only_frequency_there_is() -> None:
    assert default_frequency(OneShot(), Frequency.AUTO) is Frequency.FIT
    assert default_frequency(OneShot(), 7) == 7  # check_combination refuses it
    assert default_frequency(Average(), Frequency.AUTO) is Frequency.AUTO
