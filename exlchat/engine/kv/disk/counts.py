"""What a store of pages says about itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class DiskCounts:
    """What lies on the disk, for all models, and what this store did since it was opened.

    Args:
        files, bytes: all pages of all roots; 0 until the background thread has looked.
        written, read: pages.
        damaged: files that were not what their name says, and have been removed where that was possible. A file that
            could not be read for another reason (rights, too many open files) is none.
        skipped: pages not written: the queue was full, the disk did not take them, or the cap is below one page.
        evicted: files removed to stay below the cap.
    """

    files: int
    bytes: int
    written: int
    read: int
    damaged: int
    skipped: int
    evicted: int


class Wanted(Enum):
    YES = "it would be written"
    HERE = "it is on the disk as far as its name tells, or on its way there"
    NO = "there is no room in the queue or under the cap, or the disk takes nothing"
