from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from forked import Program

from elephas_like.core.errors import ElephasError, ElephasWarning, Failure
from elephas_like.core.trials import TrialResult, TrialStatus
from elephas_like.tuning.log import ModelStore, SearchLog, kept_of, write_whole

IDENTITY = {"seed": 3, "epochs": 2, "data": [[10, 99]]}
GOOD = TrialResult(
    0,
    TrialStatus.OK,
    history=({"loss": 0.1 + 0.2, "bad": math.nan}, {"loss": 0.25, "bad": math.inf}),
    best_epoch=1,
    loss=0.25,
    seconds=1.5,
    host="here",
    notes={"said": [1, "two"]},
)
FAILED = TrialResult(1, TrialStatus.FAILED, failure=Failure("ValueError", "no\nünits", "Traceback ...", 1))


def test_trials_come_back_as_they_were(tmp_path: Path) -> None:
    log = SearchLog(tmp_path / "new" / "search")
    assert log.begin(IDENTITY, "never") == []
    log.write(GOOD, {"x": 0.1})
    log.write(FAILED, {"x": 2})
    (good, point), (failed, _) = SearchLog(tmp_path / "new" / "search").begin(IDENTITY, "auto")
    assert point == {"x": 0.1}
    assert failed == FAILED
    assert good.history[0]["loss"] == 0.1 + 0.2
    assert math.isnan(good.history[0]["bad"])
    assert math.isinf(good.history[1]["bad"])
    assert (good.loss, good.best_epoch, good.seconds, good.notes) == (0.25, 1, 1.5, {"said": [1, "two"]})


def test_a_line_that_was_cut_short_is_dropped_and_written_again(tmp_path: Path) -> None:
    log = SearchLog(tmp_path)
    log.begin(IDENTITY, "auto")
    log.write(GOOD, {"x": 1})
    log.write(FAILED, {"x": 2})
    path = tmp_path / "trials.jsonl"
    path.write_bytes(path.read_bytes()[:-5])  # the driver died here
    again = SearchLog(tmp_path)
    assert [result.number for result, _ in again.begin(IDENTITY, "auto")] == [0]
    again.write(FAILED, {"x": 2})
    assert [result.number for result, _ in SearchLog(tmp_path).begin(IDENTITY, "auto")] == [0, 1]


@contextmanager
def another_process(directory: Path) -> Iterator[str]:
    """A process that wants the directory, while it waits for a line: "at it", or its error."""
    program = (
        "import sys\n"
        "from elephas_like.tuning.log import kept_of\n"
        "try:\n"
        "    with kept_of(sys.argv[1], 'auto', 0).alone():\n"
        "        print('at it', flush=True)\n"
        "        input()\n"
        "except Exception as error:\n"
        "    print(error, flush=True)\n"
    )
    with tempfile.TemporaryFile("w") as errors, Program(["-c", program, directory], stderr=errors) as other:
        yield other.stdout.readline()


@pytest.mark.fault(
    "Two drivers are at one search (`checkpoint_dir`)",
    "the second is refused before it reads any rows",
    "nothing; trials are not run twice",
)
def test_two_processes_at_one_search_are_one_too_many(tmp_path: Path) -> None:
    kept = kept_of(tmp_path / "new" / "search", "auto", 0)
    with another_process(tmp_path / "new" / "search") as said:
        assert said == "at it\n"
        with pytest.raises(ElephasError, match="another process is at the search in"), kept.alone():
            pass
    with kept.alone():  # it was killed
        pass
    with kept_of(None, "never", 0).alone():
        pass


def test_two_searches_of_one_process_at_one_directory_are_one_too_many(tmp_path: Path) -> None:
    """A cell that is run again while its search goes on in a thread: both ran the same trials, and wrote each twice."""
    (tmp_path / "same").symlink_to(tmp_path)
    with pytest.raises(ZeroDivisionError), kept_of(tmp_path, "auto", 0).alone():
        for place in (tmp_path, tmp_path / "same"):
            with (
                pytest.raises(ElephasError, match=r"another search of this process is at the search in .* of its own"),
                kept_of(place, "auto", 0).alone(),
            ):
                pass
        with another_process(tmp_path) as said:
            assert said.startswith(f"another process is at the search in {tmp_path}")
        raise ZeroDivisionError
    with kept_of(tmp_path, "auto", 0).alone():  # as a cell that failed and is run again
        pass
    with another_process(tmp_path) as said:
        assert said == "at it\n"


