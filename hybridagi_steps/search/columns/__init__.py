"""Columns of what filters compare, and which rows pass."""
