"""Text in a drawing: how wide it will be, where it breaks, what may stand in it.

An SVG does not wrap text and its reader's font is not known here, so widths are estimated from the
proportions that sans-serif faces share, on the wide side.
"""

from __future__ import annotations

import unicodedata

_NARROW, _SLIM, _WIDE = set("iljI.,:;'|!`[](){}/\\"), set('frt-" *'), set("mwMW@%&—…→")


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return about how many pixels wide a line of text is, rather too many than too few."""
    return sum(map(_share, text)) * size * (1.08 if bold else 1.0)


def _share(character: str) -> float:
    if character in _NARROW:
        return 0.33
    if character in _SLIM:
        return 0.42
    if character in _WIDE:
        return 0.98
    if character.isascii():
        return 0.72 if character.isupper() else 0.6
    if unicodedata.combining(character):
        return 0.0
    return 1.1 if unicodedata.east_asian_width(character) in "WF" else 0.75


def shown(text: str, *, lines: bool = False) -> str:
    """Return a text with nothing in it that XML forbids or an eye cannot see.

    Args:
        text: Any text.
        lines: Keep its line ends.
    """
    return "".join(_seen(character, lines) for character in text)


def _seen(character: str, lines: bool) -> str:
    if character.isprintable() or (lines and character == "\n"):
        return character
    return " " if character.isspace() else "\N{REPLACEMENT CHARACTER}"


def wrapped(text: str, width: float, size: float, *, lines: int, bold: bool = False) -> list[str]:
    """Return a text as lines that fit, the last one cut with an ellipsis if there is more.

    Lines break at blanks, and inside words that are longer than a line.
    """
    # A line holds a few dozen characters: of a prompt of megabytes only the beginning matters.
    words = shown(text[:2_000]).split()
    done, line = list[str](), ""
    while words and len(done) < lines:
        word = words.pop(0)
        longer = f"{line} {word}" if line else word
        if text_width(longer, size, bold=bold) <= width:
            line = longer
        elif line:
            done.append(line)
            line = ""
            words.insert(0, word)
        else:
            fit = _fitting(word, width, size, bold)
            done.append(word[:fit])
            words.insert(0, word[fit:])
    if line and len(done) < lines:
        done.append(line)
        return done
    return [*done[:-1], _cut(done[-1], width, size, bold)] if words and done else done


def _fitting(word: str, width: float, size: float, bold: bool) -> int:
    fit = 1
    while fit < len(word) and text_width(word[: fit + 1], size, bold=bold) <= width:
        fit += 1
    return fit


def _cut(line: str, width: float, size: float, bold: bool) -> str:
    while line and text_width(f"{line}…", size, bold=bold) > width:
        line = line[:-1]
    return f"{line.rstrip()}…"
