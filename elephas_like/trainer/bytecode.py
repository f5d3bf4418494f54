"""Functions as bytecode in the files of models: refused here, as not every version of Keras refuses them everywhere."""

from __future__ import annotations

import json
import os
import zipfile


def refuse_bytecode(config: object) -> None:
    """Raise ValueError if a configuration holds a function as bytecode, as Keras writes down lambdas.

    Raises:
        ValueError: it does.
    """
    if isinstance(config, list):
        for item in config:
            refuse_bytecode(item)
    elif isinstance(config, dict):
        own = config.get("config")
        old = isinstance(own, dict) and "lambda" in (own.get("function_type"), own.get("output_shape_type"))
        if old or config.get("class_name") == "__lambda__":
            raise ValueError(
                "the file holds the bytecode of a Python lambda, which could do anything to this machine. If you trust its "
                "origin, load it with safe_mode=False. Better make the lambda a named function and save the model again."
            )
        for value in config.values():
            refuse_bytecode(value)


def refuse_bytecode_in_archive(path: str | os.PathLike[str]) -> None:
    """Do as `refuse_bytecode` with the configuration in a `.keras` archive.

    Raises:
        ValueError: it holds bytecode.
    """
    with zipfile.ZipFile(path) as archive:
        refuse_bytecode(json.loads(archive.read("config.json")))
