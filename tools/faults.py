"""Print the table of faults, from the marks on the tests that cause them; with --write, put it into docs/fault-tolerance.md.

A test of a fault is marked `@pytest.mark.fault(what goes wrong, what happens, what it costs)`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "fault-tolerance.md"
BEGIN, END = "<!-- faults: begin -->\n", "<!-- faults: end -->\n"


def marks() -> Iterator[tuple[str, str, str, str]]:
    """(fault, what happens, cost, test) of each marked test, in the order of files and lines."""
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for function in ast.parse(file.read_text()).body:
            for mark in getattr(function, "decorator_list", ()):
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.fault":
                    fault, happens, costs = (ast.literal_eval(argument) for argument in mark.args)
                    assert isinstance(function, ast.FunctionDef)
                    yield fault, happens, costs, f"{file.relative_to(ROOT / 'tests')}::{function.name}"


def table() -> str:
    """The table in Markdown, by fault."""
    lines = ["| fault | what happens | what it costs | test |", "|---|---|---|---|"]
    lines += [f"| {fault} | {happens} | {costs} | `{test}` |" for fault, happens, costs, test in sorted(marks())]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the table."""
    if "--write" in sys.argv[1:]:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(before + BEGIN + table() + END + rest.split(END)[1])
    print(table(), end="")


if __name__ == "__main__":
    main()
