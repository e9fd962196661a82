"""The phase clock: every second of a lap belongs to one phase."""

import pytest

from agentjax.monitor import PhaseClock
from tests.monitor.made import Clock


def test_what_no_phase_claims_is_idle():
    now = Clock()
    clock = PhaseClock(now)
    with clock.phase("train"):
        now.tick(3)
    now.tick(2)
    clock.add({"decode": 0.5, "prefill": 0.25})
    assert clock.lap() == {
        "time/train_s": 3,
        "time/decode_s": 0.5,
        "time/prefill_s": 0.25,
        "time/idle_s": 1.25,
        "time/step_s": 5,
    }


def test_a_phase_within_a_phase_is_counted_once():
    now = Clock()
    clock = PhaseClock(now)
    with clock.phase("train"):
        now.tick(1)
        with clock.phase("save"):
            now.tick(10)
        now.tick(1)
    assert clock.lap() == {"time/train_s": 2, "time/save_s": 10, "time/idle_s": 0, "time/step_s": 12}


def test_a_phase_that_outlives_a_lap_is_split_between_both():
    now = Clock()
    clock = PhaseClock(now)
    with clock.phase("train"):
        now.tick(1)
        first = clock.lap()
        now.tick(4)
    assert (first["time/train_s"], clock.lap()["time/train_s"]) == (1, 4)


def test_a_phase_ends_with_an_exception_too():
    now = Clock()
    clock = PhaseClock(now)
    with pytest.raises(KeyError), clock.phase("train"):
        now.tick(1)
        raise KeyError
    now.tick(5)
    assert clock.lap() == {"time/train_s": 1, "time/idle_s": 5, "time/step_s": 6}
