"""What ends an answer in a prompt format, beside the stop ids that the model's files name."""

from __future__ import annotations

from exlchat.chat.prompt.errors import PromptError
from exlchat.chat.prompt.ids import template_variables
from exlchat.chat.prompt_format import PromptFormat
from exlchat.llm.port import Engine

_MARK = "\ufdd0"


def stop_conditions(engine: Engine, form: PromptFormat) -> tuple[str | int, ...]:
    """Token ids and strings. A string that is one special token is given as its id: it never shows up as text.

    The token that the template writes behind an answer belongs to them. Many model directories forget to name it, and
    the model then talks on as the user.
    """
    added = _added_tokens(engine)
    wanted = [*form.stops(), *filter(None, [_closing_token(engine, form)])]
    found: list[str | int] = []
    for text in wanted:
        ids = engine.encode(text) if text in added else []
        stop: str | int = ids[0] if len(ids) == 1 else text
        if stop not in found and stop not in engine.info.stop_ids:
            found.append(stop)
    return tuple(found)


def _closing_token(engine: Engine, form: PromptFormat) -> str | None:
    """The added token that follows an answer in this format: its end, or where it has none, the user's next turn."""
    question, answer = {"role": "user", "content": "x"}, {"role": "assistant", "content": _MARK}
    for messages in ([question, answer], [question, answer, question]):
        try:
            text = form.render(messages, add_generation_prompt=False, **template_variables(engine))
        except PromptError:
            # A template that refuses this little conversation may take the real one, which is rendered next.
            return None
        behind = text.partition(_MARK)[2].lstrip()
        if behind:
            return max((token for token in _added_tokens(engine) if behind.startswith(token)), key=len, default=None)
    return None


def _added_tokens(engine: Engine) -> set[str]:
    """Texts that are one token each. Not all that mark turns are special ones: families differ in what they call so."""
    return {token for token in (*engine.info.special_tokens, *engine.info.added_tokens) if token}
