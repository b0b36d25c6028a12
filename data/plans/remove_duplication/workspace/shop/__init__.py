"""A small shop's papers."""
