"""All settings, each declared once: the fields of `Settings`.

The checks, `exlchat config`, the settings screen and docs/settings.md are made from them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from exlchat.chat.prompt.context import CONTEXT_POLICIES, ContextPolicy
from exlchat.chat.speech import DRAFTS, DraftChoice
from exlchat.config.kinds import Choice, Folders, Keys, KeyTable, Number, Switch, Text, Whole
from exlchat.config.sampling_table import OWN_KEYS, Controls, SamplingTable
from exlchat.config.setting import About, Setting, When
from exlchat.llm.controls import CONTROLS
from exlchat.llm.info import ROUNDED_HEAD_BITS
from exlchat.llm.sampling import SamplingSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from exlchat.config.kinds import Kind

CHAT_TEMPERATURE = 0.7
"""Lively but on topic; the bundled guide answers greedily instead, because it recites facts."""

KvCacheChoice = Literal["auto", "fp32", "fp16", "fp8", "q8", "q6", "q4"]
KV_CACHES: tuple[KvCacheChoice, ...] = get_args(KvCacheChoice)
"""Precision of keys and values; which of them a model's heads allow is known to `exlchat.ext.kv_formats`."""

MOST_CACHE_TOKENS = 10**9
MOST_CACHE_GB = 100_000
"""More than any machine has; far more would overflow."""

GROUPS = {
    "Look": "Colours, and what is shown.",
    "Answers": "How answers are drawn, and how long they get.",
    "Conversations": "What conversations begin with, and what happens when they grow long.",
    "Model": "Where models lie, and how they are loaded.",
    "Memory": "How much of what was read is kept.",
    "Keys": "Which keys do what.",
}

_PRESETS = ("--preset", "--persona")
EITHER = ("cache_tokens", "cache_gb")
"""Two ways to say one thing: only one of them may have a value."""


def _about(
    group: str,
    kind: Kind,
    when: When,
    text: str,
    *,
    options: tuple[str, ...] = (),
    unset: str = "",
    example: Any = None,
) -> Mapping[str, About]:
    return {"about": About(kind, group, when, text, options, unset, example)}


def _sampled(name: str, *, unset: str = "", example: Any = None) -> Mapping[str, About]:
    """A control of sampling as a setting, with its own range and sentence."""
    control = CONTROLS[name]
    kind = (
        Whole(int(control.low)) if control.kind == "whole" else Number(control.low, control.high, above=control.above)
    )
    options = (f"--{name.replace('_', '-')}", *_PRESETS)
    return _about("Answers", kind, "at once", control.help, options=options, unset=unset, example=example)


