"""Rollouts: tasks and a policy in, trajectories out."""
