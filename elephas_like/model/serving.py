"""The store and the server behind a fit's exchanges, wherever they run: on the driver, or in a gang's leader."""

from __future__ import annotations

from elephas_like.core.quorum import Quorum
from elephas_like.core.types import Mode, seldom_changed
from elephas_like.exchange.center_store import CenterStore
from elephas_like.exchange.membership import Waits
from elephas_like.exchange.protocol import Sizes
from elephas_like.exchange.quorum_store import QuorumStore
from elephas_like.exchange.round_store import RoundStore
from elephas_like.exchange.server import HttpExchangeServer, TcpExchangeServer
from elephas_like.model.options import Options


def store_of(options: Options, num_workers: int, layout_hash: str, sizes: Sizes) -> RoundStore | CenterStore:
    """Return the store of a fit: what its mode asks for, with its time limits."""
    waits = Waits(options.join_timeout, options.round_timeout, read_ahead=sizes.read_ahead)
    seldom = seldom_changed(options.optimizer_state, options.optimizer_state_every)
    if options.quorum is not None:
        quorum = Quorum.of(options.quorum, options.quorum_grace, num_workers)
        return QuorumStore(num_workers, layout_hash, seldom=seldom, waits=waits).begin(quorum)
    if options.mode is Mode.SYNCHRONOUS:
        return RoundStore(num_workers, layout_hash, seldom=seldom, waits=waits)
    return CenterStore(num_workers, layout_hash, seldom=seldom, waits=waits, lock_free=options.mode is Mode.HOGWILD)


def server_kind(options: Options) -> type[HttpExchangeServer] | type[TcpExchangeServer]:
    """Return the server of a fit's transport."""
    return HttpExchangeServer if options.parameter_server_mode == "http" else TcpExchangeServer
