"""Durable queues on DBOS: one engine, for runs of sessions and for steps of plans.

Open session_runs.py for `DurableRunner` (session_worker.py does its runs) or plan_steps.py for
`DurableQueue`; engine.py is what both stand on.
"""
