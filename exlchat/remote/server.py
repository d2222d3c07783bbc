"""What answers at an address: asked once, at the beginning; what it does not say is not guessed silently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exlchat.remote.address import Level, Remote, RemoteError
from exlchat.remote.fields import ServerKind
from exlchat.remote.http import Http
from exlchat.remote.vocabulary import MARK, PieceVocabulary, ServerVocabulary, Vocabulary
from exlchat.untrusted.text import one_line

_PROBE_SECONDS = 10.0
_USUAL_CONTEXT = 8192
_LARGEST_CONTEXT = 100_000_000
_LARGEST_TEMPLATE = 1_000_000
_MOST_MARKS = 64
_UNKNOWN_SIZE = 2**31
_USUAL_MARKS = (
    *("<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "<bos>", "<eos>", "<|endoftext|>"),
    *("<start_of_turn>", "<end_of_turn>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|eot|>"),
    *("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<think>", "</think>", "<|channel|>", "<|message|>"),
)

MESSAGES_TEMPLATE = """{#- A line of JSON a message, for a server that has the template. <think></think> -#}
{%- for message in messages %}{{ {"role": message.role, "content": message.content} | tojson }}
{% endfor -%}
{%- if enable_thinking is defined %}{{ {"enable_thinking": enable_thinking} | tojson }}
{% endif -%}"""
"""The format of prompts that go as messages: `engine.messages_of` reads what it writes."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server and the model that is used of it.

    Args:
        level: as which prompts are sent.
        model: as the server names it.
        context: tokens of prompt and answer.
        chat_template: of the model, or `MESSAGES_TEMPLATE`; `None` where it is not known.
        marks: texts that are tokens, or are taken for them: they mark turns.
        notices: what is good to know, a line each.
    """

    kind: ServerKind
    level: Level
    model: str
    context: int
    chat_template: str | None
    bos_token: str
    eos_token: str
    vocabulary: Vocabulary
    marks: tuple[str, ...] = ()
    parameters: int = 0
    notices: tuple[str, ...] = ()

    @property
    def prefills(self) -> bool:
        """Whether messages may end with the beginning of an answer, which it goes on with."""
        return self.level != "messages" or self.kind in ("vllm", "exlchat", "tabbyapi", "llama.cpp")


def look_at(remote: Remote, http: Http) -> Server:
    """Find out what it is. Raises `RemoteError`."""
    entries = models_of(http)
    props = _props(http, _PROBE_SECONDS)
    kind = _kind(entries, props, http, _PROBE_SECONDS)
    entry, notices = _chosen(remote, entries)
    look = _Look(remote, http, kind, entry, notices, props)
    if kind == "llama.cpp":
        return look.with_own_tokenizer()
    return look.with_tokenize() if look.level == "ids" else look.with_messages()


def models_of(http: Http, *, seconds: float = _PROBE_SECONDS) -> Sequence[Mapping[str, Any]]:
    """What it lists, each with its `id`. Raises `RemoteError` where it lists none."""
    listed = http.get("/v1/models", seconds=seconds)
    if listed is None:
        raise RemoteError(
            f"{http.address.shown}: has no /v1/models, so it is no server of a language model; "
            "give the address without what comes behind the port"
        )
    entries = listed.get("data")
    if not isinstance(entries, list):
        return []
    return [one for one in entries if isinstance(one, Mapping) and isinstance(one.get("id"), str)]


def kind_of(http: Http, entries: Sequence[Mapping[str, Any]], *, seconds: float = _PROBE_SECONDS) -> ServerKind:
    """By what it lists, and what it has beside that. Raises `RemoteError`."""
    return _kind(entries, _props(http, seconds), http, seconds)


def _props(http: Http, seconds: float) -> Mapping[str, Any]:
    return _perhaps(http, "/props", seconds) or {}


def _perhaps(http: Http, path: str, seconds: float) -> dict[str, Any] | None:
    """What only some have. Others answer with whatever they like: a page, an error, or a refusal."""
    try:
        return http.get(path, seconds=seconds)
    except RemoteError:
        return None


def _kind(entries: Sequence[Mapping[str, Any]], props: Mapping[str, Any], http: Http, seconds: float) -> ServerKind:
    owners = {str(one.get("owned_by", "")).lower() for one in entries}
    if "default_generation_settings" in props:
        return "llama.cpp"
    if "vllm" in owners:
        return "vllm"
    if "exlchat" in owners:
        return "exlchat"
    if "tabbyapi" in owners:
        return "tabbyapi"
    if "library" in owners or "version" in (_perhaps(http, "/api/version", seconds) or {}):
        return "ollama"
    return "openai"


def _chosen(remote: Remote, entries: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], list[str]]:
    """The entry of the model that is wanted."""
    names = [one["id"] for one in entries]
    if remote.model:
        found = next((one for one in entries if one["id"] == remote.model), None)
        if found is None and entries:
            some = ", ".join(one_line(name, 60) for name in names[:6])
            raise RemoteError(
                f"{remote.address.shown}: has no model {one_line(remote.model, 60)}; there {_are(names)} {some}"
            )
        return found or {"id": remote.model}, []
    if not entries:
        raise RemoteError(f"{remote.address.shown}: names no model; say which with -m NAME")
    others = ", ".join(one_line(name, 60) for name in names[1:6])
    return entries[0], [f"{one_line(names[0], 60)} answers; -m takes another: {others}"] if others else []


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


@dataclass(frozen=True, slots=True)
class _Look:
    """What was found so far.

    Args:
        entry: of the model among those that the server lists.
        props: of llama.cpp; empty elsewhere.
    """

    remote: Remote
    http: Http
    kind: ServerKind
    entry: Mapping[str, Any]
    notices: list[str]
    props: Mapping[str, Any]

    @property
    def meta(self) -> Mapping[str, Any]:
        found = self.entry.get("meta")
        return found if isinstance(found, Mapping) else {}

    @property
    def template(self) -> str | None:
        return _template(self.props.get("chat_template") or self.meta.get("chat_template"))

    @property
    def level(self) -> Level:
        """The one that is wished for, or the best: ids where the prompt format is known."""
        if self.remote.level is not None:
            return self.remote.level
        known = self.template is not None or self.remote.template
        if known and self.kind in ("llama.cpp", "vllm", "exlchat"):
            return "ids"
        return "text" if self.remote.template and self.kind == "tabbyapi" else "messages"

    def with_own_tokenizer(self) -> Server:
        """llama.cpp's."""
        http = self.http

        def tokenize(text: str, *, special: bool) -> list[int]:
            return _ids(http, http.post("/tokenize", {"content": text, "add_special": False, "parse_special": special}))

        settings = self.props.get("default_generation_settings")
        context = _whole(settings.get("n_ctx") if isinstance(settings, Mapping) else None)
        bos, eos = str(self.props.get("bos_token") or ""), str(self.props.get("eos_token") or "")
        if self.level != "ids":
            return self._of_pieces(context)
        vocabulary = ServerVocabulary(
            lambda text: tokenize(text, special=True),
            lambda ids: _text(http, http.post("/detokenize", {"tokens": list(ids)}), "content"),
            size=_whole(self.meta.get("n_vocab")) or _UNKNOWN_SIZE,
            ask_plain=lambda text: tokenize(text, special=False),
            marks=_marks_in(self.template, bos, eos),
        )
        return self._server(vocabulary, context or _whole(self.meta.get("n_ctx")), (bos, eos))

    def with_tokenize(self) -> Server:
        """One that takes and gives ids by the API of vLLM."""
        http, model = self.http, self.entry["id"]
        if self.kind not in ("vllm", "exlchat"):
            raise RemoteError(
                f"{self.remote.address.shown}: takes no token ids ({self.kind}); leave out the level, or say messages"
            )

        def tokenize(text: str) -> list[int]:
            return _ids(http, http.post("/tokenize", {"model": model, "prompt": text, "add_special_tokens": False}))

        def plain(text: str) -> list[int]:
            return _ids(http, http.post("/tokenize", {"model": model, "content": text, "parse_special": False}))

        bos, eos = (str(self.meta.get(name) or "") for name in ("bos_token", "eos_token"))
        vocabulary = ServerVocabulary(
            tokenize,
            lambda ids: _text(http, http.post("/detokenize", {"model": model, "tokens": list(ids)}), "prompt"),
            size=_whole(self.meta.get("vocab_size")) or _UNKNOWN_SIZE,
            ask_plain=plain if self.kind == "exlchat" else None,
            marks=_marks_in(self.template, bos, eos),
        )
        context = _whole(self.entry.get("max_model_len")) or _whole(self.meta.get("max_context"))
        return self._server(vocabulary, context, (bos, eos))

    def with_messages(self) -> Server:
        """One whose tokens cannot be seen."""
        return self._of_pieces(_context_of(self.kind, self.entry, self.http))

    def _of_pieces(self, context: int | None) -> Server:
        return self._server(PieceVocabulary(guarded=self.level == "text"), context, ("", ""))

    def _server(self, vocabulary: Vocabulary, context: int | None, tokens: tuple[str, str]) -> Server:
        messages = self.level == "messages"
        room = _context(self.remote, context, self.notices)
        marks = () if messages else tuple(_marks_in(self.template, *tokens))
        return Server(
            self.kind,
            self.level,
            self.entry["id"],
            room,
            MESSAGES_TEMPLATE if messages else self.template,
            *tokens,
            vocabulary,
            marks=tuple(vocabulary.marks) if isinstance(vocabulary, ServerVocabulary) else marks,
            parameters=_whole(self.meta.get("n_params") or self.meta.get("parameters"), most=10**15) or 0,
            notices=tuple(self.notices),
        )


def _context_of(kind: ServerKind, entry: Mapping[str, Any], http: Http) -> int | None:
    meta = entry.get("meta")
    places: list[object] = [entry.get(name) for name in ("max_model_len", "context_length", "context_window")]
    if isinstance(meta, Mapping):
        places += [meta.get("max_context"), meta.get("n_ctx")]
    if kind == "tabbyapi":
        parameters = (_perhaps(http, "/v1/model", _PROBE_SECONDS) or {}).get("parameters")
        places.append(parameters.get("max_seq_len") if isinstance(parameters, Mapping) else None)
    if kind == "ollama":
        told = http.post("/api/show", {"model": entry["id"]}, seconds=_PROBE_SECONDS).get("model_info")
        if isinstance(told, Mapping):
            places += [value for name, value in told.items() if str(name).endswith(".context_length")]
    return next((found for one in places if (found := _whole(one))), None)


def _context(remote: Remote, found: int | None, notices: list[str]) -> int:
    if remote.context is not None:
        return min(remote.context, found or remote.context)
    if found is None:
        notices.append(f"the server does not say how much it reads; {_USUAL_CONTEXT:,} tokens are taken, --context N")
    return found or _USUAL_CONTEXT


def _marks_in(template: str | None, *others: str) -> list[str]:
    """Those of the template, and those of families: a prompt format of ours may write them."""
    found = [*filter(None, others), *MARK.findall(template or ""), *_USUAL_MARKS]
    return list(dict.fromkeys(found))[:_MOST_MARKS]


def _template(value: object) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= _LARGEST_TEMPLATE else None


def _whole(value: object, *, most: int = _LARGEST_CONTEXT) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most else None


def _ids(http: Http, reply: Mapping[str, Any]) -> list[int]:
    tokens = reply.get("tokens")
    if not isinstance(tokens, list) or not all(type(one) is int and 0 <= one < _UNKNOWN_SIZE for one in tokens):
        raise RemoteError(f"{http.address.shown}: gives no ids for a text, so it cannot be used by ids")
    return tokens


def _text(http: Http, reply: Mapping[str, Any], name: str) -> str:
    text = reply.get(name)
    if not isinstance(text, str):
        raise RemoteError(f"{http.address.shown}: gives no text for ids, so it cannot be used by ids")
    return text
