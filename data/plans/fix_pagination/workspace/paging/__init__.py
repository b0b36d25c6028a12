"""Pages of anything that has an order."""

from paging.pages import Page, page_count, paginate

__all__ = ["Page", "page_count", "paginate"]
