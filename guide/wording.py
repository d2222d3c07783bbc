"""One fact -> one of very many ways to ask for it: frames, synonyms, politeness, typing habits and mistakes."""

from __future__ import annotations

import re
from random import Random

from guide.facts import Fact, load_slots
from guide.patterns import expand

GOAL_FRAMES = (
    "how do i {}?", "how do i {}?", "how do i {}?", "how can i {}?", "how can i {}?", "how to {}", "how to {}?", "how do you {}?",
    "how would i {}?", "how does one {}?", "how could i {}?", "how should i {}?", "how might one {}?", "how do people {}?",
    "what do i [do|press|type|need to do|have to do|have to type|have to press] to {}?",
    "what [must|should|can|would] i [do|press|type] [to|in order to|if i want to|when i want to] {}?",
    "what is the [way|key|command|shortcut|trick|procedure|method] to {}?", "what's the [best|easiest|quickest|right|proper|simplest|fastest] way to {}?",
    "is there [a|any|some] [way|key|shortcut|command|hotkey|trick|quick way|easy way|means|possibility|option] to {}?",
    "i want to {}", "i want to {}, how?", "i'd like to {}", "i would like to {}", "i need to {}", "i'm trying to {}", "i wish to {}", "i'd love to {}", "i have to {}",
    "can i {}?", "can i {} [somehow|here|too|as well|easily|quickly]?", "could i {}?", "may i {}?", "am i able to {}?", "is it possible to {}?", "is it [easy|hard|difficult|allowed] to {}?",
    "could you [tell|show|teach|explain to] me how to {}?", "can you [tell|show|explain to] me how [i can|to|i could] {}?", "do you know how [to|i can] {}?",
    "[please|] [tell|show|explain to] me how [to|i can|i could] {}", "[please|] help me {}", "[need|i need] help to {}", "i need a way to {}",
    "{}", "{}", "{}?", "{} - how?", "{}, how does that work?", "{} please", "{} how",
    "[which|what] [key|command|button|shortcut|key combination|hotkey] [lets me|can i use to|do i use to|do i press to|would|do i need to] {}?",
    "[where|where and how] [do|can] i {}?", "does exlchat let me {}?", "does exlchat have [a way|a key|a command] to {}?",
    "i [don't know|have no idea|forgot|can't remember|can't find|can't figure out|couldn't find out|wonder|am wondering|don't see|want to know|would like to know|keep forgetting] how to {}",
    "how [on earth|the hell|exactly|in the world|do i actually|do i best|do i quickly|can i best] do i {}?", "[what if|suppose|let's say|say|imagine|assume] i want to {}", "what happens if i [want to|try to|need to] {}?",
    "any [chance|way|idea how|tip how|hint how] to {}?", "the [way|key|command] to {}?", "[steps|instructions|command|key|shortcut] to {}", "how is it possible to {}?", "when i want to {}, what do i [do|press|type]?",
    "if i [want|wanted|need|wish] to {}, [how would i do that|what do i do|what should i do|where do i start|what then]?", "i [am looking|was looking|look|looked] for a way to {}", "my [plan|goal|aim|intention] is to {}", "i can't {}", "i [cannot|am unable to|fail to|did not manage to] {}", "why can't i {}?", "tell me the [key|command|way] to {}", "trying to {}", "wanna {}", "gotta {}", "how 2 {}", "what about a way to {}?", "would it be possible to {}?", "what [allows|enables] me to {}?",
)
TOPIC_FRAMES = (
    "what is {}?", "what is {}?", "what's {}?", "what are {}?", "[tell me|say something|talk] about {}", "explain {}", "[please|can you|could you] explain {} [to me|]?", "{}", "{}", "{}?", "what about {}?", "how about {}?", "how does {} work?",
    "what does {} [do|mean]?", "[info|information|details|more|something] [on|about] {}", "describe {}", "help [with|on|me with] {}", "what do you know about {}?", "i have a question about {}", "what is {} [good for|for|about|all about|exactly]?",
    "i don't [understand|get|know] {}", "[what|anything] should i know about {}?", "can you tell me [something|more|] about {}?", "why {}?", "where do i find {}?", "[what can you tell me|what do i need to know|i want to know more|i'd like to know more|i need to know] about {}", "define {}", "{} explained", "meaning of {}", "how do i use {}?", "a word about {} please", "{} - what is that?", "[i read|i heard|people talk] about {}, what is [it|that]?", "could you describe {}?", "is there {}?", "do you have {}?", "does it have {}?",
)
NAME_FRAMES = (
    "what does {} do?", "what does {} do?", "what is {}?", "what is {} for?", "{}", "{}?", "what happens [if|when] i [press|type|use|enter|hit|run] {}?", "how do i use {}?", "when [do|would|should] i use {}?", "explain {}", "what's {}?", "meaning of {}", "what's the [purpose|meaning|point|effect|use] of {}?", "why would i [press|type|use] {}?", "tell me about {}", "i [pressed|typed|hit|used] {}, what [happened|does it do]?", "{} does what?", "what [can|could] i do with {}?", "how does {} work?", "what do i need {} for?", "what would {} do?", "is {} [useful|a command|a key|an option]?", "what exactly does {} do?", "and {}?", "usage of {}", "i don't understand {}",
)
OPENERS = ("hi, ", "hello, ", "hey, ", "hello! ", "hi! ", "ok, ", "ok so ", "so ", "so, ", "well, ", "um, ", "hm, ", "now, ", "please, ", "sorry, ", "excuse me, ", "quick question: ", "question: ", "a question: ", "tell me, ", "alright, ", "right, ", "good, ", "hey guide, ", "dear guide, ", "guide, ", "just wondering, ", "by the way, ", "one question: ", "i was wondering: ", "maybe a stupid question, but ", "stupid question: ", "actually, ", "but ", "and ", "thanks, ", "great, ", "help! ", "man, ", "oh, ", "erm ", "ehm, ", "first of all, ", "i've got a question: ", "can you help? ", "sorry to bother you, ", "let me ask: ", "mate, ", "psst, ")
CONTEXTS = ("i'm new here. ", "i just installed exlchat. ", "i'm on ubuntu. ", "i come from ollama. ", "i'm not a programmer. ", "i'm using tmux. ", "i have a small laptop. ", "this is my first time. ", "i read the help but did not find it. ", "my colleague asked me this. ", "i'm in a hurry. ", "don't laugh. ", "i'm a bit lost. ", "i searched everywhere. ", "the screen is up now. ", "it's my first day with exlchat. ", "i have been using it for a week. ", "there is something i don't get. ", "i'm stuck. ", "yesterday it worked. ", "i'm old. ", "bear with me. ", "i wrote a long text. ", "i like it so far. ")
CLOSERS = (" please", " please?", ", please", " thanks", ", thanks!", " thx", " in exlchat", " in exlchat?", " here", " here?", " with exlchat", " in this app", " in this program", " again", " now", " exactly", " anyway", " then", ", i mean", " or not?", ", any idea?", ", do you know?", ", can you tell me?", ", if i may ask", " pls", " in the app", " from the terminal", " on linux", " right now", ", or is that impossible?", ", if possible", " somehow", " really", ", mate", "? I can't find it", "? I'm confused", "? thanks", "? it's urgent", "? i forgot", "? just curious", "? i need it for work")
SYNONYMS = {
    "show": "display|bring up|reveal", "see": "view|look at|have a look at", "find": "locate|discover|get hold of", "change": "switch|modify|alter|adjust", "use": "employ|utilize|work with|try", "start": "begin|launch|fire up|kick off", "want": "need|wish|would like|intend",
    "big": "large|huge|heavy|massive", "large": "big|huge", "small": "little|tiny", "fast": "quick|speedy|rapid", "slow": "sluggish|laggy", "key": "shortcut|button|hotkey|key combination|keystroke", "command": "instruction|slash command|cmd", "answer": "reply|response|text|message",
    "question": "query|thing", "message": "prompt|text|line", "folder": "directory|dir|place|path", "model": "llm|language model|network|ai", "gpu": "graphics card|video card|nvidia card|graphics processor", "computer": "machine|pc|laptop|box|system|notebook", "program": "app|tool|application|software|thing", "get": "obtain|have|receive",
    "delete": "remove|erase|kill|scrap", "stop": "interrupt|halt|end|freeze", "keep": "retain|hold on to|preserve", "saved": "stored|kept|written to disk", "stored": "saved|kept|put", "lost": "gone|missing", "wrong": "off|not right|incorrect|strange|odd", "write": "type|compose|put down", "type": "enter|write|key in",
    "help": "assist|aid", "possible": "doable|feasible", "explain": "describe|clarify", "mean": "signify|stand for|tell me", "work": "function|run|do its job", "several": "multiple|a few|a couple of|some", "new": "fresh|brand new|another", "old": "previous|earlier|past|older", "last": "latest|most recent|previous|final",
    "length": "size|limit", "limit": "cap|restrict|bound", "quit": "exit|close|leave", "exit": "quit|leave|close", "open": "access|bring up|get into", "load": "open|run|fire up|bring in", "run": "execute|start|use", "conversation": "chat|talk|session|dialogue|thread|exchange", "conversations": "chats|talks|sessions|threads|dialogues", "chat": "conversation|talk|dialogue", "chats": "conversations|talks|sessions",
    "undo": "reverse|take back|revert", "colours": "colors|colour scheme|look", "theme": "colour scheme|look|skin", "text": "words|writing|letters", "screen": "window|display|view", "terminal": "console|shell|command line", "list": "overview|menu", "copy": "grab|take", "name": "title|label", "title": "name|heading", "need": "require|want", "choose": "pick|select|decide on", "give": "hand|pass", "without": "with no|minus", "again": "once more|another time|anew", "make": "create|produce", "quickly": "fast|in a hurry", "continue": "go on|carry on|proceed|resume", "file": "document|data file", "files": "documents|data", "settings": "preferences|options|configuration", "memory": "ram|vram|space", "private": "confidential|secret", "send": "submit|transmit|pass on", "supported": "possible|available|accepted", "happens": "occurs|comes|takes place", "tell": "inform|show", "shell": "bash|command line|terminal|console", "script": "shell script|program", "start over": "begin again", "bad": "poor|terrible|awful|lousy", "remember": "recall|know|retain", "random": "arbitrary|unpredictable|erratic", "default": "standard|preset|normal", "fit": "go|squeeze", "card": "gpu|board", "version": "release|edition", "size": "dimension|bulk", "finish": "complete|end", "error": "failure|problem|issue", "bring": "get|fetch", "go": "move|get", "somewhere": "anywhere", "long": "lengthy|big", "short": "brief|small", "look": "appear", "print": "output|show", "read": "load|understand", "handle": "cope with|manage|process",
}
_SYNONYMS = {word: tuple(others.split("|")) for word, others in SYNONYMS.items()}
FILLERS = frozenset("a an the do i to is of for it my me please can you that this in on with and so just be there would could does are at exlchat".split())
KEYBOARD = {"a": "sq", "b": "vn", "c": "xv", "d": "sf", "e": "wr", "f": "dg", "g": "fh", "h": "gj", "i": "uo", "j": "hk", "k": "jl", "l": "k", "m": "n", "n": "bm", "o": "ip", "p": "o", "q": "wa", "r": "et", "s": "ad", "t": "ry", "u": "yi", "v": "cb", "w": "qe", "x": "zc", "y": "tu", "z": "x"}
_WORD = re.compile(r"[a-z]+")
_KEY_NAME = re.compile(r"\bctrl\+(\w+)")


