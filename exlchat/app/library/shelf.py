"""The models of one start of the program: what there are, what one is called, how each is loaded and spoken to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.app.library.choice import GUIDE, choose_model
from exlchat.app.library.listing import Entry, entries, in_order
from exlchat.app.library.places import FoundFolder, all_models
from exlchat.app.runtime.jobs import Load
from exlchat.untrusted.sanitize import printable
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from exlchat.app.library.memory import ModelMemory
    from exlchat.app.options import AppOptions
    from exlchat.app.runtime.jobs import Loader
    from exlchat.config.files import Reading
    from exlchat.config.layers import Resolved
    from exlchat.config.schema import Settings


@dataclass(slots=True)
class Shelf:
    """What was typed on the command line holds for every model of this start.

    Args:
        options: of this start.
        reading: the settings as they are now; the next load goes by them.
        memory: what is remembered of each model.
        loader: makes what loads the model in a folder.
    """

    options: AppOptions
    reading: Reading
    memory: ModelMemory
    loader: Callable[[Path], Loader]

    @property
    def settings(self) -> Settings:
        """What file and environment say: for those that no start is given and no model remembers."""
        return self.reading.settings

    def found(self) -> list[FoundFolder]:
        return all_models(self.settings.model_folders, self.memory.used_models())

    def choose(self, text: str) -> Path:
        """The folder that a path or a name means.

        Raises:
            ModelError: there is none, or several, or it is no model.
        """
        return choose_model(text, last_used=None, bundled=paths.bundled_model(), library=self.found).path

    def cards(self, found: Sequence[FoundFolder]) -> Iterator[Entry]:
        """What the headers of models say; not for the UI thread. Raises `ModelError` without the device asked for."""
        return entries(found, self.memory, self.options, self.reading)

    def listed(self) -> list[Entry]:
        """All models with their cards, in the order to show them; not for the UI thread."""
        return in_order(list(self.cards(self.found())))

    def load(self, path: Path) -> Load:
        return Load(shown_name(path), self.loader(path), partial(_check, path))

    def held(self, path: Path | None) -> Resolved:
        return self.options.over(self.reading, self.memory.settings_of(path).layer)


def shown_name(path: Path) -> str:
    return GUIDE if path == paths.bundled_model() else printable(one_line(path.name))


def _check(path: Path) -> None:
    from exlchat.engine.weights.check import check

    check(path)
