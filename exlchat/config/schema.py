"""All settings, each declared once: the fields of `Settings`.

The checks, `exlchat config`, the settings screen and docs/settings.md are made from them.
"""

# What `Settings` calls makes its fields.
# ruff: noqa: RUF009

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from exlchat.chat.answer_options import DRAFTS, DraftChoice
from exlchat.chat.prompt.context_policy import CONTEXT_POLICIES, ContextPolicy
from exlchat.config.kinds import (
    OWN_KEYS,
    Choice,
    Controls,
    FolderList,
    Keys,
    KeyTable,
    Number,
    Numbers,
    SamplingTable,
    Switch,
    Text,
    Whole,
    toml_text,
)
from exlchat.llm.controls import CONTROLS
from exlchat.llm.limits import KV_CACHES, MOST_CACHE_GB, MOST_CACHE_TOKENS, ROUNDED_HEAD_BITS, KvCacheChoice
from exlchat.llm.sampling import SamplingSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from exlchat.config.kinds import Kind

When = Literal["at once", "next conversation", "next load"]
Underscores = Literal["text", "emphasis"]

CHAT_TEMPERATURE = 0.7
"""Lively but on topic; the bundled guide answers greedily instead, because it recites facts."""

GROUPS = {
    "Look": "Colours, and what is shown.",
    "Answers": "How answers are drawn, and how long they get.",
    "Conversations": "What conversations begin with, and what happens when they grow long.",
    "Model": "Where models lie, and how they are loaded.",
    "Memory": "How much of what was read is kept.",
    "Keys": "Which keys do what.",
}

