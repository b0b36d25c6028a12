"""Attacks on a running library: kills, damage, overload. Each is a module with one `attack`."""