@pytest.mark.parametrize("damage", ["{broken}", "{}", "3", '{"trial": 1, "status": "none"}'])
def test_a_damaged_line_is_named(tmp_path: Path, damage: str) -> None:
    log = SearchLog(tmp_path)
    log.begin(IDENTITY, "auto")
    log.write(GOOD, {"x": 1})
    path = tmp_path / "trials.jsonl"
    whole = path.read_text()
    path.write_text(f"{whole}{damage}\n{whole}")
    with pytest.raises(ElephasError, match=r"trials\.jsonl, line 2 .*delete the line"):
        SearchLog(tmp_path).begin(IDENTITY, "auto")
    assert path.read_text() == f"{whole}{damage}\n{whole}"


@pytest.mark.parametrize("damage", ["", "{", "3"])
def test_a_damaged_description_of_a_search_is_named(tmp_path: Path, damage: str) -> None:
    SearchLog(tmp_path).begin(IDENTITY, "auto")
    (tmp_path / "search.json").write_text(damage)
    with pytest.raises(ElephasError, match=r"search\.json is damaged"):
        SearchLog(tmp_path).begin(IDENTITY, "auto")
    with pytest.raises(ElephasError, match=r"search\.json is damaged"):
        kept_of(tmp_path, "auto", None)


def test_a_driver_that_died_before_its_first_line_left_a_search_without_trials(tmp_path: Path) -> None:
    SearchLog(tmp_path).begin(IDENTITY, "never")
    (tmp_path / "trials.jsonl").unlink()
    log = SearchLog(tmp_path)
    assert log.begin(IDENTITY, "auto") == []
    log.write(GOOD, {"x": 1})
    assert [result.number for result, _ in SearchLog(tmp_path).begin(IDENTITY, "auto")] == [0]


def test_trials_without_the_description_of_their_search_are_an_error(tmp_path: Path) -> None:
    log = SearchLog(tmp_path)
    log.begin(IDENTITY, "auto")
    log.write(GOOD, {"x": 1})
    (tmp_path / "search.json").unlink()
    with pytest.raises(ElephasError, match=r"trials.jsonl has trials, and .*search.json is gone"):
        SearchLog(tmp_path).begin(IDENTITY, "auto")


