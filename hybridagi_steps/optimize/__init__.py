"""Learning from steps: examples, demonstrations, recall at call time, credit and outlook."""
