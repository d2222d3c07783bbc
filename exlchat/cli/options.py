"""Options that several commands have, in the groups that their help shows, and the types of their arguments.

A type makes a value of a text, or one line that says what is wrong with it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from exlchat.chat.prompt.context_policy import CONTEXT_POLICIES
from exlchat.llm.limits import KV_CACHES, LARGEST_SEED, MOST_CACHE_GB, MOST_CACHE_TOKENS, ROUNDED_HEAD_BITS
from exlchat.untrusted.text import storable

if TYPE_CHECKING:
    from pathlib import Path

    from exlchat.chat.answer_options import DraftChoice
    from exlchat.llm.constraint import Constraint

Parsed = TypeVar("Parsed")
_OF_THEIR_OWN = {"temperature": "--temperature", "top_k": "--top-k", "top_p": "--top-p", "min_p": "--min-p"}
"""Those controls of sampling that have an option of their own."""


def loading_options(group: argparse._ArgumentGroup) -> None:
    memory_options(group)
    kernel_options(group)


def memory_options(group: argparse._ArgumentGroup) -> None:
    """Where a model runs, how long its context is, and in what its cache is kept."""
    group.add_argument(
        "--device", metavar="NAME", choices=("auto", "cpu", "cuda"), default="auto", help="auto (default), cpu or cuda"
    )
    group.add_argument("--context", metavar="N", type=whole(1), help="longest prompt plus answer, in tokens")
    group.add_argument(
        "--kv-cache",
        metavar="TYPE",
        choices=KV_CACHES,
        help="precision of keys and values: auto (default), fp32, fp16, fp8, q8, q6 (8-bit keys, 4-bit values) or q4",
    )
    card_options(group)


def card_options(group: argparse._ArgumentGroup) -> None:
    """Which cards a model lies on, and what stays free there."""
    group.add_argument(
        "--cards",
        metavar="N,N",
        type=_setting_of("cards"),
        help="the cards a model may use, in this order (default: as few as it takes, the fastest first)",
    )
    group.add_argument(
        "--reserve",
        metavar="X,X",
        type=_setting_of("reserve"),
        help="GiB left free on each card, or on all alike",
    )
    group.add_argument(
        "--host-layers",
        metavar="N",
        type=_setting_of("host_layers"),
        help="layers whose weights lie in the machine's memory, slowly (default: what the cards have no room for)",
    )


def split_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--split",
        metavar="N,N",
        type=_layers,
        default=(),
        help="layers on each card, in the order in which cards are filled (default: by what is free)",
    )
    tensor_parallel_option(group)


def tensor_parallel_option(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--tensor-parallel",
        metavar="N",
        type=whole(1, 8),
        default=1,
        help="so many cards compute every layer together, each a part of it: faster than one (default: 1)",
    )


def _setting_of(name: str) -> Callable[[str], Any]:
    """An argument type: what may stand in the place of a setting."""

    def parse(text: str) -> Any:
        # No help needs it.
        from exlchat.config.schema import SETTINGS

        try:
            return SETTINGS[name].kind.from_text(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"it {error}") from None

    return parse


def _layers(text: str) -> tuple[int, ...]:
    return tuple(whole(1)(part) for part in text.split(","))


def model_options(group: argparse._ArgumentGroup) -> None:
    memory_options(group)
    split_options(group)
    size = group.add_mutually_exclusive_group()
    size.add_argument(
        "--cache-tokens",
        metavar="N",
        type=whole(256, MOST_CACHE_TOKENS),
        help="tokens of all conversations kept in memory",
    )
    size.add_argument(
        "--cache-gb",
        metavar="X",
        type=positive(MOST_CACHE_GB),
        help="the same in GiB (default: up to three contexts)",
    )
    group.add_argument(
        "--disk-gb",
        metavar="X",
        type=not_negative(MOST_CACHE_GB),
        help="GiB of it kept on disk for later starts (default: 4; 0: none)",
    )
    group.add_argument(
        "--draft",
        metavar="DIR|WORD",
        type=drafted_by,
        help="a smaller model of the same family that guesses tokens ahead, for speed; or ngram, or off",
    )
    kernel_options(group)


def remote_options(group: argparse._ArgumentGroup) -> None:
    """A server in the place of a model that is loaded here."""
    group.add_argument(
        "--remote",
        metavar="URL|NAME",
        help="have a server answer: llama-server, vLLM, TabbyAPI, ollama, or any of OpenAI's kind; -m names its model",
    )
    group.add_argument(
        "--remote-key", metavar="WHERE", type=some_text, help="where its key is kept: env:NAME, file:PATH or keyring"
    )
    group.add_argument(
        "--remote-level",
        metavar="NAME",
        choices=("ids", "text", "messages"),
        help="send prompts as ids, text or messages (default: the best that the server can do)",
    )


def extension_option(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--ext",
        dest="extension",
        action=argparse.BooleanOptionalAction,
        help="with the CUDA kernels (default), or without them, slower",
    )


def kernel_options(group: argparse._ArgumentGroup) -> None:
    """Whether the kernels are used, and what they round."""
    extension_option(group)
    group.add_argument(
        "--quantize-head",
        metavar="N",
        type=int,
        choices=ROUNDED_HEAD_BITS,
        help="with the kernels, round an output head of floats to 4, 6 or 8 bits",
    )


def prompt_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--context-policy",
        metavar="NAME",
        choices=CONTEXT_POLICIES,
        help="when a conversation does not fit the context: stop (default), drop its oldest turns, or summarise them",
    )
    voice_options(group)


def voice_options(group: argparse._ArgumentGroup) -> None:
    """Who speaks, and how long."""
    group.add_argument("--persona", metavar="NAME", help="who is speaking, of exlchat personas list, or a .toml file")
    group.add_argument("--system", metavar="TEXT", help="system prompt, in the place of the persona's")
    group.add_argument(
        "--template", metavar="NAME|FILE", help="prompt format: model, chatml, plain, or a Jinja file (default: model)"
    )
    group.add_argument("--max-tokens", metavar="N", type=whole(1), help="longest answer, in tokens")


def sampling_group(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "--preset", metavar="NAME", help="values of exlchat presets list, or of a .toml file, where none are typed"
    )
    group.add_argument("--temperature", metavar="X", type=number, help="0 always takes the most likely token")
    group.add_argument("--top-k", metavar="N", type=whole(0), help="draw from the N most likely tokens; 0 is off")
    group.add_argument("--top-p", metavar="X", type=number, help="draw from the likeliest that sum to X; 1 is off")
    group.add_argument("--min-p", metavar="X", type=number, help="drop what is below X times the likeliest; 0 is off")
    group.add_argument(
        "--sample",
        metavar="NAME=VALUE",
        type=sampled,
        action="append",
        default=[],
        help="any other control, such as xtc_probability=0.5 (may be repeated); /sampling in the app lists them",
    )
    group.add_argument("--seed", metavar="N", type=whole(0, LARGEST_SEED), help="the same seed, the same answer")


def speech_options(parser: argparse.ArgumentParser) -> None:
    said = parser.add_argument_group("what is said")
    texts: dict[str, Any] = {"metavar": "TEXT", "type": stop_text, "action": "append"}
    said.add_argument("--stop", **texts, help="end the answer before TEXT (may be repeated)")
    said.add_argument("--ban", **texts, help="never say TEXT: go back and say something else (may be repeated)")
    said.add_argument(
        "--begin", metavar="TEXT", type=some_text, help="begin the answer with TEXT, which is printed too"
    )
    said.add_argument("--min-tokens", metavar="N", type=whole(0), help="the answer does not end before N tokens")
    said.add_argument("--thinking-budget", metavar="N", type=whole(0), help="close the model's thoughts after N tokens")
    said.add_argument(
        "--negative", metavar="TEXT", help="system prompt to lean away from; goes with --sample guidance_scale=1.5"
    )
    held = said.add_mutually_exclusive_group()
    held.add_argument(
        "--schema", metavar="FILE|JSON", type=held_to("schema"), help="answer in JSON of this JSON schema"
    )
    held.add_argument("--regex", metavar="RE", type=held_to("regex"), help="the whole answer matches this expression")
    held.add_argument("--choice", **texts, help="answer TEXT, or another --choice, and nothing else")
    held.add_argument(
        "--grammar", metavar="FILE", type=held_to("grammar"), help="answer by this grammar (Lark, llguidance)"
    )


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """An argument type: a whole number within bounds."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            upper = "or more" if most is None else f"to {most}"
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, {least} {upper}")
        return value

    return parse


