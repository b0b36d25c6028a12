"""Counting words in text."""

import re
from collections import Counter


def count_words(text):
    """Return (word, count) pairs, the most frequent first, equal ones by alphabet."""
    counts = Counter(re.findall(r"[^\W\d_]+", text.lower()))
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
