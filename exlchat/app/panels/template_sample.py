"""The prompt formats there are, and what a little talk becomes in one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.chat.prompt.errors import PromptError
from exlchat.chat.prompt.formats.catalog import FORMATS
from exlchat.chat.prompt_format import MODEL_FORMAT, choose_format, format_files

if TYPE_CHECKING:
    from exlchat.llm.info import ModelInfo

_TALK = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello!"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "How are you?"},
)


def formats_there_are() -> list[tuple[str, str]]:
    """Names and a few words about each: the model's own, the built-in ones, files of the user."""
    own = [(name, "a file of your own") for name in format_files(paths.folders().templates)]
    built_in = sorted((one.name, one.about) for one in FORMATS)
    return [(MODEL_FORMAT, "the model's own, or what fits it best"), *own, *built_in]


def sample_prompt(info: ModelInfo, name: str | None) -> str:
    """The prompt text of a little talk; without its system prompt where the format takes none; else why there is none.

    Args:
        info: the loaded model.
        name: of the format; `None` is the model's own.
    """
    try:
        form, _ = choose_format(info, name, paths.folders().templates)
    except PromptError as error:
        return str(error)
    problem = ""
    for talk in (_TALK, _TALK[1:]):
        try:
            return form.render(talk, bos_token=info.bos_token, eos_token=info.eos_token)
        except PromptError as error:
            problem = problem or str(error)
    return problem
