"""What a distributed search and its ensembles cost and gain: every number of docs/tuning.md and docs/ensembles.md's table.

    python benchmarks/search.py                                # what is not in the results yet, then the tables
    python benchmarks/search.py speedup --again                # one part, also where it is there already
    python benchmarks/search.py --tables --plot docs/images    # run nothing; tables and pictures of the results

Results are appended to `--results`, one line of JSON a measurement.

    quality    random searches of 30 trials of 20 epochs on two slots of Spark, with and without pruning, on digits (750
               rows to train on, 250 that rank the trials, 797 held out) and MNIST-5k (3,200, 800, 1,000). The seed decides
               these rows, the points, weights and batches: trials with and without pruning are the same until one is
               stopped. The best model, the five best as an ensemble, and a greedy selection among the ten best (made on the
               rows that rank) are scored on the held-out rows, which nothing else has seen.
    algorithms the same with TPE instead of random search, without pruning
    rules      the same with ASHA and Hyperband instead of the median rule; benchmarks/pruning.py replays them
    speedup    30 random trials of an MLP of 3 x 512 units on the rows of `quality`, no pruning, each at least 10 s: `search`
               on two slots, and the same points in a loop of plain Keras `fit` in one process with all cores, half of it
               before the search and half after it, so that what else the machine does falls on both. The clock starts
               when the driver's imports are done: Spark's start and the import of TensorFlow on its slots are in the time.
    overhead   trials that do nothing, ours and hyperopt.SparkTrials', after a first search that warms the Python workers

Each measurement runs in a process of its own; `quality` takes one per data set.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
EPOCHS = 20
SPEEDUP_EPOCHS = {"digits": 170, "mnist": 26}
"""So many that the shortest trial takes 10 s on a slot of a quiet machine."""
MEMBERS = 5
ROWS = {"digits": (750, 250), "mnist": (3200, 800)}
"""Rows to train on, and rows that rank the trials; the others are held out."""
SPACE = {
    "units": [16, 32, 64, 128, 256],
    "layers": [1, 2, 3],
    "dropout": ("uniform", 0.0, 0.6),
    "rate": ("loguniform", -9.2, -2.3),
    "activation": ["relu", "tanh", "gelu"],
}
WIDE_SPACE = SPACE | {"units": [512], "layers": [3]}
"""Trials that take about equally long, of a model that keeps both cores of the loop busy."""

Line = Mapping[str, object]


def build(params):
    import keras

    layers = [keras.layers.Dropout(params["dropout"])]
    for _ in range(params["layers"]):
        layers.append(keras.layers.Dense(params["units"], activation=params["activation"]))
    model = keras.Sequential([*layers, keras.layers.Dense(10, activation="softmax")])
    model.compile(keras.optimizers.Adam(params["rate"]), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


# --- data


def images(data: str) -> tuple[np.ndarray, np.ndarray]:
    """All images, flat, between 0 and 1, and their labels."""
    if data == "digits":
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        return (x / 16).astype("float32"), y.astype("int64")
    sys.path.insert(0, str(HERE.parent / "examples"))
    from mnist_data import load

    x, y, x_test, y_test = load()
    return np.concatenate([x, x_test]), np.concatenate([y, y_test])


def parts(data: str, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows to train on, rows that rank the trials, rows held out: each (x, y)."""
    x, y = images(data)
    order = np.random.default_rng([seed, 1]).permutation(len(y))
    ends = np.cumsum(ROWS[data])
    return [(x[rows], y[rows]) for rows in np.split(order, ends)]


# --- measurements: each prints lines of JSON


def spark(cores: int):
    from pyspark import SparkConf, SparkContext

    conf = SparkConf().set("spark.ui.enabled", "false").set("spark.ui.showConsoleProgress", "false")
    context = SparkContext(f"local[{cores}]", "search benchmark", conf=conf.set("spark.driver.host", "127.0.0.1"))
    context.setLogLevel("OFF")
    return context


