"""A hook of mkdocs: the site has copies of the repository's files that pages link to, such as `../examples/search.py`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
OUTSIDE = re.compile(r"\]\(\.\./([\w./-]+)\)")


def outside(markdown: str) -> list[str]:
    """The files of the repository that a page of docs/ links to, by their paths.

    Raises:
        FileNotFoundError: there is no such file.
    """
    found = OUTSIDE.findall(markdown)
    for path in found:
        if not (ROOT / path).is_file():
            raise FileNotFoundError(f"a page links to {path}, which is no file of the repository")
    return found


def on_files(files: Any, config: Any, **_: object) -> Any:
    """Add the files as text, which browsers show."""
    from mkdocs.structure.files import File

    pages = list(Path(config["docs_dir"]).glob("*.md"))
    for path in {path for page in pages for path in outside(page.read_text())}:
        files.append(File.generated(config, f"repository/{path}.txt", content=(ROOT / path).read_text()))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Have the links lead to the copies."""
    return OUTSIDE.sub(lambda found: f"](repository/{found[1]}.txt)", markdown)
