"""Run as `python -m tally FILE`."""

import argparse
import sys
from pathlib import Path

from tally.counting import count_words


def main(argv=None):
    """Print every word of a file with its count."""
    parser = argparse.ArgumentParser(prog="tally")
    parser.add_argument("file", help="a text file")
    arguments = parser.parse_args(argv)
    for word, count in count_words(Path(arguments.file).read_text("utf-8")):
        print(f"{count:6} {word}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
