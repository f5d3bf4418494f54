import keras
import pytest
from voters import model

from elephas_like.core.voting import Voting
from elephas_like.ensembles.member_models import check_models, check_votes, voting_of


def test_how_a_loss_votes() -> None:
    assert voting_of(model()) == "soft"
    assert voting_of(model(loss=keras.losses.BinaryFocalCrossentropy())) == "soft"
    named = keras.losses.SparseCategoricalCrossentropy(name="train_error")  # by its user
    for loss in (named, ["sparse_categorical_crossentropy"]):
        assert voting_of(model(loss=loss)) == "soft"
    weighted = type("WeightedBinaryCrossentropy", (keras.losses.BinaryCrossentropy,), {})
    assert voting_of(model(3, "sigmoid", loss=weighted(), metrics=[])) == "mean"
    for loss in ("mse", "mean_absolute_error", keras.losses.Huber()):
        assert voting_of(model(1, None, loss=loss, metrics=[])) == "mean"
    for activation in ("sigmoid", None):  # several labels a row, by probabilities or by logits
        several = model(3, activation, loss=keras.losses.BinaryCrossentropy(from_logits=not activation), metrics=[])
        assert voting_of(several) == "mean"
    unknown = lambda x: keras.ops.softmax(x)  # noqa: E731  # an activation that nobody knows
    for one in (
        model(2, unknown, loss="binary_crossentropy"),
        model(2, loss="binary_crossentropy"),
        model(1, "sigmoid", loss="binary_crossentropy", metrics=[]),
    ):
        assert voting_of(one) == "soft"
    with pytest.raises(ValueError, match="voting='auto' knows crossentropies"):
        voting_of(model(loss=lambda y, found: found))


def sigmoid_squared_error(y, found):
    return keras.ops.square(y - keras.ops.sigmoid(found))


@pytest.mark.parametrize("voting", [Voting.HARD, Voting.SOFT])
def test_numbers_of_any_size_do_not_vote_for_classes(voting: Voting) -> None:
    number = model(1, None, loss="mse", metrics=[])
    with pytest.raises(ValueError, match=f"voting='{voting.value}' is for classes.*voting='mean'"):
        check_votes(number, voting)
    check_votes(number, Voting.MEAN)
    for one in (
        model(1, "sigmoid", loss="mse", metrics=[]),  # the Brier score
        model(3, None, loss="mse", metrics=[]),  # a number for each class
        model(1, None, loss=keras.losses.BinaryCrossentropy(from_logits=True), metrics=[]),
        model(1, None, loss=sigmoid_squared_error, metrics=[]),  # who knows
        model(),
    ):
        check_votes(one, voting)


def test_models_that_cannot_vote_together_are_told_apart() -> None:
    check_models([model(), model()])
    named = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    named = keras.Model(named.inputs, {"price": named.outputs[0]})
    for models, error, said in (
        ([], ValueError, "at least one model"),
        ([model(), "model"], TypeError, "builtins.str"),
        ([named, named], ValueError, "puts out a dict. Build the model with the output alone"),
        ([model(), model(4)], ValueError, "equal outputs: model 0 has shape"),
    ):
        with pytest.raises(error, match=said):
            check_models(models)