def said(parse: Callable[[str], Parsed]) -> Callable[[str], Parsed]:
    """An argument type whose `ValueError` says itself what is wrong."""

    def parse_argument(text: str) -> Parsed:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse_argument


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def positive(most: int) -> Callable[[str], float]:
    """An argument type: a number above 0."""

    def parse(text: str) -> float:
        value = number(text)
        if not 0 < value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0, at most {most:,}")
        return value

    return parse


def not_negative(most: int) -> Callable[[str], float]:
    """An argument type: a number, 0 or above."""

    def parse(text: str) -> float:
        value = number(text)
        if not 0 <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number, 0 or above, at most {most:,}")
        return value

    return parse


def sampled(text: str) -> tuple[str, Any]:
    """A control of how tokens are drawn, and its value: NAME=VALUE."""
    name, sign, value = text.partition("=")
    name = name.strip().replace("-", "_")
    if not sign or not value.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not like NAME=VALUE, such as xtc_probability=0.5")
    if name in _OF_THEIR_OWN:
        raise argparse.ArgumentTypeError(f"{name} has an option of its own; say {_OF_THEIR_OWN[name]} {value}")
    # No help needs it.
    from exlchat.chat.presets.control_values import from_text, require_control

    try:
        require_control(name)
        return name, from_text(name, value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def held_to(word: str) -> Callable[[str], Constraint]:
    """An argument type: a schema, a regex or a grammar."""

    def parse(text: str) -> Constraint:
        # No help needs it.
        from exlchat.chat.constraints import constraint_of

        return constraint_of(word, text)

    return said(parse)


def drafted_by(text: str) -> DraftChoice | Path:
    """A word, or the folder of a model."""
    # No help needs it.
    from exlchat import paths

    words: tuple[DraftChoice, ...] = ("auto", "off", "ngram")
    for word in words:
        if text == word:
            return word
    path = paths.expanded(text)
    try:
        there = bool(text) and path.is_dir()
    except (OSError, ValueError):
        there = False
    if not there:
        raise argparse.ArgumentTypeError(f"{text!r} is no folder of a model; give one, or {', '.join(words)}")
    return path.absolute()


def some_text(text: str) -> str:
    """Anything but nothing."""
    return _something(text, "the text is empty")


def stop_text(text: str) -> str:
    return _something(text, "the text is empty, which would stop nothing")


def some_id(text: str) -> str:
    """The beginning of an id, which the empty text is of all."""
    return _something(text, "the id is empty; exlchat sessions list and show print ids")


def _something(text: str, otherwise: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError(otherwise)
    if text != storable(text):
        raise argparse.ArgumentTypeError("the text is not UTF-8")
    return text
