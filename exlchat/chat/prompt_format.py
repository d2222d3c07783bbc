"""Messages -> prompt text: the model's own Jinja template, a user's file, or one of the built-in formats."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exlchat import paths
from exlchat.chat.prompt import template_process
from exlchat.chat.prompt.errors import PromptError
from exlchat.chat.prompt.formats import FORMATS, guess
from exlchat.chat.prompt.formats.table_source import named
from exlchat.chat.prompt.thinking import detect
from exlchat.chat.registry import id_for
from exlchat.llm.thought_splitter import ThinkingMarks
from exlchat.untrusted.files import UntrustedFileError, read_text
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from exlchat.llm.info import ModelInfo

MODEL_FORMAT = "model"
"""The name that stands for the template a model brings along."""


FORMAT_ENDINGS = (".jinja", ".toml")
"""How the names of files with formats end."""

FORMAT_PROGRAMS = ("SillyTavern", "text-generation-webui")
"""Whose formats can be imported."""

MOST_BYTES = 1_000_000

MARK = re.compile(r"[<\[]\S+[>\]]")
"""What marks of turns look like among added tokens; others are words or runs of white space."""

_LONGEST_NAME = 100

_PROBE = "kumquat"
"""A word that no template has."""

_REASONING = ("reasoning_content", "thinking", "reasoning")


@dataclass(frozen=True, slots=True)
class PromptFormat:
    """How messages become a prompt.

    Args:
        name: how it is called on the screen and in an answer's record.
        source: Jinja.
        stop: what ends an answer in this format, beside the model's own stop ids; with `{{user}}` and `{{char}}` in it.
        variables: what its template sees in every rendering, as `enable_thinking`.
        thinking: how its models mark thoughts; `None` where they do not think.
        keeps_thinking: whether later prompts show the thoughts of earlier answers.
    """

    name: str
    source: str
    stop: tuple[str, ...] = ()
    variables: Mapping[str, object] = field(default_factory=dict, hash=False)
    thinking: ThinkingMarks | None = None
    keeps_thinking: bool = False

    def stops(self) -> tuple[str, ...]:
        """What ends an answer, with the names of those who speak."""
        return tuple(dict.fromkeys(named(one, self.variables) for one in self.stop))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        moment: datetime | None = None,
        **variables: Any,
    ) -> str:
        """The prompt text of role/content mappings.

        Args:
            messages: mappings with `role` and `content`, and whatever else the template knows of them.
            add_generation_prompt: whether the text ends where the model is to go on.
            moment: the local time that the template sees; now unless given.
            variables: what it sees beside the messages and its own, values of JSON.

        Raises:
            PromptError: the template refuses the conversation, is wrong, or runs without end.
        """
        seen: dict[str, object] = {"bos_token": "", "eos_token": "", "tools": None, "documents": None}
        seen |= {**variables, **self.variables}
        seen["messages"] = [_with_reasoning(message) for message in messages]
        seen["add_generation_prompt"] = add_generation_prompt
        try:
            return template_process.render(self.source, seen, moment or datetime.now())
        except template_process.TemplateError as error:
            if error.line is not None:
                wrong = f"line {error.line}: {error}; mend the template or choose another"
                raise PromptError(f"prompt format {self.name}: {wrong}") from None
            raise PromptError(
                f"prompt format {self.name} cannot take this conversation: {error}; choose another template, as chatml"
            ) from None


def _with_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in which the thoughts of an answer go by the names of all families, as in transformers 5."""
    reasoning = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    if reasoning is None:
        return dict(message)
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


BUILT_IN = {
    one.name: PromptFormat(one.name, one.source, one.stop, thinking=one.thinking, keeps_thinking=one.keeps_thinking)
    for one in FORMATS
}


def render(
    messages: Sequence[Mapping[str, str]], template: str, *, add_generation_prompt: bool = True, **variables: Any
) -> str:
    """The prompt text of `messages`.

    Args:
        messages: mappings with `role` and `content`.
        template: the name of a built-in format, as "chatml" or "plain", or Jinja source.
        add_generation_prompt: whether the text ends where the model is to go on.
        variables: what the template sees beside the messages, such as `bos_token` and `eos_token` ("" if left out).

    Raises:
        PromptError: unknown name, or a template that refuses, is wrong, or runs without end.
    """
    is_source = any(character in template for character in "{\n")
    if not is_source and template not in BUILT_IN:
        raise _unknown(template, BUILT_IN)
    chosen = BUILT_IN.get(template) or PromptFormat("(given as source)", template)
    return chosen.render(messages, add_generation_prompt=add_generation_prompt, **variables)


def choose_format(
    info: ModelInfo, wanted: str | None, templates_dir: Path | None = None
) -> tuple[PromptFormat, str | None]:
    """The format that `wanted` names, and a line to show when it is not the one that was meant.

    Args:
        info: the loaded model.
        wanted: "model" or `None` for the model's own; "model:NAME" for another that it brings along; a built-in format;
            a file in `templates_dir`, with or without `.jinja` or `.toml`, or as an import would have named it; or the
            path of a file.
        templates_dir: the user's own formats.

    Raises:
        PromptError: there is no such format, or its file cannot be read.
    """
    form, notice = _chosen(info, wanted, templates_dir)
    if form.thinking is None:
        form = replace(form, thinking=detect(form.source, info.added_tokens))
    return form, notice


