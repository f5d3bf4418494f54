"""Code of files that workers do not have travels by value, as far as it can."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pickle
import sys
import threading
import traceback
import types
from pathlib import Path
from typing import ClassVar

import cloudpickle
import pytest
from forked import run

from elephas_like.trainer import code
from elephas_like.trainer.code import RefersToSparkError, UnsendableError, dumps, is_foreign, pickle_by_value

SCRIPT = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb'))[0](4))"


def called_elsewhere(function: object, folder: Path) -> str:
    """What the function gives for 4 in a process that can import nothing of the user's."""
    (folder / "pickled").write_bytes(pickle_by_value([function]))
    return run(["-c", SCRIPT, folder / "pickled"], folder="/").stdout.strip()


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from which the user imports."""
    folder = tmp_path / "own"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


def test_a_file_beside_the_script_and_what_it_imports(own: Path, tmp_path: Path) -> None:
    (own / "factors_of_mine.py").write_text("FACTOR = 10\ndef scaled(x):\n    return FACTOR * x\n")
    (own / "code_of_mine.py").write_text(
        "import factors_of_mine\ndef f(x):\n    return factors_of_mine.scaled(x) + 1\n"
    )
    import code_of_mine

    assert called_elsewhere(code_of_mine.f, tmp_path) == "41"
    assert not cloudpickle.list_registry_pickle_by_value()


@pytest.mark.parametrize("how", ["@functools.cache", "@functools.lru_cache(maxsize=2, typed=True)"])
def test_a_function_with_a_cache_goes_as_the_function_does(own: Path, tmp_path: Path, how: str) -> None:
    """A table of positions, for example, that is computed once; by name it is found in no worker. So is a property."""
    name = f"caches_of_mine_{len(how)}"
    (own / f"{name}.py").write_text(
        f"import functools\n{how}\ndef steps(n):\n    return 1 if n < 2 else n * steps(n - 1)\n"
        "class Table:\n    @functools.cached_property\n    def first(self):\n        return 1\n"
        "TABLE = Table()\ndef f(x):\n    return steps(x) + TABLE.first, steps.cache_parameters(), steps.cache_info().currsize\n"
    )
    module = importlib.import_module(name)
    module.f(2)  # which is cached here
    expected = module.steps.cache_parameters()
    assert called_elsewhere(module.f, tmp_path) == str((25, expected, min(4, expected["maxsize"] or 4)))


def test_a_function_with_a_cache_of_a_package_goes_by_name(own: Path) -> None:
    """It may hold what cannot be pickled. A cache of the script's own around one does not."""
    site = own / "site-packages"
    site.mkdir()
    (site / "caches_of_a_package.py").write_text(
        "import functools, threading\nLOCK = threading.Lock()\n@functools.lru_cache\ndef table(n):\n    with LOCK:\n        return n\n"
        "def slow(n):\n    with LOCK:\n        return n\n"
    )
    sys.path.insert(0, str(site))
    try:
        module = importlib.import_module("caches_of_a_package")
        assert pickle.loads(pickle_by_value(module.table)) is module.table  # noqa: S301
        fast = pickle.loads(pickle_by_value(functools.cache(module.slow)))  # noqa: S301
        assert fast(2) == 2
        assert fast.__wrapped__ is module.slow
    finally:
        sys.path.remove(str(site))
        del sys.modules["caches_of_a_package"]


def test_an_import_that_holds_what_cannot_be_pickled_stays_behind(own: Path, tmp_path: Path) -> None:
    (own / "locks_of_mine.py").write_text("import threading\nLOCK = threading.Lock()\n")
    (own / "uses_of_mine.py").write_text("import locks_of_mine\ndef f(x):\n    return x + 1\n")
    import uses_of_mine

    assert called_elsewhere(uses_of_mine.f, tmp_path) == "5"


def test_a_package_in_a_folder_of_its_own_goes_by_name_where_it_cannot_go_by_value(own: Path) -> None:
    """As `pip install --target` leaves it: beside its metadata."""
    (own / "packed_of_mine").mkdir()
    (own / "packed_of_mine" / "__init__.py").write_text(
        "import threading\nLOCAL = threading.local()\ndef f(x):\n    return LOCAL, x\n"
    )
    import packed_of_mine

    with pytest.raises(UnsendableError, match="'LOCAL'"):
        pickle_by_value([packed_of_mine.f])
    code._is_packaged.cache_clear()
    (own / "packed_of_mine-1.0.dist-info").mkdir()
    assert cloudpickle.loads(pickle_by_value([packed_of_mine.f])) == [packed_of_mine.f]


