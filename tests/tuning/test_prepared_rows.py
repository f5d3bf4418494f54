"""Searches over models of keras-hub with their preprocessors: trials prepare the rows, and train on what KerasHub would train on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from hub_models import LABELS, TEXTS, classifier, keras_hub

from elephas_like import ElephasError, search
from elephas_like.core.types import FitConfig, ShardRef
from elephas_like.rows.shard_files import remove
from elephas_like.rows.spool import spool
from elephas_like.trainer.batches import ShardData
from elephas_like.tuning.prepared_rows import rows_for

SPACE = {"rate": [0.5, 1.0]}
PAIRS = [(str(text), int(label)) for text, label in zip(TEXTS, LABELS, strict=True)]


def on_text(params: dict[str, float]) -> keras.Model:
    return classifier(optimizer=keras.optimizers.SGD(params["rate"]))


def on_tokens(params: dict[str, float]) -> keras.Model:
    model = on_text(params)
    model.preprocessor = None
    return model


def tokens() -> tuple[Any, Any]:
    x, y = classifier().preprocessor(TEXTS, y=LABELS)
    return keras.tree.map_structure(np.asarray, x), np.asarray(y)


def trials(build: Any, data: Any, **others: Any) -> Any:
    asked = {"max_evals": 2, "algo": "random", "epochs": 2, "batch_size": 8, "seed": 1, "parallelism": 1, "verbose": 0}
    return search(build, SPACE, data, **(asked | {"validation_split": 0.25} | others))


def numbers(found: Any) -> list[Any]:
    return [dict(history) for history in found.trials["history"]]


def shard_of(rows: Any, folder: Path) -> ShardRef:
    return spool(rows, dataset="given", worker=0, base=str(folder), expect_target=None)


def held(ref: ShardRef) -> Any:
    return ShardData(ref, FitConfig(batch_size=1)).take(np.arange(ref.rows))


def test_trials_of_text_are_those_of_its_tokens() -> None:
    """Each epoch to the last bit; and the best model scores the rows held apart as KerasHub does."""
    held_apart, alone = (TEXTS[:6], LABELS[:6]), {"validation_split": 0.0, "max_evals": 1}
    found = trials(on_text, (TEXTS, LABELS), validation_data=held_apart, **alone)
    x, y = tokens()
    some = keras.tree.map_structure(lambda part: part[:6], x)
    assert numbers(found) == numbers(trials(on_tokens, (x, y), validation_data=(some, LABELS[:6]), **alone))
    best = found.best_model
    assert best.evaluate(*held_apart, verbose=0)[0] == pytest.approx(found.trials["val_loss"].min(), rel=1e-5)
    ensemble = found.best_ensemble(1)
    assert np.array_equal(ensemble.predict(TEXTS[:3]), best.predict(TEXTS[:3], verbose=0).argmax(axis=1))
    assert ensemble.evaluate(TEXTS, LABELS) == pytest.approx(best.evaluate(TEXTS, LABELS, verbose=0), rel=1e-5)


def test_rows_are_prepared_once_until_a_preprocessor_does_it_in_another_way(tmp_path: Path) -> None:
    """A model that is built anew has a preprocessor of another name, which makes the same rows; what it made lies beside the rows given."""
    given = [shard_of(PAIRS, tmp_path)]
    (first,) = rows_for(on_text({"rate": 0.5}), given, 1)
    (again,) = rows_for(on_text({"rate": 1.0}), given, 1)
    assert again is first
    remove(first)
    (written_anew,) = rows_for(on_text({"rate": 1.0}), given, 1)
    assert written_anew.checksum == first.checksum
    token_ids = classifier().preprocessor(TEXTS)["token_ids"]
    assert any(np.array_equal(column, token_ids) for column in held(first))

    shorter = on_text({"rate": 0.5})
    shorter.preprocessor = keras_hub.models.BertTextClassifierPreprocessor(
        shorter.preprocessor.tokenizer, sequence_length=4
    )
    (cut,) = rows_for(shorter, given, 1)
    assert {column.shape for column in cut.columns} == {(4,), ()}
    assert not os.path.exists(first.directory)
    assert os.path.dirname(os.path.dirname(cut.directory)) == os.path.dirname(given[0].directory)

    (other,) = rows_for(shorter, [shard_of(PAIRS[:5], tmp_path / "others")], 1)
    assert other.rows == 5
    assert rows_for(on_tokens({"rate": 1.0}), given, 1) is given


@pytest.mark.slow
def test_trials_on_executors_prepare_the_rows_of_an_rdd_a_table_and_arrays(spark, sc) -> None:
    expected = numbers(trials(on_text, (TEXTS, LABELS)))
    assert numbers(trials(on_text, sc.parallelize(PAIRS, 3), parallelism=2)) == expected
    df = spark.createDataFrame(PAIRS, ["text", "label"]).coalesce(1)
    assert numbers(trials(on_text, df, features_col="text")) == expected
    with pytest.raises(ElephasError, match=r"prepares its rows.*leave trial_workers out"):
        trials(on_text, (TEXTS, LABELS), trial_workers=2)
