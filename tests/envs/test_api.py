"""Budgets refuse what cannot be meant."""

import math

import pytest

from agentjax.envs.api import Budget


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_turns", 0),
        ("max_turns", True),
        ("turn_tokens", 1.5),
        ("total_tokens", -1),
        ("obs_tokens", "16"),
        ("step_s", 0),
        ("episode_s", math.inf),
        ("score_s", math.nan),
    ],
)
def test_a_budget_names_the_field_it_refuses(field, value):
    with pytest.raises(ValueError, match=f"budget.{field} .*got {value!r}"):
        Budget(**{field: value})


def test_a_turn_fits_into_its_trajectory():
    with pytest.raises(ValueError, match=r"budget.turn_tokens \(9\).*budget.total_tokens \(8\)"):
        Budget(turn_tokens=9, total_tokens=8)
