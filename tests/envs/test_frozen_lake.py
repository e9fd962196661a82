"""frozen_lake: maps that can be solved, slips by the 1/3 law, players, moves as text."""

import asyncio
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentjax.envs.api import Budget, Message, Task
from agentjax.envs.contract import EnvContract
from agentjax.envs.frozen_lake import (
    MOVES,
    TOKENIZER_PATTERN,
    FrozenLake,
    FrozenLakeArgs,
    Lake,
    draw_lake,
    rules,
    slip,
)
from agentjax.envs.play import action_of, play
from agentjax.envs.registry import make_env
from agentjax.envs.tasks import first_tasks

LAKE = Lake(("___O", "_O__", "___O", "O__G"))
ARGS = st.builds(FrozenLakeArgs, size=st.integers(2, 6), hole_fraction=st.floats(0, 0.5))


class TestFrozenLake(EnvContract):
    def factory(self):
        return make_env("frozen_lake", args={"moves_per_turn": 2})


class TestSlipperyLake(EnvContract):
    def factory(self):
        return make_env("frozen_lake", args={"slippery": True})


def walk(*texts, start=(0, 0), rows=LAKE.rows, budget=None, **args):
    """The steps that answer the texts."""

    async def run():
        env = FrozenLake(**args)
        await env.reset(Task("t", "t", 5, {"rows": list(rows), "start": list(start)}, budget or Budget()))
        return [await env.step(action_of(Message("assistant", text))) for text in texts]

    return asyncio.run(run())


def relaxed(lake):
    """Distances to the goal by Bellman-Ford, written as a loop."""
    size = len(lake.rows)
    cells = [(r, c) for r in range(size) for c in range(size) if lake.rows[r][c] != "O"]
    distance = {cell: 0 if lake.at(cell) == "G" else float("inf") for cell in cells}
    for _ in cells:
        for r, c in cells:
            near = [distance.get(cell, float("inf")) for cell in ((r + 1, c), (r - 1, c), (r, c + 1), (r, c - 1))]
            distance[r, c] = min(distance[r, c], 1 + min(near))
    return {cell: steps for cell, steps in distance.items() if steps < float("inf")}


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), args=ARGS)
def test_random_lakes_can_be_solved_and_read_back(seed, args):
    lake, start = draw_lake(np.random.default_rng(seed), args)
    assert lake.distances() == relaxed(lake)
    assert lake.distances()[start] > 0
    assert "".join(lake.rows).count("G") == 1
    assert Lake.read(lake.render(start)) == (lake, start)


def test_the_grid_is_drawn():
    assert LAKE.render((0, 1)) == "_ P _ O\n_ O _ _\n_ _ _ O\nO _ _ G"
    assert LAKE.render((0, 3)).startswith("_ _ _ X\n")
    assert LAKE.render((3, 3)).endswith("O _ _ V")


@pytest.mark.parametrize("name", MOVES)
def test_slips_follow_the_one_third_law(name):
    sides = {"Left": "Up Down", "Right": "Up Down", "Up": "Left Right", "Down": "Left Right"}[name].split()
    rng = np.random.default_rng(0)
    counts = Counter(slip(name, rng) for _ in range(3000))
    assert set(counts) == {name, *sides}
    chi_square = sum((count - 1000) ** 2 / 1000 for count in counts.values())
    assert chi_square < 13.8, f"two degrees of freedom, p < 0.001: {counts}"


def test_moves_on_slippery_ice_land_beside_the_player_in_equal_shares():
    rows, ends = ("_____",) * 4 + ("____G",), Counter()
    for seed in range(600):
        env = FrozenLake(slippery=True, size=5)

        async def step(env=env, seed=seed):
            await env.reset(Task("t", "t", seed, {"rows": list(rows), "start": [2, 2]}))
            return await env.step(action_of(Message("assistant", "Right")))

        ends[Lake.read(str(asyncio.run(step()).messages[0].content))[1]] += 1
    assert set(ends) == {(2, 3), (1, 2), (3, 2)}
    assert all(abs(count - 200) < 50 for count in ends.values()), ends


def test_the_shore_stops_a_move():
    assert LAKE.move((0, 0), "Up") == LAKE.move((0, 0), "Left") == (0, 0)
    assert LAKE.move((3, 3), "Down") == LAKE.move((3, 3), "Right") == (3, 3)


def test_a_walk_to_the_goal():
    steps = walk("Right Right", "Down Down", "Down Right", moves_per_turn=2)
    assert [step.reward for step in steps] == [None, None, 1.0]
    assert [step.terminated for step in steps] == [False, False, True]
    assert steps[0].messages[0].content == "_ _ P O\n_ O _ _\n_ _ _ O\nO _ _ G"
    assert (steps[-1].parts, steps[-1].metrics) == ({"goal": 1.0}, {"moves": 2.0, "bad_actions": 0.0})


def test_a_hole_ends_the_walk_and_the_rest_of_the_moves():
    (step,) = walk("Down Right Right Right", start=(0, 0), moves_per_turn=4)
    assert (step.reward, step.terminated, step.metrics["moves"]) == (0.0, True, 2.0)


def test_running_out_of_turns_earns_nothing():
    steps = walk("Up", "Up", budget=Budget(max_turns=2))
    assert [(step.reward, step.terminated, step.truncated) for step in steps] == [
        (None, False, False),
        (0.0, False, True),
    ]


@pytest.mark.parametrize("text", ["", "right", "Right Right", "Right!", "Go Right", "\udcff", "Right,"])
def test_anything_but_moves_costs_a_turn_and_is_told_what_is_valid(text):
    (step,) = walk(text)
    assert step.messages[0].content == "Say one of: Left Down Right Up\n" + LAKE.render((0, 0))
    assert (step.reward, step.metrics) == (None, {"moves": 0.0, "bad_actions": 1.0})


def success(name, **args):
    factory = make_env("frozen_lake", args=args)

    async def run():
        tasks = first_tasks(factory.source, "eval", 80, seed=0)
        episodes = [play(factory(), task, factory.player(name, seed=task.seed)) for task in tasks]
        return np.mean([(await episode).reward for episode in episodes])

    return asyncio.run(run())


@pytest.mark.parametrize("moves_per_turn", [1, 3])
def test_the_solver_always_arrives_and_the_guesser_seldom(moves_per_turn):
    assert success("solver", moves_per_turn=moves_per_turn) == 1.0
    assert success("guesser", moves_per_turn=moves_per_turn) < 0.5


def test_on_slippery_ice_the_solver_still_does_better():
    assert success("solver", slippery=True) > 1.3 * success("guesser", slippery=True)


def test_the_tokenizer_pattern_makes_a_token_of_each_cell_and_move():
    assert re.findall(TOKENIZER_PATTERN, "P _\nO G") == ["P", " _", "\nO", " G"]
    assert re.findall(TOKENIZER_PATTERN, "Right Down") == ["Right", " Down"]
    words = re.sub(TOKENIZER_PATTERN, "", rules(FrozenLakeArgs()))
    assert "Walk from" in words and "into a hole" in words