@dataclass(frozen=True, slots=True)
class Settings:
    """One value per key of `settings.toml`; `None` is a key left out, whose meaning is `unset`.

    `from_environment` is no setting: the keys whose values stand in the environment.
    """

    theme: str = field(
        default="exlchat-dark",
        metadata=_about("Look", Text(source="themes"), "at once", "The colours, by name.", options=("--theme",)),
    )
    sidebar: bool = field(
        default=True,
        metadata=_about("Look", Switch(), "at once", "Whether the list of conversations is shown, if there is room."),
    )
    notify_after: int = field(
        default=10,
        metadata=_about(
            "Look",
            Whole(0),
            "at once",
            "Seconds after which the end of an answer is told to the desktop, if another window is in front; 0 never.",
        ),
    )
    temperature: float | None = field(
        default=None,
        metadata=_sampled("temperature", unset="0.7, and 0 for the bundled guide", example=CHAT_TEMPERATURE),
    )
    top_k: int = field(default=0, metadata=_sampled("top_k"))
    top_p: float = field(default=1.0, metadata=_sampled("top_p"))
    min_p: float = field(default=0.05, metadata=_sampled("min_p"))
    sampling: SamplingTable = field(
        default=(),
        metadata=_about(
            "Answers",
            Controls(),
            "at once",
            "All other controls of how answers are drawn, by name.",
            options=("--sample", *_PRESETS),
            example=(("xtc_probability", 0.5), ("dry_multiplier", 0.8)),
        ),
    )
    max_tokens: int | None = field(
        default=None,
        metadata=_about(
            "Answers",
            Whole(1),
            "at once",
            "The longest answer, in tokens.",
            options=("--max-tokens", *_PRESETS),
            unset="until the context is full",
            example=1000,
        ),
    )
    draft: DraftChoice = field(
        default="auto",
        metadata=_about(
            "Answers",
            Choice(DRAFTS),
            "at once",
            "Who guesses tokens ahead, for speed; auto is the draft model, else what was said before.",
            options=("--draft",),
        ),
    )
    template: str | None = field(
        default=None,
        metadata=_about(
            "Conversations",
            Text(),
            "at once",
            "The prompt format: a built-in one by name, or a file.",
            options=("--template", "--persona"),
            unset="the model's own",
            example="chatml",
        ),
    )
    system: str | None = field(
        default=None,
        metadata=_about(
            "Conversations",
            Text(),
            "next conversation",
            "The system prompt of new conversations.",
            options=("--system", "--persona"),
            unset="none",
            example="You are brief.",
        ),
    )
    context_policy: ContextPolicy = field(
        default="stop",
        metadata=_about(
            "Conversations",
            Choice(tuple(CONTEXT_POLICIES)),
            "at once",
            "When a conversation does not fit the context: stop and say so, drop its oldest turns, or summarise them.",
            options=("--context-policy",),
        ),
    )
    title_by: Literal["model", "first line"] = field(
        default="model",
        metadata=_about(
            "Conversations",
            Choice(("model", "first line")),
            "at once",
            "Who titles new conversations: the model when it is idle, or their first line.",
        ),
    )
    user_name: str = field(
        default="User",
        metadata=_about("Conversations", Text(name=True), "next conversation", "What personas call you."),
    )
    model_folders: tuple[str, ...] = field(
        default=(),
        metadata=_about(
            "Model",
            Folders(),
            "at once",
            "Folders of models of your own: whole paths, or with ~.",
            example=("~/models",),
        ),
    )
    context: int | None = field(
        default=None,
        metadata=_about(
            "Model",
            Whole(1),
            "next load",
            "The longest prompt plus answer, in tokens.",
            options=("--context",),
            unset="the model's own limit",
            example=8192,
        ),
    )
    kv_cache: KvCacheChoice = field(
        default="auto",
        metadata=_about(
            "Model",
            Choice(KV_CACHES),
            "next load",
            "Precision of keys and values; auto is fp16 on a card, fp32 on the CPU.",
            options=("--kv-cache",),
        ),
    )
    extension: bool = field(
        default=True,
        metadata=_about(
            "Model",
            Switch(),
            "next load",
            "Whether a card uses the CUDA kernels; without them it is slower.",
            options=("--ext", "--no-ext"),
        ),
    )
    quantize_head: int | None = field(
        default=None,
        metadata=_about(
            "Model",
            Whole(choices=ROUNDED_HEAD_BITS),
            "next load",
            "Bits that an output head of floats is rounded to, where there are kernels.",
            options=("--quantize-head",),
            unset="left as it is",
            example=8,
        ),
    )
    draft_model: str | None = field(
        default=None,
        metadata=_about(
            "Model",
            Text(),
            "next load",
            "Folder of a smaller model with the same vocabulary, which guesses tokens ahead.",
            options=("--draft",),
            unset="none",
            example="~/models/small",
        ),
    )
    cache_tokens: int | None = field(
        default=None,
        metadata=_about(
            "Memory",
            Whole(256, MOST_CACHE_TOKENS),
            "next load",
            "Tokens of all conversations that are kept in memory; goes without cache_gb.",
            options=("--cache-tokens", "--cache-gb"),
            unset="by what there is",
            example=65536,
        ),
    )
    cache_gb: float | None = field(
        default=None,
        metadata=_about(
            "Memory",
            Number(0, MOST_CACHE_GB, above=True),
            "next load",
            "The same in GiB; goes without cache_tokens.",
            options=("--cache-gb", "--cache-tokens"),
            unset="by what there is",
            example=4.0,
        ),
    )
    disk_gb: float = field(
        default=4.0,
        metadata=_about(
            "Memory",
            Number(0, MOST_CACHE_GB),
            "next load",
            "GiB of it that outlive the program; 0 keeps none.",
            options=("--disk-gb",),
        ),
    )
    editing: Literal["emacs", "vi"] = field(
        default="emacs",
        metadata=_about("Keys", Choice(("emacs", "vi")), "at once", "Which keys edit the message that is typed."),
    )
    keys: KeyTable = field(
        default=(),
        metadata=_about("Keys", Keys(), "at once", "Keys of your own, by the id of the action."),
    )
    from_environment: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

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
        """How tokens are drawn, for the bundled guide or for any other model."""
        # What cannot be with a greedy draw is asked for only by somebody who wants another one.
        greedy = bundled_guide and not dict(self.sampling).get("dynatemp_high")
        own = {name: getattr(self, name) for name in OWN_KEYS}
        if own["temperature"] is None:
            own["temperature"] = 0.0 if greedy else CHAT_TEMPERATURE
        return SamplingSettings(**own, **dict(self.sampling))


SETTINGS: dict[str, Setting] = {
    one.name: Setting(one.name, one.default, one.metadata["about"]) for one in fields(Settings) if one.metadata
}
"""All settings by key, in the order to show them."""
