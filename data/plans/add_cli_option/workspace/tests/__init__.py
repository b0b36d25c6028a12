"""Tests of tally."""
