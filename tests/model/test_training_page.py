"""The page of a fit, without Spark: its URL is said, it ends with the fit, and what goes wrong with it warns and no more."""

from __future__ import annotations

import http.client
import json
import logging
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import keras
import pytest
from trainer.small import mlp, rows

from elephas_like import SparkModel, search, train_ensemble
from elephas_like.core.errors import ElephasError, ElephasWarning
from elephas_like.core.fit_monitor import FitMonitor
from elephas_like.ensembles import train
from elephas_like.model.training_page import PageRequest, training_page
from elephas_like.trainer.callbacks import History
from elephas_like.tuning import runner

NASTY = "<script>alert(1)</script>"
X, Y = rows(64)


def watched(url: str) -> dict[str, Any]:
    """The snapshot behind a page's URL."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
    connection.request("GET", f"{parts.path}snapshot")
    found: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    return found


def url_in(text: str) -> str:
    return re.search(r"Training page: (http://127\.0\.0\.1:\d+/[\w-]{43}/)", text)[1]


class Look(keras.callbacks.Callback):
    """Looks at the page at the end of each epoch, as a browser does."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        super().__init__()
        self.caplog, self.seen = caplog, []

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        (message,) = [one.getMessage() for one in self.caplog.records if "training page" in one.getMessage()]
        self.url = message.removeprefix("training page: ")
        self.seen.append(watched(self.url))


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_the_page_of_a_fit_grows_and_goes(mode: str, caplog: pytest.LogCaptureFixture, capsys) -> None:
    caplog.set_level(logging.INFO, "elephas_like")
    model = mlp(metrics=[keras.metrics.MeanAbsoluteError(name=NASTY)])
    look = Look(caplog)
    history = SparkModel(model, 2, engine="in_process", mode=mode, seed=1).fit(
        X, Y, epochs=3, monitor=True, callbacks=[look], verbose=1
    )
    assert url_in("".join(capsys.readouterr())) == look.url
    assert [len(one["metrics"]["x"]) for one in look.seen] == [1, 2, 3]
    assert {one["status"] for one in look.seen} == {"training"}
    assert look.seen[-1]["metrics"]["values"]["loss"] == pytest.approx(history.history["loss"], rel=1e-5)
    assert NASTY in look.seen[-1]["metrics"]["values"]
    assert [row["host"] for row in look.seen[-1]["workers"]] == ["in_process"] * 2
    with pytest.raises(OSError, match="refused"):
        watched(look.url)


def test_a_silent_fit_has_its_url_in_the_log_alone(caplog: pytest.LogCaptureFixture, capsys) -> None:
    caplog.set_level(logging.INFO, "elephas_like")
    SparkModel(mlp(), 1, engine="in_process").fit(X, Y, monitor=True, verbose=0)
    assert "http" not in "".join(capsys.readouterr())
    assert "training page: http://127.0.0.1:" in caplog.text


def test_without_monitor_nothing_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "create_server", None)
    history = SparkModel(mlp(), 1, engine="in_process").fit(X, Y, verbose=0)
    assert history.report["status"] == "finished"


def test_a_report_needs_no_page_and_no_server(tmp_path: Path) -> None:
    history = SparkModel(mlp(), 2, engine="in_process").fit(X, Y, epochs=2, validation_split=0.25, verbose=0)
    history.save_report(tmp_path / "fit.html")
    text = (tmp_path / "fit.html").read_text()
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text)[1])
    assert data == json.loads(json.dumps(history.report))
    assert data["metrics"]["values"]["val_loss"] == pytest.approx(history.history["val_loss"], rel=1e-5)
    assert data["rounds"] == len(history.rounds)
    with pytest.raises(ElephasError, match="no report"):
        History().save_report(tmp_path / "other.html")


def test_a_port_that_is_taken_warns_and_the_fit_goes_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.warns(ElephasWarning, match=f"no training page.*{port} is taken"):
            history = SparkModel(mlp(), 1, engine="in_process").fit(X, Y, monitor=port, verbose=0)
    assert len(history.history["loss"]) == 1


