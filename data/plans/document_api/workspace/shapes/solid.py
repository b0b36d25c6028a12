"""Solids."""

import math


def sphere_volume(radius):
    """Return the volume of a sphere."""
    return 4 / 3 * math.pi * radius**3


def box_volume(width, height, depth=1.0):
    """Return the volume of a box, one unit deep unless said otherwise."""
    return width * height * depth
