from __future__ import annotations

import numpy as np
import pytest

from elephas_like.core.columns import open_column
from elephas_like.core.errors import DataError, ShipmentGone
from elephas_like.rows import replicas
from elephas_like.rows.data import Data
from elephas_like.rows.replicas import Parcel, Replica, blocks_of, replicated_data, rows_dataset
from elephas_like.rows.shard_files import remove_dataset
from elephas_like.rows.shards import SpoolOptions, dealt, new_dataset, sweep
from elephas_like.rows.spool import Block, spool
from elephas_like.spark.versions import versions


@pytest.fixture
def options(sc):
    made = SpoolOptions(new_dataset(), "float32", True, versions())
    yield made
    sweep(sc, "replicas", 2, [made.dataset, rows_dataset(made)])  # on the executors
    remove_dataset(made.dataset)  # on the driver


def rows_of(replica: Replica) -> list:
    ref = replica.ref()
    return [open_column(column, ref.rows).take(np.arange(ref.rows)).tolist() for column in ref.columns]


def test_all_rows_in_order_from_any_task(sc, options: SpoolOptions) -> None:
    rdd = sc.parallelize([([float(i)], i) for i in range(7)], 3)
    with replicated_data(sc, Data(3, rdd), options, at_once=2, tag="replicas") as replica:
        places = sc.parallelize(range(2), 2).map(lambda _: replica.ref()).collect()
        assert places[0].directory == places[1].directory
        assert rows_of(replica) == [[[float(i)] for i in range(7)], list(range(7))]


def test_arrays_in_their_order(sc, options: SpoolOptions) -> None:
    x, y = np.arange(6.0).reshape(3, 2), np.arange(3)
    data = Data(1, blocks=dealt((x, y), 1))
    with replicated_data(sc, data, options, at_once=2, tag="replicas") as replica:
        assert rows_of(replica) == [x.tolist(), y.tolist()]


def test_a_process_holds_no_rows_that_are_written_down() -> None:
    block = Block((np.arange(3),), 3)
    parcel = Parcel(block)
    assert parcel.take() is block
    with pytest.raises(ShipmentGone, match="no longer in its local directory"):
        parcel.take()


def test_rows_that_differ_are_named(sc, options: SpoolOptions) -> None:
    rdd = sc.parallelize([([1.0], 1), ([1.0, 2.0], 1)], 1)
    with pytest.raises(DataError, match="partition 0, row 1"):
        with replicated_data(sc, Data(1, rdd), options, at_once=2, tag="replicas"):
            pass


def test_large_partitions_travel_in_blocks(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(f"word {i}", float(i)) for i in range(10)]
    ref = spool(rows, dataset="blocks", worker=0, base=str(tmp_path))
    monkeypatch.setattr(replicas, "BLOCK_BYTES", 64)
    blocks = list(blocks_of(ref))
    assert len(blocks) > 1
    assert sum(block.rows for block in blocks) == 10
    again = spool(blocks, dataset="again", worker=0, base=str(tmp_path))
    assert again.checksum == ref.checksum
    assert list(blocks_of(spool([], dataset="none", worker=0, base=str(tmp_path)))) == []
