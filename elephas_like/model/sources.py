"""What was given as data: an RDD of rows, arrays by column, a ShardedDataset, or a DataFrame; and how workers get at it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import keras
import numpy as np
import pandas as pd
from pyspark import RDD, SparkContext
from pyspark.sql import DataFrame

from elephas_like.core.parts import cut, cut_row
from elephas_like.core.structure import flatten, unflatten
from elephas_like.core.types import ShardRef, Slot
from elephas_like.rows.data import Data
from elephas_like.rows.frame_plan import Choice, ColumnChoice, FramePlan, plan
from elephas_like.rows.frame_read import Frame
from elephas_like.rows.shards import ShardedDataset, SpoolOptions, dealt, partitioned
from elephas_like.rows.spool import Block, spool
from elephas_like.trainer.batches import sample_of
from elephas_like.trainer.serialization import input_count, target_count, wants_target
from elephas_like.trainer.state import build, build_optimizer
from elephas_like.trainer.task import inputs, one_hot_classes, targets
from elephas_like.trainer.tensors import dense, is_ragged, is_sparse


@dataclass(frozen=True)
class Source:
    """What was given as data: an RDD of rows, arrays by column, a ShardedDataset, a DataFrame, or the block of each worker.

    frame: a DataFrame, whose Blocks are `rdd`.
    blocks: each worker's rows as they are to lie, where a split is the point (benchmarks, tests of uneven shards).
    """

    rdd: RDD | None = None
    frame: Frame | None = None
    columns: tuple[object, ...] | None = None
    dataset: ShardedDataset | None = None
    blocks: tuple[Block, ...] | None = None
    has_target: bool = True

    @classmethod
    def of(cls, data: Any, y: Any, sample_weight: Any) -> Source:
        """The source of `fit(data, y, sample_weight=)`."""
        blocks = isinstance(data, Sequence) and len(data) > 0 and all(isinstance(block, Block) for block in data)
        if (blocks or isinstance(data, RDD | ShardedDataset)) and (y is not None or sample_weight is not None):
            raise ValueError("an RDD's rows carry y and sample_weight: (x, y) or (x, y, sample_weight).")
        if blocks:
            return cls(blocks=tuple(data))
        if isinstance(data, RDD):
            return cls(rdd=data)
        if isinstance(data, ShardedDataset):
            return cls(dataset=data)
        refuse_foreign(data)
        columns = [arrays(data)]
        if y is not None or sample_weight is not None:
            columns.append(arrays(y))
        if sample_weight is not None:
            columns.append(keras.tree.map_structure(_flat, arrays(sample_weight)))
        return cls(columns=tuple(columns))

    @classmethod
    def of_frame(
        cls, df: DataFrame, columns: ColumnChoice, model: keras.Model | None, *, target: bool = True
    ) -> Source:
        """The rows of a DataFrame for a model, without labels if not `target`; as the columns lie if there is no model."""
        if not target or (model is not None and not wants_target(model)):
            columns = replace(columns, label=None, sample_weight=None)
        frame = Frame(df, frame_plan(df, columns, model))
        return cls(rdd=frame.blocks, frame=frame)

    @classmethod
    def any(
        cls, data: Any, y: Any, sample_weight: Any, columns: ColumnChoice | None, model: keras.Model | None
    ) -> Source:
        """The source of a fit's data, of whatever kind."""
        if columns is None:
            return cls.of(data, y, sample_weight)
        if y is not None or sample_weight is not None:
            raise ValueError(
                "a DataFrame holds y and sample_weight too: name their columns, label_col= and sample_weight_col=."
            )
        return cls.of_frame(data, columns, model)

    @classmethod
    def validation(cls, data: Any, columns: ColumnChoice | None = None, model: keras.Model | None = None) -> Source:
        """The source of `validation_data`; a DataFrame's columns are those of the training rows'."""
        if isinstance(data, DataFrame):
            refuse_connect(data)
            if columns is None:
                raise TypeError(
                    "validation_data is a DataFrame, which goes with a DataFrame as data; got data of another kind."
                )
            return cls.of_frame(data, columns, model)
        if isinstance(data, tuple | list) and len(data) in (1, 2, 3):
            x, y, sample_weight = (*data, None, None)[:3]
            return cls.of(x, y, sample_weight)
        if isinstance(data, RDD):
            return cls.of(data, None, None)
        raise TypeError(
            f"validation_data must be (x,), (x, y) or (x, y, sample_weight) arrays, an RDD of such rows, or a DataFrame; got "
            f"{type(data).__name__}."
        )

    @property
    def context(self) -> SparkContext | None:
        """The SparkContext that the data belongs to."""
        if self.rdd is not None:
            return self.rdd.context
        return None if self.dataset is None else self.dataset.source.context

    def with_target(self, model: keras.Model) -> Source:
        """The source, told whether its rows are pairs: arrays say so, an RDD's rows follow the model's loss."""
        if self.frame is not None:
            return replace(self, has_target=self.frame.plan.has_target)
        given = self.columns if self.blocks is None else self.blocks[0].columns
        if given is not None:
            return replace(self, has_target=len(given) > 1)
        return replace(self, has_target=wants_target(model))

    @property
    def partitions(self) -> int | None:
        """Partitions of the data, or None where it has none yet."""
        return None if self.rdd is None else self.rdd.getNumPartitions()

    def for_model(self, model: keras.Model) -> Source:
        """The source as a model reads it: with or without targets, single arrays cut for its inputs and outputs."""
        return self.with_target(model).cut_for(model)

    def cut_for(self, model: keras.Model) -> Source:
        """The source, with a single array for a model of several inputs or outputs cut into equal parts, as in Elephas.

        Tuples and dicts stay what they are. So does a ShardedDataset, which is written down already.
        """
        inputs, targets = input_count(model), target_count(model)
        if max(inputs, targets) == 1:
            return self
        if self.columns is not None:
            x, *rest = self.columns
            y = [cut_targets(part, model) for part in rest[:1]]
            return replace(self, columns=(cut_inputs(x, model), *y, *rest[1:]))
        if self.rdd is None or self.frame is not None:  # a frame's plan cuts its columns
            return self
        if not self.has_target:
            return replace(self, rdd=cut_features(self.rdd, model))
        return replace(self, rdd=self.rdd.map(partial(_cut_pair, inputs=inputs, targets=targets)))

    def data(self, num_workers: int, options: SpoolOptions | None = None) -> Data:
        """The rows for so many workers; those of a ShardedDataset with its shards, if it is told how they are written."""
        if self.dataset is not None:
            plain = Data(num_workers, rdd=self.dataset.source)
            if options is None:
                return plain
            return replace(
                plain,
                sharded=self.dataset.references(replace(options, dataset=self.dataset.dataset)),
                written=self.dataset.written,
                invalidate=self.dataset.invalidate,
            )
        if self.rdd is not None:
            few = self.frame is not None and self.rdd.getNumPartitions() < num_workers
            rdd = self.frame.dealt(num_workers) if self.frame is not None and few else self.rdd
            return Data(num_workers, rdd=partitioned(rdd, num_workers))
        if self.blocks is not None:
            return Data(num_workers, blocks=self.blocks)
        assert self.columns is not None
        return Data(num_workers, blocks=dealt(self.columns, num_workers))

    def build(self, model: keras.Model, batch_size: int = 1) -> None:
        """Builds model and optimizers, from a batch of the first row where the model needs one.

        An RDD is not asked otherwise: `take` ends a Python worker in mid-stream, and with it an imported TensorFlow.
        """
        if self.columns is not None or not build_optimizer(model):
            build(model, self.sample(keras.config.floatx(), batch_size))

    def sample(self, floatx: str, rows: int = 1) -> tuple[object, ...]:
        """A batch of rows like the first one, in the dtypes that workers will see.

        Raises:
            ValueError: there are no rows.
            DataError: the first row is not one to train on.
        """
        first = None if self.blocks is None else next((b for b in self.blocks if b.rows), self.blocks[0])
        columns = self.columns if first is None else first.columns
        if columns is not None:
            leaves, structure = flatten(columns)
            tree = unflatten(structure, [np.asarray(leaf)[:1] for leaf in leaves])
            assert isinstance(tree, tuple)
            given: list[object] = [Block(tree, len(np.asarray(leaves[0])[:1]))]
        else:
            source = self.rdd if self.rdd is not None else self.dataset.source  # type: ignore[union-attr]
            given = source.take(1)
        ref: ShardRef | None = None
        if given:
            with tempfile.TemporaryDirectory(prefix="elephas_like-") as folder:
                ref = spool(
                    given, dataset="sample", worker=0, base=folder, floatx=floatx, expect_target=self.has_target
                )
                sample = sample_of(ref, rows)
            if sample is not None:
                return sample
        raise ValueError("there are no rows to train on: the data is empty.")


