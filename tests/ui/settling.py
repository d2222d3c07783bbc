"""Waiting for an app until all that was asked of it has been done and painted.

Textual's pilot waits until the process uses no processor, which on a busy machine is so in the middle of everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import textual.app
import textual.pilot
from textual.app import App
from textual.message_pump import MessagePump, active_app
from textual.timer import Timer

from exlchat.ui.tui.widgets.transcript import Transcript
from tests.patience import Patience

_SOON = 0.1
"""Seconds: what a timer will do by then is on its way; toasts, blinking cursors and looks at a folder are not."""
_CALM_ROUNDS = 2
_FOR_EVER = ("themes", "elsewhere")
"""Groups of workers that do not end."""


async def settled(app: App[object]) -> bool:
    """Wait until no message, timer or paint is on its way on any screen; whether that came to be."""
    patience = Patience()
    calm = 0
    # A key is handed to the app's loop before it is a message.
    await asyncio.sleep(0)
    while calm < _CALM_ROUNDS:
        if patience.is_over() or not app.is_running:
            return False
        await _round(app)
        calm = calm + 1 if _calm(app) else 0
        await asyncio.sleep(0 if calm else 0.004)
    return True


def _paint_below(app: App[object]) -> bool:
    """Bring what has changed below the uppermost screen to be painted with it, as a whole; whether there was something.

    Textual 8 paints a screen below in part where it has changed, as if nothing had been there, and from then on both at
    every message.
    """
    changed = False
    for screen in app.screen_stack[:-1]:
        if screen._repaint_required or screen._dirty_widgets or screen._compositor._dirty_regions:
            changed = True
            screen._repaint_required = False
            screen._dirty_widgets.clear()
            screen._compositor._dirty_regions.clear()
    if changed:
        app.screen.refresh()
    return changed


async def _round(app: App[object]) -> None:
    """Wait until every message that lies in a queue now has been dealt with."""
    passed = []
    for pump in _pumps(app):
        here = asyncio.Event()
        if pump.call_later(here.set):
            passed.append(asyncio.create_task(here.wait()))
    broken = asyncio.create_task(app._exception_event.wait())
    waiting = asyncio.gather(*passed)
    await asyncio.wait([waiting, broken], timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    broken.cancel()


def _calm(app: App[object]) -> bool:
    if any(not worker.is_finished and worker.group not in _FOR_EVER for worker in app.workers):
        return False
    if any(screen._callbacks or screen._layout_required for screen in app.screen_stack) or _paint_below(app):
        return False
    if app.screen._dirty_widgets or app.screen._repaint_required:
        return False
    return not any(pump.message_queue_size or _paints(pump) or any(map(_due, pump._timers)) for pump in _pumps(app))


def _paints(pump: MessagePump) -> bool:
    """Whether it has yet to paint what has come: where a paint took long the next one waits accordingly."""
    return isinstance(pump, Transcript) and pump._paint_timer is not None


def _due(timer: Timer) -> bool:
    """Whether it is one that fires once, and soon."""
    once = timer._repeat is not None and timer._interval <= _SOON
    return once and timer._task is not None and not timer._task.done()


def _pumps(app: App[object]) -> Iterator[MessagePump]:
    yield app
    for screen in app.screen_stack:
        yield from screen.walk_children(with_self=True)


async def _wait_for_idle(min_sleep: float = 0.0, max_sleep: float = 1.0) -> None:
    """In the place of Textual's, whose second is over on a busy machine before anything has been done."""
    del min_sleep, max_sleep
    await settled(active_app.get())


def have_pilots_wait(patch: pytest.MonkeyPatch) -> None:
    """From now on `pilot.pause()` and `pilot.press()` wait for what was asked for, not for an idle processor."""
    for module in (textual.app, textual.pilot):
        patch.setattr(module, "wait_for_idle", _wait_for_idle)
