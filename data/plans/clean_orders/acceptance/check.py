"""Accepts `clean_orders`: every row is clean or rejected with a reason, and the sums are right."""

import csv
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

ROOT = Path(sys.argv[1]).resolve()
CLEAN = """order_id,date,country,amount
1001,2024-01-05,DE,100.50
1002,2024-01-06,DE,1200.00
1003,2024-01-17,DE,20.00
1005,2024-02-11,FR,7.50
1006,2024-02-11,FR,3.20
1008,2024-03-01,AT,1000.00
1012,2024-03-04,DE,0.00
1013,2024-03-31,AT,100.00
1014,2024-03-31,DE,250.00
"""


def rows(name):
    """Return a CSV file of the workspace as dicts."""
    with (ROOT / "data" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def main():
    given = (Path(__file__).parent / "orders.csv").read_text("utf-8")
    assert (ROOT / "data/orders.csv").read_text("utf-8") == given, "the source was changed"
    assert (ROOT / "data/clean.csv").read_text("utf-8").replace("\r\n", "\n") == CLEAN
    rejected = rows("rejected.csv")
    assert [row["order_id"] for row in rejected] == ["1004", "1007", "1009", "1010", "1011", ""]
    assert all(row["reason"].strip() for row in rejected)
    assert rejected[0]["date"] == "2024-02-30", "rejected rows must stay as they were"
    report = json.loads((ROOT / "data/report.json").read_text("utf-8"))
    assert report["clean_rows"] == 9 and report["rejected_rows"] == 6
    countries = {key: Decimal(str(value)) for key, value in report["by_country"].items()}
    assert countries == {"AT": Decimal("1100"), "DE": Decimal("1570.50"), "FR": Decimal("10.70")}
    months = {key: Decimal(str(value)) for key, value in report["by_month"].items()}
    assert months == {
        "2024-01": Decimal("1320.50"),
        "2024-02": Decimal("10.70"),
        "2024-03": Decimal("1350"),
    }
    before = (ROOT / "data/report.json").read_bytes()
    for script in ("clean", "report"):
        command = [sys.executable, "-B", f"scripts/{script}.py"]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert (ROOT / "data/report.json").read_bytes() == before, "a second run gives another report"


main()
print("accepted")
