"""Durable queues on DBOS: one engine, for runs of sessions and for steps of plans."""
