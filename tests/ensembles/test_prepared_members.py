"""Ensembles of models of keras-hub with their preprocessors: trained on what a preprocessor makes of the rows, judged by what each member makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest
from hub_models import LABELS, RED, TEXTS, classifier, image_classifier, images, keras_hub, language_model
from trainer.small import shard as written

from elephas_like import (
    ElephasError,
    VotingModel,
    greedy_selection,
    recalibrate_batch_norm,
    shard,
    train_ensemble,
    uniform_soup,
)
from elephas_like.core.errors import DataError
from elephas_like.core.voting import Ballot, Voting
from elephas_like.ensembles.prepared_members import check_prepared_alike, prepared_batches, preparers_of
from elephas_like.ensembles.scoring import Judge, ShardJudge
from elephas_like.trainer import preparing
from elephas_like.trainer.inference import EnsemblePredictor, Predictor
from elephas_like.trainer.spec import Carry, ModelSpec

ASKED: dict[str, Any] = {"num_members": 2, "seed": 1, "epochs": 1, "batch_size": 8, "verbose": 0}
PAIRS = [(str(text), int(label)) for text, label in zip(TEXTS, LABELS, strict=True)]


def on_tokens() -> keras.Model:
    model = classifier()
    model.preprocessor = None
    return model


def shorter() -> keras.Model:
    """Makes four tokens of a text, and not eight."""
    model = classifier()
    tokenizer = model.preprocessor.tokenizer
    model.preprocessor = keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=4)
    return model


def tokens(texts: Any = TEXTS) -> dict[str, np.ndarray]:
    return {name: np.asarray(column) for name, column in classifier().preprocessor(texts).items()}


def test_members_of_text_are_those_of_its_tokens() -> None:
    """To the last bit; and so are the scores of the ensemble, and what is chosen by them."""
    held, held_tokens = (TEXTS[:5], LABELS[:5]), (tokens(TEXTS[:5]), LABELS[:5])
    found = train_ensemble(classifier, (TEXTS, LABELS), validation_data=held, **ASKED)
    expected = train_ensemble(on_tokens, (tokens(), LABELS), validation_data=held_tokens, **ASKED)
    assert found.histories == expected.histories
    assert found.evaluate(TEXTS, LABELS, batch_size=5) == expected.evaluate(tokens(), LABELS, batch_size=5)
    assert np.array_equal(found.predict_proba(TEXTS), expected.predict_proba(tokens()))
    chosen, alike = greedy_selection(found, held, picks=3), greedy_selection(expected, held_tokens, picks=3)
    assert (chosen.path, chosen.members) == (alike.path, alike.members)


def test_one_member_is_judged_as_by_kerashub() -> None:
    """Its labels and weights are those that the preprocessor makes, if it makes some."""
    model = language_model()
    expected = model.evaluate(TEXTS, batch_size=5, verbose=0)
    assert VotingModel([model], "soft").evaluate(TEXTS, batch_size=5) == pytest.approx(expected, rel=1e-6)
    weights = np.arange(24.0)
    model = classifier()
    expected = model.evaluate(TEXTS, LABELS, sample_weight=weights, batch_size=5, verbose=0)
    found = VotingModel([model], "soft").evaluate(TEXTS, LABELS, sample_weight=weights, batch_size=5)
    assert found == pytest.approx(expected, rel=1e-6)


def test_members_that_prepare_rows_in_different_ways_vote_on_the_same_rows() -> None:
    """Each sees the rows as it takes them; by hand, the mean of their probabilities."""
    models = [classifier(), shorter()]
    models[1].layers[-1].bias.assign([1.0, 0.0, -1.0])
    ensemble = VotingModel(models, "soft")
    apart = [keras.ops.softmax(model.predict(TEXTS, verbose=0)) for model in models]
    mean = np.mean([keras.ops.convert_to_numpy(each) for each in apart], axis=0)
    assert ensemble.predict_proba(pd.Series(TEXTS)) == pytest.approx(mean, rel=1e-5)
    loss, accuracy = ensemble.evaluate(pd.Series(TEXTS), LABELS)
    assert loss == pytest.approx(-np.log(mean[np.arange(24), LABELS]).mean(), rel=1e-5)
    assert accuracy == pytest.approx((mean.argmax(axis=1) == LABELS).mean())


def test_preprocessors_that_do_the_same_are_called_once() -> None:
    models = [classifier(), shorter(), classifier()]
    models.append(on_tokens())
    models[3].preprocessor = models[1].preprocessor
    batches = list(prepared_batches(preparers_of(models), (TEXTS, LABELS), 10))
    assert [rows for *_, rows in batches] == [10, 10, 4]
    (one, two, three, four), targets, weights, _ = batches[2]
    assert one is three
    assert two is four
    assert (one["token_ids"].shape, two["token_ids"].shape) == ((4, 8), (4, 4))
    assert targets.tolist() == LABELS[20:].tolist()
    assert weights is None


def test_members_that_would_train_on_different_rows_are_refused() -> None:
    check_prepared_alike([classifier(), classifier()])
    check_prepared_alike([on_tokens(), on_tokens()])
    with pytest.raises(ElephasError, match=r"of model 0 .* and of model 1 .* may make different ones.*outside of the"):
        check_prepared_alike([classifier(), shorter()])
    with pytest.raises(ElephasError, match=r"model 1 .* has a preprocessor, and model 0 .* has none"):
        check_prepared_alike([on_tokens(), classifier()])
    models = iter([classifier(), shorter()])
    with pytest.raises(ElephasError, match=r"may make different ones"):
        train_ensemble(lambda: next(models), (TEXTS, LABELS), **ASKED)
    with pytest.raises(ElephasError, match=r"prepares its rows.*leave workers_per_member out"):
        train_ensemble(classifier, (TEXTS, LABELS), workers_per_member=2, **ASKED)


def test_a_label_that_is_none_is_named_by_its_row() -> None:
    labels = np.where(np.arange(24) == 19, 7, LABELS)
    ensemble = VotingModel([classifier()], "soft")
    with pytest.raises(DataError, match=r"label 7 in row 19: the model has 3 outputs"):
        ensemble.evaluate(TEXTS, labels, batch_size=8)
    with pytest.raises(DataError, match=r"the labels are text"):
        ensemble.evaluate(TEXTS, TEXTS)
    with pytest.raises(DataError, match=r"labels are missing"):
        ensemble.evaluate(TEXTS)
    frame = pd.DataFrame({"one": TEXTS, "two": TEXTS, "label": LABELS})
    with pytest.raises(ValueError, match=r"features_col=\['one', 'two'\].*would be put together first"):
        train_ensemble(classifier, frame, features_col=["one", "two"], **ASKED)
    with pytest.raises(DataError, match=r"label 7 in partition 0, row 19"):
        train_ensemble(classifier, (TEXTS, labels), engine="in_process", **ASKED)


@pytest.mark.parametrize("at_once", [64 * 2**20, 1])
def test_a_shard_is_judged_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """The same sums, whatever goes through one pipeline together; and a label is named by its row in the partition."""
    monkeypatch.setattr(preparing, "_AT_ONCE", at_once)
    models = [classifier(), shorter()]
    ballot = Ballot(Voting.SOFT, (0.5, 0.5), (True, True))
    members = EnsemblePredictor(tuple(Predictor.of(model, 5) for model in models), ballot, 5)
    judge = Judge(models, ballot)
    x, y = TEXTS[:8], LABELS[:8]
    found = judge.results(ShardJudge(members, ballot)(written(tmp_path / "right", x, y)), (x, y))
    assert found == pytest.approx(judge.evaluate(x, y, None, 5), rel=1e-6)
    y = np.where(np.arange(8) == 6, 7, y)
    with pytest.raises(DataError, match=r"label 7 in partition 0, row 6"):
        ShardJudge(members, ballot)(written(tmp_path / "wrong", x, y))


class FirstWord(keras_hub.models.BertTextClassifierPreprocessor):
    """Makes the label of a text, too: its first word."""

    def call(self, x, y=None, sample_weight=None):
        features = super().call(x)
        return features, features["token_ids"][:, 1] - RED


class OtherWord(FirstWord):
    def call(self, x, y=None, sample_weight=None):
        features, label = super().call(x)
        return features, (label + 1) % 3


def by_first_word(*bias: float) -> Any:
    model = classifier()
    model.preprocessor = FirstWord(model.preprocessor.tokenizer, sequence_length=8)
    model.layers[-1].bias.assign(bias)
    return model


def test_a_choice_is_scored_by_the_labels_that_a_preprocessor_makes() -> None:
    models = [by_first_word(0, 0, 1), by_first_word(1, 0, 0)]  # half of the texts begin with "red"
    losses = [model.evaluate(TEXTS, verbose=0)[0] for model in models]
    found = greedy_selection(models, (pd.Series(TEXTS), None), picks=1)
    assert found.members == (1,)
    assert found.score == pytest.approx(losses[1], rel=1e-6)
    assert all(model.preprocessor is not None for model in models)


def test_members_that_make_different_labels_are_not_judged() -> None:
    """Such as those of words that each of them masks at random."""
    models = [by_first_word(0, 0, 1), by_first_word(1, 0, 0)]
    models[1].preprocessor = OtherWord(models[0].preprocessor.tokenizer, sequence_length=8)
    with pytest.raises(ElephasError, match=r"preprocessors make different labels.*one preprocessor"):
        VotingModel(models, "soft").evaluate(TEXTS)
    with pytest.raises(ElephasError, match=r"preprocessors make different labels"):
        greedy_selection(models, (TEXTS, None))
    assert all(model.preprocessor is not None for model in models)


def test_members_of_one_architecture_share_a_compiled_model() -> None:
    """KerasHub takes down the addresses of its layers: the models' keys must not have them. The first of a class may differ from those that follow."""
    _, *keys = [ModelSpec.from_model(image_classifier(), Carry.NOTHING).key for _ in range(3)]
    assert keys[0] == keys[1]


