"""Pages hold every item once."""

import unittest

from paging import paginate


class Pages(unittest.TestCase):
    def test_first_page(self):
        self.assertEqual(paginate(range(20), 1, 10).items, tuple(range(10)))

    def test_unknown_page(self):
        with self.assertRaises(ValueError):
            paginate(range(20), 3, 10)
