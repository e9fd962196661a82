"""Frozen lake: a text grid in, moves out; reward 1 for reaching the goal (after RAGEN's environment of that name).

The prompt is a system message with the rules and a user message with the grid, and so is every observation:

    P _ _ O
    _ O _ _
    _ _ _ O
    O _ _ G

P is the player, _ ice, O a hole, G the goal, X the player in a hole, V the player on the goal. An answer is moves,
as `Right` or, where several a turn are allowed, `Right Down`. On slippery ice a move goes where it should one time in
three, and else to either side. Any other answer costs a turn and is told what is valid. The map, start and goal are
random, and the goal can always be reached.
"""

import dataclasses
import functools
import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentjax.envs.api import Action, EnvSpec, Message, Reset, Step, Task, TaskSource
from agentjax.envs.episode import Episode
from agentjax.envs.tasks import DrawnTasks

ICE, HOLE, GOAL, PLAYER, DROWNED, ARRIVED = "_OGPXV"
# In this order the two sides of a move are its neighbours, the last one being next to the first.
MOVES = {"Left": (0, -1), "Down": (1, 0), "Right": (0, 1), "Up": (-1, 0)}
# A tokenizer trained with this pattern makes one token of each cell, its separator included, and one of each move.
TOKENIZER_PATTERN = r"\s?\b(?:[_OGPXV]|Left|Down|Right|Up)\b"

Cell = tuple[int, int]  # row, column


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrozenLakeArgs:
    """Arguments of `FrozenLake`."""

    size: int = 4  # cells along each side
    slippery: bool = False  # whether a move slides to either side two times in three
    moves_per_turn: int = 1  # moves an answer may hold
    hole_fraction: float = 0.2  # chance of a hole in each cell other than start and goal

    def __post_init__(self):
        if not 2 <= self.size <= 16:
            raise ValueError(f"env.args.size must be within [2, 16], got {self.size}.")
        if self.moves_per_turn < 1:
            raise ValueError(f"env.args.moves_per_turn must be >= 1, got {self.moves_per_turn}.")
        if not 0.0 <= self.hole_fraction <= 0.5:
            raise ValueError(f"env.args.hole_fraction must be within [0, 0.5], got {self.hole_fraction}.")


@dataclasses.dataclass(frozen=True)
class Lake:
    """A map: its rows of ice, holes and the goal.

    Attributes:
        rows: One text a row, one symbol a cell.
    """

    rows: tuple[str, ...]

    def at(self, cell: Cell) -> str:
        """The symbol of a cell."""
        return self.rows[cell[0]][cell[1]]

    def move(self, cell: Cell, name: str) -> Cell:
        """Where a move leads; the shore stops it."""
        (row, column), (down, right), last = cell, MOVES[name], len(self.rows) - 1
        return min(max(row + down, 0), last), min(max(column + right, 0), last)

    def distances(self) -> dict[Cell, int]:
        """Moves from each cell to the goal around the holes, for those from which it can be reached."""
        size = range(len(self.rows))
        goal = next((row, column) for row in size for column in size if self.rows[row][column] == GOAL)
        found, queue = {goal: 0}, deque([goal])
        while queue:
            cell = queue.popleft()
            for neighbour in (self.move(cell, name) for name in MOVES):
                if neighbour not in found and self.at(neighbour) != HOLE:
                    found[neighbour] = found[cell] + 1
                    queue.append(neighbour)
        return found

    def render(self, player: Cell) -> str:
        """The grid as the policy sees it."""
        cells = [list(row) for row in self.rows]
        cells[player[0]][player[1]] = {HOLE: DROWNED, GOAL: ARRIVED}.get(self.at(player), PLAYER)
        return "\n".join(" ".join(row) for row in cells)

    @classmethod
    def read(cls, text: str) -> tuple["Lake", Cell]:
        """Reads what `render` wrote, while the player still walks: the lake and the player's cell."""
        rows = [line.split(" ") for line in text.splitlines()]
        player = next((row, line.index(PLAYER)) for row, line in enumerate(rows) if PLAYER in line)
        rows[player[0]][player[1]] = ICE
        return cls(tuple("".join(row) for row in rows)), player


def slip(name: str, rng: np.random.Generator) -> str:
    """The direction a move takes on slippery ice: itself or one of its two sides, each with chance 1/3."""
    names = list(MOVES)
    return names[(names.index(name) + int(rng.integers(-1, 2))) % len(names)]


def draw_lake(rng: np.random.Generator, args: FrozenLakeArgs) -> tuple[Lake, Cell]:
    """A random lake and start, the goal within reach but not at the start."""
    while True:
        cells = np.where(rng.random((args.size, args.size)) < args.hole_fraction, HOLE, ICE)
        start, goal = (divmod(int(index), args.size) for index in rng.choice(args.size**2, size=2, replace=False))
        cells[start], cells[goal] = ICE, GOAL
        lake = Lake(tuple("".join(row) for row in cells))
        if start in lake.distances():
            return lake, start


def rules(args: FrozenLakeArgs) -> str:
    """The system message."""
    slippery = " The ice is slippery: two moves of three slide to a side." if args.slippery else ""
    return f"Walk from {PLAYER} to {GOAL} over ice {ICE}, not into a hole {HOLE}.{slippery} {_valid(args)}"


