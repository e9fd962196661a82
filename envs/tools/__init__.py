"""Tools: plain typed functions in, JSON schemas for the policy and recorded results out."""

from agentjax.envs.tools.schema import object_schema, tool_spec
from agentjax.envs.tools.toolbox import Tool, Toolbox, ToolError

__all__ = ["Tool", "ToolError", "Toolbox", "object_schema", "tool_spec"]