def test_a_port_that_is_none_raises_before_the_fit() -> None:
    with pytest.raises(ValueError, match="monitor must be a port"):
        SparkModel(mlp(), 1, engine="in_process").fit(X, Y, monitor="yes")


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [(KeyboardInterrupt(), "interrupted", ""), (ValueError("no <b>"), "failed", "ValueError: no <b>")],
)
def test_how_it_ended_is_said(error: BaseException, status: str, text: str) -> None:
    monitor = FitMonitor(lambda: 0.0, lambda: 0.0)
    with pytest.raises(type(error)), training_page(PageRequest(None), monitor, None):
        raise error
    assert (monitor.status, monitor.error) == (status, text)


def test_a_host_is_where_it_listens_and_a_range_has_a_free_port(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "elephas_like")
    monitor = FitMonitor(lambda: 0.0, lambda: 0.0)
    with training_page(PageRequest("40000:49000", "127.0.0.2", verbose=0), monitor, None):
        url = re.search(r"http://127\.0\.0\.2:(\d+)/", caplog.text)
    assert url is not None
    assert 40000 <= int(url[1]) <= 49000


def objective(params: dict[str, float]) -> float:
    return (params["x"] - 0.3) ** 2


class LookAfter:
    """Does what a function does, and looks at the page afterwards."""

    def __init__(self, function: Callable[..., None], said: Callable[[], object]) -> None:
        self.function, self.said, self.url = function, said, ""
        self.seen: list[dict[str, Any]] = []

    def __call__(self, *given: Any, **named: Any) -> None:
        self.function(*given, **named)
        self.url = self.url or url_in("".join(self.said()))
        self.seen.append(watched(self.url))


def test_a_search_shows_its_trials_and_writes_a_report(tmp_path: Path, capsys, monkeypatch) -> None:
    look = LookAfter(runner.show_trial, capsys.readouterr)
    monkeypatch.setattr(runner, "show_trial", look)
    found = search(objective, {"x": ("uniform", 0, 1)}, max_evals=3, seed=1, parallelism=1, monitor=True)
    assert [one["done"] for one in look.seen] == [1, 2, 3]
    assert look.seen[-1]["best"][0] == found.best_trial
    assert [list(run["params"]) for run in look.seen[-1]["runs"]] == [["x"]] * 3
    assert [run["status"] for run in look.seen[0]["runs"]] == ["ok"]
    found.save_report(tmp_path / "search.html")
    text = (tmp_path / "search.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', text)[1])
    assert data["best"][0] == found.best_trial
    assert [run["value"] for run in data["runs"]] == pytest.approx(found.trials["loss"].tolist(), rel=1e-5)


def test_an_ensemble_shows_its_members(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    look = LookAfter(train.show_member, capsys.readouterr)
    monkeypatch.setattr(train, "show_member", look)
    train_ensemble(mlp(), (X, Y), 2, epochs=2, engine="in_process", validation_split=0.25, monitor=True)
    assert [one["done"] for one in look.seen] == [1, 2]
    assert look.seen[-1]["objective"] == "val_loss"
    assert [len(run["y"]) for run in look.seen[-1]["runs"]] == [2, 2]
    assert all(run["value"] > 0 for run in look.seen[-1]["runs"])


class Dies(keras.callbacks.Callback):
    """Ends the program after two epochs."""

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        if epoch == 1:
            raise RuntimeError("killed")


def test_a_fit_that_goes_on_shows_its_earlier_epochs(tmp_path: Path) -> None:
    kept = {"epochs": 4, "checkpoint_dir": tmp_path / "kept", "verbose": 0}
    with pytest.raises(RuntimeError, match="killed"):
        SparkModel(mlp(), 2, engine="in_process", seed=1).fit(X, Y, callbacks=[Dies()], **kept)
    history = SparkModel(mlp(), 2, engine="in_process", seed=1).fit(X, Y, **kept)
    found = history.report
    assert found["metrics"]["x"] == [1.0, 2.0, 3.0, 4.0]
    assert found["metrics"]["values"]["loss"] == pytest.approx(history.history["loss"], rel=1e-5)
    assert (found["rounds"], found["curve"]["x"][-1]) == (len(history.rounds), 4.0)
