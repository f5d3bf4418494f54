"""Steps that know where all workers went, compared: one exchange an epoch, each worker's rows of one label or two.

Eight workers train the MLP of convergence.py on its rows (budget B, sorted by label), written in NumPy, all workers in one product, so
that a method can be tried in seconds before a worker of the library learns it. Optimizer slots are averaged with the weights.

    python benchmarks/global_directions.py
    python benchmarks/global_directions.py --seeds 3 4 5

    the defaults    the outer Nesterov step over the workers' mean update
    FedCM           a share 1 - a of each local step is the last outer step's, spread over the steps of a round (Xu et al. 2021,
                    arXiv:2106.10874, equation 4, where gradients are mixed: "on gradients")
    SCAFFOLD        what a worker's mean gradient of the last round lacks to that of all workers is added to each of its gradients
                    (Karimireddy et al. 2020, arXiv:1910.06378, equations 3 to 5, option II): Adam steps by the sum
    in steps        the same with steps in place of gradients, which is `control_variates=True` (core/variates.py)
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from convergence import EPOCHS, GLOBAL_BATCH, held_out, parts, rows_of

WORKERS = 8
Arrays = list[np.ndarray]


@dataclass(frozen=True)
class Method:
    """How workers step, and how the center does."""

    rate: float = 1e-3
    own: float = 1.0  # the share of a worker's own step or gradient, FedCM's alpha
    mixed: str = "steps"  # or "gradients"
    corrected: str = ""  # by SCAFFOLD's control variates: its "gradients" or its "steps"
    momentum: float = 0.7
    outer_rate: float = 1.0
    moments: tuple[float, float] = (0.9, 0.999)
    split: str = "sorted"


METHODS = {
    "the defaults, rows dealt at random": Method(split="iid"),
    "the defaults": Method(),
    "a third of the learning rate": Method(rate=3e-4),
    "FedCM, a = 0.5": Method(own=0.5),
    "FedCM, a = 0.5, no outer momentum": Method(own=0.5, momentum=0.0),
    "FedCM, a = 0.1, no outer momentum": Method(own=0.1, momentum=0.0),
    "FedCM on gradients, a = 0.5, no outer momentum": Method(own=0.5, mixed="gradients", momentum=0.0),
    "SCAFFOLD": Method(corrected="gradients"),
    "SCAFFOLD, no outer momentum": Method(corrected="gradients", momentum=0.0),
    "SCAFFOLD in steps": Method(corrected="steps"),
    "SCAFFOLD in steps, no outer momentum": Method(corrected="steps", momentum=0.0),
    "SCAFFOLD in steps, half of the learning rate": Method(corrected="steps", rate=5e-4),
    "SCAFFOLD in steps, rows dealt at random": Method(corrected="steps", split="iid"),
}


def initial(features: int, random: np.random.Generator) -> Arrays:
    """Glorot's uniform kernels and zero biases of 64, 32 and 10 units."""
    sizes = [features, 64, 32, 10]
    found: Arrays = []
    for before, after in pairwise(sizes):
        limit = np.sqrt(6 / (before + after))
        found += [random.uniform(-limit, limit, (before, after)).astype(np.float32), np.zeros(after, np.float32)]
    return found


def gradients(weights: Arrays, x: np.ndarray, y: np.ndarray) -> Arrays:
    """Of the mean cross-entropy, for weights [K, ...], x [K, batch, features] and y [K, batch]."""
    first, second = (np.swapaxes(kernel, 1, 2) for kernel in (weights[2], weights[4]))
    low = np.maximum(x @ weights[0] + weights[1][:, None], 0)
    high = np.maximum(low @ weights[2] + weights[3][:, None], 0)
    logits = high @ weights[4] + weights[5][:, None]
    off = np.exp(logits - logits.max(-1, keepdims=True))
    off /= off.sum(-1, keepdims=True)
    np.put_along_axis(off, y[..., None], np.take_along_axis(off, y[..., None], -1) - 1, -1)
    off /= y.shape[1]
    off_high = (off @ second) * (high > 0)
    off_low = (off_high @ first) * (low > 0)
    pairs = ((x, off_low), (low, off_high), (high, off))
    return [part for given, error in pairs for part in (np.swapaxes(given, 1, 2) @ error, error.sum(1))]


