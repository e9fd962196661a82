"""Environments of the tests of whole runs: one that any policy wins and loses, and one where everything goes wrong."""

import asyncio
import dataclasses
import zlib
from collections.abc import Mapping

from agentjax.envs.api import Action, EnvError, EnvFault, Step, ToolCall
from agentjax.envs.python_math import PythonMath
from agentjax.envs.tool_env import Outcome


class Parity(PythonMath):
    """python_math, rewarded by a coin that depends on the answer alone, so that any policy has something to learn."""

    def reward(self, outcome: Outcome) -> Mapping[str, float]:
        """1 for every other answer."""
        return {"parity": float(zlib.crc32(outcome.answer.encode()) % 2)}


CALLS = {
    "hangs": '{"code": "while 1: pass"}',
    "floods": '{"code": "while 1: print(9)"}',
    "forks": '{"code": "import os\\nwhile 1: os.fork()"}',
    "dies": '{"code": "import ctypes; ctypes.string_at(0)"}',
    "kills all it can": '{"code": "import os; os.kill(-1, 9)"}',
    "is no text": '{"code": "import os; os.write(1, bytes([255]))"}',
    "is no JSON": "{",
}
FAULTS = ("raises", "blocks", "loses its scorer")
LUCK = (*CALLS, "has no such tool", *FAULTS)


class BadLuck(Parity):
    """Whatever a policy says in its first turn, something goes wrong; which thing, the task's number decides.

    Scripted players are left in peace, since demonstrations have to succeed.
    """

    async def answer(self, action: Action) -> Step:
        """Does what the policy might have asked for, or fails by itself."""
        luck = LUCK[int(self.task.id.rpartition("/")[2]) % len(LUCK)]
        if action.policy_version < 0 or self.turns > 1:
            return await super().answer(action)
        if luck == "raises":
            raise KeyError("a bug of the environment")
        if luck == "blocks":
            await asyncio.sleep(1e6)
        if luck == "loses its scorer":
            raise EnvFault(EnvError("scorer", "the judge is down", retryable=True, mask=True))
        tool = "pyhton" if luck == "has no such tool" else "python"
        call = ToolCall("call", tool, CALLS.get(luck, "{}"))
        return await super().answer(dataclasses.replace(action, tool_calls=(call,)))


class Faulty(PythonMath):
    """python_math whose first episodes fail, or never answer."""

    failures = 0

    async def answer(self, action: Action) -> Step:
        """Fails while failures are left."""
        if Faulty.failures:
            Faulty.failures -= 1
            raise EnvFault(EnvError("sandbox", "lost", retryable=True, mask=True))
        return await super().answer(action)


class Hanging(PythonMath):
    """python_math that never answers."""

    async def answer(self, action: Action) -> Step:
        """Never."""
        await asyncio.sleep(1e6)
        return await super().answer(action)