def test_a_package_that_cannot_go_by_value_leaves_no_file_of_the_user_s_behind(own: Path, tmp_path: Path) -> None:
    """The package is among what `pip install --target` left; the helper is beside the script, and no worker has it."""
    packages = tmp_path / "packages"
    (packages / "hub_of_mine-1.0.dist-info").mkdir(parents=True)
    (packages / "hub_of_mine.py").write_text(
        "import threading\nLOCAL = threading.local()\nclass Base:\n    def used(self):\n        return LOCAL\n"
    )
    (own / "helper_of_mine.py").write_text("def helped(x):\n    return 10 * x\n")
    (own / "model_of_mine.py").write_text(
        "import hub_of_mine\nfrom helper_of_mine import helped\nclass Mine(hub_of_mine.Base):\n    def __call__(self, x):\n"
        "        return helped(x) + 1\n"
    )
    sys.path.insert(0, str(packages))  # `own` puts the path back
    import model_of_mine

    (tmp_path / "pickled").write_bytes(pickle_by_value([model_of_mine.Mine()]))
    program = f"import sys; sys.path.insert(0, {str(packages)!r}); {SCRIPT}"
    printed = run(["-c", program, tmp_path / "pickled"], folder="/")
    assert printed.stdout.strip() == "41", printed.stderr


