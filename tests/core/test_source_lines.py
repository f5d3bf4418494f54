"""Source lines, and whether a code was compiled from them."""

from __future__ import annotations
import __future__

import importlib
from pathlib import Path
from types import CodeType

import pytest

from elephas_like.core.source_lines import source_lines

TEXT = "def doubled(x):\n    if x > 0:\n        return [y * 2.0 for y in (x,)][0]\n    return x\n"


@pytest.mark.parametrize("edit", ["2.0", "lines", "none"])
def test_a_file_that_is_edited_is_not_the_code_that_was_imported(
    edit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / f"edited_{len(edit)}.py"
    file.write_text(TEXT)
    code = importlib.import_module(file.stem).doubled.__code__
    text = {"2.0": TEXT.replace("2.0", "5.25"), "lines": f"# one more\n{TEXT}", "none": TEXT}[edit]
    file.write_text(text)
    lines, own = source_lines(code)
    assert ("".join(lines), own) == (text, edit == "none")


def test_code_that_a_hook_has_changed_is_its_files_own_until_that_is_edited(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest rewrites assertions, as of this function; IPython compiles cells as the ones before them said."""

    def asserts(x: int) -> None:
        assert x > 0

    assert source_lines(asserts.__code__)[1]
    monkeypatch.setattr("elephas_like.core.source_lines._BEGUN", 0.0)
    assert not source_lines(asserts.__code__)[1]


def test_code_of_a_cell_goes_by_the_cells_before_it(tmp_path: Path) -> None:
    cell = tmp_path / "cell_2.py"
    cell.write_text("def f(x: int) -> int:\n    return x\n")
    code = compile(cell.read_text(), str(cell), "exec", __future__.annotations.compiler_flag, dont_inherit=True)
    assert source_lines(next(each for each in code.co_consts if isinstance(each, CodeType)))[1]


def test_lines_that_were_read_before_an_edit_are_the_codes_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "read_before.py"
    file.write_text(TEXT)
    code = importlib.import_module(file.stem).doubled.__code__
    assert source_lines(code)[1]
    file.write_text(TEXT.replace("2.0", "5.25"))
    lines, own = source_lines(code)
    assert ("".join(lines), own) == (TEXT, True)


def test_code_without_a_file_or_of_no_python_has_nothing_to_compare(tmp_path: Path) -> None:
    code = compile("x = 1", "<none>", "exec")
    assert source_lines(code) == ([], True)
    magic = tmp_path / "cell.py"
    magic.write_text("%time x = 1\n")
    assert source_lines(compile("x = 1", str(magic), "exec")) == (["%time x = 1\n"], True)
