"""Elastic averaging: workers keep weights of their own, and an elastic force pulls them and the center together.

At an exchange a worker with weights y and the center x both move: e = alpha (y - x);  y <- y - e;  x <- x + e. x is the
center as the worker was last served it, so that push and pull are one request. In rounds that is the current center;
asynchronously it is as old as the worker's window.

Zhang, Choromanska and LeCun, "Deep learning with Elastic Averaging SGD", NIPS 2015, arXiv:1412.6651. alpha is beta / K,
so that the center stays stable for any number of workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from elephas_like.core.strategies.algebra import Context, Memory, Reduce, Strategy, Total
from elephas_like.core.types import Mode, Update, Vector


@dataclass(frozen=True)
class EASGD(Strategy):
    """Elastic averaging in rounds: x <- x + alpha sum_i (y_i - x);  y_i <- y_i - alpha (y_i - x);  alpha = beta / K.

    Zhang, Choromanska and LeCun, NIPS 2015, arXiv:1412.6651. The trained model is the center, which lags behind the
    workers.

    beta: above 0 and at most 1; default 0.9.
    """

    name: ClassVar[str] = "easgd"
    remembers: ClassVar[bool] = True
    reduces: ClassVar[Reduce] = Total()
    beta: float = 0.9

    def __post_init__(self) -> None:
        """Check `beta`."""
        super().__post_init__()
        if not 0 < self.beta <= 1:
            raise ValueError(f"beta must be above 0 and at most 1; got {self.beta!r}.")

    def merge(self, served: Vector, memory: Memory, context: Context) -> Vector:
        """Return the worker's own weights; the center in the first round."""
        return memory.get("own", served)

    def encode(
        self, served: Vector, end: Vector, steps: int, memory: Memory, context: Context
    ) -> tuple[Vector, Memory]:
        """Return e = alpha (y - x) for the center, and keep y - e to continue from."""
        pull: Vector = (self.beta / context.num_workers) * (end - served)
        return pull, {"own": end - pull}

    def weight(self, update: Update, context: Context) -> float:
        """Return 1: the force is the same for every worker."""
        return 1.0


@dataclass(frozen=True)
class AEASGD(EASGD):
    """Elastic averaging, asynchronous: e = alpha (y - x);  y <- y - e;  x <- x + e;  alpha = beta / K.

    Zhang, Choromanska and LeCun, NIPS 2015, arXiv:1412.6651, asynchronous EASGD.

    beta: default 0.9.
    """

    name: ClassVar[str] = "aeasgd"
    modes: ClassVar[frozenset[Mode]] = frozenset({Mode.ASYNCHRONOUS})


@dataclass(frozen=True)
class EAMSGD(AEASGD):
    """`aeasgd` whose workers train with Nesterov momentum: v <- delta v - lr grad(y + delta v);  y <- y + v.

    The momentum is the worker's optimizer: compile with `keras.optimizers.SGD(learning_rate, momentum=0.99,
    nesterov=True)` and give `optimizer_state="per_worker"`. Zhang, Choromanska and LeCun, NIPS 2015, arXiv:1412.6651.
    """

    name: ClassVar[str] = "eamsgd"
