"""Words are counted without case."""

import unittest

from tally.counting import count_words


class Counting(unittest.TestCase):
    def test_order(self):
        self.assertEqual(count_words("b a B"), [("b", 2), ("a", 1)])
