from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from elephas_like.core import voting
from elephas_like.core.voting import Ballot, Voting

# Three members, two rows, three classes. Row 0: votes 0, 1, 1. Row 1: votes 2, 0, 1.
ONE = np.array([[0.9, 0.1, 0.0], [0.2, 0.0, 0.8]])
TWO = np.array([[0.4, 0.6, 0.0], [0.5, 0.3, 0.2]])
THREE = np.array([[0.3, 0.4, 0.3], [0.1, 0.9, 0.0]])


def test_a_hard_vote_is_a_majority_of_the_most_probable_classes() -> None:
    shares = voting.hard_vote([ONE, TWO, THREE])
    np.testing.assert_allclose(shares, [[1 / 3, 2 / 3, 0], [1 / 3, 1 / 3, 1 / 3]], atol=1e-7)
    # P27: the largest index is no majority: row 0 has a single vote for class 0, and two for class 1; row 1 is a tie.
    assert voting.labels(shares).tolist() == [1, 0]


def test_a_weight_outvotes_a_majority() -> None:
    shares = voting.hard_vote([ONE, TWO, THREE], [3, 1, 1])
    np.testing.assert_allclose(shares, [[0.6, 0.4, 0], [0.2, 0.2, 0.6]], atol=1e-7)
    assert voting.labels(shares).tolist() == [0, 2]


def test_ties_go_to_the_lowest_label_also_where_sums_of_weights_round() -> None:
    for_zero, for_one = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    assert 0.1 + 0.2 > 0.3
    assert voting.labels(voting.hard_vote([for_one, for_one, for_zero], [0.1, 0.2, 0.3])).tolist() == [0]
    assert voting.labels(voting.hard_vote([for_one, for_zero])).tolist() == [0]


def test_votes_are_those_of_scikit_learn() -> None:
    from sklearn.ensemble import VotingClassifier

    random = np.random.default_rng(0)
    x, y = random.normal(size=(120, 4)), random.integers(0, 3, 120)
    members = [(f"m{c}", LogisticRegression(C=c)) for c in (0.001, 0.1, 1.0, 50.0)]
    for kind, vote in (("hard", voting.hard_vote), ("soft", voting.soft_vote)):
        for weights in (None, [2.0, 1.0, 1.0, 2.0]):
            theirs = VotingClassifier(members, voting=kind, weights=weights).fit(x, y)
            ours = vote([member.predict_proba(x) for member in theirs.estimators_], weights)
            np.testing.assert_array_equal(voting.labels(ours), theirs.predict(x))


def test_a_soft_vote_is_a_weighted_mean() -> None:
    np.testing.assert_allclose(voting.soft_vote([ONE, TWO], [1, 3])[0], [0.525, 0.475, 0.0], atol=1e-7)
    np.testing.assert_allclose(voting.mean([np.array([[2.0], [4.0]]), np.array([[4.0], [8.0]])]), [[3.0], [6.0]])


def test_votes_do_not_depend_on_the_order_of_members() -> None:
    for vote in (voting.hard_vote, voting.soft_vote):
        np.testing.assert_allclose(vote([ONE, TWO, THREE], [1, 2, 3]), vote([THREE, ONE, TWO], [3, 1, 2]), atol=1e-7)


def test_one_member_alone_keeps_its_numbers() -> None:
    output = np.random.default_rng(0).random((5, 1)).astype(np.float32)
    assert voting.mean([output]).tobytes() == output.tobytes()


def test_probabilities_of_sigmoids_and_logits() -> None:
    np.testing.assert_allclose(voting.probabilities(np.array([[0.25], [0.5]])), [[0.75, 0.25], [0.5, 0.5]])
    np.testing.assert_allclose(
        voting.probabilities(np.array([[np.log(3.0)], [-2000.0]]), from_logits=True), [[0.25, 0.75], [1, 0]], atol=1e-7
    )
    np.testing.assert_allclose(
        voting.probabilities(np.array([[1000.0, 1000.0 + np.log(3.0)]]), from_logits=True), [[0.25, 0.75]], atol=1e-6
    )


