"""Graph programs: programs as text, run node by node."""
