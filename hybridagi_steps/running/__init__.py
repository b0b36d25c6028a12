"""Running programs in sessions: one run of a program as a stream of events.

`StepRunner` loads what was said before, lets a program answer, streams its tokens, and commits each
message of the turn together with the steps that led to it. Import names from the top level
(`hs.StepRunner`) or from the module that defines them.
"""
