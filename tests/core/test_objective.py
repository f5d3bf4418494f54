from __future__ import annotations

import math

import pytest

from elephas_like.core.objective import Objective, maximizes, objective_of, pareto_front


@pytest.mark.parametrize(
    ("metric", "up"),
    [
        ("loss", False),
        ("val_loss", False),
        ("val_age_loss", False),  # of an output named age
        ("accuracy", True),
        ("val_acc", True),
        ("val_topic_sparse_categorical_accuracy", True),
        ("val_auc_1", True),  # Keras numbers the second AUC of a process
        ("val_mse", False),
        ("root_mean_squared_error", False),
        ("val_r2_score", True),
        ("mean_io_u", True),
        ("false_positives", False),
        ("sparse_categorical_crossentropy", False),
        ("val_AUC", True),
        ("val_site_f1", True),
        ("kld", False),
        ("val_happiness", None),
        ("gloss", None),
        ("neg_mean_squared_error", None),  # scikit-learn's, or of an output called "neg"
        ("neg_root_mean_squared_error", None),
        ("neg_log_loss", None),
        ("val_neg_mean_squared_error", False),  # Keras'
        ("val_neg_loss", False),
        ("neg_accuracy", True),
    ],
)
def test_direction_is_read_off_the_name_or_refused(metric: str, up: bool | None) -> None:
    assert maximizes(metric) is up


def test_losses_are_lower_when_better_and_infinite_when_unknown() -> None:
    accuracy = Objective("val_accuracy", maximize=True)
    assert accuracy.losses([{"val_accuracy": 0.5}, {"val_accuracy": math.nan}, {"loss": 1.0}]) == [
        -0.5,
        math.inf,
        math.inf,
    ]
    assert accuracy.value(-0.5) == 0.5
    assert Objective("loss").loss({"loss": 0.25}) == 0.25
    assert Objective("loss").value(0.25) == 0.25


def test_several_objectives_have_a_direction_each() -> None:
    assert objective_of("val_loss", "auto") == Objective("val_loss")
    both = objective_of(["accuracy", "size"], ["auto", "min"])
    assert both == Objective("accuracy", True, (Objective("size"),))
    assert [one.name for one in both.all] == ["accuracy", "size"]
    assert objective_of(("a", "b"), "max").more == (Objective("b", True),)
    for names, directions in ((["a", "b"], ["min"]), (["a", "a"], "min")):
        with pytest.raises(ValueError, match="expected different names, and a direction for each"):
            objective_of(names, directions)
    for column in ("seconds", "error", "param_x"):
        with pytest.raises(ValueError, match=f"objective='{column}' is a column of the table of trials already"):
            objective_of(column, "min")
    with pytest.raises(ValueError, match="cannot tell whether 'size'"):
        objective_of(["accuracy", "size"], "auto")


def test_the_front_has_what_nothing_beats() -> None:
    """(1, 3) and (2, 1) are compromises, (2, 3) is beaten by both, (3, 1) by the second, and equal ones beat nobody."""
    assert pareto_front([(2, 3), (1, 3), (3, 1), (2, 1), (2, 1)]) == [1, 3, 4]
    assert pareto_front([(5,), (2,), (3,)]) == [1]
    assert pareto_front([]) == []
