"""Real agent runs with their provenance and licences; read through `importlib.resources`."""
