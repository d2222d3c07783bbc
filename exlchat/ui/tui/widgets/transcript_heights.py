"""Heights of many messages, and which of them lies at a given line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class HeightIndex:
    """A list of heights with prefix sums in a binary indexed tree.

    Changing a height and finding a line take O(log n) (Fenwick 1994, "A new data structure for cumulative frequency
    tables"); building takes O(n).
    """

    def __init__(self, heights: Iterable[int] = ()) -> None:
        self._heights = list(heights)
        self._tree = [0, *self._heights]
        for index in range(1, len(self._tree)):
            parent = index + (index & -index)
            if parent < len(self._tree):
                self._tree[parent] += self._tree[index]

    def __len__(self) -> int:
        return len(self._heights)

    def __getitem__(self, index: int) -> int:
        return self._heights[index]

    @property
    def total(self) -> int:
        return self.start(len(self._heights))

    def start(self, index: int) -> int:
        total = 0
        while index:
            total += self._tree[index]
            index &= index - 1
        return total

    def append(self, height: int) -> None:
        index = len(self._heights) + 1
        self._heights.append(height)
        self._tree.append(height + self.start(index - 1) - self.start(index & (index - 1)))

    def set(self, index: int, height: int) -> int:
        """Change a height; returns by how much it grew."""
        delta = height - self._heights[index]
        self._heights[index] = height
        position = index + 1
        while delta and position < len(self._tree):
            self._tree[position] += delta
            position += position & -position
        return delta

    def find(self, line: int) -> tuple[int, int]:
        """The index whose span holds `line` (from 0 to `total` - 1), and the line's offset in it."""
        position = 0
        step = 1 << len(self._heights).bit_length()
        while step:
            following = position + step
            if following < len(self._tree) and self._tree[following] <= line:
                position = following
                line -= self._tree[following]
            step >>= 1
        return position, line
