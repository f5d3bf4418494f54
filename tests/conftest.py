"""Shared by all tests: quiet logs, one Spark session per process, small models."""

from __future__ import annotations

import gc
import os
import shlex
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from lanes import Lanes, asking, in_order

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
# These run in environments of their own, which have no TensorFlow: `make test-jax` and `make test-torch`.
OF_BACKENDS = {
    "jax": ["*_jax.py", "*_jax_cache.py", "*_jax_loop.py"],
    "torch": ["*_torch.py", "*_torch_buffers.py", "*_torch_generator.py", "*_torch_loop.py"],
}
collect_ignore_glob = [
    name for backend, names in OF_BACKENDS.items() for name in names if backend != os.environ["KERAS_BACKEND"]
]
if os.environ["KERAS_BACKEND"] == "tensorflow":
    collect_ignore_glob.append("*test_on_backend.py")

# The same examples every time, whatever the machine does besides, and no file of those that failed.
settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
settings.load_profile("repeatable")

SPARK = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # An import of Keras costs 5 s of CPU time a worker, and tests that fail on purpose lose their workers. What a test shows must
    # not hang on this daemon: clusters run without.
    "spark.python.daemon.module": "elephas_like.daemon",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
os.environ["PYSPARK_SUBMIT_ARGS"] = " ".join(
    [*(f"--conf {name}={shlex.quote(value)}" for name, value in SPARK.items()), "pyspark-shell"]
)
# Spark's JVMs, executors' too, run for minutes: it is not worth their while to compile twice, or to collect on several threads, or to
# read classes one by one. A cluster of two executors starts with 11 s of CPU time; without the archive 15, by Java's defaults 30.
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
ARCHIVE = Path(sys.prefix) / "spark.jsa"
"""What tools/class_archive.py has made; a Java for which it is not says nothing, and does without."""
if ARCHIVE.exists() and ARCHIVE.stat().st_size:
    JVM += f" -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable"
os.environ.setdefault("JAVA_TOOL_OPTIONS", JVM)
# Young objects are looked at after 20,000 new ones, not after 700: tracing a model makes that many, and keeps them.
gc.set_threshold(20_000)


CONNECT = "ELEPHAS_LIKE_CONNECT" in os.environ
"""Whether the session is one of Spark Connect: `make test-connect` and tests/integration/test_connect.py run tests so, in a process of
their own."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the tests that ask for the Spark session; lanes.py, which says where they run, must know them all."""
    for item in items:
        assert " at 0x" not in item.nodeid, f"{item.nodeid} has another name in each process: give its parameter an id"
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
            assert item.originalname in asking(item.path), (
                f"{item.nodeid} asks for Spark where lanes.py does not see it"
            )
    if CONNECT:
        items[:] = [item for item in items if runs_over_connect(item)]
    if "PYTEST_XDIST_WORKER" in os.environ:
        items[:] = in_order(items, config)


def runs_over_connect(item: pytest.Item) -> bool:
    """Whether a test uses Spark in a way that Spark Connect has: without SparkContexts, RDDs and engines that need them."""
    asked = getattr(item, "fixturenames", ())
    return ("spark" in asked or "remote" in asked) and "sc" not in asked and item.get_closest_marker("classic") is None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Lanes:
    """Who runs what, of several processes."""
    return Lanes(config, log)


@pytest.fixture(scope="module", autouse=True)
def frozen_garbage() -> Iterator[None]:
    """What a file of tests leaves in memory is looked at once by Python's garbage collector, and not again and again.

    TensorFlow keeps the graphs of all models: with gigabytes of them each full collection took seconds.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The temporary directory of this process and of Spark's: what is left behind is seen, and nobody else's is."""
    folder = tmp_path_factory.mktemp("scratch")
    before = tempfile.tempdir, os.environ.get("TMPDIR")
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    yield folder
    tempfile.tempdir = before[0]
    if before[1] is None:
        del os.environ["TMPDIR"]
    else:
        os.environ["TMPDIR"] = before[1]


@pytest.fixture(scope="session")
def spark(scratch: Path) -> Iterator[object]:
    """A SparkSession on two slots, started by the first test that asks for it; one of Spark Connect if the environment says so."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    if CONNECT:
        os.environ.pop("PYSPARK_SUBMIT_ARGS", None)  # of the classic session
        session = SparkSession.builder.remote("local[2]").getOrCreate()
        session.conf.set("spark.sql.shuffle.partitions", "2")
        yield session
        session.stop()
        return

    session = (
        SparkSession.builder.master("local[2]")
        .appName("elephas_like tests")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", str(scratch))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def sc(spark):
    """The session's SparkContext."""
    return spark.sparkContext


@pytest.fixture
def no_free_slot(sc, tmp_path: Path) -> Callable[[], AbstractContextManager[None]]:
    """A context in which a job of somebody else is on both slots of the session."""
    place = str(tmp_path)

    def hold(index: int, rows: Iterator[int]) -> Iterator[int]:
        Path(place, f"held-{index}").touch()
        while not Path(place, "go-on").exists():
            threading.Event().wait(0.05)
        return rows

    @contextmanager
    def held() -> Iterator[None]:
        holder = threading.Thread(target=sc.parallelize(range(2), 2).mapPartitionsWithIndex(hold).count)
        holder.start()
        try:
            while len(list(tmp_path.glob("held-*"))) < 2:
                assert holder.is_alive()
                threading.Event().wait(0.05)
            yield
        finally:
            (tmp_path / "go-on").touch()
            holder.join(60)

    return held
