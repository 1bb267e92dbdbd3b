"""Pages: what a store or pack holds, as one file for a browser that asks no network for anything."""

from planfreeze.pages.contents import gather_report
from planfreeze.pages.documents import make_document

__all__ = ["gather_report", "make_document"]
