"""A stranger's tokenizer, opened and tried: what runs in the process of `tokenizer_process`, and may be lost there.

It has to take texts of all kinds without a panic, in a time that a conversation can wait, and without making much more
of them than they are. What it cannot take and says so, as a character without a token, is no fault.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

from exlchat.engine.text.tokenizer_files import TokenizerFiles, open_tokenizer
from exlchat.engine.text.tokenizer_growth import decoding_growth, encoding_growth
from exlchat.engine.weights.files import SmallFiles
from exlchat.llm.info import ModelError
from exlchat.untrusted.text import one_line

MOST_GROWTH = 1000.0
"""Of a text, in characters. Real ones make up to some hundred of one, by the longest of Unicode's forms."""
MOST_IDS = 64
"""For a character: bytes of the longest of Unicode's forms."""
MOST_CHARACTERS = 1000
"""Of a token, in the mean of `_AT_ONCE` of them; the longest in use are runs of some hundred spaces."""
MOST_SECONDS = 1.0
"""Of processor time for a sample; real ones take some milliseconds."""

_AT_ONCE = 100
_RUN = 8000
"""Characters: enough for a pattern whose time grows with the square of a text to be noticed."""
_SHORT_RUN = 64
_MOST_ADDED = 64_000
"""Characters of added tokens that are tried."""
_TAKE = "take the tokenizer's files from the original model"

_PROSE = (
    'The quick brown fox jumps over the lazy dog; it didn\'t say "why" (1,234.5 times in 2024).\n\n'
    "def f(x: int) -> str:\n\treturn '%d\\n' % x  # https://example.org/a?b=c&d=%20\r\n"
    "Zwölf Boxkämpfer jagen Viktor über den Sylter Deich. Съешь ещё этих мягких булок. हिन्दी भाषा ไทย 한국어\n"
    "漢字とかな交じり文。『你好，世界』 عربي שלום ﷺ ½ ﬁ İ ǆ 👩‍👩‍👧‍👦🏳️‍🌈👍🏽\n"
    "e\u0301a\u0308\u0323 \u0e33\u1112\u1161\u11ab\n"
    "\0\x01\x1b[0m\x7f\x85\xa0\u200b\u2028\ufeff\ufffd\U0010ffff ▁▁\n"
    "<s></s><unk> [INST] <|im_start|> <0x0A> ## </w>\n"
)
_RUNS = (*"aA \n0.-'/é日ا\u0301👍▁", "\t ", " \n", "ab", "a ", "aA1.")


_opened: dict[str, TokenizerFiles] = {}
"""The one that was opened last, by its folder."""


def handle(request: tuple[str, str]) -> str:
    """What is wrong with a tokenizer, in one line; empty where nothing is.

    Args:
        request: "open" or, when that has gone well, "use"; and the model directory.
    """
    step, folder = request
    files = _opened.pop(folder, None) if step == "use" else None
    _opened.clear()
    try:
        files = files or open_tokenizer(SmallFiles(Path(folder)))
    except ModelError as error:
        return str(error)
    wrong = _wrong_with_parts(files.fast) if step == "open" else _wrong(files.fast)
    if step == "open" and not wrong:
        _opened[folder] = files
    return f"{files.file}: {wrong}; {_TAKE}" if wrong else ""


def _wrong_with_parts(fast: Tokenizer) -> str:
    if max(encoding_growth(fast), decoding_growth(fast)) > MOST_GROWTH:
        return f"it may make more than {MOST_GROWTH:,.0f} characters of one"
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        mark = getattr(fast.model, name, None) or ""
        if len(mark) > MOST_CHARACTERS:
            return f"its {name} has {len(mark):,} characters"
    return ""


def _wrong(fast: Tokenizer) -> str:
    try:
        for text in _samples(fast):
            if wrong := _wrong_with(fast, text):
                return wrong
        return _wrong_with_tokens(fast)
    except Exception:
        raise
    except BaseException as error:
        # A panic.
        return f"it breaks down at some texts ({one_line(str(error), 120) or type(error).__name__})"


def _samples(fast: Tokenizer) -> Iterator[str]:
    yield from ("", " ", "a", _PROSE, *_PROSE.splitlines(keepends=True), *_PROSE)
    added = "".join(token.content for token in fast.get_added_tokens_decoder().values())
    yield added[:_MOST_ADDED]
    for run in _RUNS:
        text = run * (_RUN // len(run))
        yield text
        yield f"{text}!"
    # A pattern whose time doubles with every character needs no more of them.
    for code in range(ord("!"), ord("~") + 1):
        yield f"{chr(code) * _SHORT_RUN} "


def _wrong_with(fast: Tokenizer, text: str) -> str:
    began = time.process_time()
    try:
        ids = fast.encode(text, add_special_tokens=False).ids
        fast.decode(ids[: MOST_IDS * len(text)], skip_special_tokens=False)
    except MemoryError:
        raise
    except Exception:
        return ""
    if len(ids) > MOST_IDS * (len(text) + 1):
        return f"it makes {len(ids):,} tokens of {len(text):,} characters"
    if time.process_time() - began > MOST_SECONDS:
        return f"it takes more than {MOST_SECONDS:g} s for {len(text):,} characters"
    return ""


def _wrong_with_tokens(fast: Tokenizer) -> str:
    ids = list(fast.get_vocab(with_added_tokens=True).values())
    for start in range(0, len(ids), _AT_ONCE):
        some = ids[start : start + _AT_ONCE]
        try:
            text = fast.decode(some, skip_special_tokens=False)
        except MemoryError:
            raise
        except Exception:
            continue
        if len(text) > MOST_CHARACTERS * _AT_ONCE:
            return f"it makes {len(text):,} characters of {len(some)} tokens"
    return ""
