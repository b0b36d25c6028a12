"""Invoices: every line with tax."""

from decimal import ROUND_HALF_UP, Decimal


def _round(value):
    """Return a Decimal rounded to cents, halves away from zero."""
    return value.quantize(Decimal("0.01"), rounding=ROUND_HALF_UP)


def _tax(value, rate=Decimal("0.19")):
    """Return a net price with tax on it."""
    return _round(value * (1 + rate))


def _euros(value):
    """Return a price as people write it: 1.234,50 €."""
    text = f"{_round(value):,.2f}"
    return text.replace(",", "_").replace(".", ",").replace("_", ".") + " €"


def invoice(items):
    """Return an invoice over (name, net price) pairs."""
    lines = [f"{name}: {_euros(_tax(price))}" for name, price in items]
    total = sum((_tax(price) for _, price in items), Decimal())
    return "\n".join(["INVOICE", *lines, f"Total: {_euros(total)}"])
