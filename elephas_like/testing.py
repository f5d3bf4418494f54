"""Faults on purpose, for tests of your own jobs: a door. docs/fault-tolerance.md shows how ("Test your own job")."""

from elephas_like.core.fault_plan import Fault, Happened, Injection, delay, drop, fail, hang, kill
from elephas_like.model.injection import inject

__all__ = ["Fault", "Happened", "Injection", "delay", "drop", "fail", "hang", "inject", "kill"]
