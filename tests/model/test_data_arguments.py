"""What users pass as data: converted to arrays, its columns chosen, or refused in a sentence."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from elephas_like.model.data_arguments import arrays, column_choice, refuse_foreign


def test_pandas_tensors_and_lists_become_arrays_and_trees_stay_trees() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    assert arrays(frame).tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert arrays([1, 2]).tolist() == [1, 2]
    tree = arrays({"x": frame["a"], "y": (np.ones(2), [np.zeros(2), np.ones(2)])})
    assert tree["x"].tolist() == [[1.0], [2.0]]  # a column, as in Keras
    assert isinstance(tree["y"][1], tuple)


def test_columns_are_a_dataframes() -> None:
    assert column_choice(np.zeros(2)) is None
    with pytest.raises(
        ValueError, match="label_col= names columns of a DataFrame or of Parquet files; the data is of type ndarray"
    ):
        column_choice(np.zeros(2), label_col="y")


def test_iterators_are_refused() -> None:
    with pytest.raises(TypeError, match="generators and iterators live on one machine"):
        refuse_foreign(iter([1, 2]))
