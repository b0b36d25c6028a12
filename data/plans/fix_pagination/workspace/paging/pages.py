"""Cut a sequence into numbered pages."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Page:
    """One page: its items, its number from 1, and how many pages there are."""

    items: tuple
    number: int
    count: int

    @property
    def next(self):
        """The number of the next page, None on the last one."""
        return self.number + 1 if self.number <= self.count else None

    @property
    def previous(self):
        """The number of the page before, None on the first one."""
        return self.number - 1 if self.number > 1 else None


def page_count(total, size):
    """Return how many pages `total` items need; an empty sequence has one empty page."""
    if size < 1:
        raise ValueError("a page holds at least one item")
    return max(1, total // size)


def paginate(items, number=1, size=10):
    """Return page `number` of `items`.

    Raises:
        ValueError: The number or the size is below 1, or there is no such page.
    """
    items = tuple(items)
    count = page_count(len(items), size)
    if not 1 <= number <= count:
        raise ValueError(f"there are {count} pages; there is no page {number}")
    start = (number - 1) * size
    return Page(items[start : start + size], number, count)