def test_what_the_script_imports(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """cloudpickle sends the script's own functions, but names what they use of the user's other files."""
    (own / "layers_of_mine.py").write_text("def scaled(x):\n    return 10 * x\n")
    (own / "session_of_mine.py").write_text(
        "class Session:\n    def __reduce__(self):\n        raise RuntimeError('as pyspark does')\nSESSION = Session()\n"
    )
    import layers_of_mine
    import session_of_mine

    def in_script(text: str) -> object:
        names = {"__name__": "__main__", "layers": layers_of_mine, "session": session_of_mine}
        exec(f"def f(x):\n    return {text}\n", names)
        return names["f"]

    for name, module in (("layers", layers_of_mine), ("session", session_of_mine)):
        monkeypatch.setattr(sys.modules["__main__"], name, module, raising=False)
    assert called_elsewhere(in_script("layers.scaled(x) + 1"), tmp_path) == "41"
    assert b"session_of_mine" in pickle_by_value([in_script("session.SESSION")])  # by its name, as it cannot travel
    assert not cloudpickle.list_registry_pickle_by_value()


def test_code_keeps_the_name_of_its_file_by_which_tracebacks_show_its_lines() -> None:
    def outer() -> object:
        def inner() -> None:
            raise KeyError("no such weight")

        return inner

    assert cloudpickle.loads(pickle_by_value([outer]))[0].__code__.co_filename == __file__
    inner = cloudpickle.loads(dumps(outer()))
    assert inner.__code__.co_filename == __file__
    with pytest.raises(KeyError) as caught:
        inner()
    assert 'raise KeyError("no such weight")' in "".join(traceback.format_exception(caught.value))
    assert dumps(outer()) == dumps(outer())


@pytest.mark.parametrize("place", ["spark/python/pyspark", "lib/python3/dist-packages/helpers"])
def test_what_is_installed_elsewhere_travels_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Spark's own Python beside spark-submit, packages of the user or of the system: of a class there are to be no two."""
    folder = tmp_path / place
    folder.mkdir(parents=True)
    (folder / "rows.py").write_text("class Row:\n    pass\n")
    spec = importlib.util.spec_from_file_location(f"{folder.name}.rows", folder / "rows.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, folder.name, sys.modules.get(folder.name, types.ModuleType(folder.name)))
    monkeypatch.setattr(sys.modules["__main__"], "Row", module.Row, raising=False)
    names = {"__name__": "__main__", "Row": module.Row}
    exec("def f(x):\n    return isinstance(x, Row)\n", names)
    for each in (module.Row, names["f"]):
        assert b"_make_skeleton_class" not in pickle_by_value([each])  # no class is made anew


def test_what_is_installed_is_foreign_and_travels_by_name() -> None:
    import keras

    assert is_foreign(keras.losses.MeanSquaredError)
    assert not is_foreign(called_elsewhere)
    assert b"keras" in pickle_by_value([keras.losses.MeanSquaredError])
    assert len(pickle_by_value([keras.losses.MeanSquaredError])) < 200


def scaling() -> type:
    """A class that is sent by value."""

    class Scaling:
        factor = 1
        makers: ClassVar[list[str]] = []

        def scaled(self, x: int) -> int:
            return self.factor * x

    return Scaling


def test_a_process_that_reads_its_own_class_keeps_it_as_it_is() -> None:
    """Its methods go on to use the globals of the script, such as a helper that a notebook defines again after a fit."""
    own = scaling()
    before, pickled = dict(vars(own)), dumps(own())
    own.factor = 2
    read = cloudpickle.loads(pickled)
    assert type(read) is own
    assert read.scaled(4) == 8
    assert vars(own)["scaled"] is before["scaled"]
    assert vars(own)["makers"] is before["makers"]


def test_a_worker_of_spark_has_no_classes_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was sent may have come by PySpark's own pickles, and may become another class."""
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_PORT", "1")
    own = scaling()
    pickled = dumps(own())
    own.factor = 2
    assert cloudpickle.loads(pickled).scaled(4) == 4


def test_a_process_that_has_read_a_class_gets_what_it_became(tmp_path: Path) -> None:
    """A worker, which two fits send one class with another factor."""
    own, pickled = scaling(), []
    for factor in (1, 2):
        own.factor = factor
        pickled.append(dumps(own()))
    (tmp_path / "both").write_bytes(b"".join(pickled))
    script = """
import pickle, sys
from elephas_like.trainer.code import dumps
with open(sys.argv[1], "rb") as file:
    one = pickle.load(file)
    print(one.scaled(4), end=" ")
    dumps(one)  # as it sends what it was sent
    other = pickle.load(file)
print(other.scaled(4), type(one) is type(other))
"""
    printed = run(["-c", script, tmp_path / "both"])
    assert printed.stdout.split() == ["4", "8", "True"], printed.stderr


@pytest.mark.parametrize("kind", ["session", "context", "DataFrame", "RDD"])
def test_what_refers_to_spark_is_named_and_not_sent(sc, spark, kind: str) -> None:
    own = {"session": spark, "context": sc, "DataFrame": spark.range(1), "RDD": sc.range(1)}[kind]

    def builds() -> object:
        return own

    def innocent() -> None:
        return None

    with pytest.raises(RefersToSparkError, match=r"^builds refers to Spark .* which only the driver has"):
        pickle_by_value([innocent, builds])


def test_a_session_of_spark_connect_is_not_sent_either() -> None:
    pytest.importorskip("grpc", reason="Spark Connect's packages are not installed (pyspark[connect])")
    from pyspark.sql.connect.session import SparkSession

    own = object.__new__(SparkSession)  # it asks no server: its kind decides

    def builds() -> object:
        return own

    with pytest.raises(RefersToSparkError, match=r"^builds refers to Spark .* which only the driver has"):
        pickle_by_value([builds])


A_LOCK = threading.Lock()


@pytest.mark.parametrize(
    ("kind", "place"),
    [("closure", " as 'lock'"), ("of_module", " as 'A_LOCK'"), ("Holder", " as 'lock'"), ("deep", "")],
)
def test_what_cannot_be_pickled_is_named_with_its_holder(kind: str, place: str) -> None:
    lock = threading.Lock()

    class Holder:
        def __init__(self) -> None:
            self.lock = lock

        def method(self) -> None: ...

    def closure() -> object:
        return lock

    def of_module() -> object:
        return A_LOCK

    def deep() -> object:
        return holder

    holder = Holder()
    things = {"closure": closure, "of_module": of_module, "Holder": holder, "deep": deep}
    with pytest.raises(UnsendableError) as caught:
        pickle_by_value([print, things[kind]])
    assert isinstance(caught.value.__cause__, TypeError)
    assert str(caught.value).startswith(
        f"{kind} cannot be sent to workers: it refers to a _thread.lock{place}, which lives in this process only (cannot pickle "
        "'_thread.lock' object). Make it where it is used"
    )
    with pytest.raises(UnsendableError, match=r"method cannot be sent to workers: it refers to a _thread\.lock, which"):
        pickle_by_value(holder.method)


def test_what_really_stands_in_the_way_is_named(own: Path) -> None:
    """A module with a lock is not sent by value, and imported there; an object's own words stay what they are."""
    (own / "has_a_lock.py").write_text("import threading\nLOCK = threading.Lock()\ndef f(x):\n    return x\n")
    import has_a_lock

    left = (each for each in ())

    def asks() -> object:
        return has_a_lock.f(left)

    with pytest.raises(
        UnsendableError, match=r"^asks cannot be sent to workers: it refers to a builtins\.generator as 'left'"
    ):
        pickle_by_value([asks])

    class Own:
        def __reduce__(self):
            raise RuntimeError("my own words")

    with pytest.raises(RuntimeError, match=r"^my own words(\nwhen serializing list item 0)?$"):  # since Python 3.14
        pickle_by_value([Own()])
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(pickle.PicklingError, match="recursion"):
        pickle_by_value([lambda: deep])
