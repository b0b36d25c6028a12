"""What the servers answer with and the workers carry out: put your own program in its place."""

import os

import dspy

dspy.configure(lm=dspy.LM(os.environ["STEPS_MODEL"]))
assistant = dspy.ChainOfThought("history: dspy.History, question -> answer")
