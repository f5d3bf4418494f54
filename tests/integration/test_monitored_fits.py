"""The training page of real fits on Spark: what each engine tells of its workers, and what a browser makes of it."""

from __future__ import annotations

import logging
import platform
from itertools import pairwise
from pathlib import Path

import keras
import numpy as np
import pytest
from browsers import Tab, tab, tool
from pages import AtEpochs, snapshot

from elephas_like import SparkModel, search

NASTY = "<script>document.title='hacked'</script>"
MISSING = tool().problem()


def mlp() -> keras.Model:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)], name="watched")
    model.compile("sgd", "mse", metrics=[keras.metrics.MeanAbsoluteError(name=NASTY)])
    return model


def rows(sc, count: int = 400):
    x = np.random.default_rng(0).normal(size=(count, 4)).astype("float32")
    return sc.parallelize([(row, row.sum(keepdims=True)) for row in x], 2)


@pytest.fixture(autouse=True)
def quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "elephas_like")


def look(url: str, epoch: int) -> dict[str, object]:
    return snapshot(url)


def check_workers(found: dict, engine: str) -> None:
    """Hosts, rows and signs of life are those of this machine, and retries are known where a server counts them."""
    assert [row["host"] for row in found["workers"]] == [platform.node()] * 2
    assert sum(row["rows"] for row in found["workers"]) == 400
    assert all(row["rounds"] > 0 and row["rate"] > 0 and 0 <= row["seen"] < 60 for row in found["workers"])
    assert {row["retries"] for row in found["workers"]} == {0 if engine == "server" else None}


def test_after_the_first_round_workers_receive_packed_steps(sc) -> None:
    # SGD: 2 numbers of 12 bytes, the counter and the rate, beside 31 weights, which int8 packs as 31 bytes and 4 for their scale
    history = SparkModel(mlp(), 2, engine="server", frequency=2, codec="int8", state_codec="int8", seed=1).fit(
        rows(sc), epochs=2, verbose=0
    )
    rounds = len(history.rounds)
    assert rounds == 8
    assert history.params["state_bytes"] == 12 + 35
    assert history.report["totals"]["down"] == 2 * (12 + 4 * 31 + (rounds - 1) * (12 + 35))


def test_a_fit_on_the_server_tells_of_its_workers_and_its_bytes(sc, caplog) -> None:
    at_epochs = AtEpochs(caplog, look)
    history = SparkModel(mlp(), 2, engine="server", frequency=50, seed=1).fit(
        rows(sc), epochs=2, monitor=True, verbose=0, callbacks=[at_epochs]
    )
    assert [one["metrics"]["x"] for one in at_epochs.seen] == [[1.0], [1.0, 2.0]]
    check_workers(at_epochs.seen[-1], "server")
    totals, rounds = history.report["totals"], history.report["rounds"]
    seconds = [totals[name] for name in ("train", "wait", "transfer", "aggregate")]
    assert min(seconds) >= 0
    assert 0 < sum(seconds) < history.report["elapsed"]
    weights = 4 * (4 * 5 + 5 + 5 + 1)
    assert totals["up"] >= 2 * rounds * weights
    assert totals["down"] >= 2 * rounds * weights
    assert history.report["unknown"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "mode"), [("jobs", "synchronous"), ("gang", "synchronous"), ("server", "asynchronous")]
)
def test_other_engines_tell_what_they_know(sc, caplog, engine: str, mode: str) -> None:
    at_epochs = AtEpochs(caplog, look)
    history = SparkModel(mlp(), 2, engine=engine, mode=mode, seed=1).fit(
        rows(sc), epochs=2, monitor=True, verbose=0, callbacks=[at_epochs]
    )
    found = at_epochs.seen[-1]
    assert found["metrics"]["x"] == [1.0, 2.0]
    check_workers(found, engine)
    known = set(history.report["totals"])
    measured = {"train", "wait", "transfer", "aggregate", "up", "down"}
    assert known == {"jobs": measured, "gang": {"train"}, "server": {"train", "up", "down"}}[engine]
    assert history.report["unknown"]


@pytest.mark.slow
def test_a_search_on_spark_shows_trials_that_run(sc, caplog) -> None:
    def build(params: dict[str, float]) -> keras.Model:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(params["rate"]), "mse")
        return model

    found = search(
        build,
        {"rate": ("loguniform", -6, -2)},
        rows(sc),
        max_evals=3,
        epochs=3,
        validation_split=0.2,
        monitor=True,
        verbose=0,
    )
    assert "training page: http://127.0.0.1:" in caplog.text
    assert len(found) == 3


@pytest.fixture(scope="module")
def browser():
    with tab() as found:
        yield found


def seen(browser: Tab, url: str, epoch: int) -> list[int]:
    """Open the page in the first epoch, and wait until its curve has come as far as the fit."""
    if epoch == 0:
        browser.screen(1200, 900)
        browser.open(url)
    browser.until(f"document.querySelectorAll('#epochs tbody tr').length === {epoch + 1}")
    return [
        browser.value(f"Number(document.querySelector('#{one}')?.dataset.points ?? 0)")
        for one in ("metric-0", "seconds")
    ]