def quality(data: str, algo: str, pruning: str | None, seeds: Sequence[int], trials: int) -> Iterator[Line]:
    from elephas_like import greedy_selection, search

    spark(2)
    for seed in seeds:
        training, ranking, (x, y) = parts(data, seed)
        started = time.perf_counter()
        found = search(
            build,
            SPACE,
            training,
            max_evals=trials,
            algo=algo,
            objective="val_accuracy",
            epochs=EPOCHS,
            validation_data=ranking,
            pruning=pruning,
            seed=seed,
            verbose=0,
        )
        seconds = time.perf_counter() - started
        table = found.trials
        many = min(10, int(table["status"].eq("ok").sum()))
        greedy = greedy_selection(found.best_models(many), ranking)
        members = [float(model.evaluate(x, y, verbose=0)[1]) for model in found.best_models(min(MEMBERS, many))]
        ensembles = {
            voting: float(np.mean(found.best_ensemble(len(members), voting).predict(x) == y))
            for voting in ("soft", "hard")
        }
        yield {
            "part": "quality",
            "data": data,
            "algo": algo,
            "pruning": pruning,
            "seed": seed,
            "seconds": seconds,
            "best": found.best_value,
            "members": members,
            **ensembles,
            "greedy": float(np.mean(greedy.ensemble.predict(x) == y)),
            "greedy_size": greedy.size,
            "trained": found.epochs_trained,
            "saved": found.epochs_saved,
            "trials": [
                {"status": row["status"], "params": row["params"], "curve": row["history"]["val_accuracy"]}
                for row in table.to_dict("records")
            ],
        }


def speedup_search(data: str, trials: int, epochs: int) -> Iterator[Line]:
    from elephas_like import search

    training, ranking, _ = parts(data, 0)
    started = time.perf_counter()
    spark(2)
    found = search(
        build,
        WIDE_SPACE,
        training,
        max_evals=trials,
        algo="random",
        epochs=epochs,
        validation_data=ranking,
        pruning=None,
        seed=0,
        verbose=0,
    )
    seconds = time.perf_counter() - started
    yield {
        "part": "speedup",
        "data": data,
        "side": "search",
        "epochs": epochs,
        "seconds": seconds,
        "best": found.best_value,
    } | {
        "numbers": list(range(trials)),
        "each": found.trials["seconds"].tolist(),
    }


def speedup_loop(data: str, first: int, last: int, epochs: int) -> Iterator[Line]:
    import keras

    from elephas_like.tuning.space import Sampler, Space

    training, ranking, _ = parts(data, 0)
    sampler = Sampler(Space(WIDE_SPACE), "random", 0)
    points = [sampler.space.at(sampler.suggest(number)) for number in range(last)]  # the points of the search
    each, best = [], float("inf")
    begun = time.perf_counter()
    for params in points[first:]:
        started = time.perf_counter()
        keras.utils.set_random_seed(0)
        history = build(params).fit(*training, epochs=epochs, batch_size=32, validation_data=ranking, verbose=0)
        best = min(best, *history.history["val_loss"])
        keras.backend.clear_session()
        each.append(time.perf_counter() - started)
    seconds = time.perf_counter() - begun
    yield {"part": "speedup", "data": data, "side": "loop", "epochs": epochs, "seconds": seconds, "best": best} | {
        "numbers": list(range(first, last)),
        "each": each,
    }


def overhead(kind: str, trials: int) -> Iterator[Line]:
    context = spark(2)
    if kind == "ours":
        from elephas_like import HyperParamModel

        def run(count):
            ours = HyperParamModel(context, 2, algo="random", seed=0, verbose=0)
            ours.compute_trials(lambda params: params["x"] ** 2, tuple, count, space={"x": ("uniform", -1, 1)})
    else:
        import hyperopt
        from pyspark.sql import SparkSession

        session = SparkSession(context)

        def run(count):
            hyperopt.fmin(
                lambda params: params["x"] ** 2,
                {"x": hyperopt.hp.uniform("x", -1, 1)},
                algo=hyperopt.rand.suggest,
                max_evals=count,
                trials=hyperopt.SparkTrials(parallelism=2, spark_session=session),
                rstate=np.random.default_rng(0),
                show_progressbar=False,
                verbose=False,
            )

    run(4)
    started = time.perf_counter()
    run(trials)
    yield {"part": "overhead", "kind": kind, "trials": trials, "seconds": time.perf_counter() - started}


def alone(function: str, *arguments: object) -> Iterator[Line]:
    """What a function of this file yields in a process of its own, as it comes."""
    environment = {"PYSPARK_PYTHON": sys.executable, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, __file__, "--run", json.dumps([function, *arguments])]
    stamp = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}",
        "versions": {name: version(name) for name in ("keras", "tensorflow", "pyspark", "hyperopt")},
    }
    with subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            if line.startswith("{"):
                yield json.loads(line) | stamp
    if process.returncode:
        raise RuntimeError(f"{function}{arguments} ended with {process.returncode}")


# --- results


