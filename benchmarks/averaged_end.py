"""The mean of a fit's last epochs in place of its last state: test accuracy on digits and MNIST-5k.

    python benchmarks/averaged_end.py [--seeds 0 1 2] [--docs docs/convergence.md]

The cells are those of convergence.py. `MeanOfLastEpochs` is an ordinary Keras callback, for any fit: the driver has the averaged model at the
end of each epoch. Models with BatchNorm need their statistics anew afterwards, from a pass over rows.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import convergence
import keras
import numpy as np

from elephas_like import SparkModel
from elephas_like.rows.spool import Block

CELLS = (
    "iid/K8/B/defaults",
    "iid/K32/B/defaults",
    "sorted/K8/B/defaults",
    "sorted/K32/B/defaults",
    "sorted/K8/B/epoch",
)
LAST = (1, 2, 3, 5)


class MeanOfLastEpochs(keras.callbacks.Callback):
    """Keeps the weights of the last epochs, and leaves their mean in the model."""

    def __init__(self, epochs: int) -> None:
        super().__init__()
        self.kept: deque[list[np.ndarray]] = deque(maxlen=epochs)

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        """Keep the weights."""
        self.kept.append(self.model.get_weights())

    def on_train_end(self, logs: object = None) -> None:
        """Set their mean."""
        self.model.set_weights([np.mean(same, axis=0) for same in zip(*self.kept, strict=True)])


def accuracies(cell: convergence.Cell, seed: int) -> list[float]:
    """The test accuracy in percent of one fit that ends with the mean of its last epochs, for each number of them."""
    x, y = convergence.rows_of(cell.data)
    train, test = convergence.held_out(y, seed)
    shares = convergence.parts(cell.split, y, train, cell.workers, seed)
    blocks = [Block((x[rows], y[rows]), len(rows)) for rows in shares]
    found = []
    for last in LAST:
        model = convergence.network(x.shape[1], seed)
        fitted = SparkModel(model, seed=seed, **convergence.options_of(cell, 0))
        fitted.fit(blocks, epochs=cell.epochs, batch_size=cell.batch, verbose=0, callbacks=[MeanOfLastEpochs(last)])
        found.append(100 * model.evaluate(x[test], y[test], verbose=0)[1])
    return found


def main(seeds: Sequence[int], docs: Path | None) -> None:
    """Print the table, or write it into a document."""
    lines = [
        "| cell | the last state | " + " | ".join(f"mean of {n} epochs" for n in LAST[1:]) + " |",
        "|---" * 5 + "|",
    ]
    for data in ("digits", "mnist"):
        for name in CELLS:
            cell = convergence.Cell.of(f"{data}/{name}")
            means = np.mean([accuracies(cell, seed) for seed in seeds], axis=0)
            lines.append(f"| {cell} | " + " | ".join(f"{value:.1f}" for value in means) + " |")
            print(lines[-1], flush=True)
    print("\n".join(lines))
    if docs:
        convergence.put(docs, averaged_end="\n".join(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--docs", type=Path, help="a document to write the table into")
    arguments = parser.parse_args()
    main(arguments.seeds, arguments.docs)