EITHER = ("cache_tokens", "cache_gb")
"""Two ways to say one thing: only one of them may have a value."""
DRAWN = (*OWN_KEYS, "sampling")
"""Settings that can contradict each other."""
_PRESETS = ("--preset", "--persona")


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of `settings.toml`, with all that is known of it.

    Args:
        group: one of `GROUPS`.
        kind: which values there are.
        when: when a changed value takes effect in a running app.
        help: one sentence.
        options: of the command line, that beat it.
        unset: what holds when it is left out and has no default value.
        example: a value to show where there is no default.
    """

    default: Any
    group: str
    kind: Kind
    when: When
    help: str
    options: tuple[str, ...] = ()
    unset: str = ""
    example: Any = None
    key: str = ""

    @property
    def variable(self) -> str:
        return f"EXLCHAT_{self.key.upper()}"

    @property
    def optional(self) -> bool:
        return self.default is None

    def from_toml(self, value: object) -> Any:
        """The value in the file, checked. Raises `ValueError` in one line that names the key."""
        try:
            return self.kind.from_toml(value)
        except ValueError as error:
            raise ValueError(f"{self.key} {error}") from None

    def from_text(self, text: str, name: str | None = None) -> Any:
        """A typed value, checked; "none" is no value. Raises `ValueError` in one line that names `name` or the key."""
        if self.optional and text.strip().lower() == "none":
            return None
        try:
            return self.kind.from_text(text)
        except ValueError as error:
            also = ", or none" if self.optional else ""
            raise ValueError(f"{name or self.key} {error}{also}") from None

    def shown(self, value: Any) -> str:
        """As TOML, in one line; what no value means, in brackets."""
        return f"({self.unset})" if value is None else toml_text(self.kind.to_toml(value))


def usual_temperature(dynatemp_high: float, *, bundled_guide: bool) -> float:
    """What holds where no temperature is set."""
    # What cannot be with a greedy draw is asked for only by somebody who wants another one.
    return 0.0 if bundled_guide and not dynatemp_high else CHAT_TEMPERATURE


def _setting(default: Any, group: str, kind: Kind, when: When, text: str, **more: Any) -> Any:
    return field(default=default, metadata={"setting": Setting(default, group, kind, when, text, **more)})


def _control(name: str, default: float | None, **more: Any) -> Any:
    control = CONTROLS[name]
    whole = control.kind == "whole"
    kind = Whole(int(control.low)) if whole else Number(control.low, control.high, above=control.above)
    options = (f"--{name.replace('_', '-')}", *_PRESETS)
    return _setting(default, "Answers", kind, "at once", control.help, options=options, **more)


@dataclass(frozen=True, slots=True)
class Settings:
    """One value per key of `settings.toml`; `None` is a key left out, whose meaning is `unset`.

    Raises:
        ValueError: a value that cannot be, or two that contradict each other, in one line.
    """

    theme: str = _setting(
        "exlchat-dark", "Look", Text(source="themes"), "at once", "The colours, by name.", options=("--theme",)
    )
    sidebar: bool = _setting(
        True, "Look", Switch(), "at once", "Whether the list of conversations is shown, if there is room."
    )
    notify_after: int = _setting(
        *(10, "Look", Whole(0), "at once"),
        "Seconds after which the end of an answer is told to the desktop, if another window is in front; 0 never.",
    )
    underscores: Underscores = _setting(
        *("text", "Look", Choice(get_args(Underscores)), "at once"),
        "What underscores around words of an answer are: text, as code models mean them, or emphasis.",
    )
    temperature: float | None = _control(
        "temperature", None, unset="0.7, and 0 for the bundled guide", example=CHAT_TEMPERATURE
    )
    top_k: int = _control("top_k", 0)
    top_p: float = _control("top_p", 1.0)
    min_p: float = _control("min_p", 0.05)
    sampling: SamplingTable = _setting(
        *((), "Answers", Controls(), "at once"),
        "All other controls of how answers are drawn, by name.",
        options=("--sample", *_PRESETS),
        example=(("xtc_probability", 0.5), ("dry_multiplier", 0.8)),
    )
    max_tokens: int | None = _setting(
        *(None, "Answers", Whole(1), "at once"),
        "The longest answer, in tokens.",
        options=("--max-tokens", *_PRESETS),
        unset="until the context is full",
        example=1000,
    )
    draft: DraftChoice = _setting(
        *("auto", "Answers", Choice(DRAFTS), "at once"),
        "Who guesses tokens ahead, for speed; auto is the draft model, else what was said before.",
        options=("--draft",),
    )
    template: str | None = _setting(
        *(None, "Conversations", Text(), "at once"),
        "The prompt format: a built-in one by name, or a file.",
        options=("--template", "--persona"),
        unset="the model's own",
        example="chatml",
    )
    system: str | None = _setting(
        *(None, "Conversations", Text(), "next conversation"),
        "The system prompt of new conversations.",
        options=("--system", "--persona"),
        unset="none",
        example="You are brief.",
    )
    context_policy: ContextPolicy = _setting(
        *("drop", "Conversations", Choice(tuple(CONTEXT_POLICIES)), "at once"),
        "When a conversation does not fit the context: drop its oldest turns and say so, summarise them, or stop.",
        options=("--context-policy",),
    )
    title_by: Literal["model", "first line"] = _setting(
        *("model", "Conversations", Choice(("model", "first line")), "at once"),
        "Who titles new conversations: the model when it is idle, or their first line.",
    )
    user_name: str = _setting("User", "Conversations", Text(name=True), "next conversation", "What personas call you.")
    model_folders: tuple[str, ...] = _setting(
        *((), "Model", FolderList(), "at once"),
        "Folders of models of your own: whole paths, or with ~.",
        example=("~/models",),
    )
    context: int | None = _setting(
        *(None, "Model", Whole(1), "next load"),
        "The longest prompt plus answer, in tokens.",
        options=("--context",),
        unset="the model's own limit",
        example=8192,
    )
    kv_cache: KvCacheChoice = _setting(
        *("auto", "Model", Choice(KV_CACHES), "next load"),
        "Precision of keys and values; auto is fp16 on a card, fp32 on the CPU.",
        options=("--kv-cache",),
    )
    extension: bool = _setting(
        *(True, "Model", Switch(), "next load"),
        "Whether a card uses the CUDA kernels; without them it is slower.",
        options=("--ext", "--no-ext"),
    )
    quantize_head: int | None = _setting(
        *(None, "Model", Whole(choices=ROUNDED_HEAD_BITS), "next load"),
        "Bits that an output head of floats is rounded to, where there are kernels.",
        options=("--quantize-head",),
        unset="left as it is",
        example=8,
    )
    cards: tuple[int, ...] = _setting(
        *((), "Model", Numbers(Whole(0, 255)), "next load"),
        "Which cards a model may use, in this order, counted from 0.",
        options=("--cards",),
        unset="as few as it takes, the fastest first",
        example=(1, 0),
    )
    reserve: tuple[float, ...] = _setting(
        *((), "Model", Numbers(Number(0, MOST_CACHE_GB)), "next load"),
        "GiB that are left free on each card, or one number for all.",
        options=("--reserve",),
        unset="nothing",
        example=(2.0,),
    )
    host_layers: int | None = _setting(
        *(None, "Model", Whole(0, 1000), "next load"),
        "Layers whose weights lie in the machine's memory, where cards read them slowly; of a mixture its experts.",
        options=("--host-layers",),
        unset="as few as it takes, none if the cards have room",
        example=8,
    )
    draft_model: str | None = _setting(
        *(None, "Model", Text(), "next load"),
        "Folder of a smaller model with the same vocabulary, which guesses tokens ahead.",
        options=("--draft",),
        unset="none",
        example="~/models/small",
    )
    cache_tokens: int | None = _setting(
        *(None, "Memory", Whole(256, MOST_CACHE_TOKENS), "next load"),
        "Tokens of all conversations that are kept in memory; goes without cache_gb.",
        options=("--cache-tokens", "--cache-gb"),
        unset="by what there is",
        example=65536,
    )
    cache_gb: float | None = _setting(
        *(None, "Memory", Number(0, MOST_CACHE_GB, above=True), "next load"),
        "The same in GiB; goes without cache_tokens.",
        options=("--cache-gb", "--cache-tokens"),
        unset="by what there is",
        example=4.0,
    )
    disk_gb: float = _setting(
        *(4.0, "Memory", Number(0, MOST_CACHE_GB), "next load"),
        "GiB of it that outlive the program; 0 keeps none.",
        options=("--disk-gb",),
    )
    editing: Literal["emacs", "vi"] = _setting(
        "emacs", "Keys", Choice(("emacs", "vi")), "at once", "Which keys edit the message that is typed."
    )
    keys: KeyTable = _setting((), "Keys", Keys(), "at once", "Keys of your own, by the id of the action.")

    def __post_init__(self) -> None:
        for setting in SETTINGS.values():
            value = getattr(self, setting.key)
            if value is not None or not setting.optional:
                setting.from_toml(value)
        if self.cache_gb is not None and self.cache_tokens is not None:
            raise ValueError("cache_gb and cache_tokens are both there; keep one of them")
        # Raises where two of the values contradict each other.
        self.drawing()

    def drawing(self, *, bundled_guide: bool = False) -> SamplingSettings:
        own, table = {name: getattr(self, name) for name in OWN_KEYS}, dict(self.sampling)
        if own["temperature"] is None:
            own["temperature"] = usual_temperature(table.get("dynatemp_high", 0.0), bundled_guide=bundled_guide)
        return SamplingSettings(**own, **table)


SETTINGS: dict[str, Setting] = {one.name: replace(one.metadata["setting"], key=one.name) for one in fields(Settings)}
"""All settings by key, in the order to show them."""


def grouped() -> Iterator[tuple[str, list[Setting]]]:
    for group in GROUPS:
        yield group, [one for one in SETTINGS.values() if one.group == group]
