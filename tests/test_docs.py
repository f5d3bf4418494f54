"""What the documents say is what the code does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from elephas_like.core.strategies import CODECS, STRATEGIES
from elephas_like.core.strategies.registry import combinations_table

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_table_of_combinations_is_the_one_that_errors_show() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    for line in combinations_table().splitlines():
        assert line.strip() in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_lead_to_what_is_there(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert target.startswith("http") or (page.parent / target).exists(), target
    for path in re.findall(r"`([\w/]+\.(?:py|ipynb|md|toml))`", text):
        if "/" in path and "~" not in path:
            assert any((root / path).exists() for root in (ROOT, ROOT / "elephas_like")), path


def test_the_table_of_faults_is_that_of_the_tests() -> None:
    table = subprocess.run([sys.executable, ROOT / "tools" / "faults.py"], capture_output=True, text=True, check=True)
    assert table.stdout.count("\n") > 20
    assert table.stdout in (ROOT / "docs" / "fault-tolerance.md").read_text(), "run `make faults`"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "section"),
    [("spark_ml.md", ""), ("fault-tolerance.md", "Test your own job"), ("data_sources.md", "Files")],
)
def test_the_snippets_of_a_page_run(page: str, section: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / page).read_text()
    if section:
        text = text.split(f"## {section}\n")[1].split("\n## ")[0]
    parts = text.split("```python\n")[1:]
    script = tmp_path / "page.py"
    script.write_text("\n".join(part.split("```")[0] for part in parts).replace("/tmp/", f"{tmp_path}/"))
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def row_of(name: str) -> str:
    lines = (ROOT / "docs" / "strategies.md").read_text().splitlines()
    (row,) = [line for line in lines if line.startswith(f"| `{name}` |")]
    return row


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_table_of_strategies_has_every_name_with_its_defaults(name: str) -> None:
    kind, row = STRATEGIES[name], row_of(name)
    assert f"| `{kind.__name__}` |" in row
    for field in fields(kind):
        if field.name != "reduce" and field.default is not None:
            assert f"{field.name} {field.default}" in row, (name, field.name)


@pytest.mark.parametrize("name", CODECS)
def test_the_table_of_codecs_has_every_name(name: str) -> None:
    assert f"| `{CODECS[name].__name__}` |" in row_of(name)
    assert row_of(name).endswith("| yes |") == CODECS[name]().error_feedback


def test_the_migration_page_names_what_is_there() -> None:
    import importlib
    import re

    text = (ROOT / "docs" / "migration.md").read_text()
    after = " ".join(line.split("|")[2] for line in text.splitlines() if line.count("|") >= 3)
    for module, names in re.findall(r"from (elephas_like[\w.]*) import ([\w, ]+)", after):
        for name in names.split(","):
            assert hasattr(importlib.import_module(module), name.strip()), (module, name)
    for anchor in re.findall(r"\]\(#([\w-]+)\)", text):
        titles = [
            re.sub(r"[^\w -]", "", line[3:]).lower().replace(" ", "-")
            for line in text.splitlines()
            if line[:3] == "## "
        ]
        assert anchor in titles
