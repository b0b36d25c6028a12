"""Tools of graph programs; `hybridagi_steps.programs.tools` is their documented door."""
