"""Many small fits with faults that a seed decides: nothing of them is seen in what was learned."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import Script

pytestmark = [pytest.mark.slow, pytest.mark.long]
SEEDS = 20


@pytest.mark.fault(
    "The Python process of a worker is killed, its connection breaks, or it is slow: 20 seeds decide on what, where and when",
    "Spark runs the task again, which trains the same span from the same state; an update that is sent again counts once",
    "one round is repeated, with the server engine after a lease (10 s); the weights are equal to the last bit",
)
@pytest.mark.fault(
    "Files of a `ShardedDataset` have vanished where Spark runs a worker's task again",
    "the task after that writes the rows again, and trains the same span from the same state",
    "the time to write them, and a lease (10 s); the weights are equal to the last bit",
)
def test_random_faults_change_nothing(tmp_path: Path) -> None:
    learned, killed, kinds = {}, 0, set()
    with Script("run_kills.py", "0", str(SEEDS), scratch=tmp_path) as script:
        for _ in range(4):
            answer = script.answer()
            learned[answer.pop("engine"), answer.pop("given")] = answer
        assert script.answer() == {"happened": 1, **learned["server", "parallelized"]}
        for seed in range(SEEDS):
            answer = script.answer()
            assert answer["seed"] == seed
            run, happened = answer["run"], answer["happened"]
            assert len(happened) == answer["faults"] > 0, answer
            assert {attempt for *_, attempt in happened} == {0}
            killed += sum(kind == "kill" for kind, *_ in happened)
            kinds |= {(run, kind) for kind, *_ in happened}
            if run in ("server", "jobs"):
                expected = learned[run, answer["given"]]
                assert {name: answer[name] for name in expected} == expected, answer
            else:
                assert answer["samples"] == 80, answer
                assert answer["moved"] == [answer["steps"]] * 2, answer
        assert script.ended() == 0
    assert learned["server", "parallelized"] == learned["jobs", "parallelized"]
    assert learned["server", "shuffled"] == learned["jobs", "shuffled"]
    assert killed >= 6
    assert {("server", "kill"), ("server", "drop"), ("server", "delay"), ("jobs", "kill")} <= kinds
