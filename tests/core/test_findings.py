"""Findings and the report that they make up."""

from __future__ import annotations

import pytest

from elephas_like.core.findings import CheckReport, Finding, Level, one_line, size_text

GOOD, ODD, BAD = (Finding(level.value, level, f"of level {level.value}") for level in Level)


def test_a_report_is_good_unless_a_finding_is_a_problem() -> None:
    assert CheckReport(()).ok
    assert CheckReport((GOOD, ODD)).ok
    assert not CheckReport((GOOD, BAD)).ok
    assert CheckReport((GOOD, BAD, ODD)).of("problem") == (BAD,)


def test_a_report_has_a_line_for_each_finding_and_says_how_many_are_bad() -> None:
    assert str(CheckReport((GOOD, BAD))).splitlines() == [
        "ok       ok: of level ok",
        "problem  problem: of level problem",
        "preflight check: 1 problems, 0 notes",
    ]


def test_long_and_broken_texts_become_one_line() -> None:
    assert one_line("a\n  b\tc") == "a b c"
    assert one_line("abcdefgh", 6) == "abc..."


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (3 * 2**30, "3.0 GiB"), (2**51, "2048.0 TiB")],
)
def test_sizes_are_written_for_people(nbytes: int, text: str) -> None:
    assert size_text(nbytes) == text
