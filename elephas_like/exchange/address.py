"""Which address of the driver the parameter server listens on."""

from __future__ import annotations

import os
import socket

LOOPBACK = "127.0.0.1"


def bind_address(host: str | None, spark_driver_host: str | None) -> str:
    """The address to listen on and to hand to the workers; asked for on the driver, never on a worker.

    Names become numbers here, so that executors need no name service to find the driver.

    Args:
        host: what the user gave; wins over everything.
        spark_driver_host: Spark's `spark.driver.host`, after the environment's SPARK_LOCAL_IP.

    Raises:
        ValueError: `host` or SPARK_LOCAL_IP is a name that does not resolve on this machine.
    """
    if host:
        return _number_of(host, "host")
    if local := os.environ.get("SPARK_LOCAL_IP"):
        return _number_of(local, "SPARK_LOCAL_IP")
    for name in (spark_driver_host, socket.gethostname()):
        try:
            if name:
                return _resolve(name)
        except OSError:  # a machine that does not know its own name is ordinary; the next candidate follows
            continue
    return LOOPBACK


def _resolve(name: str) -> str:
    return name if ":" in name else socket.gethostbyname(name)


def _number_of(name: str, source: str) -> str:
    try:
        return _resolve(name)
    except OSError as error:
        raise ValueError(
            f"{source} must be an address of the driver, or a name that resolves there; got {name!r} ({error}). "
            "Give the driver's IP address as executors see it."
        ) from error
