"""Attacks on the promises of this library: `python -m tests.faults --minutes 10 [--seed N]`.

Databases are attacked by killing them, failing their disks and damaging their files, not by reading
their code; so is this one. Each attack is one module: it writes, notes what was acknowledged, does
its worst, and counts what was lost, half-written, silently changed, leaked or hung. Every one of
these counts must be 0. What may happen is an error of `hybridagi_steps.errors`.

    harness      what an attack is given and gives back, and the list of all of them
    operations   every operation of a memory, as lanes that write by chance
    expected     what a memory must hold after what was acknowledged, and how it differs
    processes    children that die, stop or fail on order; servers; the shim of shim.c

A seed makes the same operations, moments and damage again; how two processes interleave is the
machine's. Nothing here knows the tables, but for the two attacks on files of old schemas and on
single bits.
"""
