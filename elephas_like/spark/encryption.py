"""What Spark encrypts is not left in plain text: the parameter server speaks TLS then, and the rest is refused.

Spark has one setting for its network and one for its files. A fit adds connections to the parameter server, and shards: rows on
the executors' disks, in files that are mapped into memory as they are.
"""

from __future__ import annotations

from elephas_like.core.errors import PlainTextError
from elephas_like.spark.session import Conf, is_on

NETWORK = (
    "spark.network.crypto.enabled",
    "spark.ssl.rpc.enabled",
    "spark.ssl.enabled",
    "spark.authenticate.enableSaslEncryption",
)
DISKS = "spark.io.encryption.enabled"
ALLOWED = "spark.elephas_like.allowPlainText"
"""A setting of our own: `allow_plain_text=True` for all that an application does."""


def wants_tls(conf: Conf, asked: bool | tuple[str, str] | None, *, allow_plain_text: bool = False) -> bool:
    """Whether the parameter server speaks TLS: as asked, or else where Spark encrypts its own network.

    Args:
        asked: True, or files of the user's own; None where nobody has said.

    Raises:
        PlainTextError: it must not, Spark's network is encrypted, and nobody allows plain text beside that.
    """
    encrypted = next((name for name in NETWORK if is_on(conf, name)), None)
    if asked is None:
        return encrypted is not None
    if encrypted is not None and not (asked or allow_plain_text or is_on(conf, ALLOWED)):
        raise PlainTextError(
            f"{encrypted} is on, and with tls=False weights, metrics and the token would travel between workers and the "
            "parameter server in plain text. Leave tls out or give tls=True, which encrypts them; or engine='jobs' "
            "(synchronous modes), which sends all by Spark; or allow_plain_text=True, where the network itself is safe."
        )
    return bool(asked)


def check_disks(conf: Conf, *, allow_plain_text: bool = False) -> None:
    """Do nothing if rows may be written to the executors' disks, which is not encrypted.

    Raises:
        PlainTextError: Spark encrypts its own files there, and nobody allows plain text beside them.
    """
    if is_on(conf, DISKS) and not (allow_plain_text or is_on(conf, ALLOWED)):
        raise PlainTextError(
            f"{DISKS} is on, and rows would be written to the executors' local directories (spark.local.dir) in plain text. "
            "If the disks of those directories are encrypted, allow it: allow_plain_text=True, an argument of SparkModel, "
            f"VotingModel, train_ensemble, search and the Spark ML estimators; or {ALLOWED}=true among Spark's settings."
        )
