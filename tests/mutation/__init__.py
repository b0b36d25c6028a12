"""Small faults put into the package one at a time, to see whether a test fails: by hand, not in CI.

python -m tests.mutation --room search --mutants 20 --seed 1
"""
