"""The algorithms of parameter averaging, by object and by name."""

from elephas_like.core.strategies.algebra import Context, OuterState, Strategy
from elephas_like.core.strategies.asynchronous import DownPour, MomentumLookAhead
from elephas_like.core.strategies.registry import STRATEGIES, resolve
from elephas_like.core.strategies.synchronous import Average, Nesterov, OneShot

__all__ = [
    "STRATEGIES",
    "Average",
    "Context",
    "DownPour",
    "MomentumLookAhead",
    "Nesterov",
    "OneShot",
    "OuterState",
    "Strategy",
    "resolve",
]
