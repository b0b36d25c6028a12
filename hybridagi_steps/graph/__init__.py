"""Graph programs: programs as text or built by hand, checked as a whole, run node by node.

Open program.py first (what a program is), then interpreter.py (the agent that users call) and
run.py (one run). parser.py and writer.py are the text form, checks.py says what is wrong.
"""
