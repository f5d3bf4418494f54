from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elephas_like.core.pruning import ASHA, Hyperband, MedianRule, NumberedRule, Rule, rule_of, stops

OTHERS = [[4.0, 2.0], [3.0, 1.0], [9.0, 9.0]]
"""Means over two epochs: 3, 2 and 9; the median is 3."""


def test_the_best_loss_so_far_is_held_against_the_median_of_means() -> None:
    rule = MedianRule(min_trials=3, warmup_epochs=1)
    assert rule([5.0, 3.1], OTHERS)
    assert not rule([5.0, 3.0], OTHERS)  # not worse than the median
    assert not rule([2.9, 50.0], OTHERS)  # its best epoch counts
    assert rule([5.0, 3.1], OTHERS[::-1])


def test_nothing_is_stopped_before_enough_is_known() -> None:
    bad = [100.0, 100.0]
    assert not MedianRule(min_trials=4)(bad, OTHERS)
    assert not MedianRule(min_trials=3, warmup_epochs=2)(bad, OTHERS)
    assert MedianRule(min_trials=3, warmup_epochs=0)(bad[:1], OTHERS)  # medians of first epochs: 4
    assert not MedianRule(min_trials=3)(bad, [*OTHERS[:2], [1.0]])  # the third never came to epoch two
    assert not MedianRule(min_trials=1, warmup_epochs=0)([], OTHERS)


def test_a_loss_that_is_not_finite_is_worse_than_any() -> None:
    assert MedianRule(min_trials=3)([math.inf, math.inf], OTHERS)
    assert not MedianRule(min_trials=3)([9.0, 9.0], [[math.inf, 1.0]] * 3)


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="min_trials must be a whole number of at least 1"):
        MedianRule(min_trials=0)
    with pytest.raises(ValueError, match="warmup_epochs"):
        MedianRule(warmup_epochs=-1)


def survivors(rule: ASHA, losses: list[float]) -> list[float]:
    """Which trials of constant losses go on at the rung, where they come to it one after the other."""
    return [loss for place, loss in enumerate(losses) if not rule([loss], [[other] for other in losses[:place]])]


def test_asha_lets_a_third_of_each_rung_go_on() -> None:
    """By hand, eta=3. The first one goes on; of 2 to 5 at the rung the best one does, of 6 the two best."""
    rule = ASHA(eta=3, min_epochs=1)
    assert survivors(rule, [5.0, 6.0, 4.0, 4.5, 7.0, 4.2]) == [5.0, 4.0, 4.2]
    assert survivors(rule, [1.0, 2.0, 3.0, 4.0, 5.0, 1.5]) == [1.0, 1.5]  # of six: 1.0 and 1.5
    assert survivors(ASHA(2, 1), [1.0, 2.0, 3.0, 1.5]) == [1.0, 1.5]  # of four, two
    assert survivors(rule, [3.0, 3.0, 3.0]) == [3.0, 3.0, 3.0]  # equal ones are not worse


def test_asha_judges_at_rungs_and_by_the_best_epoch_so_far() -> None:
    rule = ASHA(eta=3, min_epochs=2)
    assert [epochs for epochs in range(1, 60) if rule.is_rung(epochs)] == [2, 6, 18, 54]
    better = [[1.0] * 6]
    assert rule([9.0, 9.0], better)
    assert not rule([9.0] * 3, better)  # between rungs
    assert not rule([9.0, 0.5], better)
    assert not rule([0.5, 9.0], better)  # its best epoch counts
    assert not rule([9.0] * 6, [[1.0] * 5])  # the other one has not come as far
    assert not rule([2.0, 2.0], [[9.0, 3.0, 1.0, 1.0]])  # what the other one reached later says nothing of this rung
    assert rule([math.inf, math.inf], better)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=12), st.integers(2, 4), st.randoms())
