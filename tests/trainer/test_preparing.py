"""Rows that models of keras-hub prepare: as keras-hub's own fit makes them, on the driver and on executors."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import keras
import numpy as np
import pytest
from hub_models import (
    BLUE,
    CLS,
    GREEN,
    LABELS,
    PAD,
    RED,
    SEP,
    TEXTS,
    classifier,
    image_classifier,
    images,
    keras_hub,
    language_model,
)

from elephas_like.core.errors import DataError, ElephasError
from elephas_like.trainer import preparing
from elephas_like.trainer.inference import Predictor
from elephas_like.trainer.preparing import Preparation, Preparer, preparer_of
from trainer.small import mlp, shard


def one(found: list[tuple[object, ...]]) -> list[object]:
    """The columns of successive batches, put together."""
    return [
        keras.tree.map_structure(lambda *parts: np.concatenate(parts), *column) for column in zip(*found, strict=True)
    ]


def test_text_becomes_the_tokens_of_its_words() -> None:
    (batch,) = preparer_of(classifier()).batches((TEXTS[:3], LABELS[:3]), 8)
    x, y = batch
    assert x["token_ids"].tolist() == [
        [CLS, RED, GREEN, SEP, PAD, PAD, PAD, PAD],
        [CLS, BLUE, SEP, PAD, PAD, PAD, PAD, PAD],
        [CLS, GREEN, BLUE, RED, SEP, PAD, PAD, PAD],
    ]
    assert x["padding_mask"].sum(axis=1).tolist() == [4, 3, 5]
    assert not x["segment_ids"].any()
    assert y.tolist() == [0, 1, 2]


def test_a_language_model_gets_its_labels_and_weights_of_the_text() -> None:
    """Letters as tokens ("re" is one): what comes next is the label, and the padding at the end counts nothing."""
    (batch,) = preparer_of(language_model()).batches((TEXTS[3:4],), 8)
    x, y, weights = batch
    assert x["token_ids"].tolist() == [[0, 10, 3, 0, 0, 0, 0, 0]]  # <start> re d <end>
    assert y.tolist() == [[10, 3, 0, 0, 0, 0, 0, 0]]
    assert weights.tolist() == [[True, True, True, False, False, False, False, False]]


def test_images_are_resized_as_in_kerashubs_fit() -> None:
    """By its pipeline, where they become floats; called by itself its preprocessor rounds them to whole colours first."""
    model, x = image_classifier(), images()
    prepared, y = one(list(preparer_of(model).batches((x, LABELS), 5)))
    expected = model.evaluate(x, LABELS, verbose=0)
    rounded = np.asarray(model.preprocessor(x))
    model.preprocessor = None
    assert model.evaluate(prepared, y, verbose=0) == pytest.approx(expected, rel=1e-6)
    assert prepared.dtype == np.float32
    assert np.abs(prepared - rounded).max() > 1e-4


def test_models_are_left_what_they_are() -> None:
    """The constructor of keras-hub's models changes a base of all of them: a functional one could not be called any more."""
    model = classifier()
    list(preparer_of(model).batches((TEXTS, LABELS), 8))
    found = model.evaluate(TEXTS, LABELS, verbose=0)  # its first call
    assert found == classifier().evaluate(TEXTS, LABELS, verbose=0)