def ask(fact: Fact, random: Random) -> str:
    """One way to ask for the fact, as a person would type it."""
    kinds = (fact.asks, fact.goals, fact.topics, fact.names)
    weights = (len(fact.asks), 4 * len(fact.goals), 1.2 * len(fact.topics), 1.5 * len(fact.names))
    kind = random.choices(range(4), weights)[0]
    text = expand(random.choice(kinds[kind]), random, load_slots())
    frames = (None, GOAL_FRAMES, TOPIC_FRAMES, NAME_FRAMES)[kind]
    if frames is not None:
        text = expand(random.choice(frames).replace("{}", "\0"), random).replace("\0", text)
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
    kept = [word for word in words if word not in FILLERS or random.random() > drop]
    return " ".join(kept) if len(kept) >= 2 else text


def _respelled_keys(text: str, random: Random) -> str:
    style = random.random()
    if style < 0.45:
        return text
    form = random.choice(("ctrl {}", "ctrl-{}", "control+{}", "control {}", "^{}", "strg+{}", "Ctrl+{}", "CTRL+{}", "control-{}", "c-{}"))
    return _KEY_NAME.sub(lambda match: form.format(match[1].upper() if style > 0.8 else match[1]), text)


def _surrounded(text: str, random: Random) -> str:
    if random.random() < 0.16:
        text = random.choice(OPENERS) + text
    if random.random() < 0.05:
        text = random.choice(CONTEXTS) + text
    if random.random() < 0.12 and len(text) > 8:
        closer = random.choice(CLOSERS)
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
        word = word[:place] + random.choice(KEYBOARD[word[place]]) + word[place + 1 :]
    return text[: match.start()] + word + text[match.end() :]


def _repunctuated(text: str, random: Random) -> str:
    draw = random.random()
    if draw < 0.35:
        text = text.rstrip("?!.")or text
    elif draw < 0.39:
        text = text.rstrip("?!.") + random.choice(("??", "!", "...", " ?", "?!", "!!", ".", "???"))
    elif draw < 0.50 and not text.endswith(("?", "!", ".")):
        text += random.choice(("?", ".", "!"))
    if random.random() < 0.15:
        text = text.replace("'", "")
    elif random.random() < 0.10:
        text = text.replace("'", "’")
    if random.random() < 0.08:
        text = text.replace("what's", "what is").replace("don't", "do not").replace("i'm", "i am").replace("can't", "cannot")
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
