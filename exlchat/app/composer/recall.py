"""Going back through what was typed before, and forward again to what was being typed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from exlchat.app.composer.file_mentions import without_files


class Recall:
    """Belongs to one place where messages are typed. `older` gives what was typed in other conversations and runs."""

    def __init__(self, older: Callable[[], Sequence[str]] = tuple) -> None:
        self.older = older
        self._here: Sequence[str] = ()
        self._all: Sequence[str] = ()
        self._at: int | None = None
        self._draft = ""

    def set_here(self, prompts: Sequence[str]) -> None:
        """The prompts of the open conversation, oldest first. Going back goes on when there are only more of them."""
        if list(prompts[: len(self._here)]) != list(self._here):
            self._at = None
        self._here = prompts

    def end(self) -> None:
        """What stands there now is no earlier text any more."""
        self._at = None

    @property
    def begun(self) -> bool:
        return self._at is not None

    def draft_behind(self, text: str) -> str:
        """What was being typed when `text` stands there: behind an unchanged earlier text the draft, else `text`."""
        return self._draft if self._at is not None and text == self._all[self._at] else text

    def before(self, text: str) -> str | None:
        """The text before the one that stands there; `None` when there is none."""
        if self._at is None:
            # What was typed; the files that went with it are read again when it is sent.
            here = [without_files(one) for one in self._here]
            known = set(here)
            others = [one for one in self.older() if one not in known and not one.startswith("/")]
            # Those of this conversation come first, because they are what somebody most likely means.
            self._all = [*others, *here]
        at = len(self._all) if self._at is None else self._at
        if at == 0:
            return None
        if self._at is None:
            self._draft = text
        self._at = at - 1
        return self._all[self._at]

    def after(self) -> str:
        """The text after the one that stands there; behind the last one the draft. Only once going back has begun."""
        assert self._at is not None
        self._at += 1
        if self._at < len(self._all):
            return self._all[self._at]
        self._at = None
        return self._draft
