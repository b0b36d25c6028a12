"""Shapes in the plane."""

import math


def circle_area(radius):
    """Return the area of a circle."""
    return math.pi * _square(radius)


def rectangle_area(width, height=None):
    """Return the area of a rectangle, of a square without a height."""
    return width * (width if height is None else height)


def _square(value):
    """Return a value times itself."""
    return value * value
