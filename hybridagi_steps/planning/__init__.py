"""Plans at work: the plan and its text, who makes and who runs it, and what came of it.

Open plan.py first (what a plan is), then orchestrator.py (what users call) and plan_run.py (one
run). plan_parser.py and artifact_types.py read what models write, executor.py does one step.
"""