class Counted(keras_hub.models.BertTextClassifier):
    """A user's subclass, whose `evaluate` needs what only its own constructor makes."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.evaluations = [0]

    def evaluate(self, *given, **arguments):
        self.evaluations[0] += 1
        return super().evaluate(*given, **arguments)


def test_an_evaluate_of_the_users_has_no_part_in_it() -> None:
    (batch,) = preparer_of(classifier(Counted)).batches((TEXTS[:1], LABELS[:1]), 8)
    assert batch[0]["token_ids"][0, :4].tolist() == [CLS, RED, GREEN, SEP]


def test_what_catches_the_rows_has_a_text() -> None:
    """Grain, by which KerasHub prepares rows where it is installed, says what it maps."""
    assert "Catching" in repr(preparer_of(classifier())._catching())


def test_other_models_have_nothing_that_prepares_their_rows() -> None:
    model = classifier()
    model.preprocessor = None
    assert preparer_of(model) is None
    assert preparer_of(mlp()) is None


def test_any_callable_may_prepare_the_features() -> None:
    model = classifier()
    model.preprocessor = lambda x: {"token_ids": x, "padding_mask": x > 0, "segment_ids": 0 * x}
    (batch,) = preparer_of(model).batches((np.array([[CLS, RED, PAD]]), np.array([1])), 8)
    assert batch[0]["padding_mask"].tolist() == [[True, True, False]]


@pytest.mark.parametrize(("batch_size", "at_once"), [(256, 64 * 2**20), (5, 64 * 2**20), (5, 1)])
def test_a_shard_is_prepared_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_size: int, at_once: int
) -> None:
    """Row after row, whatever goes through one pipeline together."""
    monkeypatch.setattr(preparing, "_BATCH_ROWS", batch_size)
    monkeypatch.setattr(preparing, "_AT_ONCE", at_once)
    preparer = preparer_of(classifier())
    ref = shard(tmp_path, TEXTS, LABELS)
    sent = pickle.loads(pickle.dumps(Preparation.of(preparer, seed=1)))  # noqa: S301  our own
    (x, y), (expected, labels) = one(list(sent(ref))), one(list(preparer.batches((TEXTS, LABELS), 7)))
    for name, column in expected.items():
        np.testing.assert_array_equal(x[name], column)
    np.testing.assert_array_equal(y, labels)


def test_few_rows_are_prepared_without_a_pipeline_once_one_has_had_such_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same bits; what is sent of a preprocessor that was used so is the same as before."""
    for model, columns in ((classifier(), (TEXTS, LABELS)), (image_classifier(), (images(), LABELS))):
        preparer = preparer_of(model)
        first = one(list(preparer.batches(columns, 5)))
        key, pipelines, make = Preparation.of(preparer, 1).content_key(), [], Preparer._catching
        for batches, made in ((5, 0), (4, 1)):  # there are five
            with monkeypatch.context() as patch:
                patch.setattr(Preparer, "_catching", lambda self, make=make, of=pipelines: of.append(1) or make(self))
                patch.setattr(preparing, "_BATCHES_WITHOUT_PIPELINE", batches)
                again = one(list(preparer.batches(columns, 5)))
            assert len(pipelines) == made
            for found, expected in zip(keras.tree.flatten(again), keras.tree.flatten(first), strict=True):
                np.testing.assert_array_equal(found, expected, strict=True)
        assert Preparation.of(preparer, 1).content_key() == key


def test_a_process_compiles_what_prepares_its_shards_once(tmp_path: Path) -> None:
    ref, preparation = shard(tmp_path, TEXTS, LABELS), Preparation.of(preparer_of(classifier()), seed=1)
    list(preparation(ref))
    assert preparation.preparer.mapped() is preparation.preparer.mapped()
    assert preparation.preparer.mapped().step((TEXTS, LABELS, None)) is not None


def test_the_preprocessor_is_sent_without_the_model() -> None:
    model = classifier()
    preparation = Preparation.of(preparer_of(model), seed=1)
    assert len(model.variables) > 20
    assert preparation.spec.build().variables == []


def test_without_labels_a_model_with_a_loss_is_told_so() -> None:
    preparer = preparer_of(classifier())
    with pytest.raises(DataError, match=r"labels are missing.*bert_text_classifier.*Give rows"):
        list(preparer.batches((TEXTS,), 8))
    assert len(list(preparer.batches((TEXTS,), 8, labelled=False))) == 3


def test_rows_of_different_lengths_are_refused() -> None:
    model = classifier()
    tokenizer = model.preprocessor.tokenizer
    model.preprocessor = lambda x: {name: tokenizer(x) for name in ("token_ids", "padding_mask", "segment_ids")}
    with pytest.raises(DataError, match=r"different lengths.*sequence_length"):
        list(preparer_of(model).batches((TEXTS, LABELS), 8))


class Detector(keras_hub.models.BertTextClassifier):
    """As keras-hub's object detectors: what it predicts needs the features, as Keras' `predict` hands them over."""

    def predict_step(self, *given):
        x = given[-1]
        assert isinstance(x, dict)
        return super().predict_step(*given) + keras.ops.cast(
            keras.ops.sum(x["token_ids"], axis=1, keepdims=True), "float32"
        )


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("kind", [keras_hub.models.BertTextClassifier, Detector])
def test_predictions_on_executors_are_those_of_predict(kind: type, prepared: bool) -> None:
    """Batches of 5 rows, the last of 4: one after the other, and several in one call."""
    model = classifier(kind)
    expected = model.predict(TEXTS, batch_size=5, verbose=0)
    x = one(list(preparer_of(model).batches((TEXTS,), 8, labelled=False)))[0]
    if prepared:
        model.preprocessor = None
    predictor = pickle.loads(pickle.dumps(Predictor.of(model, 5)))  # noqa: S301  our own
    for sizes in ([5, 15, 4], [20, 4]):  # the first batch shows what outputs look like
        found = [outputs[0] for outputs, _ in predictor.of_arrays(x if prepared else TEXTS, len(TEXTS))]
        np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-6, atol=1e-7)
        assert [len(part) for part in found] == sizes


def test_a_preprocessor_that_cannot_be_sent_is_named_by_its_model() -> None:
    model = classifier()
    model.preprocessor.guard = threading.Lock()
    with pytest.raises(
        ElephasError, match=rf"preprocessor of the model '{model.name}' cannot be used .*guard is a _thread.lock"
    ):
        Preparation.of(preparer_of(model), 0)