def _flat(weights: np.ndarray) -> np.ndarray:
    """Weights of rows that came as a column as one axis."""
    return weights[:, 0] if weights.ndim == 2 and weights.shape[1] == 1 else weights


def frame_plan(df: DataFrame, columns: ColumnChoice, model: keras.Model | None) -> FramePlan:
    """How a DataFrame is read for a model, or for any if there is none; what does not fit is said here, before any job."""
    if df.isStreaming:
        raise TypeError("a streaming DataFrame has no end to train to; train on what foreachBatch hands over.")
    return plan(
        df.schema,
        columns,
        Slot("input") if model is None else inputs(model),
        Slot("output") if model is None else targets(model),
        floatx=keras.config.floatx(),
        classes=None if model is None else one_hot_classes(model),
    )


def column_choice(
    data: object,
    features_col: Choice | None = None,
    label_col: Choice | None = None,
    sample_weight_col: str | None = None,
    column_shapes: Mapping[str, Sequence[int]] | None = None,
    column_dtypes: Mapping[str, str] | None = None,
) -> ColumnChoice | None:
    """Which columns of a DataFrame are what, or None for data of another kind.

    Raises:
        ValueError: columns were named, and there are none.
    """
    given = {
        "features_col": ("features", features_col),
        "label_col": ("label", label_col),
        "sample_weight_col": ("sample_weight", sample_weight_col),
        "column_shapes": ("shapes", column_shapes),
        "column_dtypes": ("dtypes", column_dtypes),
    }
    named = {name: (part, value) for name, (part, value) in given.items() if value is not None}
    if isinstance(data, DataFrame):
        refuse_connect(data)
        chosen: dict[str, Any] = dict(named.values())
        return ColumnChoice(**chosen)
    for name in named:
        raise ValueError(f"{name}= names columns of a DataFrame; the data is of type {type(data).__name__}.")
    return None


