"""Files of ensembles: one zip with the members in Keras' own format and a JSON that says how they vote."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import keras
import numpy as np

from elephas_like.spark.files import driver_path
from elephas_like.trainer.building import build_optimizer
from elephas_like.trainer.bytecode import refuse_bytecode_in_archive
from elephas_like.trainer.model_files import told_in_short

_FORMAT = 1
_DESCRIPTION = "ensemble.json"


def write(path: Path, models: Sequence[keras.Model], description: Mapping[str, object]) -> None:
    """Writes models and what describes them. The file is complete or not there: it is written beside its place and moved.

    Directories that are missing above it are made.
    """
    members = [f"member-{number}.keras" for number in range(len(models))]
    about = {"format": _FORMAT, **description, "members": members}
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w") as archive:  # members are zips already
            archive.writestr(_DESCRIPTION, json.dumps(about, indent=1, default=_plain))
            with tempfile.TemporaryDirectory(prefix="elephas_like-") as folder:
                for name, model in zip(members, models, strict=True):
                    # Keras warns when it loads an optimizer that was saved without its variables.
                    build_optimizer(model, complete=True)
                    model.save(Path(folder) / name)
                    archive.write(Path(folder) / name, name)
                    os.remove(Path(folder) / name)
        os.chmod(draft, 0o666 & ~_umask())
        os.replace(draft, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.remove(draft)
        raise


def read(path: Path, custom_objects: Mapping[str, object], safe_mode: bool) -> tuple[list[keras.Model], dict[str, Any]]:
    """(models, what describes them) of a file that `write` wrote.

    Raises:
        ValueError: a file that no `write` wrote.
    """
    with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory(prefix="elephas_like-") as folder:
        if _DESCRIPTION not in archive.namelist():
            raise ValueError(f"{path} is no saved VotingModel: it has no {_DESCRIPTION}.")
        description = json.loads(archive.read(_DESCRIPTION))
        if description.get("format") != _FORMAT:
            raise ValueError(
                f"{path} has format {description.get('format')!r}; this version reads format {_FORMAT}. "
                "A newer elephas_like may have written it."
            )
        models = []
        for number, name in enumerate(description["members"]):
            member = Path(folder) / f"member-{number}.keras"  # never a path of the archive's choosing
            member.write_bytes(archive.read(name))
            if safe_mode:
                refuse_bytecode_in_archive(member)
            with told_in_short():
                models.append(keras.saving.load_model(member, custom_objects=dict(custom_objects), safe_mode=safe_mode))
            member.unlink()
    return models, description


def zip_path(file_name: str | os.PathLike[str]) -> Path:
    """The absolute path of an ensemble's file.

    Raises:
        ValueError: a name that does not end with ".zip", or a URL of another filesystem.
    """
    path = Path(os.fspath(file_name))
    if path.suffix != ".zip":
        raise ValueError(f"file_name must end with '.zip'; got {str(path)!r}.")
    return driver_path(file_name, "an ensemble's file")


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _plain(value: object) -> object:
    """Numbers of NumPy's as Python's, for JSON."""
    return np.asarray(value).tolist()
