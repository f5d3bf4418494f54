"""Milliseconds of one exchange with the parameter server over loopback, in plain text and over TLS.

    python benchmarks/exchange.py [--megabytes 50] [--rounds 40]

One worker in a process of its own trains nothing: it takes a state and sends an update of the same size. The four servers (two
transports, with TLS and without) take turns, a round each, and stay connected.
"""

from __future__ import annotations

import argparse
import multiprocessing
import platform
import ssl
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from elephas_like.core.layout import Layout, LayoutEntry
from elephas_like.core.types import Joined, Order, Role, Span, TrainState, Update
from elephas_like.exchange.client import ClientSettings
from elephas_like.exchange.protocol import Sizes
from elephas_like.exchange.round_store import RoundStore
from elephas_like.exchange.server import HttpExchangeServer, TcpExchangeServer
from elephas_like.exchange.tls import identity

SERVERS = {"http": HttpExchangeServer, "socket": TcpExchangeServer}
NONE, WHOLE = np.zeros(0, np.float32), np.zeros(0, np.int64)


def layout_of(megabytes: int) -> Layout:
    return Layout((LayoutEntry("kernel", Role.WEIGHT, (megabytes * 250_000,), "float32"),))


def work(settings: ClientSettings, layout_hash: str, numbers: int) -> None:
    """A worker that answers each order with the same update."""
    client = settings.connect(0, 1)
    delta = np.random.default_rng(0).normal(size=numbers).astype(np.float32)
    order = client.join(Joined(0, 1, "here", 4, 0, layout_hash, 0))
    while order.kind != "stop":
        order = client.answer(
            Update(
                worker=0,
                number=order.number,
                version=order.version,
                samples=1,
                steps=1,
                delta=delta,
                statistics=NONE,
                slots=NONE,
                counters=WHOLE,
                loss_scale=NONE,
                seeds=WHOLE,
                metrics=np.zeros(2),
                seconds=0.0,
            )
        )
    client.close()


@dataclass
class Contestant:
    """A server with its worker, and the milliseconds of its rounds."""

    name: str
    store: RoundStore
    times: list[float]

    def exchange(self, number: int, state: TrainState) -> None:
        """One round: the state goes down, the update comes up."""
        started = time.perf_counter()
        (update,) = self.store.train(Order("train", number, number, Span(0), state))
        self.times.append(1000 * (time.perf_counter() - started))
        assert update.delta.size == state.weights.size


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    layout = layout_of(options.megabytes)
    state = TrainState(np.zeros(layout.size(Role.WEIGHT), np.float32), NONE, NONE, WHOLE, NONE, NONE, WHOLE, NONE)
    sizes, processes, contestants = Sizes.of(layout), multiprocessing.get_context("spawn"), []
    with ExitStack() as stack:
        for kind, server_kind in SERVERS.items():
            for own in (None, identity()):
                store = RoundStore(1, layout.hash)
                server = stack.enter_context(server_kind(store, "token", sizes, "127.0.0.1", identity=own))
                fingerprint = None if own is None else own.fingerprint
                settings = ClientSettings(kind, *server.address, "token", sizes, fingerprint=fingerprint)  # type: ignore[arg-type]
                process = processes.Process(target=work, args=(settings, layout.hash, state.weights.size))
                process.start()
                stack.callback(process.join)
                stack.callback(store.stop)
                contestants.append(Contestant(f"{kind}, {'plain text' if own is None else 'TLS'}", store, []))
        for contestant in contestants:
            contestant.store.joined()
        for number in range(options.rounds + 2):
            for contestant in contestants:
                contestant.exchange(number, state)
    print(
        f"{options.megabytes} MB down and up; Python {platform.python_version()}, {ssl.OPENSSL_VERSION}",
        file=sys.stderr,
    )
    print("| server | median ms | fastest | slowest |\n|---|---|---|---|")
    for contestant in contestants:
        times = contestant.times[2:]  # the first ones connect, and fault memory in
        print(f"| {contestant.name} | {statistics.median(times):.0f} | {min(times):.0f} | {max(times):.0f} |")


if __name__ == "__main__":
    main()
