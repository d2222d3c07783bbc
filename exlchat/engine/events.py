"""What goes into the engine and what comes out: plain frozen values, no torch.

The chat floor imports this module and `sampling_settings` (and nothing else of the engine) at start-up,
so they must stay free of heavy imports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from exlchat.engine.constraint import Constraint
from exlchat.engine.sampling_settings import GREEDY, SamplingSettings

FinishReason = Literal["stop_token", "stop_string", "max_new_tokens", "context_full", "cancelled", "repeating"]
DecodePath = Literal["synchronous", "run-ahead"]
DraftKind = Literal["off", "auto", "ngram", "model"]


@dataclass(frozen=True, slots=True)
class ThoughtLimit:
    """How an answer's thoughts are marked, and how long they may be. A constraint holds behind them.

    Args:
        tokens: at most this many, then they are closed; `None` lets them be as long as they want.
        opening, closing: the marks around thoughts.
        closing_ids: what is put behind the last thought, as if the model had said it.
        opened: the prompt ends inside thoughts.
    """

    tokens: int | None
    opening: str
    closing: str
    closing_ids: tuple[int, ...]
    opened: bool = False


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One answer to be generated.

    Args:
        prompt_ids: the whole prompt, at least one id. What the cache still holds of it is not computed again.
        sampling: how a token is drawn; greedy unless said otherwise.
        stop: strings that end the answer (never shown) and token ids that do, beside the model's own stop ids.
        max_new_tokens: at most this many tokens; `None` means until the context is full.
        seed: makes the draws reproducible; `None` takes a fresh seed, which the statistics report.
        owner: a label for the pages of the cache that it uses, shown by `CacheReport`.
        beginning: with so many of the prompt's first tokens other prompts begin as well, as with a system prompt: the
            cache keeps them longer.
        begun: so many of the prompt's last tokens are the answer so far: the text goes on behind theirs, in the middle
            of a line, or of a character.
        heal: the last of those `begun` tokens is taken back and drawn anew, among the tokens that begin with its text:
            a text that was cut within a word goes on as if it had not been. The text of the answer goes on behind it,
            and `Finished.healed` says which token it was.
        banned: strings that never come, in any case of their letters: where one is complete the answer goes back to
            before its first token, and another is drawn there.
        min_new_tokens: before so many tokens no stop token is drawn. Stop strings still end it.
        constraint: what the answer has to be.
        thoughts: how long it may think.
        guidance_ids: the prompt to lean away from, for `sampling.guidance_scale`.
        stop_repeating: ends an answer that says the same over and over, with "repeating".
        alternatives: so many likeliest tokens are told of each place, with their probabilities; 0 tells none.
        draft: who guesses tokens ahead, which are all checked: the answer is the same. `ngram` guesses what stood
            behind the last tokens before, `model` asks the draft model; `auto` is `ngram` where a pass of several
            tokens costs little and computes the same bits as single ones.
    """

    prompt_ids: Sequence[int]
    sampling: SamplingSettings = GREEDY
    stop: Sequence[str | int] = ()
    max_new_tokens: int | None = None
    seed: int | None = None
    owner: str = ""
    beginning: int = 0
    begun: int = 0
    heal: bool = False
    banned: Sequence[str] = ()
    min_new_tokens: int = 0
    constraint: Constraint | None = None
    thoughts: ThoughtLimit | None = None
    guidance_ids: Sequence[int] = ()
    stop_repeating: bool = False
    alternatives: int = 0
    draft: DraftKind = "off"


