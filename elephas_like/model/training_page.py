"""The training page of a fit, a search or an ensemble: served by the driver while it runs, at a URL that is printed."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark import SparkContext
from pyspark.sql import SparkSession

from elephas_like.core import checks
from elephas_like.core.errors import ElephasWarning
from elephas_like.core.monitoring import Monitor
from elephas_like.exchange.address import LOOPBACK, advertised_address, bind_address
from elephas_like.exchange.page_server import PageServer
from elephas_like.exchange.tls import Files, Identity, identity
from elephas_like.model.launch import server_addresses, server_identity
from elephas_like.spark.encryption import wants_tls
from elephas_like.spark.session import conf_of
from elephas_like.trainer.bars import Bar

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PageRequest:
    """What page was asked for.

    port: None serves no page; 0 takes any free port, and a range the first free one of it.
    host, tls, allow_plain_text: as for SparkModel's parameter server.
    verbose: 0 has the URL in the log only.
    """

    port: int | str | None
    host: str | None = None
    tls: bool | Files | None = None
    allow_plain_text: bool = False
    verbose: int = 1


def page_request(monitor: object, tls: object, allow_plain_text: object, verbose: object) -> PageRequest:
    """The page of a search or an ensemble whose arguments are these, checked."""
    return PageRequest(
        checks.monitor("monitor", monitor),
        tls=None if tls is None else checks.tls("tls", tls),
        allow_plain_text=checks.flag("allow_plain_text", allow_plain_text),
        verbose=checks.verbosity(verbose),
    )


@contextmanager
def training_page(
    asked: PageRequest, monitor: Monitor, context: SparkContext | None, session: SparkSession | None = None
) -> Iterator[None]:
    """Note how what runs inside ends, and serve its page until then if that is asked for. A page that cannot be served warns.

    Args:
        session: of Spark Connect, where there is no context.
    """
    server = _started(asked, monitor, context, session)
    try:
        yield
        monitor.ended("finished")
    except KeyboardInterrupt:
        monitor.ended("interrupted")
        raise
    except BaseException as error:
        monitor.ended("failed", f"{type(error).__name__}: {error}")
        raise
    finally:
        if server is not None:
            try:
                server.stop()
            except Exception:  # what has ended well ends well
                log.warning("the training page did not end in an orderly way", exc_info=True)


def _started(
    asked: PageRequest, monitor: Monitor, context: SparkContext | None, session: SparkSession | None
) -> PageServer | None:
    """Start the server and say where it is. Return None, with a warning, where that fails: what runs is worth more."""
    if asked.port is None:
        return None
    try:
        bound, told = _addresses(asked, context)
        own = _identity(asked, context, session)
        server = PageServer(monitor, bound, asked.port, identity=own).start()
    except Exception as error:  # whatever keeps the page from being served keeps nothing else
        warnings.warn(f"there is no training page, and all else goes on: {error}", ElephasWarning, stacklevel=3)
        return None
    url = server.url(told)
    log.info("training page: %s", url)
    if asked.verbose:
        Bar.write(f"Training page: {url}")
    return server


def _addresses(asked: PageRequest, context: SparkContext | None) -> tuple[str, str]:
    """(the address to listen on, the one to come by): those of the parameter server, or this machine's own without Spark's driver."""
    if context is not None:
        return server_addresses(context, asked.host)
    bound = bind_address(asked.host or LOOPBACK, spark_bind_address=None, spark_driver_host=None, spark_local_ip=None)
    return bound, advertised_address(asked.host, bound=bound, spark_driver_host=None)


def _identity(asked: PageRequest, context: SparkContext | None, session: SparkSession | None) -> Identity | None:
    """The certificate of the page's server; None is plain text. It speaks TLS where the parameter server would."""
    if context is not None:
        return server_identity(context, asked.tls, allow_plain_text=asked.allow_plain_text)
    encrypted = bool(asked.tls)
    if session is not None:
        encrypted = wants_tls(conf_of(session), asked.tls, allow_plain_text=asked.allow_plain_text)
    return identity(asked.tls if isinstance(asked.tls, tuple) else None) if encrypted else None