@pytest.mark.slow
@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
def test_a_browser_sees_the_curve_grow_and_keeps_the_last_page(sc, caplog, tmp_path: Path, browser: Tab) -> None:
    at_epochs = AtEpochs(caplog, lambda url, epoch: seen(browser, url, epoch))
    history = SparkModel(mlp(), 2, engine="server", frequency=25, seed=1).fit(
        rows(sc), epochs=4, validation_split=0.2, monitor=True, verbose=0, callbacks=[at_epochs]
    )
    points = at_epochs.seen
    assert all(one[0] < other[0] and one[1] < other[1] for one, other in pairwise(points))
    # The server is gone. The page has the end of the fit all the same.
    browser.until("document.querySelector('#status').textContent === 'finished'")
    assert browser.value("document.querySelectorAll('#epochs tbody tr').length") == 4
    # What users named is text.
    assert NASTY in browser.value("document.querySelector('#charts').textContent")
    assert "hacked" not in browser.value("document.title")
    assert browser.errors == []

    history.save_report(tmp_path / "fit.html")
    browser.open((tmp_path / "fit.html").as_uri())
    browser.until("location.protocol === 'file:' && document.querySelectorAll('#epochs tbody tr').length === 4")
    check_themes(browser)
    check_keyboard(browser)
    check_phone(browser)
    assert browser.errors == []
    # Without the token there is no page, while a fit runs.
    refused = AtEpochs(caplog, lambda url, epoch: no_page(browser, url))
    SparkModel(mlp(), 2, engine="server").fit(rows(sc), monitor=True, verbose=0, callbacks=[refused])
    assert refused.seen == [True]


@pytest.mark.slow
@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
def test_a_browser_shows_a_search_and_the_trial_that_is_chosen(tmp_path: Path, browser: Tab) -> None:
    space = {"x": ("uniform", 0, 1), "kind": [NASTY, "plain"]}
    found = search(lambda params: (params["x"] - 0.3) ** 2, space, max_evals=8, seed=1, verbose=0)
    found.save_report(tmp_path / "search.html")
    browser.screen(1200, 900)
    browser.open((tmp_path / "search.html").as_uri())
    browser.until("document.querySelectorAll('#runs tbody tr').length === 8")
    assert browser.value("document.querySelectorAll('#parallel polyline').length") == 8
    assert browser.value("document.querySelector('tr.best button').textContent") == str(found.best_trial)
    assert browser.value("document.querySelectorAll('.way.best').length") == 1
    assert NASTY in browser.value("document.querySelector('#runs').textContent")
    assert "hacked" not in browser.value("document.title")
    button = "document.querySelector('#runs tbody button')"
    browser.value(f"{button}.focus()")
    browser.press("Enter")
    browser.until("document.querySelectorAll('.way.chosen').length === 1")
    assert browser.value(f"document.activeElement === {button}")
    assert browser.errors == []


def check_themes(browser: Tab) -> None:
    """As the system has it, unless the button says otherwise."""
    paper = "getComputedStyle(document.body).backgroundColor"
    light, dark = "rgb(255, 255, 255)", "rgb(15, 19, 24)"
    assert browser.value(paper) == light
    browser.screen(1200, 900, dark=True)
    browser.until(f"{paper} === '{dark}'")
    for asked, shown in (("light", light), ("dark", dark), ("automatic", dark)):
        browser.value("document.querySelector('#theme').click()")
        assert browser.value("document.querySelector('#theme').textContent") == f"Theme: {asked}"
        assert browser.value(paper) == shown
    browser.screen(1200, 900)
    browser.until(f"{paper} === '{light}'")


def check_keyboard(browser: Tab) -> None:
    """Arrow keys walk along a curve, Enter hides a line and sorts a table."""
    browser.value("document.querySelector('#metric-0 .plot').focus()")
    where = "document.querySelector('#metric-0 [aria-live]').textContent"
    browser.press("Home")
    browser.until(f"{where}.startsWith('at ')")
    first = browser.value(where)
    browser.press("ArrowRight")
    browser.until(f"{where} !== {first!r}")
    browser.press("Escape")
    browser.until(f"{where} === ''")
    button = "document.querySelector('#metric-0 .legend button')"
    browser.value(f"{button}.focus()")
    browser.press("Enter")
    browser.until(f"{button}.getAttribute('aria-pressed') === 'false'")
    browser.value("document.querySelector('#epochs thead button').focus()")
    browser.press("Enter")
    browser.until("document.querySelector('#epochs tbody td').textContent === '1'")
    assert browser.value("document.activeElement.dataset.key") == "head-0"


def check_phone(browser: Tab) -> None:
    """Nothing is wider than a phone but tables that scroll by themselves, and lines differ by more than their colours."""
    browser.screen(400, 800, phone=True)
    browser.until("document.querySelector('.plot canvas').getBoundingClientRect().width < 400")
    assert browser.value("document.documentElement.scrollWidth") == 400
    dashes = browser.value(
        "[...document.querySelectorAll('#seconds .legend line')].map((one) => one.getAttribute('stroke-dasharray'))"
    )
    assert len(set(dashes)) == len(dashes) >= 3


def no_page(browser: Tab, url: str) -> bool:
    """Whether a URL whose token has lost a letter shows nothing."""
    browser.open(url.rstrip("/")[:-1] + "/")
    return bool(browser.until("document.querySelector('#summary') === null"))
