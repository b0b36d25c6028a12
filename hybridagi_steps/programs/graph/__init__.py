"""Graph programs: written, checked, drawn, kept and run; `program_run` is their heart."""
