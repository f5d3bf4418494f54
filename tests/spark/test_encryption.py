"""What Spark encrypts decides whether the server speaks TLS, and what is refused."""

from __future__ import annotations

import pytest
from pyspark import SparkConf

from elephas_like.core.errors import ElephasError, PlainTextError
from elephas_like.spark.encryption import ALLOWED, check_disks, wants_tls


def conf(**settings: str) -> SparkConf:
    return SparkConf(loadDefaults=False).setAll(
        [(f"spark.{name.replace('_', '.')}", v) for name, v in settings.items()]
    )


FILES = ("server.crt", "server.key")
ENCRYPTED = [
    conf(network_crypto_enabled="true"),
    conf(ssl_enabled="True"),
    conf(ssl_rpc_enabled="true"),
    conf(authenticate_enableSaslEncryption="true"),
]


@pytest.mark.parametrize(("asked", "speaks"), [(None, False), (False, False), (True, True), (FILES, True)])
def test_without_spark_s_encryption_tls_is_as_asked(asked: bool | tuple[str, str] | None, speaks: bool) -> None:
    for settings in (conf(), conf(network_crypto_enabled="false"), conf(io_encryption_enabled="true")):
        assert wants_tls(settings, asked) is speaks


@pytest.mark.parametrize("settings", ENCRYPTED, ids=lambda settings: settings.getAll()[0][0])
def test_with_spark_s_encryption_tls_is_on_unless_plain_text_is_allowed(settings: SparkConf) -> None:
    assert [wants_tls(settings, asked) for asked in (None, True, FILES)] == [True, True, True]
    assert wants_tls(settings, None, allow_plain_text=True)
    name = settings.getAll()[0][0]
    with pytest.raises(PlainTextError, match=rf"{name} is on.*tls=True.*engine='jobs'.*allow_plain_text=True"):
        wants_tls(settings, False)
    assert not wants_tls(settings, False, allow_plain_text=True)
    assert not wants_tls(settings.set(ALLOWED, "true"), False)


def test_rows_are_refused_where_spark_encrypts_its_files() -> None:
    for settings in (conf(), conf(io_encryption_enabled="FALSE"), ENCRYPTED[0]):
        check_disks(settings)
    encrypted = conf(io_encryption_enabled="true")
    with pytest.raises(
        PlainTextError, match=rf"spark.io.encryption.enabled is on.*allow_plain_text=True.*{ALLOWED}=true"
    ) as caught:
        check_disks(encrypted)
    assert isinstance(caught.value, ElephasError)
    assert isinstance(caught.value, ValueError)
    check_disks(encrypted, allow_plain_text=True)
    check_disks(encrypted.set(ALLOWED, "true"))
