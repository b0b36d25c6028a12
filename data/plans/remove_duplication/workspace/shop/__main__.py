"""Print one of each paper: `python -m shop`."""

from decimal import Decimal

from shop.invoice import invoice
from shop.quote import quote
from shop.receipt import receipt

ITEMS = [("Desk", Decimal("1049.995")), ("Lamp", Decimal("19.90")), ("Pen", Decimal("0.105"))]

print(invoice(ITEMS))
print(quote(ITEMS, Decimal("0.1")))
print(receipt(ITEMS, Decimal("1500")))
