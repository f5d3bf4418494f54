"""An environment for executors, to be packed as docs/deploy.md says, without a download."""

from __future__ import annotations

import shutil
import sys
import venv
from importlib.metadata import version
from pathlib import Path

import elephas_like

DRIVERS_OWN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
"""Environment variables through which executors would find the driver's packages."""


def layered(folder: Path) -> Path:
    """Make an environment that has this library's files, and finds all other packages where this process does.

    So its archive is small: the others would be 2 GB of TensorFlow and its friends (tools/packed_environment.py packs them, too).
    A library that was installed as editable is not among the others: it is found by a hook, which a path does not bring along.
    """
    venv.create(folder / "training", with_pip=False)
    site = next((folder / "training" / "lib").glob("python3.*")) / "site-packages"
    ours = Path(elephas_like.__file__).parent
    shutil.copytree(ours, site / ours.name, ignore=shutil.ignore_patterns("__pycache__"))
    number = version("elephas-like")
    described = site / f"elephas_like-{number}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: elephas-like\nVersion: {number}\n")
    others = [path for path in sys.path if Path(path).name == "site-packages"]
    (site / "others.pth").write_text(f"import sys; sys.path.extend({others!r})\n")  # venv-pack refuses a plain path
    return folder / "training"
