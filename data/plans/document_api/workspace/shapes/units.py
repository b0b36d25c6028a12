"""Lengths in other units."""

FACTORS = {"mm": 0.001, "cm": 0.01, "m": 1.0, "km": 1000.0}


def convert(value, source="m", target="m"):
    """Convert a length between units."""
    return value * _factor(source) / _factor(target)


def known_units():
    """Return the names of all units, sorted."""
    return sorted(FACTORS)


def _factor(unit):
    """Return how many metres a unit has."""
    return FACTORS[unit]
