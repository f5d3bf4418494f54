"""Rows that are sharded once: mixed where that is asked for, and for as many workers as was said."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from small import classifier, digits, trained

import elephas_like
from elephas_like import SparkModel, shard
from elephas_like.core.structure import flatten
from elephas_like.rows.shards import ShardedDataset
from elephas_like.rows.spool import Block


def test_what_is_sharded_already_is_not_sharded_again(sc) -> None:
    rdd = sc.parallelize([([1.0], 2.0)], 1)
    for given in (ShardedDataset(rdd, 1, "none"), [Block((np.zeros((2, 1)),), 2)]):
        with pytest.raises(ValueError, match="sharded for 1 workers already"):
            shard(given, 2)


def test_shuffled_shards_mix_sorted_labels(sc) -> None:
    sorted_rows = [([float(label), 0.0], float(label)) for label in (0, 1) for _ in range(100)]
    shares = []
    for shuffle in (False, True):
        with elephas_like.shard(sc.parallelize(sorted_rows, 2), 2, shuffle=shuffle, seed=5) as dataset:
            shares.append(dataset.source.glom().map(lambda part: (len(part), sum(y for _, y in part))).collect())
    assert shares[0] == [(100, 0.0), (100, 100.0)]
    assert sum(count for count, _ in shares[1]) == 200
    assert all(0.3 * count < ones < 0.7 * count for count, ones in shares[1])


def test_every_form_of_rows_in_memory(sc) -> None:
    """What `fit` takes apart is taken apart here, too: each row has its label and its weight."""
    x, y, w = np.arange(12.0).reshape(6, 2), np.arange(6), np.linspace(0, 1, 6)
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "label": y, "w": w})
    columns = {"features_col": ["a", "b"], "sample_weight_col": "w"}
    forms: list[tuple[object, dict]] = [
        ((x, y, w), {}),
        (list(zip(x, y, w, strict=True)), {}),
        (frame, columns),
        (((x, 2 * x), None), {}),
    ]
    counts = []
    for data, names in forms:
        with shard(data, 2, **names) as dataset:
            found = [row for block in dataset.source.collect() for row in zip(*flatten(block.columns)[0], strict=True)]
            counts.append(sorted(tuple(np.ravel(part).tolist() for part in row) for row in found))
    assert counts[0] == counts[1] == counts[2] == [([2.0 * i, 2.0 * i + 1], [i], [w[i]]) for i in range(6)]
    assert counts[3] == [([2.0 * i, 2.0 * i + 1], [4.0 * i, 4.0 * i + 2]) for i in range(6)]


def test_sharded_arrays_and_a_wrong_number_of_workers(sc) -> None:
    x, y = digits()
    with elephas_like.shard(x[:100], 2, y[:100]) as dataset:
        assert trained(SparkModel(classifier(), engine="server").fit(dataset, verbose=0)) == 100
        with pytest.raises(ValueError, match="sharded for 2 workers, and num_workers is 3"):
            SparkModel(classifier(), 3, engine="jobs").fit(dataset, verbose=0)


@pytest.mark.parametrize("shuffle", [False, True])
def test_arrays_are_shuffled_over_shards_where_that_is_asked_for(sc, shuffle: bool) -> None:
    """Every other row is of class 1: dealt to two workers, each has one class; mixed, both have both."""
    x, y = np.arange(40.0).reshape(40, 1), np.arange(40) % 2
    with elephas_like.shard(x, 2, y, shuffle=shuffle, seed=5) as dataset:
        found = [part[0].columns for part in dataset.source.glom().collect()]
    assert [sorted(set(labels.tolist())) for _, labels in found] == ([[0, 1], [0, 1]] if shuffle else [[0], [1]])
    assert sorted(row for features, _ in found for row in features[:, 0].tolist()) == list(range(40))
    assert all((features[:, 0] % 2 == labels).all() for features, labels in found)


def test_a_tenth_of_the_rows_is_mixed_where_labels_are_sorted(sc, caplog: pytest.LogCaptureFixture) -> None:
    x, y = digits()
    order = np.argsort(y[:800], kind="stable")
    rows = list(zip(x[order], y[order], strict=True))
    apart = sc.parallelize(rows, 4)
    caplog.set_level("INFO", "elephas_like")

    def labels(rdd, **options) -> list[set]:
        caplog.clear()
        with shard(rdd, 4, **options) as dataset:
            return dataset.source.map(lambda row: int(row[1])).glom().map(set).collect()

    assert max(map(len, labels(apart))) < 5
    assert not caplog.messages
    assert min(map(len, labels(apart, mix="auto"))) > 7
    assert "labels differ from shard to shard (distance 0." in caplog.messages[0]
    assert "10 % of the rows of each of 4 shards are mixed" in caplog.messages[1]
    assert min(map(len, labels(apart, mix=0.2, seed=2))) > 7
    assert caplog.messages == ["20 % of the rows of each of 4 shards are mixed with the others'."]
    labels(sc.parallelize(rows, 4).map(lambda row: (row[0], 0)), mix="auto")
    assert "labels are alike in all shards (distance 0.00); rows stay" in caplog.messages[0]


def test_a_fit_of_mixed_shards_trains_every_row_on_every_engine_alike(sc) -> None:
    x, y = digits()
    order = np.argsort(y[:200], kind="stable")
    rdd, found = sc.parallelize(list(zip(x[order], y[order], strict=True)), 2), []
    for engine in ("in_process", "jobs", "server"):
        model = classifier()
        with shard(rdd, 2, mix=0.3) as dataset:
            history = SparkModel(model, engine=engine, seed=1).fit(dataset, verbose=0)
        assert trained(history) == 200
        found.append(model.get_weights())
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"mix": 0}, r"mix must be a share of the rows, as 0.1, or 'auto', or None; got 0"),
        ({"mix": 1.5}, "got 1.5"),
        ({"mix": True}, "got True"),
        ({"mix": "yes"}, "got 'yes'"),
        ({"mix": float("nan")}, "got nan"),
        ({"mix": 0.1, "shuffle": True}, "give one of the two"),
    ],
)
def test_what_is_no_share_is_refused(sc, options: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        shard(sc.parallelize([([1.0], 2.0)], 1), 1, **options)