@dataclass(frozen=True, slots=True)
class GenerationStats:
    """Counts and times of one answer. Seconds are wall-clock floats.

    `time_to_first_token` runs from the call to the first sampled token; `decode_seconds` from there to the end,
    so a rate is `(new_tokens - 1) / decode_seconds`. `decode_path` says who drew the tokens: the host, each step
    waiting for it, or the device, with the host one step behind. Of `drafted` tokens, which were guessed ahead,
    `accepted` were right. `rewound` tokens were taken back because they led to a banned string.
    """

    prompt_tokens: int
    cached_tokens: int
    new_tokens: int
    time_to_first_token: float
    prefill_seconds: float
    decode_seconds: float
    seed: int
    decode_path: DecodePath = "synchronous"
    drafted: int = 0
    accepted: int = 0
    rewound: int = 0

    @property
    def tokens_per_second(self) -> float:
        """Decode rate; 0.0 while fewer than two tokens exist."""
        if self.new_tokens < 2 or self.decode_seconds <= 0.0:
            return 0.0
        return (self.new_tokens - 1) / self.decode_seconds


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """`done` of `total` prompt tokens are in the cache, `cached` of them without work."""

    done: int
    total: int
    cached: int


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that may be shown, and the ids decoded so far that were not yet reported.

    Text and ids of one event need not correspond: text is held back while it could be half a character
    or half a stop string, and ids while they may be taken back. Summed over an answer they do. `chances` are those of
    these ids, where they were asked for.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    chances: tuple[PlaceChances, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event. `token_ids` are all generated ids without the stop token; `text` is all text shown.

    `chances` are those of the ids, where they were asked for. `healed` tokens at the end of the prompt were replaced by
    the first ones of `token_ids`.
    """

    reason: FinishReason
    stats: GenerationStats
    text: str
    token_ids: tuple[int, ...]
    chances: tuple[PlaceChances, ...] = ()
    healed: int = 0


Event = PrefillProgress | TextDelta | Finished

MOST_ANSWERS = 8
"""To one prompt at once: as many as the kernels take rows."""


@dataclass(frozen=True, slots=True)
class OneOfSeveral:
    """An event of one of several answers to the same prompt, which are counted from 0."""

    index: int
    event: TextDelta | Finished


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """A sequence whose tokens are to be told with their probabilities.

    Args:
        ids: the whole sequence.
        start: the first of its tokens that is asked about, from 1 on; `len(ids)` asks for what may follow alone.
        top: how many of the likeliest tokens are told at each place.
        owner: as of `GenerationRequest`.
    """

    ids: Sequence[int]
    start: int
    top: int = 10
    owner: str = ""


@dataclass(frozen=True, slots=True)
class TokenChance:
    """A token at some place. `log_probability` is the natural logarithm of the model's own, at temperature 1.

    `rank` is 1 for the likeliest; of equally likely ones the lower id comes first.
    """

    token_id: int
    log_probability: float
    rank: int


@dataclass(frozen=True, slots=True)
class PlaceChances:
    """One place of a sequence: the token that stands there, `None` behind the last one, and the likeliest ones."""

    taken: TokenChance | None
    top: tuple[TokenChance, ...]


@dataclass(frozen=True, slots=True)
class Scored:
    """The last event of a scoring: the places of `ids[start:]`, and the one behind them."""

    places: tuple[PlaceChances, ...]


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """`done` of `total` steps, most of them a layer each, are done; `what` names the present step in a few words."""

    done: int
    total: int
    what: str


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the floors above may know of a loaded model.

    Args:
        special_tokens: texts of the tokens that are control tokens and never shown.
        added_tokens: all that are not of the vocabulary proper, special or not.
        named_tokens: texts by the names that templates use, as `eos_token`.
        chat_template: Jinja, for plain talk; `None` where the model has none.
        named_templates: its other templates by name, as `tool_use`.
        draft_model: name of the smaller model that guesses for it; empty where none does.
        without_draft: why one that was wished for does not, in one line; empty where none was, or it does.
    """

    name: str
    path: str
    architecture: str
    quantization: str
    parameters: int
    vocab_size: int
    max_seq_len: int
    device: str
    dtype: str
    bos_token: str
    eos_token: str
    stop_ids: tuple[int, ...]
    special_tokens: tuple[str, ...]
    chat_template: str | None
    named_templates: Mapping[str, str] = field(default_factory=dict, hash=False)
    added_tokens: tuple[str, ...] = ()
    named_tokens: Mapping[str, str] = field(default_factory=dict, hash=False)
    draft_model: str = ""
    without_draft: str = ""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes that a loaded model holds, and those that a decoded token reads.

    Args:
        weights: all weights as they lie in memory, the embedding too.
        weights_per_token: what one decoded token reads of them: all but the embedding, of which it reads a row.
        cache: allocated for keys and values now.
        cache_per_token: keys and values of one position in all layers, as they are stored.
    """

    weights: int
    weights_per_token: int
    cache: int
    cache_per_token: int


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Bytes of memory in use now.

    Args:
        weights, cache: of the model, wherever it lies.
        program: resident in the machine's memory, of this program; weights that are mapped from files count as far as
            they have been read.
        card_used, card_total: of the card's memory, by all programs, and what there is; `None` on the CPU.
    """

    weights: int
    cache: int
    program: int
    card_used: int | None = None
    card_total: int | None = None


CLOSE_SECONDS = 2.0
"""How long `Engine.close` lets pages get to the disk, at most."""


@dataclass(frozen=True, slots=True)
class DiskReport:
    """Pages of the cache on the disk, and what happened to them since the model was loaded.

    Args:
        files, bytes: what lies there now, of all models.
        most_bytes: what may lie there.
        written: pages.
        restored_tokens: computed in an earlier run, or earlier in this one, and read again.
        damaged: files that were not what their names said, and were dropped.
        trouble: why nothing is written any more, in one line.
        skipped: pages that were not written: too much at once, no room, or trouble.
    """

    files: int
    bytes: int
    most_bytes: int
    written: int
    restored_tokens: int
    damaged: int
    trouble: str | None
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class CacheReport:
    """The pages of a model, and how much they have saved.

    Args:
        kind: how keys and values are stored.
        page_tokens, page_bytes: of one page.
        pages: in all; `running` of them belong to the sequence that was computed last, `idle` wait to be used again.
        owners: labels of requests, and how many pages hold something of theirs, most first; a page may have several.
        evictions: pages whose room was wanted for others.
        prompt_tokens: of all prompts so far; `found_tokens` of them did not have to be computed.
        disk: pages that outlive the program; `None` without a store.
        kept_tokens: whose keys and values can be found now.
        shared: pages of which more than one owner has used something.
    """

    kind: str
    page_tokens: int
    page_bytes: int
    pages: int
    running: int
    idle: int
    owners: tuple[tuple[str, int], ...]
    evictions: int
    prompt_tokens: int
    found_tokens: int
    disk: DiskReport | None
    kept_tokens: int = 0
    shared: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of the prompts' tokens that were there already; 0.0 before the first prompt."""
        return self.found_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(frozen=True, slots=True)
class FitReport:
    """Whether a model fits beside its cache.

    Args:
        weights: bytes that they would take.
        context: tokens that would fit of those that were wanted; 0 where the model does not fit.
        problem: why not, and which cache or context would fit; `None` where it fits.
    """

    weights: int
    context: int
    problem: str | None


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What a model folder holds, from its headers.

    Args:
        path: of the folder.
        bytes: of its files.
        architecture, format: as `ModelInfo` names them; empty where the folder cannot be used.
        parameters: how many weights.
        bits_per_weight: as the files store them, embedding and head included.
        context: the longest that the model was made for, in tokens.
        fit: whether it fits here.
        problem: why it cannot be loaded, in one line.
    """

    path: str
    bytes: int
    architecture: str = ""
    format: str = ""
    parameters: int = 0
    bits_per_weight: float = 0.0
    context: int = 0
    fit: FitReport | None = None
    problem: str | None = None


class ModelError(Exception):
    """A model that cannot be used: one line that names the file, what is wrong and how to mend it."""


class RequestError(Exception):
    """A generation request that cannot be carried out; same one-line form."""
