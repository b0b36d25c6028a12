"""Histories of operations: `python -m tests.history --minutes 2 [--seed N]`.

Six processes add, commit, retry, fork, delete, purge, read and search on one file or one database;
some are killed and begun anew. Each notes when an operation began and ended, by the clock that all
processes of a machine share. Afterwards a checker says which reads no correct memory could give:
that miss what was acknowledged before they began, show what was deleted before, half of what was
stored at once, a gap, or a key used twice.

    operations   what a process does, and how it writes its notes
    checker      what the notes of all processes say about the memory, pure functions
    __main__     processes, kills, and the report
"""
