"""Receipts: what was bought, paid and given back."""

from decimal import ROUND_HALF_UP, Decimal


def _r(value):
    """Return a Decimal rounded to cents, halves away from zero."""
    return value.quantize(Decimal("0.01"), rounding=ROUND_HALF_UP)


def _t(value, rate=Decimal("0.19")):
    """Return a net price with tax on it."""
    return _r(value * (1 + rate))


def _fmt(value):
    """Return a price as people write it: 1.234,50 €."""
    text = f"{_r(value):,.2f}"
    return text.replace(",", "_").replace(".", ",").replace("_", ".") + " €"


def receipt(items, paid):
    """Return a receipt over (name, net price) pairs and what was paid, with the change."""
    total = sum((_t(price) for _, price in items), Decimal())
    lines = [f"{name} {_fmt(_t(price))}" for name, price in items]
    return "\n".join(["RECEIPT", *lines, f"Paid: {_fmt(paid)}", f"Change: {_fmt(paid - total)}"])
