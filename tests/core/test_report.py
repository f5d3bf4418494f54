"""The page is one file with all that it needs, and what users named is data in it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest

from elephas_like.core.fit_monitor import FitMonitor
from elephas_like.core.report import live_page, report_page, write_report
from elephas_like.core.types import EngineName

NASTY = "</script><script>alert(1)</script><!-- {{SCRIPT}} {{DATA}}"


class Elements(HTMLParser):
    """The elements of a page, and the text in each script."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._in_script = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data


@pytest.fixture
def snapshot() -> dict[str, object]:
    monitor = FitMonitor(lambda: 0.0, lambda: 0.0)
    monitor.describe(EngineName.SERVER, alone=False, first_epoch=0, epochs=1, model=NASTY)
    monitor.epoch_end(0, {NASTY: 0.5})
    monitor.ended("failed", NASTY)
    return monitor.snapshot()


def test_names_of_users_are_data_and_nothing_else(snapshot: dict[str, object]) -> None:
    page = Elements(report_page(snapshot))
    assert len(page.scripts) == len(Elements(live_page().html).scripts) == 3
    assert json.loads(page.scripts[0]) == snapshot
    assert [name for name, _ in page.elements] == [name for name, _ in Elements(live_page().html).elements]


def test_nothing_is_fetched_from_anywhere(snapshot: dict[str, object]) -> None:
    html = report_page(snapshot)
    for _, attributes in Elements(html).elements:
        assert attributes.get("href", "data:,") == "data:,"
        assert "src" not in attributes
        assert not any(name.startswith("on") or name == "style" for name in attributes)
    assert "@import" not in html
    assert "url(" not in html


def test_the_policy_names_each_script_by_its_digest() -> None:
    page = live_page()
    scripts = Elements(page.html).scripts[1:]
    digests = re.findall(r"script-src ([^;]*);", page.policy)[0].split()
    assert digests == [
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts
    ]
    assert "unsafe" not in page.policy
    assert page.policy.startswith("default-src 'none';")
    assert f'content="{page.policy}"' in page.html


def test_our_script_sets_text_and_no_html() -> None:
    script = (files("elephas_like.core") / "page" / "page.js").read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", script)


def test_the_licence_of_the_chart_library_goes_with_it() -> None:
    assert "Copyright (c) 2022 Leon Sorokin" in live_page().html
    assert "Permission is hereby granted" in (files("elephas_like.core") / "page" / "LICENSE-uPlot.txt").read_text()


def test_a_report_is_written_whole(tmp_path: Path, snapshot: dict[str, object]) -> None:
    write_report(tmp_path / "fit.html", snapshot)
    write_report(tmp_path / "fit.html", snapshot)
    assert [path.name for path in tmp_path.iterdir()] == ["fit.html"]
    assert (tmp_path / "fit.html").read_text() == report_page(snapshot)


def test_a_report_goes_to_the_home_directory_and_below_new_ones(
    tmp_path: Path, snapshot: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_report("~/reports/fit.html", snapshot)
    assert (tmp_path / "reports" / "fit.html").read_text() == report_page(snapshot)


def test_a_report_is_a_local_file(tmp_path: Path, snapshot: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"local file; got 's3://bucket/fit.html'"):
        write_report("s3://bucket/fit.html", snapshot)
    with pytest.raises(ValueError, match=r"local file; got 'hdfs:/fits/fit.html'"):
        write_report("hdfs:/fits/fit.html", snapshot)
    with pytest.raises(ValueError, match=r"is a directory"):
        write_report(tmp_path, snapshot)
    assert list(tmp_path.iterdir()) == []
