"""A script: an application whose network and files Spark encrypts: what is refused, and a fit that is not."""

from __future__ import annotations

import json
import os
import sys
import tempfile

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "KERAS_BACKEND": "tensorflow"}

from pyspark import SparkConf, SparkContext
from small import line, points

from elephas_like import SparkModel
from elephas_like.core.errors import PlainTextError
from elephas_like.exchange.client import ClientSettings
from elephas_like.model import launch
from elephas_like.spark import session

told: list[str | None] = []


def watched(**named: object) -> ClientSettings:
    made = ClientSettings(**named)  # type: ignore[arg-type]
    told.append(made.fingerprint)
    return made


def refused(rdd: object, **options: object) -> str:
    try:
        SparkModel(line(), 2, engine="server", **options).fit(rdd, verbose=0)
    except PlainTextError as error:
        return f"PlainTextError: {error}"
    return "nothing was refused"


def encrypt_files(context: SparkContext, whether: str) -> None:
    """Have the context say so. It is asked for its settings once, as they do not change."""
    context._conf.set("spark.io.encryption.enabled", whether)
    session._settings.clear()


def main(master: str) -> None:
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": tempfile.gettempdir(),
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        "spark.io.encryption.enabled": "true",
    }
    context = SparkContext(master, "encrypted", conf=SparkConf().setAll(list(settings.items())))
    context.setLogLevel("ERROR")
    rdd = context.parallelize(points(20), 2)
    launch.ClientSettings = watched  # type: ignore[assignment,misc]
    answer: dict[str, object] = {"rows": refused(rdd)}
    encrypt_files(context, "false")  # which of the two is asked first is no promise
    answer["network"] = refused(rdd, tls=False)
    encrypt_files(context, "true")
    history = SparkModel(line(), 2, engine="server", allow_plain_text=True).fit(rdd, epochs=2, verbose=0)
    answer |= {"fingerprints": len([one for one in told if one]), "rounds": len(history.rounds)}
    print(json.dumps(answer | {"loss": history.history["loss"][-1]}), flush=True)
    context.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
