"""One confined directory in which a plan's steps work."""
