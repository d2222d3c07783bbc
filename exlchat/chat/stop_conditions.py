"""What ends an answer in a prompt format, beside the stop ids that the model's files name."""

from __future__ import annotations

from exlchat.chat.engine_port import EnginePort
from exlchat.chat.prompt_format import PromptError, PromptFormat

_MARK = "\ufdd0"


def stop_conditions(engine: EnginePort, form: PromptFormat) -> tuple[str | int, ...]:
    """Token ids and strings. A string that is one special token is given as its id: it never shows up as text.

    The token that the template writes behind an answer belongs to them. Many model directories forget to name it, and
    the model then talks on as the user.
    """
    special = set(engine.info.special_tokens)
    wanted = [*form.stop, *filter(None, [_closing_token(engine, form)])]
    found: list[str | int] = []
    for text in wanted:
        ids = engine.encode(text) if text in special else []
        stop: str | int = ids[0] if len(ids) == 1 else text
        if stop not in found and stop not in engine.info.stop_ids:
            found.append(stop)
    return tuple(found)


def _closing_token(engine: EnginePort, form: PromptFormat) -> str | None:
    """The special token that follows an answer in this format."""
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": _MARK}]
    info = engine.info
    try:
        text = form.render(messages, add_generation_prompt=False, bos_token=info.bos_token, eos_token=info.eos_token)
    except PromptError:
        # A template that refuses this little conversation may take the real one, which is rendered next.
        return None
    _, _, behind = text.partition(_MARK)
    following = [token for token in info.special_tokens if token and behind.lstrip().startswith(token)]
    return max(following, key=len, default=None)
