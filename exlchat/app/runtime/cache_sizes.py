"""How much of the cache is kept in memory and on the disk."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class CacheSizes:
    """`None` for `tokens` and `gigabytes` means: by what there is.

    Args:
        tokens: of all conversations together, in memory.
        gigabytes: the same in GiB.
        disk_gigabytes: GiB of pages that outlive the program, of all models. With 0 those of earlier runs are removed;
            with `None` nothing is read, written or removed.
        conversations: as long as the context, how many are to find room by what there is; three unless given.
    """

    tokens: int | None = None
    gigabytes: float | None = None
    disk_gigabytes: float | None = None
    conversations: int | None = None

    def in_memory_only(self) -> CacheSizes:
        """For a run that leaves nothing; pages of other runs stay, unless 0 asks for their removal."""
        return replace(self, disk_gigabytes=None if self.disk_gigabytes else self.disk_gigabytes)

    @property
    def disk_bytes(self) -> int:
        return int((self.disk_gigabytes or 0) * 2**30)