def _valid(args: FrozenLakeArgs) -> str:
    count = "one" if args.moves_per_turn == 1 else f"1 to {args.moves_per_turn}"
    return f"Say {count} of: {' '.join(MOVES)}"


class FrozenLake(Episode):
    """A walk over the ice; see the module."""

    spec = EnvSpec("frozen_lake", "1", "step", sync=False, concurrency=0, seeds="exact")
    Args = FrozenLakeArgs
    args: FrozenLakeArgs

    @classmethod
    def source(cls, args: FrozenLakeArgs) -> TaskSource:
        """Endless lakes; a task's data holds "rows" and "start"."""

        def draw(rng: np.random.Generator) -> Mapping[str, Any]:
            lake, start = draw_lake(rng, args)
            return {"rows": list(lake.rows), "start": list(start)}

        return DrawnTasks("frozen_lake", draw)

    async def begin(self, task: Task) -> Reset:
        """Shows the rules and the grid."""
        self._lake = Lake(tuple(task.data["rows"]))
        self._player: Cell = tuple(task.data["start"])
        self._rng = np.random.default_rng(task.seed)
        return Reset((Message("system", rules(self.args)), self._grid()), seed_honored=True)

    async def answer(self, action: Action) -> Step:
        """Makes the moves.

        Parts: `goal`, 1 on arrival. Metrics: `moves` made in the turn, and `bad_actions`, 1 if the answer was invalid.
        """
        names = action.text.split()
        if not 1 <= len(names) <= self.args.moves_per_turn or not all(name in MOVES for name in names):
            return self._end_or_go_on(Message("user", f"{_valid(self.args)}\n{self._grid().content}"), 0, bad=True)
        moves = 0
        for name in names:
            if self._lake.at(self._player) != ICE:
                break
            self._player = self._lake.move(self._player, slip(name, self._rng) if self.args.slippery else name)
            moves += 1
        return self._end_or_go_on(self._grid(), moves, bad=False)

    def _end_or_go_on(self, observation: Message, moves: int, *, bad: bool) -> Step:
        metrics = {"moves": float(moves), "bad_actions": float(bad)}
        over = self._lake.at(self._player) != ICE
        if not over and not self.is_last_turn:
            return Step((observation,), None, terminated=False, metrics=metrics)
        goal = float(self._lake.at(self._player) == GOAL)
        return Step((observation,), goal, terminated=over, parts={"goal": goal}, metrics=metrics)

    def _grid(self) -> Message:
        return Message("user", self._lake.render(self._player))


class _Walker:
    """Reads the grid and says moves."""

    def __init__(self, *, seed: int = 0):
        self._rng = np.random.default_rng(seed)
        self._moves_per_turn = 1
        self._slippery = False

    def act(self, observation_messages: Sequence[Message]) -> Message:
        """The next moves."""
        for message in observation_messages:
            if message.role == "system":
                text = str(message.content)
                self._slippery = "slippery" in text
                self._moves_per_turn = int(match[1]) if (match := re.search(r"1 to (\d+) of", text)) else 1
        return Message("assistant", " ".join(self._plan(*Lake.read(str(observation_messages[-1].content)))))

    def _plan(self, lake: Lake, player: Cell) -> Sequence[str]:
        raise NotImplementedError


class Solver(_Walker):
    """Takes a shortest path; on slippery ice, the move that most probably arrives, one at a time."""

    def _plan(self, lake: Lake, player: Cell) -> Sequence[str]:
        if self._slippery:
            return [list(MOVES)[int(slippery_values(lake)[:, *player].argmax())]]
        distances = lake.distances()
        path: list[str] = []
        while len(path) < self._moves_per_turn and lake.at(player) != GOAL:
            path.append(min(MOVES, key=lambda name: distances.get(lake.move(player, name), len(distances))))
            player = lake.move(player, path[-1])
        return path


class Guesser(_Walker):
    """Says one random move."""

    def _plan(self, lake: Lake, player: Cell) -> Sequence[str]:
        return [list(MOVES)[int(self._rng.integers(len(MOVES)))]]


@functools.lru_cache(maxsize=64)  # an episode asks once a move
def slippery_values(lake: Lake) -> np.ndarray:
    """Worth of each first move on slippery ice, [4 moves, rows, columns]: the chance of arriving, less 5 % a move."""
    size = len(lake.rows)
    cells = list(np.ndindex(size, size))
    target = np.array([[np.ravel_multi_index(lake.move(cell, name), (size, size)) for cell in cells] for name in MOVES])
    goal = np.array([float(lake.at(cell) == GOAL) for cell in cells])
    ice = np.array([lake.at(cell) == ICE for cell in cells])
    value = goal
    for _ in range(100):
        straight = value[target]
        slid = (np.roll(straight, 1, axis=0) + straight + np.roll(straight, -1, axis=0)) / 3
        value = np.where(ice, 0.95 * slid.max(axis=0), goal)
    return slid.reshape(len(MOVES), size, size)


FrozenLake.players = {"solver": Solver, "guesser": Guesser}
players = FrozenLake.players
