"""How much of the cache is kept in memory and on the disk: from the command line, else from the settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exlchat.config.settings import Settings


@dataclass(frozen=True, slots=True)
class CacheSizes:
    """`None` means "not typed", or for `tokens` and `gigabytes`: by what there is.

    Args:
        tokens: of all conversations together, in memory.
        gigabytes: the same in GiB.
        disk_gigabytes: GiB of pages that outlive the program, of all models. With 0 those of earlier runs are removed;
            with `None` nothing is read, written or removed.
    """

    tokens: int | None = None
    gigabytes: float | None = None
    disk_gigabytes: float | None = None

    def or_settings(self, settings: Settings) -> CacheSizes:
        """What was typed; what was not, from the settings. A size in memory that was typed is the only one."""
        typed = self.tokens is not None or self.gigabytes is not None
        return CacheSizes(
            self.tokens if typed else settings.cache_tokens,
            self.gigabytes if typed else settings.cache_gb,
            settings.disk_gb if self.disk_gigabytes is None else self.disk_gigabytes,
        )

    def in_memory_only(self) -> CacheSizes:
        """For a run that leaves nothing; pages of other runs stay, unless 0 asks for their removal."""
        return replace(self, disk_gigabytes=None if self.disk_gigabytes else self.disk_gigabytes)

    @property
    def disk_bytes(self) -> int:
        """On the disk."""
        return int((self.disk_gigabytes or 0) * 2**30)
