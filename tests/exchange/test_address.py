from __future__ import annotations

import errno
import socket

import pytest
from port_blocks import port_of, range_of, taken_ports

from elephas_like.exchange.address import LOOPBACK, PortError, advertised_address, bind_address, is_wildcard, listen


def bind(
    host: str | None = None, bind_address_: str | None = None, driver: str | None = None, local_ip: str | None = None
) -> str:
    return bind_address(host, spark_bind_address=bind_address_, spark_driver_host=driver, spark_local_ip=local_ip)


def told(host: str | None = None, bound: str = "127.0.0.9", driver: str | None = None) -> str:
    return advertised_address(host, bound=bound, spark_driver_host=driver)


def test_it_listens_where_the_user_says_else_where_sparks_driver_does() -> None:
    assert bind("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4") == "127.0.0.1"
    assert bind(None, "127.0.0.2", "127.0.0.3", "127.0.0.4") == "127.0.0.2"
    assert bind(None, None, "127.0.0.3", "127.0.0.4") == "127.0.0.3"  # Spark too binds its host before SPARK_LOCAL_IP
    assert bind(None, None, None, "127.0.0.4") == "127.0.0.4"


def test_names_become_numbers() -> None:
    assert bind("localhost") == "127.0.0.1"
    assert bind(driver="localhost") == "127.0.0.1"
    assert bind("::1") == bind("[::1]") == "::1"
    assert told("localhost") == "127.0.0.1"


@pytest.mark.parametrize("wildcard", ["0.0.0.0", "::", "[::]", "0"])
def test_a_wildcard_is_listened_on_where_asked_for_and_never_told(wildcard: str) -> None:
    assert is_wildcard(wildcard)
    for listening in (bind(wildcard), bind(None, wildcard, "127.0.0.3"), bind(local_ip=wildcard)):
        assert is_wildcard(listening)
        assert told(None, listening, "127.0.0.3") == "127.0.0.3"
    assert told(wildcard, bind(wildcard), "driver.example") == "driver.example"
    assert told(wildcard, bind(wildcard), wildcard) == LOOPBACK
    assert told(None, "127.0.0.9", wildcard) == "127.0.0.9"
    assert not is_wildcard(bind(driver=wildcard))  # nobody asked to listen on it


def test_behind_nat_workers_are_told_the_outside() -> None:
    outside = "driver.outside.invalid"
    assert bind(None, "127.0.0.2", outside) == "127.0.0.2"
    assert told(None, "127.0.0.2", outside) == outside
    assert told(None, "127.0.0.2", "[fd00::7]") == "fd00::7"  # as sockets want it


def test_the_users_host_is_told_before_sparks() -> None:
    assert told("127.0.0.1", "127.0.0.1", "127.0.0.3") == "127.0.0.1"


def test_without_anything_it_is_this_machine() -> None:
    listening = bind()
    with socket.create_server((listening, 0)) as listener:
        assert listener.getsockname()[1] > 0
    assert told(None, listening) == listening


def test_a_driver_host_of_the_outside_is_not_bound() -> None:
    assert bind(driver="driver.outside.invalid", local_ip="127.0.0.4") == "127.0.0.4"


@pytest.mark.parametrize(
    ("options", "source"),
    [
        ({"host": "no such host"}, "host"),
        ({"host": "x" * 80}, "host"),
        ({"bind_address_": "no.such.host.invalid"}, "spark.driver.bindAddress"),
        ({"local_ip": "no such host"}, "SPARK_LOCAL_IP"),
    ],
)
def test_a_name_that_does_not_resolve_is_said_with_where_it_stands(options: dict[str, str], source: str) -> None:
    with pytest.raises(
        ValueError, match=rf"^{source} must be an address of the driver.*got '{next(iter(options.values()))}'"
    ):
        bind(**options)


def test_the_first_free_port_of_a_range_is_taken() -> None:
    with taken_ports(4) as block:
        given, freed = range_of(block), [port_of(block[1]), port_of(block[3])]
        block[1].close()
        block[3].close()
        with listen(LOOPBACK, given) as first, listen(LOOPBACK, given) as second:  # the last one belongs to the range
            assert [port_of(first), port_of(second)] == freed


def test_a_range_without_a_free_port_is_named_with_what_to_do() -> None:
    with taken_ports(3) as block:
        given = range_of(block)
        said = rf"cannot listen on 127.0.0.1:{given} .*; all 3 ports of the range are taken.* longer range.* port=0"
        with pytest.raises(PortError, match=said) as caught:
            listen(LOOPBACK, given)
        assert caught.value.errno == errno.EADDRINUSE


def test_an_address_of_another_machine_is_said_at_the_first_port_of_a_range() -> None:
    with pytest.raises(PortError, match=r"192.0.2.1:40000:40100 .* give host=<an address of this machine"):
        listen("192.0.2.1", "40000:40100")