def _chosen(info: ModelInfo, wanted: str | None, templates_dir: Path | None) -> tuple[PromptFormat, str | None]:
    if wanted is None or wanted == MODEL_FORMAT:
        return _models_own(info)
    named = _named(info)
    if wanted in named:
        return _brought_along(wanted, named[wanted]), None
    if wanted in BUILT_IN:
        return BUILT_IN[wanted], None
    file = _find_file(wanted, templates_dir)
    if file is None:
        names = [MODEL_FORMAT, *named, *BUILT_IN, *format_files(templates_dir)]
        raise _unknown(wanted, names)
    return read_format(file), None


def _named(info: ModelInfo) -> dict[str, str]:
    """Sources of the model's further templates, by what they are called here."""
    return {f"{MODEL_FORMAT}:{one_line(name, 60)}": source for name, source in info.named_templates.items()}


def _models_own(info: ModelInfo) -> tuple[PromptFormat, str | None]:
    if info.chat_template:
        return _brought_along(MODEL_FORMAT, info.chat_template), None
    name, why = guess({*info.special_tokens, *info.added_tokens}, info.architecture, info.vocab_size)
    notice = f"{info.name} has no chat template of its own; using the built-in format {name}: {why}"
    if info.named_templates:
        notice += f" (of its own there are {', '.join(_named(info))})"
    return BUILT_IN[name], one_line(notice, 400)


def _brought_along(name: str, source: str) -> PromptFormat:
    """A template of the model's own, which tells by what it does whether earlier thoughts are to be seen."""
    form = PromptFormat(name, source)
    marks = detect(source)
    return form if marks is None else replace(form, thinking=marks, keeps_thinking=_shows_thoughts(form))


def _shows_thoughts(form: PromptFormat) -> bool:
    """Whether a template shows the thoughts of an answer that is not the last when they are given apart from it."""
    asked, said = {"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "reasoning_content": _PROBE}
    try:
        return _PROBE in form.render([asked, said, asked])
    except PromptError:
        # A template that refuses this little conversation says nothing about thoughts.
        return False


def with_thinking(form: PromptFormat, on: bool) -> PromptFormat:
    """`form` told whether to have the model think, by the names that families have for it; some know none of them."""
    told: dict[str, object] = {"enable_thinking": on, "thinking": on, "reasoning": on}
    if not on:
        told["thinking_budget"] = 0
    return replace(form, variables={**told, **form.variables})


def with_names(form: PromptFormat, names: Mapping[str, str], info: ModelInfo) -> PromptFormat:
    """`form` told who speaks, as `user_name` and `assistant_name`, which most formats do not ask.

    What a template writes may hold special tokens; a name, which comes from a card or is typed, holds none.
    """
    told = {key: without_marks(one_line(name, _LONGEST_NAME), info) for key, name in names.items()}
    return replace(form, variables={**told, **form.variables})


def without_marks(text: str, info: ModelInfo) -> str:
    """`text` without special tokens and marks of turns, until none is left: taking one out may make another."""
    marks = [*info.special_tokens, *(one for one in info.added_tokens if MARK.fullmatch(one))]
    while found := next((one for one in marks if one and one in text), None):
        text = text.replace(found, "")
    return text


def format_files(templates_dir: Path | None) -> list[str]:
    """Names of the user's own formats, sorted."""
    if templates_dir is None or not templates_dir.is_dir():
        return []
    return sorted({file.stem for ending in FORMAT_ENDINGS for file in templates_dir.glob(f"*{ending}")})


def format_id(name: str, program: str = "") -> str:
    """What a format of this name is called once it is imported; with the program's name where its own is taken."""
    return id_for(name, "format") + (f"-{id_for(program, '')}" if program else "")


def _find_file(wanted: str, templates_dir: Path | None) -> Path | None:
    candidates = [paths.expanded(wanted)] if "/" in wanted or wanted.endswith(FORMAT_ENDINGS) else []
    if templates_dir is not None and Path(wanted).name == wanted:
        candidates += [templates_dir / f"{wanted}{ending}" for ending in ("", *FORMAT_ENDINGS)]
        imported = [format_id(wanted), *(format_id(wanted, program) for program in FORMAT_PROGRAMS)]
        candidates += [templates_dir / f"{name}{ending}" for name in imported for ending in FORMAT_ENDINGS]
    return next((file for file in candidates if file.exists() and not file.is_dir()), None)


def read_format(file: Path) -> PromptFormat:
    """A format of the user's own: Jinja, or a table of strings in a file that ends in `.toml`.

    Raises:
        PromptError: it cannot be read or is wrong: one line that names the file.
    """
    from exlchat.chat.prompt.formats.table import TableError, from_table

    source = _read(file)
    if file.suffix.lower() != ".toml":
        return PromptFormat(file.stem, source)
    try:
        table = from_table(source)
    except TableError as error:
        raise PromptError(f"{file}: {error}") from None
    return PromptFormat(
        file.stem, table.source, table.stop, thinking=table.thinking, keeps_thinking=table.keeps_thinking
    )


def _read(file: Path) -> str:
    try:
        return read_text(file, largest=MOST_BYTES, kind="prompt format")
    except UntrustedFileError as error:
        raise PromptError(str(error)) from None


def _unknown(wanted: str, names: Sequence[str] | Mapping[str, object]) -> PromptError:
    known = list(names)
    nearest = difflib.get_close_matches(wanted, known, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(known)}, and the path of a file"
    return PromptError(f"there is no prompt format {one_line(wanted, 60)!r}; {hint}")
