"""What may be known of a model: what it is, what it holds of memory and cache, whether it fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
        remote: what kind of server answers, and as what it takes prompts; empty where the model is loaded here.
        notices: what is good to know of it, a line each.
        lacks: what it cannot do, and in a line why and what would mend it: by the fields of `GenerationRequest` and
            `SamplingSettings`, the kinds of `Constraint`, and `cache`, `format`, `probabilities`, `serving`,
            `thinking`, `thinking_budget`.
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
    remote: str = ""
    notices: tuple[str, ...] = ()
    lacks: Mapping[str, str] = field(default_factory=dict, hash=False)


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
class CardMemory:
    """Bytes of a card's memory in use by all programs, and what there is.

    Args:
        name: of its device, as `cuda:0`.
        layers: how many of the model's lie there.
    """

    name: str
    used: int
    total: int
    layers: int


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Bytes of memory in use now.

    Args:
        weights, cache: of the model, wherever it lies.
        program: resident in the machine's memory, of this program; weights that are mapped from files count as far as
            they have been read.
        cards: those that it lies on; none on the CPU.
        hosted: of the weights, what cards read in the machine's memory.
        host_layers: whose those are.
        together: each card has a part of every layer.
    """

    weights: int
    cache: int
    program: int
    cards: tuple[CardMemory, ...] = ()
    hosted: int = 0
    host_layers: int = 0
    together: bool = False


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
        pauses: how often an answer had to stand still because its room was wanted.
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
    pauses: int = 0

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
        layers: how many would lie on each card.
        problem: why not, and which cache or context would fit; `None` where it fits.
        host_layers: how many would have their weights in the machine's memory.
        together: each card would have a part of every layer.
    """

    weights: int
    context: int
    problem: str | None
    layers: tuple[int, ...] = ()
    host_layers: int = 0
    together: bool = False


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
