"""Where the parameter server listens, and what workers are told: two addresses, as Spark has them for its driver.

On one machine they are the same. Behind NAT, or in a container, the server listens on an address of the inside and
workers come by one of the outside: `spark.driver.bindAddress` and `spark.driver.host`. Precedence is Spark's own, whose
bind address falls back to `spark.driver.host`, and whose SPARK_LOCAL_IP is what a driver's host is made of by default.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import Literal

from elephas_like.core.checks import ports
from elephas_like.core.errors import ElephasError

LOOPBACK = "127.0.0.1"


class PortError(ElephasError, OSError):
    """The server could not listen where it was told to."""


def bind_address(
    host: str | None, *, spark_bind_address: str | None, spark_driver_host: str | None, spark_local_ip: str | None
) -> str:
    """The address to listen on, as a number: `host`, or where Spark's driver itself listens.

    A wildcard is taken where somebody asked to listen on it: not from `spark.driver.host`, which is for others to use.

    Args:
        host: what the user gave; wins over everything.
        spark_bind_address: `spark.driver.bindAddress`, if it is set.
        spark_driver_host: `spark.driver.host`, which Spark always sets.
        spark_local_ip: the environment's SPARK_LOCAL_IP.

    Raises:
        ValueError: `host`, `spark.driver.bindAddress` or SPARK_LOCAL_IP is a name that does not resolve here.
    """
    if host:
        return _number_of(host, "host")
    if spark_bind_address:
        return _number_of(spark_bind_address, "spark.driver.bindAddress")
    if spark_driver_host and not is_wildcard(spark_driver_host):
        try:
            return _resolve(spark_driver_host)
        except OSError:  # a name for the outside; what the inside is called follows
            pass
    if spark_local_ip:
        return _number_of(spark_local_ip, "SPARK_LOCAL_IP")
    try:
        return _resolve(socket.gethostname())
    except OSError:  # a machine that does not know its own name is ordinary
        return LOOPBACK


def advertised_address(host: str | None, *, bound: str, spark_driver_host: str | None) -> str:
    """The address that workers are told; never a wildcard, which would send each of them to its own machine.

    `host` becomes a number here, so that executors need no name service to find the driver. `spark.driver.host` is
    handed on as it is, a name too: it is what these executors have found the driver by, and outside it may stand for
    another address than in here.

    Args:
        host: what the user gave; a wildcard is for listening only, and Spark's address is told.
        bound: what `bind_address` said.
    """
    if host and not is_wildcard(host):
        return _number_of(host, "host")
    if spark_driver_host and not is_wildcard(spark_driver_host):
        return _bare(spark_driver_host)
    # Executors of a driver without an address of its own can only be on its machine.
    return LOOPBACK if is_wildcard(bound) else bound


def is_wildcard(address: str) -> bool:
    """Whether an address means "all of this machine's": 0.0.0.0 and ::, in whatever spelling."""
    try:
        return ipaddress.ip_address(_resolve(address)).is_unspecified
    except (OSError, ValueError):  # a name that is not known here is none
        return False


def listen(host: str, port: int | str) -> socket.socket:
    """Return a socket that listens on a port, or on the first free one of a range such as "40000:40100".

    Raises:
        PortError: the port, or each one of the range, is taken; or the host is none of this machine.
    """
    family: Literal[socket.AddressFamily.AF_INET6, socket.AddressFamily.AF_INET]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = host == "::" and socket.has_dualstack_ipv6()  # all addresses are all, also those of IPv4
    for each in ports(port):
        try:
            return socket.create_server((host, each), family=family, backlog=128, dualstack_ipv6=both)
        except OSError as error:
            refused = error
            if error.errno != errno.EADDRINUSE:
                break
    raise _port_error(host, port, refused) from refused


def _port_error(host: str, port: int | str, error: OSError) -> PortError:
    tried = len(ports(port))
    if error.errno != errno.EADDRINUSE:
        advice = (
            "give host=<an address of this machine that executors can reach>, or the environment SPARK_LOCAL_IP; in a container or behind NAT, "
            "spark.driver.bindAddress=<an address in here> and spark.driver.host=<the one that executors use>"
        )
    elif tried == 1:
        advice = f"port {port} is taken by another program: give port=0, which takes a free one"
    else:
        advice = (
            f"all {tried} ports of the range are taken, each by one fit or another program: give a longer range, which "
            "firewalls must let through, or port=0, which takes any free port"
        )
    return PortError(error.errno, f"the parameter server cannot listen on {host}:{port} ({error}); {advice}")


def _bare(name: str) -> str:
    """The name without the brackets that Spark puts around numbers of IPv6."""
    return name.strip().removeprefix("[").removesuffix("]")


def _resolve(name: str) -> str:
    """The number of a name, of IPv4 where it has one."""
    bare = _bare(name)
    if not bare:
        raise OSError("an empty name")
    try:
        found = socket.getaddrinfo(bare, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a label of more than 63 letters
        raise OSError(str(error)) from error
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return str(found[0][4][0])


def _number_of(name: str, source: str) -> str:
    try:
        return _resolve(name)
    except OSError as error:
        raise ValueError(
            f"{source} must be an address of the driver, or a name that resolves there; got {name!r} ({error}). "
            "Give the driver's IP address as executors see it."
        ) from error
