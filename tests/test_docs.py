"""What the documents say is what the code does."""

from __future__ import annotations

from pathlib import Path

from elephas_like.core.strategies.registry import combinations_table

ROOT = Path(__file__).parent.parent


def test_the_table_of_combinations_is_the_one_that_errors_show() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    for line in combinations_table().splitlines():
        assert line.strip() in text


def test_the_readme_names_files_that_are_there() -> None:
    text = (ROOT / "README.md").read_text()
    for part in text.split("](")[1:]:
        target = part.split(")")[0]
        assert target.startswith("http") or (ROOT / target).exists(), target