def accuracy(weights: Arrays, x: np.ndarray, y: np.ndarray) -> float:
    """Percent of the rows that are labelled right."""
    hidden = np.maximum(np.maximum(x @ weights[0] + weights[1], 0) @ weights[2] + weights[3], 0)
    return 100 * float((np.argmax(hidden @ weights[4] + weights[5], -1) == y).mean())


def run(data: str, method: Method, seed: int) -> float:
    """Test accuracy after the epochs of budget B, one exchange each."""
    x, y = rows_of(data)
    train, test = held_out(y, seed)
    shares = parts(method.split, y, train, WORKERS, seed)
    batch = GLOBAL_BATCH // WORKERS
    steps = -(-max(map(len, shares)) // batch)
    random = np.random.default_rng([seed, 9])
    center = initial(x.shape[1], random)
    means, squares, momentum = ([np.zeros_like(part) for part in center] for _ in range(3))
    last: Arrays | None = None  # the last outer step, or the mean gradient of the last round
    lacking: Arrays | None = None  # what each worker's mean gradient or step lacks to that of all
    first, second = method.moments
    taken = 0
    for _ in range(EPOCHS[data, "B"]):
        orders = [np.resize(random.permutation(share), steps * batch) for share in shares]
        weights, m, v = ([np.repeat(part[None], WORKERS, 0) for part in parts_] for parts_ in (center, means, squares))
        seen = [np.zeros_like(part) for part in weights]
        for step in range(steps):
            rows = np.stack([order[step * batch : (step + 1) * batch] for order in orders])
            taken += 1
            found = gradients(weights, x[rows], y[rows])
            if method.corrected != "steps":
                for total, part in zip(seen, found, strict=True):
                    total += part
            if lacking is not None and method.corrected == "gradients":
                found = [part + lack for part, lack in zip(found, lacking, strict=True)]
            if last is not None and method.mixed == "gradients":
                found = [method.own * part + (1 - method.own) * all_ for part, all_ in zip(found, last, strict=True)]
            rate = method.rate * np.sqrt(1 - second**taken) / (1 - first**taken)
            for i, part in enumerate(found):
                m[i] = first * m[i] + (1 - first) * part
                v[i] = second * v[i] + (1 - second) * part * part
                moved = -rate * m[i] / (np.sqrt(v[i]) + 1e-7)
                if method.corrected == "steps":
                    seen[i] += moved
                    moved = moved if lacking is None else moved + lacking[i]
                if last is not None and method.mixed == "steps":
                    moved = method.own * moved + (1 - method.own) * last[i] / steps
                weights[i] = weights[i] + moved
        gone = [part.mean(0) - before for part, before in zip(weights, center, strict=True)]
        if method.corrected:
            lacking = [(total.mean(0) - total) / steps for total in seen]
        means, squares = ([part.mean(0) for part in slots] for slots in (m, v))
        momentum = [method.momentum * old + new for old, new in zip(momentum, gone, strict=True)]
        outer = [method.outer_rate * (method.momentum * old + new) for old, new in zip(momentum, gone, strict=True)]
        center = [part + moved for part, moved in zip(center, outer, strict=True)]
        last = outer if method.mixed == "steps" else [total.mean(0) / steps for total in seen]
    return accuracy(center, x[test], y[test])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    seeds = parser.parse_args().seeds
    print("| steps | digits | MNIST-5k |\n|---|---|---|")
    for name, method in METHODS.items():
        found = [[run(data, method, seed) for seed in seeds] for data in ("digits", "mnist")]
        print(f"| {name} | " + " | ".join(f"{np.mean(each):.1f} ± {np.std(each):.1f}" for each in found) + " |")


if __name__ == "__main__":
    main()
