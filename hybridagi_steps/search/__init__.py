"""Search over steps: ranking, the index of vectors and words, and who keeps it up to date."""