def cut_inputs(x: Any, model: keras.Model) -> Any:
    """A single array with rows for a model with several inputs, cut into one for each along axis 1."""
    return cut(x, input_count(model), axis=1)


def cut_targets(y: Any, model: keras.Model) -> Any:
    """A single array of targets for a model with several outputs, cut into one for each with a loss along axis 1."""
    return cut(y, target_count(model), axis=1, what="outputs")


def cut_features(rdd: RDD, model: keras.Model) -> RDD:
    """Rows of features whose single arrays are cut into one for each input of the model."""
    parts = input_count(model)
    return rdd if parts == 1 else rdd.map(partial(_cut_x, parts=parts))


def _cut_x(row: Any, parts: int) -> Any:
    return row if isinstance(row, Block) else cut(row, parts, axis=0)  # whole blocks have their columns already


def _cut_pair(row: Any, inputs: int, targets: int) -> Any:
    return row if isinstance(row, Block) else cut_row(row, inputs, targets)


def refuse_foreign(data: object) -> None:
    """Says in one sentence what to use instead of kinds of data that are none of ours."""
    module = type(data).__module__
    refuse_connect(data)
    if module.startswith("pyspark.sql"):
        raise TypeError(
            "DataFrames are taken by fit, evaluate, predict, search and train_ensemble; here pass "
            "df.rdd.map(lambda row: (features, label))."
        )
    if module.startswith("tensorflow") and not (hasattr(data, "numpy") or is_sparse(data)):
        raise TypeError("tf.data datasets live on one machine; pass arrays, or an RDD of (x, y) rows.")
    if isinstance(data, Iterator | keras.utils.PyDataset):
        raise TypeError(
            "generators and iterators live on one machine; pass arrays, or sc.parallelize(rows) with (x, y) rows."
        )
    parts = data.values() if isinstance(data, dict) else data if isinstance(data, tuple) else [data]
    if any(is_ragged(part) for part in parts):
        raise TypeError(
            "ragged tensors have rows of unequal shape: pad them (tensor.to_tensor()), as each batch needs one shape."
        )


def refuse_connect(data: object) -> None:
    """Says what to use where data is Spark Connect's."""
    if type(data).__module__.startswith("pyspark.sql.connect"):
        raise TypeError(
            "Spark Connect has no RDDs, on which training runs; use a classic session "
            "(SparkSession.builder.master(...)) until Spark Connect is supported."
        )


def arrays(tree: Any) -> Any:
    """Pandas, SciPy's sparse matrices and tensors as dense arrays; tuples, lists of arrays, and dicts stay what they are."""
    if tree is None or isinstance(tree, np.ndarray):
        return tree
    if is_sparse(tree):
        return dense(tree)
    if isinstance(tree, dict):
        return {name: arrays(value) for name, value in tree.items()}
    if isinstance(tree, tuple) or (isinstance(tree, list) and any(getattr(item, "shape", ()) for item in tree)):
        return tuple(arrays(item) for item in tree)
    if isinstance(tree, pd.Series):
        return tree.to_numpy()[:, None]  # a column, as in Keras
    if hasattr(tree, "to_numpy"):
        return tree.to_numpy()
    return np.asarray(tree)
