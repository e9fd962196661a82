"""The contract catches environments that break it."""

import itertools

import pytest

from agentjax.envs.api import EnvSpec, Message, Reset, Step
from agentjax.envs.contract import EnvContract
from agentjax.envs.episode import Episode
from agentjax.envs.registry import EnvFactory
from agentjax.envs.tasks import DrawnTasks

_counter = itertools.count()


class Echo(Episode):
    """Says what it heard, for three turns."""

    spec = EnvSpec("echo", "1", "step", sync=False, concurrency=0, seeds="exact")

    @classmethod
    def source(cls, args):
        return DrawnTasks("echo", lambda rng: {"word": str(rng.integers(10**6))})

    async def begin(self, task):
        return Reset((Message("user", task.data["word"]),))

    async def answer(self, action):
        over = self.turns == 3
        heard = action.text.encode("utf-8", "replace").decode()
        return Step((Message("user", f"I heard {heard}"),), float(over), terminated=over)


class Unseeded(Echo):
    async def begin(self, task):
        return Reset((Message("user", str(next(_counter))),))


class Fragile(Echo):
    async def answer(self, action):
        float(action.text)
        return await super().answer(action)


class Mumbling(Echo):
    async def answer(self, action):
        return Step((Message("user", action.text),), None, terminated=False)


class Endless(Echo):
    async def step(self, action):
        return Step((Message("user", "and?"),), None, terminated=self.turns == 100)


class Undying(Echo):
    async def step(self, action):
        self._phase = "live"
        return await super().step(action)


class Unpaid(Echo):
    async def answer(self, action):
        return Step((), None, terminated=True)


class Silent(Echo):
    async def answer(self, action):
        return Step((), 0.0, terminated=self.turns == 3)


class Unclosable(Echo):
    async def close(self):
        if self._phase == "closed":
            raise KeyError("gone")
        await super().close()


class SharedTasks:
    def size(self, split):
        return None

    def task(self, split, index, seed):
        return DrawnTasks("echo", lambda rng: {"word": str(rng.integers(10**6))}).task("train", index, seed)


class Cheating(Echo):
    @classmethod
    def source(cls, args):
        return SharedTasks()


def contract_of(env_class):
    class Contract(EnvContract):
        def factory(self):
            return EnvFactory("echo", env_class, env_class.Args(), env_class.source(env_class.Args()))

    return Contract()


class TestEcho(EnvContract):
    def factory(self):
        return contract_of(Echo).factory()


@pytest.mark.parametrize(
    ("env_class", "test"),
    [
        (Unseeded, "test_the_same_group_and_seed_start_in_the_same_state"),
        (Fragile, "test_hostile_turns_never_raise"),
        (Mumbling, "test_hostile_turns_never_raise"),
        (Silent, "test_hostile_turns_never_raise"),
        (Endless, "test_a_policy_that_never_ends_is_ended"),
        (Unpaid, "test_a_policy_that_never_ends_is_ended"),
        (Undying, "test_done_means_done"),
        (Endless, "test_steps_out_of_order_say_what_is_wrong"),
        (Unclosable, "test_close_may_be_called_at_any_time_and_again"),
        (Cheating, "test_splits_share_no_task"),
    ],
)
def test_a_breach_is_caught(env_class, test):
    with pytest.raises((AssertionError, ValueError, KeyError)):
        getattr(contract_of(env_class), test)()
