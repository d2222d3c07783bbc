"""`exlchat ask`: one answer on standard output, for pipes and scripts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from exlchat.cli.options import (
    model_options,
    prompt_options,
    remote_options,
    sampling_group,
    some_id,
    speech_options,
    whole,
)
from exlchat.cli.parser import Parser, about_group
from exlchat.llm.limits import MOST_ANSWERS, MOST_LOGPROBS
from exlchat.ui.terminal.exit_codes import ExitCode

_ABOUT = """Answer one prompt and print only the answer on standard output; progress,
notices and errors go to standard error. The prompt is the argument, standard
input, or both: the argument first, a blank line, then standard input. It begins
a new conversation, or goes on with one that is there (-c)."""
_EPILOG = """examples:
  exlchat ask "How do I load a model?"
  exlchat ask -m ~/models/llama-3 "Three names for a cat"
  cat notes.txt | exlchat ask "Summarise in one line:" --max-tokens 60
  exlchat ask -c last "And in German?"
  exlchat ask --schema person.json "A made-up person" | jq .name
  exlchat ask --choice yes --choice no "Is this spam?" < mail.txt
  exlchat ask --answers 3 "A name for a cat"
  exlchat ask --jsonl --no-save "Hello" | jq -r 'select(.type=="text").text'

exit codes:
  0 ok   1 error   2 usage   3 the prompt does not fit   130 stopped by ctrl+c"""


def build_parser() -> Parser:
    parser = Parser("exlchat ask", _ABOUT, _EPILOG, "exlchat ask [MODEL] [PROMPT] [options]")
    model = parser.add_argument_group("prompt and model")
    model.add_argument(
        "words",
        metavar="[MODEL] [PROMPT]",
        nargs="*",
        help="one argument alone is the model if it is a folder or the word guide, else the prompt",
    )
    model.add_argument("-m", "--model", metavar="MODEL", help="model folder, or the word guide")
    model_options(model)
    remote_options(model)
    there = parser.add_argument_group("a conversation that is there")
    there.add_argument(
        "-c",
        "--conversation",
        metavar="ID",
        type=some_id,
        help="ask at the end of this conversation: the beginning of its id, or last",
    )
    there.add_argument("--speaker", metavar="NAME", help="who of the conversation's group answers")
    again = there.add_mutually_exclusive_group()
    again.add_argument(
        "--retry",
        dest="again",
        action="store_const",
        const="retry",
        help="instead of a prompt: answer the last one again, beside the answer there is",
    )
    again.add_argument(
        "--continue",
        dest="again",
        action="store_const",
        const="continue",
        help="instead of a prompt: go on with the last answer, which was cut or edited",
    )
    answer = parser.add_argument_group("answer")
    answer.add_argument("--jsonl", action="store_true", help="print one JSON object for each event instead of the text")
    answer.add_argument("--no-save", dest="save", action="store_false", help="do not keep this as a conversation")
    answer.add_argument(
        "--logprobs",
        metavar="N",
        type=whole(0, MOST_LOGPROBS),
        help="with --jsonl, print each token with its log-probability and the N likeliest ones there",
    )
    answer.add_argument(
        "--answers",
        metavar="N",
        type=whole(1, MOST_ANSWERS),
        default=1,
        help=f"so many answers, up to {MOST_ANSWERS}, from one reading of the prompt",
    )
    prompt_options(answer)
    speech_options(parser)
    sampling_group(parser)
    about_group(parser)
    return parser


def run(arguments: Sequence[str]) -> ExitCode:
    parser = build_parser()
    typed = parser.parse_words(arguments)
    from exlchat.cli.typed_options import app_options

    # With a server a word alone is the prompt: the model is one of that server's.
    named = "" if typed.remote is not None and typed.model is None else typed.model
    model, prompt = model_and_prompt(parser, named, typed.words)
    _require_sense(parser, typed, prompt)
    from exlchat.ui.headless.ask import AskOptions, run_ask

    app = app_options(parser, typed, model)
    return run_ask(
        AskOptions(
            app,
            prompt,
            jsonl=typed.jsonl,
            save=typed.save,
            conversation=typed.conversation,
            again=typed.again,
            answers=typed.answers,
            speaker=typed.speaker,
        )
    )


def _require_sense(parser: argparse.ArgumentParser, typed: argparse.Namespace, prompt: str | None) -> None:
    if typed.conversation is not None and not typed.save:
        parser.error("--no-save keeps nothing, and -c puts the answer into a conversation; leave one of them out")
    if typed.logprobs and not typed.jsonl:
        parser.error("--logprobs are printed with --jsonl; add that")
    if typed.answers > 1 and typed.again == "continue":
        parser.error("--continue goes on with one answer; leave out --answers, or take --retry")
    if typed.speaker is not None and (typed.conversation is None or typed.persona is not None):
        parser.error("--speaker is one of a group of a conversation: give that with -c, and no --persona")
    if typed.again is not None:
        _require_sense_again(parser, typed, prompt)


def _require_sense_again(parser: argparse.ArgumentParser, typed: argparse.Namespace, prompt: str | None) -> None:
    if typed.speaker is not None:
        parser.error(f"--{typed.again} stays with whoever gave the answer; leave out --speaker")
    if typed.begin is not None and typed.again == "continue":
        parser.error("--begin begins an answer, and --continue goes on with one; leave one of them out")
    if typed.conversation is None:
        parser.error(f"--{typed.again} needs the conversation: -c ID, or -c last")
    if prompt is not None:
        parser.error(f"--{typed.again} takes no prompt; leave out {prompt[:40]!r}")
    if typed.persona is not None or typed.system is not None:
        parser.error(f"--persona and --system speak from a prompt on, so they do not go with --{typed.again}")


def model_and_prompt(
    parser: argparse.ArgumentParser, model: str | None, words: Sequence[str]
) -> tuple[str | None, str | None]:
    if len(words) > (2 if model is None else 1):
        parser.error("too many arguments; put the prompt in quotes")
    if model is not None:
        return model, words[0] if words else None
    if len(words) == 2:
        return words[0], words[1]
    # No help needs it.
    from exlchat.app.library.choice import GUIDE

    if words and (words[0] == GUIDE or _is_folder(words[0])):
        return words[0], None
    return None, words[0] if words else None


def _is_folder(text: str) -> bool:
    from exlchat import paths

    try:
        # An empty prompt, as an unset shell variable gives, is not the current folder.
        return bool(text) and paths.expanded(text).is_dir()
    except (OSError, ValueError):
        # A long prompt is no possible file name.
        return False
