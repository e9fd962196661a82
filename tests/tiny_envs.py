"""Environments of the run tests: one that any policy can win and lose."""

import zlib
from collections.abc import Mapping

from agentjax.envs.python_math import PythonMath
from agentjax.envs.tool_env import Outcome


class Parity(PythonMath):
    """python_math, rewarded by a coin that depends on the answer alone, so that any policy has something to learn."""

    def reward(self, outcome: Outcome) -> Mapping[str, float]:
        """1 for every other answer."""
        return {"parity": float(zlib.crc32(outcome.answer.encode()) % 2)}
