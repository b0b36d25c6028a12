"""Tests of shop."""
