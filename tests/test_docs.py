"""What the documents say is what the code does."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from forked import run

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


def test_extras_are_spelled_as_packages_have_them() -> None:
    """With hyphens: setuptools writes them so, and the pip of Python 3.11's venv (23.2) takes no other spelling; it installs nothing."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in extras)
    for page in [*PAGES, *(ROOT / "examples").glob("*.py")]:
        for names in re.findall(r"(?:pip install[^\n`]*?'?(?:\.|elephas-like)|`)\[([\w,-]+)\]['`]", page.read_text()):
            assert set(names.split(",")) <= set(extras), (page.name, names)


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
    done = run([script], environment=environment)
    assert done.returncode == 0, done.stderr[-3000:]


def quick_start(page: Path) -> str:
    """The program of a page, which follows the mark."""
    return page.read_text().split("<!-- quick start -->\n```python\n")[1].split("```")[0]


@pytest.mark.slow
@pytest.mark.spark
def test_the_quick_start_runs_as_it_stands_and_prints_what_the_page_says(tmp_path: Path) -> None:
    page = ROOT / "docs" / "index.md"
    (tmp_path / "start.py").write_text(quick_start(page))
    done = subprocess.run(
        [sys.executable, "start.py"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "fit.png").stat().st_size > 10_000
    said = page.read_text().split("<!-- output -->\n```\n")[1].split("```")[0]

    def words(text: str) -> list[str]:
        """A text without its numbers, and without the times, which an epoch of a few milliseconds has none of."""
        return re.sub(r"[\d.,]+", "#", text).replace(" - #s - # samples/s", "").split("\n")

    assert words(done.stdout)[-9:] == words(said)[-9:]
    accuracies = re.findall(r"val_accuracy: ([\d.]+)", done.stdout)
    assert len(accuracies) == 8
    assert float(accuracies[-1]) > 0.9


def test_the_quick_start_is_short() -> None:
    lines = [line for line in quick_start(ROOT / "docs" / "index.md").splitlines() if line.strip()]
    assert len(lines) <= 20


def strings_of_the_package() -> str:
    """All that messages are made of: the text of every string, what is put into them as a gap."""
    found = []
    for path in (ROOT / "elephas_like").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "\0" for part in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def test_the_messages_that_the_page_explains_are_messages() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text().split("## While training")[0]
    messages = re.findall(r"^\| `([^`]+)` \|", page, re.M)
    messages += re.findall(r"so does `([^`]+)`", page)
    assert len(messages) > 15
    known = re.sub(r"\d+", "\0", strings_of_the_package())
    for message in messages:
        for part in re.sub(r"\d+", "\0", message).split("..."):
            assert part.strip() in known, (message, part)


def test_the_page_of_exceptions_has_all_public_ones() -> None:
    import elephas_like

    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    for name in elephas_like.__all__:
        if name.endswith("Error") and name != "ElephasError":
            assert f"| `{name}` |" in text


def test_the_reference_has_every_public_name() -> None:
    import elephas_like

    named = re.findall(r"^::: elephas_like\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.M)
    assert sorted(named) == sorted(elephas_like.__all__)


def test_the_site_has_every_page() -> None:
    """mkdocs says so too, in the slow run; here a new page is noticed at once."""
    nav = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    assert set(re.findall(r"([\w-]+\.md)", nav)) == {page.name for page in (ROOT / "docs").glob("*.md")}


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "repository/examples/mlflow_tracking.py.txt" in (tmp_path / "site" / "tools.html").read_text()
    assert (tmp_path / "site" / "repository" / "examples" / "mlflow_tracking.py.txt").exists()
    reference = (tmp_path / "site" / "api.html").read_text()
    for name in ("global_batch_size", "log_to_mlflow", "WaitError"):
        assert name in reference


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


MEASURED = ("digits/iid", "digits/sorted", "mnist/iid", "mnist/sorted")


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_measured_points_are_those_of_the_results(name: str) -> None:
    """`python benchmarks/convergence.py --tables --strategies docs/strategies.md` writes them."""
    runs: dict[str, dict[int, float]] = {}
    for line in (ROOT / "benchmarks" / "results" / "convergence.jsonl").read_text().splitlines():
        run = json.loads(line)
        runs.setdefault(run["cell"], {})[run["seed"]] = run["accuracy"]
    method = {"nesterov": "defaults", "mla": "asynchronous"}.get(name, name)
    means = [list(runs[f"{rows}/K8/B/{method}"].values()) for rows in MEASURED]
    points = " / ".join(f"{sum(each) / len(each):.1f}" for each in means)
    assert row_of(name).endswith(f"| {points} |"), "run benchmarks/convergence.py --tables --strategies"


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
