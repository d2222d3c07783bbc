"""How likely each token of an answer was, what else was likely there, and a choice of another one to go on from."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import getters, on
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from exlchat.app.panels.token_words import LEGEND, OWN, named, percent, place_line
from exlchat.chat.answer_chances import probability
from exlchat.chat.turn_plan import Beginning
from exlchat.ui.tui.widgets.token_text import TokenText, chance_style
from exlchat.untrusted.sanitize import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult

    from exlchat.app.runtime.requests import Computing
    from exlchat.chat.answer_chances import AnswerChances
    from exlchat.llm.events import TokenChance

_EVERY_SECONDS = 0.1
_BAR_CELLS = 12


class ProbabilitiesScreen(ModalScreen[Beginning | None]):
    """Gives with what another answer is to begin, or `None` when it was left with Escape.

    Args:
        begin: asks for the probabilities; takes who is told them, and who is told why there are none.
        waits_for: what has to happen before they are computed, as the end of a line; `None` when nothing has to.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "leave", "Leave", show=False),
        Binding("left,h", "move(-1)", show=False),
        Binding("right,l", "move(1)", show=False),
        Binding("n", "unsure(1)", "Next unsure token", show=False),
        Binding("N", "unsure(-1)", "Unsure token before", show=False),
        Binding("enter,tab", "choose", "Alternatives", show=False),
        *(Binding(str(key), f"take({(key - 1) % 10})", show=False) for key in range(10)),
    ]

    tokens = getters.query_one("#chances-text", TokenText)
    options = getters.query_one("#chances-list", OptionList)
    about = getters.query_one("#chances-place", Static)

    def __init__(
        self,
        begin: Callable[[Callable[[AnswerChances | None], None], Callable[[str], None]], Computing],
        waits_for: Callable[[], str | None],
    ) -> None:
        super().__init__()
        self._begin = begin
        self._waits_for = waits_for
        self._computing: Computing | None = None
        self._chances: AnswerChances | None = None
        self._offered: list[TokenChance] = []
        self._failed = False

    def compose(self) -> ComposeResult:
        with Vertical(id="chances"):
            yield Static("", id="chances-told", markup=False)
            yield TokenText(id="chances-text")
            yield Static("", id="chances-place", markup=False)
            yield OptionList(id="chances-list", markup=False)

    def on_mount(self) -> None:
        frame = self.query_one("#chances")
        frame.border_title = "Probabilities"
        frame.border_subtitle = "Esc gives up"
        self.options.display = False
        self._computing = self._begin(self._show, self._fail)
        self.set_interval(_EVERY_SECONDS, self._tell_progress)
        self._tell_progress()

    def on_unmount(self) -> None:
        self._give_up()

    def _give_up(self) -> None:
        if self._computing is not None:
            self._computing.cancellation.cancel()

    @property
    def _waited_for(self) -> bool:
        """Whether this is still shown; what comes later is for nobody."""
        return self.is_attached and (self._computing is None or not self._computing.cancellation.asked)

    def _tell_progress(self) -> None:
        if self._chances is not None or self._failed or self._computing is None:
            return
        wait, computing = self._waits_for(), self._computing
        if wait is not None and not computing.total:
            self.about.update(f"They are computed when {wait}.")
            return
        share = f" {computing.done / computing.total:.0%}" if computing.total else ""
        self.about.update(f"Computing the probabilities…{share}")

    def _fail(self, line: str) -> None:
        self._failed = True
        if self._waited_for:
            self.about.update(printable(line))
            self.query_one("#chances").border_subtitle = "Esc leaves"

    def _show(self, chances: AnswerChances | None) -> None:
        if chances is None or not self._waited_for:
            return
        self._chances = chances
        told = self.query_one("#chances-told", Static)
        told.update(self._told(chances))
        told.set_class(bool(chances.notices), "-notices")
        self.query_one("#chances").border_subtitle = "← → n · 1-9 or Enter goes on from another · Esc"
        self.options.display = True
        self.tokens.show(chances)
        self.tokens.focus()

    def _told(self, chances: AnswerChances) -> Text:
        """Notices come first: in a terminal of few rows there is no room for more."""
        colors = self.app.theme_variables
        text = Text("".join(f"{line[0].upper()}{line[1:]}.\n" for line in map(printable, chances.notices)))
        text.append(f"{OWN}\n")
        for number, (kind, least) in enumerate(LEGEND):
            text.append(" · " if number else "")
            text.append(least, chance_style(kind, colors))
        return text

    @on(TokenText.Moved)
    def _moved(self, event: TokenText.Moved) -> None:
        chances = self._chances
        if chances is None:
            return
        place = chances.places[event.place]
        self.about.update(place_line(chances, event.place))
        self._offered = list(place.top)
        if place.taken is not None and place.taken.rank > len(place.top):
            self._offered.append(place.taken)
        self.options.clear_options()
        self.options.add_options([Option(self._row(one, event.place)) for one in self._offered])
        self.options.highlighted = 0

    def _row(self, chance: TokenChance, at: int) -> Content:
        assert self._chances is not None
        place = self._chances.places[at]
        key = f"{chance.rank % 10}" if chance.rank <= len(place.top) <= 10 else " "
        share = probability(chance)
        bar = "━" * round(share * _BAR_CELLS)
        own = place.taken is not None and place.taken.token_id == chance.token_id
        wide = not self.has_class("-narrow")
        return Content.assemble(
            Content.styled(f"{key} ", "$quiet-text"),
            f"{percent(share):>8} ",
            Content.styled(f"{bar:<{_BAR_CELLS}} " if wide else "", "$quiet-text"),
            Content.styled(named(self._chances, chance), "bold" if own else ""),
            Content.styled("  ● stands there" if own else "", "$quiet-text"),
        )

    # Keys

    def action_move(self, by: int) -> None:
        """The token before or after, while the list has the focus too."""
        self.tokens.action_move(by)

    def action_unsure(self, by: int) -> None:
        """The next token, or the one before, that the model was not sure of."""
        if self._chances is None:
            return
        here = self.tokens.place
        places = [at for at in self._chances.unsure() if (at > here if by > 0 else at < here)]
        if places:
            self.tokens.move_to(places[0] if by > 0 else places[-1])
        else:
            side = "behind" if by > 0 else "before"
            self.about.update(f"{place_line(self._chances, here)} · none below 50 % {side} it")

    def action_choose(self) -> None:
        if self._chances is None:
            return
        (self.tokens if self.options.has_focus else self.options).focus()

    @on(OptionList.OptionSelected)
    def _selected(self, event: OptionList.OptionSelected) -> None:
        self.action_take(event.option_index)

    def action_take(self, index: int) -> None:
        """Have another answer go on from that alternative."""
        if self._chances is None or not 0 <= index < len(self._offered):
            self.app.bell()
            return
        self.dismiss(self._chances.beginning(self.tokens.place, self._offered[index].token_id))

    def action_leave(self) -> None:
        """Escape: from the list to the answer, from there to the conversation."""
        if self.options.has_focus:
            self.tokens.focus()
        else:
            self._give_up()
            self.dismiss(None)
