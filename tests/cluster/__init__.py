"""A cluster on this machine: databases, a standby, servers and workers, as processes.

`python -m tests.cluster` starts one for a person to play with, `--check` one that is driven and
attacked; the fixtures of the tests here start parts of it by the same code.
"""
