"""Search over steps: hybrid ranking, the index of vectors and words, and who keeps both up to date."""