def residual() -> Any:
    """Bytes of images into three classes, with BatchNorm layers."""
    keras.utils.set_random_seed(3)
    shape = {"stackwise_num_filters": [64], "stackwise_num_blocks": [1], "stackwise_num_strides": [1]}
    backbone = keras_hub.models.ResNetBackbone(
        input_conv_filters=[64], input_conv_kernel_sizes=[3], block_type="basic_block", image_shape=(8, 8, 3), **shape
    )
    converter = keras_hub.layers.ResNetImageConverter(image_size=(8, 8), scale=1 / 255)
    preprocessor = keras_hub.models.ResNetImageClassifierPreprocessor(converter)
    model = keras_hub.models.ResNetImageClassifier(backbone=backbone, num_classes=3, preprocessor=preprocessor)
    model.compile(optimizer="sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def statistics(model: keras.Model) -> list[np.ndarray]:
    return [variable.numpy() for variable in model.non_trainable_variables]


def test_statistics_and_soups_are_made_of_prepared_rows() -> None:
    (batch,) = preparers_of([residual()])[0].batches((images(),), 24, labelled=False)
    on_images, on_floats = residual(), residual()
    on_floats.preprocessor = None
    recalibrate_batch_norm(on_images, images(), batch_size=8)
    recalibrate_batch_norm(on_floats, batch[0], batch_size=8)
    for found, expected in zip(statistics(on_images), statistics(on_floats), strict=True):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    soup = uniform_soup([on_images, on_images], data=images(), batch_size=8)
    for found, expected in zip(statistics(soup), statistics(on_images), strict=True):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.slow
def test_rows_on_spark_are_those_of_arrays(spark, sc) -> None:
    """Arrays are prepared where members are trained, partitions where they are written, and the rows of an evaluation where they are judged."""
    held, rows = (TEXTS[:5], LABELS[:5]), sc.parallelize(PAIRS, 2)
    expected = train_ensemble(classifier, (TEXTS, LABELS), validation_data=held, engine="in_process", **ASKED)
    found = train_ensemble(classifier, (TEXTS, LABELS), validation_data=sc.parallelize(PAIRS[:5], 2), **ASKED)
    assert found.histories == expected.histories
    parts = train_ensemble(classifier, rows, bagging="partition", validation_data=held, **ASKED)
    assert parts.histories[0].keys() == expected.histories[0].keys()

    df = spark.createDataFrame(PAIRS, ["text", "label"]).coalesce(1)
    scores = pytest.approx(expected.evaluate(TEXTS, LABELS), rel=1e-6)
    assert expected.evaluate(df, features_col="text") == scores
    with shard(rows, 2) as dataset:
        assert expected.evaluate(dataset) == scores
        with pytest.raises(ElephasError, match=r"ShardedDataset are written already"):
            train_ensemble(classifier, dataset, **ASKED)
    with pytest.raises(DataError, match=r"label 7 in partition 1, row 11"):
        expected.evaluate(sc.parallelize([*PAIRS[:23], ("red", 7)], 2), batch_size=4)