def test_a_sigmoid_votes_for_one_above_a_half_only() -> None:
    outputs = [np.array([[0.5], [np.nextafter(np.float32(0.5), np.float32(1))]], np.float32)]
    assert voting.labels(Ballot(Voting.HARD, (1.0,), (False,))(outputs)).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("output", "match"),
    [
        ([[3.0, -1.0]], "from -1 to 3.*voting='mean'.*from_logits"),
        (
            [[0.5], [np.nan], [np.nan]],
            r"NaN or infinite in 2 of 3 rows of a batch.*handle_invalid='keep'",
        ),
        ([[0.9, 0.8]], "sum to 1.7.*multi-label"),
    ],
)
def test_what_is_no_probability_is_refused(output: list, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        voting.probabilities(np.array(output))


def test_no_rows_and_images() -> None:
    assert voting.probabilities(np.zeros((0, 3))).shape == (0, 3)
    assert voting.hard_vote([np.zeros((0, 3))] * 2).shape == (0, 3)
    images = np.random.default_rng(0).dirichlet(np.ones(4), (2, 5, 6))
    assert voting.labels(voting.hard_vote([images, images])).tolist() == images.argmax(-1).tolist()


@pytest.mark.parametrize("weights", [[1.0], [1, 2, 3], [1, -1], [0, 0], [1, np.inf], [np.nan, 1]])
def test_weights_that_make_no_sense(weights: list) -> None:
    with pytest.raises(ValueError, match="weights must be"):
        voting.normalized(weights, 2)


def test_the_direction_of_a_metric() -> None:
    better = ["val_accuracy", "acc", "AUC", "sparse_categorical_accuracy", "r2", "r2_score", "f1_score", "mean_io_u"]
    better += ["true_positives", "pearson_correlation"]
    assert all(voting.higher_is_better(name) for name in better)
    worse = ["loss", "val_loss", "mse", "mean_absolute_error", "binary_crossentropy", "kl_divergence", "kld"]
    worse += ["acceleration_mae", "account_loss", "user2_loss", "precision_loss"]  # of outputs with such names
    assert not any(voting.higher_is_better(name) for name in worse)
    with pytest.raises(ValueError, match="direction must be given for the metric 'goodness'"):
        voting.higher_is_better("goodness")
    with pytest.raises(ValueError, match="direction must be given for the metric 'acceleration'"):
        voting.higher_is_better("acceleration")


def squared_error(target: float):
    return lambda output: float(((output - target) ** 2).mean())


def test_greedy_selection_takes_members_again_where_that_helps() -> None:
    # The target is 2: 0 and 3 meet it as one part 0 and two parts 3. Steps: 3 (error 1), 0 (0.25), 3 (0), 3 (0.0625).
    outputs = [np.array([0.0]), np.array([3.0]), np.array([9.0])]
    found = voting.greedy_selection(outputs, squared_error(2.0), higher=False, picks=4)
    assert found.members == (1, 0, 1)
    assert found.weights == pytest.approx((1 / 3, 2 / 3, 0))
    assert found.path == pytest.approx((1, 0.25, 0, 0.0625))
    assert (found.size, found.score) == (3, 0.0)


def test_greedy_selection_of_one_candidate_and_of_equal_ones() -> None:
    assert voting.greedy_selection([np.ones(2)], squared_error(0.0), higher=False, picks=5).members == (0,)
    assert voting.greedy_selection([np.ones(2)] * 3, squared_error(0.0), higher=False, picks=5).weights == (1, 0, 0)


def test_greedy_selection_upwards_passes_nan_by() -> None:
    outputs = [np.array([np.nan]), np.array([1.0]), np.array([2.0])]
    found = voting.greedy_selection(outputs, lambda output: float(output[0]), higher=True, picks=3)
    assert found.members == (2,)
    assert found.path == (2.0, 2.0, 2.0)


def test_a_greedy_soup_keeps_what_does_not_hurt() -> None:
    # Ranked 2, 0, 3, 1. With 0 the score stays, with 3 it drops, with 1 it rises.
    table = {(2, 0): 0.9, (2, 0, 3): 0.8, (2, 0, 1): 0.95}
    found = voting.greedy_soup([0.8, 0.5, 0.9, 0.7], table.__getitem__, higher=True)
    assert found.members == (2, 0, 1)
    assert found.path == (0.9, 0.9, 0.95)
    assert found.weights == pytest.approx((1 / 3, 1 / 3, 1 / 3, 0))


def test_a_greedy_soup_of_losses_never_ends_worse_than_its_best_member() -> None:
    found = voting.greedy_soup([0.3, 0.2, float("nan")], lambda members: 5.0, higher=False)
    assert (found.members, found.score) == ((1,), 0.2)


def test_soups_are_means_in_float64() -> None:
    big = np.full(3, 1e8, np.float32)
    np.testing.assert_array_equal(voting.soup([big, np.ones(3, np.float32), -big]), np.full(3, 1 / 3, np.float32))
    assert voting.soup([np.array([1.0]), np.array([2.0**-30])]).tolist() == [0.5 + 2.0**-31]  # of float64: all its bits
    with pytest.raises(ValueError, match=r"different architectures.*\[2, 3\]"):
        voting.soup([np.ones(2, np.float32), np.ones(3, np.float32)])


def test_likeness_is_a_cosine() -> None:
    one = np.array([1, 0], np.float32)
    assert voting.smallest_cosine([one]) == 1.0
    assert voting.smallest_cosine([one, np.array([3, 0], np.float32), np.array([3, 4], np.float32)]) == pytest.approx(
        0.6
    )
    assert voting.smallest_cosine([one, np.zeros(2, np.float32)]) == 1.0
