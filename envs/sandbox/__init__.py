"""Where untrusted code runs: the `Sandbox` protocol, its backends and the pool that lends them out."""

from agentjax.envs.sandbox.api import ExecResult, Sandbox, SandboxConfig, SandboxError, SandboxLost, SandboxUnavailable

__all__ = ["ExecResult", "Sandbox", "SandboxConfig", "SandboxError", "SandboxLost", "SandboxUnavailable"]
