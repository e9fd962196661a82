"""A stand-in for the sandbox pool: runs the tests' own programs in this process, in microseconds."""

import contextlib
import io

import pytest

from agentjax.envs.sandbox import ExecResult


class InProcessPool:
    """Answers `run_python` as a `SandboxPool` does."""

    async def run_python(self, code, *, timeout_s, max_output):
        output = io.StringIO()
        try:
            with contextlib.redirect_stdout(output):
                exec(code, {})
        except Exception as error:
            return ExecResult(1, f"Traceback (most recent call last):\n{type(error).__name__}: {error}\n")
        text = output.getvalue()
        return ExecResult(0, text[:max_output], truncated=max(0, len(text) - max_output))


@pytest.fixture
def pool():
    return InProcessPool()
