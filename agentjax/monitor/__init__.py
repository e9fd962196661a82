"""Monitoring: metrics of each step in; a live view, a run folder, curves and a summary out."""

from agentjax.monitor.clock import PhaseClock as PhaseClock
from agentjax.monitor.compiles import CompileCounter as CompileCounter
from agentjax.monitor.episodes import episode_metrics as episode_metrics
from agentjax.monitor.monitor import Monitor as Monitor
from agentjax.monitor.run_folder import RunFolder as RunFolder
from agentjax.monitor.summary import Summary as Summary
