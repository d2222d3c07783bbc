"""One fact -> one of very many ways to ask for it: frames, synonyms, politeness, typing habits and mistakes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from random import Random

from exlchat.app.guide.facts import Fact, load_slots
from guide.patterns import expand

_WORDS = tomllib.loads(Path(__file__).with_name("wording.toml").read_text("utf-8"))
_SYNONYMS = {word: tuple(others.split("|")) for word, others in _WORDS["synonyms"].items()}
_FRAMES = (("{}",), _WORDS["goal_frames"], _WORDS["topic_frames"], _WORDS["name_frames"])
_FILLERS = frozenset(_WORDS["fillers"].split())
_KEY_FORMS = (
    "ctrl {}",
    "ctrl-{}",
    "control+{}",
    "control {}",
    "^{}",
    "strg+{}",
    "Ctrl+{}",
    "CTRL+{}",
    "control-{}",
    "c-{}",
)
LINKS, REPEAT, MORE, SYSTEM_PROMPTS = (tuple(_WORDS[name]) for name in ("links", "repeat", "more", "system_prompts"))
AFTER_REFUSAL: dict[str, tuple[str, ...]] = {name: tuple(asks) for name, asks in _WORDS["after_refusal"].items()}
_WORD = re.compile(r"[a-z]+")
_KEY_NAME = re.compile(r"\bctrl\+(\w+)")


def ask(fact: Fact, random: Random) -> str:
    """One way to ask for the fact, as a person would type it."""
    kinds = (fact.asks, fact.goals, fact.topics, fact.names)
    weights = (len(fact.asks), 4 * len(fact.goals), 1.2 * len(fact.topics), 1.5 * len(fact.names))
    kind = random.choices(range(4), weights)[0]
    text = expand(random.choice(kinds[kind]), random, load_slots())
    text = expand(random.choice(_FRAMES[kind]).replace("{}", "\0"), random).replace("\0", text)
    return typed(text, random, strange=fact.out_of_scope)


def follow_up(patterns: tuple[str, ...], random: Random) -> str:
    """A question that leans on what was said before."""
    return typed(expand(random.choice(patterns), random), random, strange=True)


def typed(text: str, random: Random, *, strange: bool = False) -> str:
    """The sentence with a person's habits: greeting, synonyms, casing, lost punctuation, typos.

    `strange` text keeps its words: telegram style and synonyms could change what it asks for.
    """
    plain = "`" not in text and "/" not in text and "--" not in text
    if not strange:
        text = _with_synonyms(text, random)
        if plain and random.random() < 0.10:
            text = _telegram(text, random)
    text = _respelled_keys(text, random)
    text = _surrounded(text, random)
    if plain and random.random() < 0.17:
        text = _with_typo(text, random)
        if random.random() < 0.25:
            text = _with_typo(text, random)
    return _cased(_repunctuated(text, random), random)


def _with_synonyms(text: str, random: Random) -> str:
    words = text.split(" ")
    for index, word in enumerate(words):
        core = word.rstrip("?,.!")
        others = _SYNONYMS.get(core)
        if others and random.random() < 0.16:
            words[index] = random.choice(others) + word[len(core) :]
    return " ".join(words)


def _telegram(text: str, random: Random) -> str:
    """Without the little words: "delete conversation"."""
    words = text.rstrip("?").split(" ")
    drop = 1.0 if random.random() < 0.5 else 0.4
    kept = [word for word in words if word not in _FILLERS or random.random() > drop]
    return " ".join(kept) if len(kept) >= 2 else text


def _respelled_keys(text: str, random: Random) -> str:
    style = random.random()
    if style < 0.45:
        return text
    form = random.choice(_KEY_FORMS)
    return _KEY_NAME.sub(lambda match: form.format(match[1].upper() if style > 0.8 else match[1]), text)


def _surrounded(text: str, random: Random) -> str:
    if random.random() < 0.16:
        text = random.choice(_WORDS["openers"]) + text
    if random.random() < 0.05:
        text = random.choice(_WORDS["contexts"]) + text
    if random.random() < 0.12 and len(text) > 8:
        closer = random.choice(_WORDS["closers"])
        question = text.endswith("?") and "?" not in closer
        text = text.rstrip("?") + closer + ("?" if question else "")
    return text


def _with_typo(text: str, random: Random) -> str:
    words = [match for match in _WORD.finditer(text) if len(match[0]) > 3]
    if not words:
        return text
    match = random.choice(words)
    word, place = match[0], random.randrange(1, len(match[0]) - 1)
    kind = random.randrange(4)
    if kind == 0:
        word = word[:place] + word[place + 1] + word[place] + word[place + 2 :]
    elif kind == 1:
        word = word[:place] + word[place + 1 :]
    elif kind == 2:
        word = word[:place] + word[place] + word[place:]
    else:
        word = word[:place] + random.choice(_WORDS["keyboard"][word[place]]) + word[place + 1 :]
    return text[: match.start()] + word + text[match.end() :]


def _repunctuated(text: str, random: Random) -> str:
    draw = random.random()
    if draw < 0.35:
        text = text.rstrip("?!.") or text
    elif draw < 0.39:
        text = text.rstrip("?!.") + random.choice(("??", "!", "...", " ?", "?!", "!!", ".", "???"))
    elif draw < 0.50 and not text.endswith(("?", "!", ".")):
        text += random.choice(("?", ".", "!"))
    if random.random() < 0.15:
        text = text.replace("'", "")
    elif random.random() < 0.10:
        text = text.replace("'", "’")
    if random.random() < 0.08:
        for short, long in (("what's", "what is"), ("don't", "do not"), ("i'm", "i am"), ("can't", "cannot")):
            text = text.replace(short, long)
    if random.random() < 0.05:
        text = text.replace(",", "")
    return text


def _cased(text: str, random: Random) -> str:
    draw = random.random()
    if draw < 0.35:
        return text
    if draw < 0.40:
        return text.lower()
    if draw < 0.43 and "/" not in text and "--" not in text:
        return text.upper()
    text = text[:1].upper() + text[1:]
    if draw < 0.85:
        text = re.sub(r"\bi\b(?!/)", "I", text)
        text = re.sub(r"([.!?] )([a-z])", lambda match: match[1] + match[2].upper(), text)
    return text