@contextmanager
def full_disk(most: int) -> Iterator[None]:
    """Files take no more bytes than that."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_costs_a_search_no_trial_and_no_model(tmp_path: Path) -> None:
    """The search ended, and half a line stayed."""
    log, store = SearchLog(tmp_path), ModelStore(2, tmp_path / "models")
    log.begin(IDENTITY, "auto")
    log.write(GOOD, {"x": 1})
    with full_disk((tmp_path / "trials.jsonl").stat().st_size + 20):
        with pytest.warns(ElephasWarning, match="trial 1 is not kept in .*File too large.*runs this trial again"):
            log.write(FAILED, {"x": 2})
        with pytest.warns(ElephasWarning, match="the model of trial 0 is kept in memory"):
            store.offer(replace(GOOD, model=b"model" * 200, suffix=".keras"))
    assert store.read(0) == (b"model" * 200, ".keras")
    assert list((tmp_path / "models").iterdir()) == []
    log.write(replace(FAILED, number=2), {"x": 2})
    assert [result.number for result, _ in SearchLog(tmp_path).begin(IDENTITY, "auto")] == [0, 2]


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_model_stays_until_the_one_that_replaces_it_is_in_the_log(on_disk: bool, tmp_path: Path) -> None:
    store = ModelStore(1, tmp_path if on_disk else None)
    store.offer(trial(0, 2.0))
    store.settle()
    store.offer(trial(1, 1.0))
    assert store.numbers == [1, 0]  # trial 1 is not in the log yet
    store.settle(without=1)  # it does not meet a constraint
    assert store.numbers == [0]
    store.offer(trial(2, 1.0))
    store.settle()
    assert store.numbers == [2]


def test_a_trial_that_is_run_again_has_no_model_of_its_first_time(tmp_path: Path) -> None:
    ModelStore(1, tmp_path).offer(trial(0, 2.0))  # and the driver died
    store = ModelStore(1, tmp_path)
    store.forget(0)
    assert (list(tmp_path.iterdir()), store.numbers) == ([], [])


def test_ctrl_c_leaves_no_half_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    store = ModelStore(1, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        store.offer(trial(0, 2.0))
    assert (list(tmp_path.iterdir()), store.numbers) == ([], [])


def test_a_directory_that_vanishes_costs_a_search_no_trial(tmp_path: Path) -> None:
    log = SearchLog(tmp_path / "search")
    log.begin(IDENTITY, "auto")
    shutil.rmtree(tmp_path / "search")
    log.note_begun(0)
    with pytest.warns(ElephasWarning, match="trial 0 is not kept in"):
        log.write(GOOD, {"x": 1})


def test_a_relative_directory_stays_where_it_was_when_the_search_began(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept = kept_of("kept", "never", 3)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # as a trial may
    kept.begin(IDENTITY, 1)
    kept.log.write(GOOD, {"x": 1})
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "models",
        "search.json",
        "trials.jsonl",
    ]


def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    with kept_of("~/search", "auto", 0).alone():
        assert [place.name for place in tmp_path.iterdir()] == ["home"]


def test_another_search_is_neither_overwritten_nor_mixed_in(tmp_path: Path) -> None:
    SearchLog(tmp_path).begin(IDENTITY, "never")
    assert SearchLog(tmp_path).seed() == 3
    with pytest.raises(FileExistsError, match="holds a search already: pass resume='auto'"):
        SearchLog(tmp_path).begin(IDENTITY, "never")
    with pytest.raises(ValueError, match=r"its data is \[\[10, 99\]\], and this one's \[\[11, 5\]\]"):
        SearchLog(tmp_path).begin({**IDENTITY, "data": [[11, 5]]}, "auto")


def test_files_are_whole_or_not_there(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", b"one")
    write_whole(tmp_path / "a", b"two")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"two")]


def trial(number: int, loss: float, status: TrialStatus = TrialStatus.OK) -> TrialResult:
    return TrialResult(number, status, loss=loss, model=b"model %d" % number, suffix=".keras")


@pytest.mark.parametrize("on_disk", [True, False])
def test_the_shelf_holds_the_best(on_disk: bool, tmp_path: Path) -> None:
    folder = tmp_path / "models" if on_disk else None
    store = ModelStore(2, folder)
    assert store.threshold == math.inf
    for number, loss in enumerate([3.0, 1.0, 2.0, 5.0]):
        store.offer(trial(number, loss))
        store.settle()
    store.offer(trial(4, 0.0, TrialStatus.PRUNED))
    store.settle()
    store.offer(TrialResult(5, TrialStatus.OK, loss=0.5))  # brought no model
    store.settle()
    assert store.numbers == [1, 2]
    assert store.threshold == 2.0
    assert store.read(1) == (b"model 1", ".keras")
    store.offer(trial(6, 2.0))
    store.settle()
    assert store.numbers == [1, 2]  # of equal losses the first counts, as in SearchResult,
    store.offer(trial(0, 2.0))
    store.settle()
    assert store.numbers == [1, 0]  # also where it ends last
    store.offer(trial(2, 2.0))
    store.settle()
    store.offer(trial(0, 9.0, TrialStatus.PRUNED))
    store.settle()
    assert store.read(0) == (b"model 0", ".keras")
    if folder is not None:
        assert sorted(path.name for path in folder.iterdir()) == ["trial-00000.keras", "trial-00001.keras"]
        later = ModelStore(2, folder)
        for result in (trial(1, 1.0), trial(0, 2.0), trial(3, 5.0)):
            later.recall(result)
        assert later.numbers == [1, 0]
        (folder / "trial-00001.keras").unlink()
        with pytest.raises(FileNotFoundError, match="trial 1 is not in"):
            later.read(1)


def test_a_search_is_kept_in_no_directory_that_is_named_as_a_url(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"kept on a disk of the driver; got 'hdfs:///searches/one'"):
        kept_of("hdfs:///searches/one", "auto", 0)
    assert list(tmp_path.iterdir()) == []
