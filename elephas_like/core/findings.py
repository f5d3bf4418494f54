"""Findings of a preflight check: one line each, and the report they make up."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


class Level(StrEnum):
    """What a finding means for a fit: as it should be, worth knowing, or in its way."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One line of a report.

    name: what was looked at. text: what was found and, unless all is well, what to do.
    """

    name: str
    level: Level
    text: str

    def __str__(self) -> str:
        """Return the line."""
        return f"{self.level.value:<7}  {self.name}: {self.text}"


@dataclass(frozen=True)
class CheckReport:
    """All findings of a preflight check, in the order in which they were made."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether no finding is a problem."""
        return not self.of(Level.PROBLEM)

    def of(self, level: Level | str) -> tuple[Finding, ...]:
        """Return the findings of one level."""
        return tuple(finding for finding in self.findings if finding.level == level)

    def __str__(self) -> str:
        """Return the report, a line per finding and the sum of them."""
        counts = f"{len(self.of(Level.PROBLEM))} problems, {len(self.of(Level.NOTE))} notes"
        return "\n".join([*map(str, self.findings), f"preflight check: {counts}"])


def one_line(text: object, letters: int = 500) -> str:
    """Return a text as one line of at most so many letters."""
    line = " ".join(str(text).split())
    return line if len(line) <= letters else f"{line[: letters - 3]}..."


def size_text(nbytes: float) -> str:
    """Return a number of bytes for people: 1536 is "1.5 KiB"."""
    power = 0
    while nbytes >= 1024 and power < len(_UNITS) - 1:
        nbytes, power = nbytes / 1024, power + 1
    return f"{nbytes:.0f} bytes" if power == 0 else f"{nbytes:.1f} {_UNITS[power]}"
