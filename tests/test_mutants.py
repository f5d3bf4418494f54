"""Formulas are broken on purpose by benchmarks/mutants.py, where they still stand: each change has to find its place."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_every_mutant_finds_its_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    mutants = importlib.import_module("mutants")
    core = ROOT / "elephas_like" / "core"
    lost = []
    for mutant in mutants.MUTANTS:
        text = (core / mutant.module).read_text()
        if mutant.old not in text[max(0, text.find(mutant.after)) :] or mutant.after not in text:
            lost.append(mutant.what)
        else:
            assert mutants.mutated(mutant, text) != text, mutant.what
    assert lost == []
