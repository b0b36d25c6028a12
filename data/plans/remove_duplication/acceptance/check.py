"""Accepts `remove_duplication`: one copy of the arithmetic, and the same output to the letter."""

import ast
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(sys.argv[1]).resolve()
sys.path.insert(0, str(ROOT))
PAPERS = """INVOICE
Desk: 1.249,49 €
Lamp: 23,68 €
Pen: 0,12 €
Total: 1.273,29 €
QUOTE
Desk: 1.050,00 € net
Lamp: 19,90 € net
Pen: 0,11 € net
Net: 963,00 €
Gross: 1.145,97 €
RECEIPT
Desk 1.249,49 €
Lamp 23,68 €
Pen 0,12 €
Paid: 1.500,00 €
Change: 226,71 €
"""


def main():
    from shop.money import euros, round_cents, with_tax

    assert round_cents(Decimal("0.105")) == Decimal("0.11")
    assert with_tax(Decimal("100")) == Decimal("119.00")
    assert euros(Decimal("-1234.5")) == "-1.234,50 €"
    command = [sys.executable, "-B", "-X", "utf8", "-m", "shop"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    assert printed.decode("utf-8") == PAPERS, printed.decode("utf-8")
    for name in ("invoice", "quote", "receipt"):
        tree = ast.parse((ROOT / f"shop/{name}.py").read_text("utf-8"))
        functions = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        assert functions == [name], f"{name}.py still has {functions}"
        modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        assert "shop.money" in modules, f"{name}.py does not use shop.money"
    command = [sys.executable, "-B", "-m", "unittest", "discover", "-t", ".", "-s", "tests"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0


main()
print("accepted")
