"""What the user set: `settings.toml`, checked, with a default for everything that is not there."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from exlchat import paths
from exlchat.chat.context import CONTEXT_POLICIES, ContextPolicy
from exlchat.engine.formats.sections import ROUNDED_HEAD_BITS
from exlchat.engine.sampling_settings import SamplingSettings

if TYPE_CHECKING:
    from pathlib import Path

SettingValue = str | int | float | bool | list[str] | None

CHAT_TEMPERATURE = 0.7
"""Lively but on topic; the bundled guide answers greedily instead, because it recites facts."""

MOST_CACHE_TOKENS = 10**9
MOST_CACHE_GB = 100_000
"""More than any machine has; far more would overflow."""

_TITLE_BY = ("model", "first line")
_KV_CACHES = ("auto", "fp32", "fp16", "fp8", "q8", "q6", "q4")


class SettingsError(Exception):
    """A setting that cannot be used: one line that names the file, the key and how to mend it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One value per key of `settings.toml`. `None` is a key left out, whose meaning stands beside it.

    Args:
        theme: name of the colour theme.
        temperature: `None` is 0.7, and 0 for the bundled guide.
        top_k: 0 keeps all tokens.
        top_p: 1 keeps all tokens.
        min_p: 0 keeps all tokens.
        max_tokens: the longest answer in tokens; `None` goes on until the context is full.
        template: prompt format by name or file; `None` takes the model's own.
        system: system prompt of new conversations; `None` starts them without one.
        sidebar: whether the sidebar is shown at the start.
        kv_cache: precision of keys and values.
        context: the longest prompt plus answer in tokens; `None` takes the model's own limit.
        context_policy: what happens when a conversation does not fit: stop and say so, drop the oldest turns, or
            summarise them first.
        cache_tokens: tokens of all conversations that are kept in memory; `None` goes by what there is.
        cache_gb: the same in GiB.
        disk_gb: GiB of the cache that outlive the program; 0 keeps none.
        extension: whether a GPU uses the CUDA kernels; without them it takes the slower plain torch path.
        quantize_head: bits of an output head that the file has in floats, where there are kernels; `None` leaves it.
        model_folders: folders of models of the user's own, whole paths or with `~`.
        user_name: what personas call the user, `{{user}}` in their texts.
        title_by: whether the model gives new conversations their titles when it is idle, or the first line does.
    """

    theme: str = "exlchat-dark"
    temperature: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.05
    max_tokens: int | None = None
    template: str | None = None
    system: str | None = None
    sidebar: bool = True
    kv_cache: Literal["auto", "fp32", "fp16", "fp8", "q8", "q6", "q4"] = "auto"
    context: int | None = None
    context_policy: ContextPolicy = "stop"
    cache_tokens: int | None = None
    cache_gb: float | None = None
    disk_gb: float = 4.0
    extension: bool = True
    quantize_head: int | None = None
    model_folders: tuple[str, ...] = ()
    user_name: str = "User"
    title_by: Literal["model", "first line"] = "model"

    def __post_init__(self) -> None:
        self.sampling()
        for name, least in (("max_tokens", 1), ("context", 1), ("cache_tokens", 256)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} is {value}; it must be at least {least}")
        self._check_sizes()
        if self.quantize_head not in (None, *ROUNDED_HEAD_BITS):
            wanted = ", ".join(map(str, ROUNDED_HEAD_BITS))
            raise ValueError(f"quantize_head is {self.quantize_head}; it must be one of {wanted}")
        if self.kv_cache not in _KV_CACHES:
            raise ValueError(f"kv_cache is {self.kv_cache!r}; it must be one of {', '.join(_KV_CACHES)}")
        if self.context_policy not in CONTEXT_POLICIES:
            wanted = ", ".join(CONTEXT_POLICIES)
            raise ValueError(f"context_policy is {self.context_policy!r}; it must be one of {wanted}")

        if self.title_by not in _TITLE_BY:
            raise ValueError(f"title_by is {self.title_by!r}; it must be one of {', '.join(_TITLE_BY)}")
        if not self.user_name.strip() or not self.user_name.isprintable():
            raise ValueError(f"user_name is {self.user_name!r}; it must be a name in one line")

    def _check_sizes(self) -> None:
        if self.cache_tokens is not None and self.cache_tokens > MOST_CACHE_TOKENS:
            raise ValueError(f"cache_tokens is {self.cache_tokens}; it must be at most {MOST_CACHE_TOKENS}")
        if self.cache_gb is not None and not 0 < self.cache_gb <= MOST_CACHE_GB:
            raise ValueError(f"cache_gb is {self.cache_gb:g}; it must be above 0, at most {MOST_CACHE_GB}")
        if self.cache_gb is not None and self.cache_tokens is not None:
            raise ValueError("cache_gb and cache_tokens are both there; keep one of them")
        if not 0 <= self.disk_gb <= MOST_CACHE_GB:
            raise ValueError(f"disk_gb is {self.disk_gb:g}; it must be from 0 to {MOST_CACHE_GB}")

    def sampling(self, *, bundled_guide: bool = False) -> SamplingSettings:
        """How tokens are drawn, for the bundled guide or for any other model.

        Raises:
            ValueError: a value out of range, in one line.
        """
        unset = 0.0 if bundled_guide else CHAT_TEMPERATURE
        temperature = unset if self.temperature is None else self.temperature
        return SamplingSettings(temperature=temperature, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p)


_KEYS: dict[str, tuple[type, str]] = {
    "theme": (str, "a text in quotes"),
    "temperature": (float, "a number"),
    "top_k": (int, "a whole number"),
    "top_p": (float, "a number"),
    "min_p": (float, "a number"),
    "max_tokens": (int, "a whole number"),
    "template": (str, "a text in quotes"),
    "system": (str, "a text in quotes"),
    "sidebar": (bool, "true or false"),
    "kv_cache": (str, "a text in quotes"),
    "context": (int, "a whole number"),
    "context_policy": (str, "a text in quotes"),
    "cache_tokens": (int, "a whole number"),
    "cache_gb": (float, "a number"),
    "disk_gb": (float, "a number"),
    "extension": (bool, "true or false"),
    "quantize_head": (int, "a whole number"),
    "model_folders": (tuple, "a list of texts in quotes"),
    "user_name": (str, "a text in quotes"),
    "title_by": (str, "a text in quotes"),
}


def load_settings(path: Path | None = None) -> Settings:
    """The settings in `path` (by default the user's own file); all defaults when there is no such file.

    Raises:
        SettingsError: the file cannot be read, is not TOML, or has an unknown key or an impossible value.
    """
    path = path or paths.folders().settings_file
    text = _read(path)
    try:
        table: dict[str, object] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: not TOML: {error}; mend that line, or delete the file for defaults") from None
    return _checked(path, table)


def save_setting(key: str, value: SettingValue, path: Path | None = None) -> Settings:
    """Write one key into the file, keeping comments and order; `None` takes the key out. Returns what now holds.

    Raises:
        SettingsError: unknown key, impossible value, or a file that cannot be read or written; the file is unchanged.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    path = path or paths.folders().settings_file
    try:
        document = tomlkit.parse(_read(path))
    except TOMLKitError as error:
        raise SettingsError(f"{path}: not TOML: {error}; mend that line, or delete the file for defaults") from None
    if value is None:
        _checked(path, {key: None})
        document.pop(key, None)
    else:
        document[key] = value
    settings = _checked(path, document.unwrap())
    try:
        paths.atomic_write(path, tomlkit.dumps(document))
    except paths.FolderError as error:
        raise SettingsError(str(error)) from None
    return settings


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise SettingsError(f"{path}: cannot be read ({reason}); mend its permissions") from None


def _checked(path: Path, table: dict[str, object]) -> Settings:
    """`table` as settings, or a line that names the first key that is wrong. `None` values are only checked by name."""
    values = asdict(Settings())
    for key, value in table.items():
        if key not in _KEYS:
            nearest = difflib.get_close_matches(key, _KEYS, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"the keys are {', '.join(_KEYS)}"
            raise SettingsError(f"{path}: unknown key {key!r}; {hint}")
        wanted, what = _KEYS[key]
        if value is None:
            continue
        if not _fits(value, wanted):
            raise SettingsError(f"{path}: {key} is {value!r}; it must be {what}")
        try:
            values[key] = wanted(value)
        except OverflowError:
            raise SettingsError(f"{path}: {key} has too many digits; it must be {what}") from None
    try:
        return Settings(**values)
    except ValueError as error:
        raise SettingsError(f"{path}: {error}") from None


def _fits(value: object, wanted: type) -> bool:
    """TOML has integers where a number is meant (`temperature = 1`); a bool is never a number."""
    if isinstance(value, bool):
        return wanted is bool
    if isinstance(value, list):
        return wanted is tuple and all(isinstance(one, str) for one in value)
    return isinstance(value, wanted) or (wanted is float and isinstance(value, int))
