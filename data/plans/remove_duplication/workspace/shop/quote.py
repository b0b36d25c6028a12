"""Quotes: net prices, a discount, tax at the end."""

from decimal import ROUND_HALF_UP, Decimal


def _cents(value):
    """Return a Decimal rounded to cents, halves away from zero."""
    return value.quantize(Decimal("0.01"), rounding=ROUND_HALF_UP)


def _plus_tax(value, rate=Decimal("0.19")):
    """Return a net price with tax on it."""
    return _cents(value * (1 + rate))


def _money(value):
    """Return a price as people write it: 1.234,50 €."""
    text = f"{_cents(value):,.2f}"
    return text.replace(",", "_").replace(".", ",").replace("_", ".") + " €"


def quote(items, discount=Decimal("0")):
    """Return a quote over (name, net price) pairs, a discount taken off before tax."""
    net = sum((_cents(price * (1 - discount)) for _, price in items), Decimal())
    lines = [f"{name}: {_money(price)} net" for name, price in items]
    return "\n".join(["QUOTE", *lines, f"Net: {_money(net)}", f"Gross: {_money(_plus_tax(net))}"])
