"""What Spark encrypts and a fit does not is said."""

from __future__ import annotations

import re

import pytest
from pyspark import SparkConf

from elephas_like.spark.encryption import in_plain_text


@pytest.mark.parametrize(
    ("settings", "server", "said"),
    [
        ({}, True, []),
        ({"spark.network.crypto.enabled": "false", "spark.io.encryption.enabled": "FALSE"}, True, []),
        ({"spark.network.crypto.enabled": "true"}, True, ["spark.network.crypto.enabled is on.*engine='jobs'"]),
        ({"spark.network.crypto.enabled": "true"}, False, []),
        ({"spark.ssl.enabled": "True"}, True, ["spark.ssl.enabled is on"]),
        ({"spark.io.encryption.enabled": "true"}, False, ["shards are not encrypted"]),
        (
            {"spark.io.encryption.enabled": "true", "spark.network.crypto.enabled": "true"},
            True,
            ["parameter server", "shards"],
        ),
    ],
)
def test_each_setting_has_its_sentence(settings: dict[str, str], server: bool, said: list[str]) -> None:
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    found = list(in_plain_text(conf, server=server))
    assert len(found) == len(said)
    for text, pattern in zip(found, said, strict=True):
        assert re.search(pattern, text), text
