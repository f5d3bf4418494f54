"""Averaging strategies and codecs, as objects and by name. docs/strategies.md compares them.

algebra         Strategy, Reduce and Context; the weighted mean
synchronous     strategies for rounds
asynchronous    strategies for one update at a time
elastic         strategies whose workers keep their own weights
robust          reductions other than the mean: medians, trimmed means, clipping
codecs          compression of updates
registry        names, and the valid combinations of mode, strategy, frequency and engine
config          strategies, codecs and schedules as plain data
"""

from elephas_like.core.strategies.algebra import Context, Mean, Memory, OuterState, Reduce, Strategy, Total
from elephas_like.core.strategies.asynchronous import (
    ADAG,
    DelayedNesterov,
    DownPour,
    DownPourAdagrad,
    DynSGD,
    FedAsync,
    FedBuff,
    HeLoCo,
    MomentumLookAhead,
    StalenessAware,
)
from elephas_like.core.strategies.codecs import CODECS, Codec, Float16, Float32, Int4, Int8, OneBit, TopK
from elephas_like.core.strategies.elastic import AEASGD, EAMSGD, EASGD
from elephas_like.core.strategies.registry import STRATEGIES, resolve
from elephas_like.core.strategies.robust import (
    RDA,
    Clipped,
    Median,
    MedianAverage,
    Radial,
    TrimmedAverage,
    TrimmedMean,
)
from elephas_like.core.strategies.synchronous import (
    BMUF,
    Average,
    DiLoCo,
    FedAdagrad,
    FedAdam,
    FedAvgM,
    FedYogi,
    Nesterov,
    NesterovBMUF,
    OneShot,
    SlowMo,
)

__all__ = [
    "ADAG",
    "AEASGD",
    "BMUF",
    "CODECS",
    "EAMSGD",
    "EASGD",
    "RDA",
    "STRATEGIES",
    "Average",
    "Clipped",
    "Codec",
    "Context",
    "DelayedNesterov",
    "DiLoCo",
    "DownPour",
    "DownPourAdagrad",
    "DynSGD",
    "FedAdagrad",
    "FedAdam",
    "FedAsync",
    "FedAvgM",
    "FedBuff",
    "FedYogi",
    "Float16",
    "Float32",
    "HeLoCo",
    "Int4",
    "Int8",
    "Mean",
    "Median",
    "MedianAverage",
    "Memory",
    "MomentumLookAhead",
    "Nesterov",
    "NesterovBMUF",
    "OneBit",
    "OneShot",
    "OuterState",
    "Radial",
    "Reduce",
    "SlowMo",
    "StalenessAware",
    "Strategy",
    "TopK",
    "Total",
    "TrimmedAverage",
    "TrimmedMean",
    "resolve",
]
