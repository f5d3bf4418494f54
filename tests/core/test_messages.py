"""What a worker goes on from and what it sends, round after round."""

from __future__ import annotations

import numpy as np
from plain_numpy import floats

from elephas_like.core.messages import Sender
from elephas_like.core.strategies import EASGD, Average, Context, Float16, OneBit, TopK

CONTEXT = Context(0, 2)


def test_without_memory_a_worker_goes_on_from_what_it_is_served() -> None:
    sender = Sender(Average())
    assert sender.start(floats(1, 2), CONTEXT).tolist() == [1, 2]
    assert sender.message(floats(1, 2), floats(3, 1), 5, CONTEXT).tolist() == [2, -1]
    assert sender.start(floats(5, 5), CONTEXT).tolist() == [5, 5]
    assert sender.memory == {}


def test_an_elastic_worker_goes_on_from_its_own() -> None:
    # alpha = 0.5/2: end (5, 2) from (1, 2): e = (1, 0), own (4, 2)
    sender = Sender(EASGD(beta=0.5))
    assert sender.start(floats(1, 2), CONTEXT).tolist() == [1, 2]
    assert sender.message(floats(1, 2), floats(5, 2), 5, CONTEXT).tolist() == [1, 0]
    assert sender.start(floats(9, 9), CONTEXT).tolist() == [4, 2]


def test_nan_is_sent_but_not_remembered() -> None:
    sender = Sender(EASGD(beta=0.5), TopK(0.5))
    sender.message(floats(1, 2), floats(5, 3), 5, CONTEXT)
    memory, residual = dict(sender.memory), sender.residual.tolist()
    broken = sender.message(floats(1, 2), floats(np.nan, 3), 5, CONTEXT)
    assert not np.isfinite(TopK(0.5).unpack(broken, 2)).all()
    assert {name: array.tolist() for name, array in sender.memory.items()} == {
        name: array.tolist() for name, array in memory.items()
    }
    assert sender.residual.tolist() == residual


def test_what_a_message_lost_is_in_the_next_one() -> None:
    # top 1 of 2: of (4, 3) goes (4, 0), left (0, 3); of (1, 2) + (0, 3) goes (0, 5), left (1, 0)
    sender, codec = Sender(Average(), TopK(0.5)), TopK(0.5)
    sent = [
        codec.unpack(sender.message(floats(0, 0), floats(*end), 1, CONTEXT), 2).tolist() for end in [(4, 3), (1, 2)]
    ]
    assert sent == [[4, 0], [0, 5]]
    assert sender.residual.tolist() == [1, 0]


def test_weights_of_float64_keep_their_bits() -> None:
    sender, third = Sender(EASGD(beta=0.5)), np.array([1 / 3, 2.0])
    assert sender.start(third, CONTEXT).tolist() == third.tolist()
    assert sender.message(np.zeros(2), third, 5, CONTEXT).tolist() == (third / 4).tolist()  # alpha = 0.25


def test_nothing() -> None:
    served = np.ones(3)
    assert Sender(Average()).nothing(served).tolist() == [0, 0, 0]
    assert Sender(Average()).nothing(served).dtype == served.dtype
    assert Sender(Average(), Float16()).nothing(served).tolist() == []
    assert Sender(Average(), OneBit()).nothing(served).dtype == np.uint8