class Results:
    """Measurements, kept in a file of JSON lines; of equal ones the last counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.lines: list[dict] = []
        for line in path.read_text().splitlines() if path.exists() else []:
            self._take(json.loads(line))

    def add(self, line: dict) -> None:
        self._take(line)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def of(self, **wanted: object) -> list[dict]:
        """Lines with these values, by seed."""
        found = [line for line in self.lines if all(line.get(name) == value for name, value in wanted.items())]
        return sorted(found, key=lambda line: line.get("seed", 0))

    def _take(self, line: dict) -> None:
        self.lines = [other for other in self.lines if _name(other) != _name(line)] + [line]


def _name(line: Line) -> object:
    names = ("part", "data", "algo", "pruning", "seed", "side", "kind")
    return [line.get(name) for name in names], line.get("numbers")


def measure(results: Results, wanted: Sequence[str], trials: int, seeds: int, again: bool) -> None:
    """Runs what is missing."""

    def take(*what: object) -> None:
        for line in alone(*what):  # type: ignore[arg-type]
            results.add(line)
            shown = {name: value for name, value in line.items() if name not in ("trials", "each", "numbers")}
            print(json.dumps(shown), file=sys.stderr, flush=True)

    searches: list[tuple[str, str | None]] = []
    if "quality" in wanted:
        searches += [("random", None), ("random", "median")]
    if "algorithms" in wanted:
        searches += [("tpe", None), ("tpe", "median")]
    if "rules" in wanted:
        searches += [("random", "asha"), ("random", "hyperband")]
    for (algo, pruning), data in itertools.product(searches, ROWS):
        there = {line["seed"] for line in results.of(part="quality", data=data, algo=algo, pruning=pruning)}
        missing = [seed for seed in range(seeds) if again or seed not in there]
        if missing:
            take("quality", data, algo, pruning, missing, trials)
    for data, epochs in SPEEDUP_EPOCHS.items():
        if "speedup" in wanted and (again or not results.of(part="speedup", data=data)):
            take("speedup_loop", data, 0, trials // 2, epochs)
            take("speedup_search", data, trials, epochs)
            take("speedup_loop", data, trials // 2, trials, epochs)
    if "overhead" in wanted and (again or not results.of(part="overhead")):
        for kind in ("ours", "SparkTrials"):
            take("overhead", kind, trials)


# --- tables


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def speedup_table(results: Results) -> str:
    rows, halves = [], []
    for data, epochs in SPEEDUP_EPOCHS.items():
        loop = results.of(part="speedup", data=data, side="loop")
        search = results.of(part="speedup", data=data, side="search")
        if not loop or not search:
            continue
        ratio = search[0]["seconds"] / sum(line["seconds"] for line in loop)
        for name, lines in (("a loop of Keras `fit`, all cores", loop), ("`search` on two slots", search)):
            each = [seconds for line in lines for seconds in line["each"]]
            seconds, best = sum(line["seconds"] for line in lines), min(line["best"] for line in lines)
            shown = [f"{min(each):.1f}", f"{np.mean(each):.1f}", f"{max(each):.1f}", f"{best:.4f}", f"{seconds:.0f}"]
            rows.append([data, name, len(each), epochs, *shown, f"**{ratio:.2f}**" if lines is search else ""])
        parted = [f"{line['seconds']:.0f} s" for line in sorted(loop, key=lambda line: line["numbers"])]
        halves.append(f"{data} {' and '.join(parted)}")
    head = [
        "data",
        "",
        "trials",
        "epochs",
        "shortest trial, s",
        "mean",
        "longest",
        "best val_loss",
        "wall time, s",
        "ratio",
    ]
    return (
        f"{table(head, rows)}\n\nGoal: a ratio of at most 0.6. The halves of the loop: {', '.join(halves)}."
        if rows
        else "not run"
    )


def points(values: Sequence[float]) -> str:
    """Differences in points, and how many of them are above and below 0."""
    mean = f"{100 * np.mean(values):+.2f}"
    return f"{mean} ({sum(v > 1e-6 for v in values)} up, {sum(v < -1e-6 for v in values)} down)"


def ensemble_table(results: Results, pruning: str | None) -> str:
    rows = []
    for data in ROWS:
        lines = results.of(part="quality", data=data, algo="random", pruning=pruning)
        names = ("soft", "hard", "greedy")
        for line in lines:
            single = line["members"][0]
            shown = [f"{100 * value:.2f}" for value in (single, *(line[name] for name in names))]
            rows.append([data, line["seed"], *shown])
        if lines:
            apart = [[line[name] - line["members"][0] for line in lines] for name in names]
            single = f"{100 * np.mean([line['members'][0] for line in lines]):.2f}"
            rows.append([f"**{data}**", "**mean**", single, *map(points, apart)])
    return table(["data", "seed", "best model", "five best, soft", "five best, hard", "greedy of ten"], rows)


def pruning_table(results: Results, rule: str = "median") -> str:
    rows = []
    for data in ROWS:
        whole = {line["seed"]: line for line in results.of(part="quality", data=data, algo="random", pruning=None)}
        pruned = results.of(part="quality", data=data, algo="random", pruning=rule)
        lines = [line for line in pruned if line["seed"] in whole]
        for line in lines:
            full = whole[line["seed"]]
            scores = [full["best"], line["best"], full["members"][0], line["members"][0]]
            rows.append([data, line["seed"], f"{share_saved([line]):.0%}", *(f"{100 * score:.2f}" for score in scores)])
        if lines:
            best = [line["best"] - whole[line["seed"]]["best"] for line in lines]
            held = [line["members"][0] - whole[line["seed"]]["members"][0] for line in lines]
            rows.append(
                [f"**{data}**", "**mean**", f"**{share_saved(lines):.0%}**", "", points(best), "", points(held)]
            )
    head = ["data", "seed", "epochs saved", "best trial, all epochs", "best trial, pruned"]
    return table([*head, "held out, all epochs", "held out, pruned"], rows)


def share_saved(lines: Sequence[Line]) -> float:
    """Share of the epochs that pruned trials did not train."""
    saved, trained = (sum(int(str(line[name])) for line in lines) for name in ("saved", "trained"))
    return saved / (saved + trained)


def algorithms_table(results: Results) -> str:
    rows = []
    for data, algo, pruning in itertools.product(ROWS, ("random", "tpe"), (None, "median")):
        lines = results.of(part="quality", data=data, algo=algo, pruning=pruning)
        if lines:
            best = [[max(_bests(line)[:count]) for line in lines] for count in (10, 20, 30)]
            held = np.mean([line["members"][0] for line in lines])
            seconds = f"{np.mean([line['seconds'] for line in lines]):.0f}"
            rows.append([data, algo, pruning, *(f"{100 * np.mean(b):.2f}" for b in best), f"{100 * held:.2f}", seconds])
    head = ["data", "algo", "pruning", "best after 10", "after 20", "after 30 trials", "held out", "seconds"]
    return table(head, rows)


def _bests(line: Mapping) -> list[float]:
    return [max(trial["curve"]) if trial["status"] == "ok" else 0.0 for trial in line["trials"]]


def rules_table(results: Results) -> str:
    """Settings of the median rule, replayed on the curves of the searches that ran without pruning."""
    from elephas_like.core.pruning import MedianRule

    rows = []
    for least, warmup in itertools.product((3, 5), (0, 1, 2, 3)):
        rule = MedianRule(min_trials=least, warmup_epochs=warmup)
        row: list[object] = [least, warmup]
        for data in ROWS:
            replays = [
                replayed(line, rule) for line in results.of(part="quality", data=data, algo="random", pruning=None)
            ]
            if replays:
                saved, lost = zip(*replays, strict=True)
                row += [f"{np.mean(saved):.0%}", points([0.0 - x for x in lost]), f"{100 * (0.0 - max(lost)):+.2f}"]
        rows.append(row)
    head = [f"{data}: {what}" for data in ROWS for what in ("saved", "best trial", "worst seed")]
    return table(["min_trials", "warmup_epochs", *head], rows)


def replayed(line: Mapping, rule) -> tuple[float, float]:
    """(share of the epochs saved, what the best trial's score loses) had the search been pruned.

    Each trial is held against the ones before it: so it is on one slot, and on many whose epochs take equally long, since
    trials that run still count.
    """
    curves = [[-value for value in trial["curve"]] for trial in line["trials"] if trial["curve"]]
    reported: list[list[float]] = []
    whole = []
    for curve in curves:
        stops = (end for end in range(1, len(curve)) if rule(curve[:end], reported))
        end = next(stops, len(curve))
        reported.append(curve[:end])
        whole += [min(curve)] if end == len(curve) else []
    return 1 - sum(map(len, reported)) / sum(map(len, curves)), min(whole) - min(map(min, curves))


def overhead_table(results: Results) -> str:
    names = {"ours": "the library's own", "SparkTrials": "`hyperopt.SparkTrials`"}
    rows = [
        [names[line["kind"]], line["trials"], f"{line['seconds']:.1f}", f"{line['seconds'] / line['trials']:.2f}"]
        for kind in names
        for line in results.of(part="overhead", kind=kind)
    ]
    return table(["trials that do nothing, two at a time", "trials", "seconds", "seconds a trial"], rows)


def tables(results: Results) -> str:
    """All tables, in Markdown."""
    sections = {
        "30 trials on two slots, and in one process": speedup_table(results),
        "The five best against the best, accuracy on held-out rows": ensemble_table(results, None),
        "The same, of the trials that pruning has left": ensemble_table(results, "median"),
        "Pruning": pruning_table(results),
        "ASHA": pruning_table(results, "asha"),
        "Hyperband": pruning_table(results, "hyperband"),
        "Settings of the median rule, replayed": rules_table(results),
        "Algorithms": algorithms_table(results) if results.of(algo="tpe") else "not run",
        "Overhead": overhead_table(results),
    }
    return "\n\n".join(f"## {title}\n\n{text}" for title, text in sections.items())


# --- pictures


def plot(results: Results, folder: Path) -> None:
    """search.png: a search as `SearchResult.plot()` shows it. pruning.png, ensembles.png: the tables as pictures."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    found = [(data, results.of(part="quality", data=data, algo="random", pruning="median")) for data in ROWS]
    pruned = [(data, lines[0]) for data, lines in found if lines]
    if pruned:
        as_search(pruned[0][1]).savefig(folder / "search.png", dpi=70)
        figure, panels = pyplot.subplots(
            1, len(pruned), figsize=(5 * len(pruned), 3.6), sharey=True, layout="constrained", squeeze=False
        )
        for panel, (data, line) in zip(panels[0], pruned, strict=True):
            for trial in line["trials"]:
                ended = trial["status"] != "ok"
                panel.plot(
                    range(1, len(trial["curve"]) + 1),
                    [100 * value for value in trial["curve"]],
                    color="tab:orange" if ended else "tab:blue",
                    marker="x" if ended else None,
                    markevery=[-1],
                    linewidth=0.8,
                )
            panel.set(title=f"{data}, seed {line['seed']}: {share_saved([line]):.0%} of epochs saved", xlabel="epoch")
        panels[0][0].set_ylabel("val_accuracy, %; x: stopped")
        figure.savefig(folder / "pruning.png", dpi=80)
    figure, panels = pyplot.subplots(1, len(ROWS), figsize=(10, 3.6), layout="constrained")
    for panel, data in zip(panels, ROWS, strict=True):
        for line in results.of(part="quality", data=data, algo="random", pruning=None):
            heights = [100 * line["members"][0], 100 * line["soft"], 100 * line["hard"], 100 * line["greedy"]]
            panel.plot(range(4), heights, marker="o", label=f"seed {line['seed']}")
        panel.set_xticks(range(4), ["best model", "five best,\nsoft", "five best,\nhard", "greedy\nof ten"])
        panel.set(title=data)
    panels[0].set_ylabel("accuracy on held-out rows, %")
    panels[0].legend(fontsize="small")
    figure.savefig(folder / "ensembles.png", dpi=80)


def as_search(line: Mapping):
    """The figure of `SearchResult.plot()` for a search of the results."""
    import pandas as pd

    from elephas_like.model.plots import plot_search

    rows = [
        {"trial": number, "status": trial["status"], "val_accuracy": max(trial["curve"], default=np.nan)}
        | {f"param_{name}": value for name, value in sorted(trial["params"].items())}
        for number, trial in enumerate(line["trials"])
    ]
    return plot_search(pd.DataFrame(rows), "val_accuracy", True)


def main() -> None:
    """Runs what is missing and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = ("quality", "algorithms", "rules", "speedup", "overhead")
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(known)}; all unless given")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=HERE / "results" / "search.jsonl")
    parser.add_argument("--again", action="store_true", help="run also what is there already")
    parser.add_argument("--tables", action="store_true", help="run nothing")
    parser.add_argument("--plot", type=Path, help="a folder for the pictures")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        name, *rest = json.loads(given.run)
        for line in globals()[name](*rest):
            print(json.dumps(line), flush=True)
        return
    if unknown := set(given.parts) - set(known):
        parser.error(f"no part {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    results = Results(given.results)
    if not given.tables:
        wanted = given.parts or known
        measure(results, wanted, given.trials, given.seeds, given.again)
    print(tables(results))
    if given.plot:
        plot(results, given.plot)


if __name__ == "__main__":
    main()
