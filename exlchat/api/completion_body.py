"""The body of `/v1/completions` as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from exlchat.api.errors import bad
from exlchat.api.fields import Fields
from exlchat.api.wishes import MOST_TOP, Wishes, read_wishes
from exlchat.untrusted.text import storable

MOST_PROMPTS = 128
_USUAL_TOKENS = 16
"""Of an answer where nothing is said, as OpenAI has it."""

Prompt = str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CompletionBody:
    """A request.

    Args:
        model: as it is called there; empty for the one that is loaded.
        prompts: texts, or ids.
        wishes: as of both endpoints.
        suffix: what stands behind the answer, which fills in between; empty for an answer that goes on.
        echo: whether each text begins with its prompt.
        bos: whether a text is put behind the token that the model's texts begin with.
    """

    model: str
    prompts: tuple[Prompt, ...]
    wishes: Wishes
    suffix: str = ""
    echo: bool = False
    bos: bool = True


def read_completion_body(fields: Fields) -> CompletionBody:
    """Raises `ApiError` for a field that cannot be. What of them was not read, `fields.ignored` says then."""
    prompts = _prompts(fields)
    suffix, echo = fields.text("suffix"), fields.flag("echo")
    if suffix and echo:
        raise bad("echo", "echo: with a suffix the text does not go on from the prompt; leave one of them out")
    if suffix and not all(isinstance(one, str) for one in prompts):
        raise bad("suffix", "suffix goes with prompts that are texts; put the tokens for filling in among the ids")
    top = fields.whole(fields.first("logprobs", "n_probs"), None, 0, MOST_TOP)
    wishes = read_wishes(fields, top=top, usual_tokens=_USUAL_TOKENS)
    bos = fields.flag(fields.first("add_special_tokens", "add_bos_token"), default=True)
    return CompletionBody(fields.text("model"), prompts, wishes, suffix, echo, bos)


def _prompts(fields: Fields) -> tuple[Prompt, ...]:
    """A text, a list of ids, or a list of either."""
    value = fields.raw("prompt")
    if isinstance(value, str) or _are_ids(value):
        value = [value]
    if not isinstance(value, list) or not value:
        raise bad("prompt", "prompt is missing; give a text, a list of ids of tokens, or a list of either")
    if len(value) > MOST_PROMPTS:
        raise bad("prompt", f"there are {len(value):,} prompts; {MOST_PROMPTS} is most")
    return tuple(_prompt(one, number) for number, one in enumerate(value))


def _prompt(value: Any, number: int) -> Prompt:
    if isinstance(value, str):
        return storable(value)
    if _are_ids(value):
        return tuple(value)
    raise bad("prompt", f"prompt[{number}] is neither a text nor a list of ids of tokens")


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int for one in value)
