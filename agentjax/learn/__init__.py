"""Learning: trajectories and rewards in, updated policy parameters out."""
