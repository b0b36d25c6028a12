"""Papers show prices as people write them."""

import unittest
from decimal import Decimal

from shop.invoice import invoice


class Papers(unittest.TestCase):
    def test_invoice(self):
        self.assertIn("Total: 1.190,00 €", invoice([("Desk", Decimal("1000"))]))
