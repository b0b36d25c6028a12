"""Readers of what agents wrote of their work: session logs, trajectories, evaluation logs."""
