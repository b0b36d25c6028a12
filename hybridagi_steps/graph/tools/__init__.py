"""Tools of graph programs; `hybridagi_steps.programs.tools` is their documented door.

Open base.py first: what a tool is. builtin.py has those that talk, think and recall,
program_tools.py those over programs; functions.py makes tools of functions, tool_box.py offers
several as one.
"""
