"""Where untrusted code runs: the `Sandbox` protocol, its backends and the pool that lends them out."""

from agentjax.envs.sandbox.api import (
    ExecResult,
    Limits,
    Sandbox,
    SandboxConfig,
    SandboxError,
    SandboxLost,
    SandboxUnavailable,
)
from agentjax.envs.sandbox.lease import Counters
from agentjax.envs.sandbox.pool import SandboxPool, make_pool

__all__ = [
    "Counters",
    "ExecResult",
    "Limits",
    "Sandbox",
    "SandboxConfig",
    "SandboxError",
    "SandboxLost",
    "SandboxPool",
    "SandboxUnavailable",
    "make_pool",
]