def test_asha_never_stops_the_better_of_two_and_lets_the_worse_go_on(
    losses: list[float], eta: int, random: random.Random
) -> None:
    rule = ASHA(eta, min_epochs=1)

    def goes_on(place: int) -> bool:
        others = [[loss] for other, loss in enumerate(losses) if other != place]
        random.shuffle(others)  # who reported first is nothing to it
        return not rule([losses[place]], others)

    ranked = [goes_on(place) for place in sorted(range(len(losses)), key=losses.__getitem__)]
    assert ranked[0]
    assert ranked == sorted(ranked, reverse=True) or len(set(losses)) < len(losses)
    assert sum(ranked) == max(1, len(losses) // eta) or len(set(losses)) < len(losses)


@pytest.mark.parametrize("rule", [ASHA(), ASHA(2, 3), Hyperband(20), MedianRule(1)])
def test_a_lone_trial_is_never_stopped(rule: Rule | NumberedRule) -> None:
    assert not any(stops(rule, 3, {3: [9.0] * epochs}) for epochs in range(1, 30))


def test_hyperband_deals_trials_to_brackets_as_the_papers_table_does() -> None:
    """Li et al. 2018, table 1: R=81, eta=3 has brackets of 81, 34, 15, 8 and 5 trials that begin with 1, 3, 9, 27 and 81."""
    rule = Hyperband(81)
    assert [one.min_epochs for one in rule.brackets] == [1, 3, 9, 27, 81]
    assert rule.sizes == (81, 34, 15, 8, 5)
    assert Counter(map(rule.bracket, range(143))) == dict(enumerate(rule.sizes))
    assert [rule.bracket(trial) for trial in range(143)] == [rule.bracket(trial + 143) for trial in range(143)]
    small = Hyperband(20)
    assert (small.sizes, [one.min_epochs for one in small.brackets]) == ((9, 5, 3), [1, 3, 9])
    assert set(map(small.bracket, range(6))) == {0, 1, 2}  # any few are of all brackets


@pytest.mark.parametrize("rule", [Hyperband(20), Hyperband(81), Hyperband(100, eta=2), Hyperband(9, min_epochs=9)])
def test_hyperband_gives_each_trial_to_the_bracket_that_is_furthest_behind_its_share(rule: Hyperband) -> None:
    order: list[int] = []
    for place in range(sum(rule.sizes)):
        behind = [(place + 1) * size / sum(rule.sizes) - order.count(which) for which, size in enumerate(rule.sizes)]
        order.append(behind.index(max(behind)))
    assert [rule.bracket(trial) for trial in range(len(order))] == order


def test_the_first_trials_of_hyperband_by_hand() -> None:
    # shares of 9, 5 and 3 in 17. Seventeenths behind: 9, 5, 3; then 18 - 17, 10, 6; then 27 - 17, 15 - 17, 9; then
    # 36 - 34, 20 - 17, 12
    assert [Hyperband(20).bracket(trial) for trial in range(4)] == [0, 1, 0, 2]


def test_hyperband_holds_trials_against_their_own_bracket() -> None:
    rule = Hyperband(20)
    of = {bracket: [trial for trial in range(17) if rule.bracket(trial) == bracket] for bracket in range(3)}
    bad, good = of[0][1], of[0][0]
    assert rule.stops(bad, {bad: [9.0], good: [1.0]})
    assert not rule.stops(bad, {bad: [9.0], of[1][0]: [1.0], of[2][0]: [1.0]})
    assert not rule.stops(of[1][1], {of[1][1]: [9.0], of[1][0]: [1.0]})  # whose first rung is at three epochs
    assert rule.stops(of[1][1], {of[1][1]: [9.0] * 3, of[1][0]: [1.0] * 3})


def test_rules_have_names() -> None:
    assert rule_of(None, 5) is rule_of("auto", 5, 2) is None
    assert rule_of("auto", 5) == MedianRule()
    assert rule_of("median", 5) == MedianRule()
    assert rule_of("asha", None) == ASHA()
    assert rule_of("hyperband", 27) == Hyperband(27)
    assert rule_of(Hyperband(9), 5) == Hyperband(9)
    with pytest.raises(ValueError, match="pruning must be 'median', 'asha', 'hyperband', None, or a function"):
        rule_of("mean", 5)
    with pytest.raises(ValueError, match="needs epochs="):
        rule_of("hyperband", None)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: ASHA(1), "eta must be a whole number of at least 2"),
        (lambda: ASHA(min_epochs=0), "min_epochs"),
        (lambda: Hyperband(0), "epochs"),
        (lambda: Hyperband(9, eta=1), "eta"),
    ],
)
def test_arguments_of_rungs_are_checked(made: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        made()
