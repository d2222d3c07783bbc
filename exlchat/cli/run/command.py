"""`exlchat run`: a whole file of requests, answered into another file. Without one it is the chat, as other programs
call that.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from exlchat.cli.options import model_options, remote_options, sampling_group, speech_options, voice_options, whole
from exlchat.cli.parser import Parser, about_group
from exlchat.llm.limits import MOST_ANSWERS
from exlchat.ui.terminal.exit_codes import ExitCode

_MOST_ROWS = 1024
_ABOUT = """Answer a file of requests, a line each, into another file. Whatever ends it,
the same command goes on where it was: what is in the file of answers is done.

Lines are OpenAI's of batches ({"custom_id", "url", "body"}), the fields of a body
alone ({"messages": [...]} or {"prompt": "..."}, which is one message), or plain
text in FILE.txt. Without -o the chat opens, as `ollama run` has it."""
_EPILOG = """examples:
  exlchat run questions.jsonl -o answers.jsonl -m ~/models/llama-3
  exlchat run reviews.txt -o found.jsonl --schema review.json --system "Classify:"
  exlchat run texts.txt -o scores.jsonl --score
  exlchat run questions.jsonl -o answers.jsonl --remote pair
  jq -r '.response.body.choices[0].message.content' answers.jsonl

exit codes:
  0 all were answered   1 error, or some were not   2 usage   130 stopped by
  ctrl+c: give the same command again"""


def build_parser() -> Parser:
    parser = Parser("exlchat run", _ABOUT, _EPILOG, "exlchat run FILE -o FILE [options]")
    # Of other commands' options those that a run has no use for: what does not fit is refused, lines ask for theirs.
    parser.set_defaults(context_policy=None, logprobs=None)
    files = parser.add_argument_group("files")
    files.add_argument("input", metavar="FILE", help="requests, .jsonl or .txt; - is standard input")
    files.add_argument(
        "-o", "--output", metavar="FILE", type=Path, required=True, help="answers, a line of JSON each; goes on with it"
    )
    files.add_argument(
        "--score", action="store_true", help="tell how likely the text of each line is, instead of answering it"
    )
    model = parser.add_argument_group("model")
    model.add_argument("-m", "--model", metavar="MODEL", help="model folder, a name of the library, or the word guide")
    model_options(model)
    remote_options(model)
    model.add_argument(
        "--rows",
        metavar="N",
        type=whole(1, _MOST_ROWS),
        help=f"answers at a time (default: {MOST_ANSWERS}, of each server with --remote); more are faster on a card",
    )
    answers = parser.add_argument_group("where lines do not say")
    voice_options(answers)
    speech_options(parser)
    sampling_group(parser)
    about_group(parser)
    return parser


def run(arguments: Sequence[str]) -> ExitCode:
    if _is_of_the_chat(arguments):
        from exlchat.cli import chat

        return chat.run(arguments)
    parser = build_parser()
    typed = parser.parse_args(arguments)
    from exlchat.cli.run.starting import Start, run_file
    from exlchat.cli.typed_options import app_options

    if typed.score and typed.remote is not None:
        parser.error("--score needs a model that is loaded here; leave out --remote")
    options = app_options(parser, typed, typed.model)
    return run_file(Start(options, typed.input, typed.output, score=typed.score, rows=typed.rows))


def _is_of_the_chat(arguments: Sequence[str]) -> bool:
    """Whether nothing is to be written: `ollama run MODEL PROMPT` opens a chat."""
    words = [one for one in arguments if one != "--"]
    asks_output = any(one == "--output" or one.startswith(("-o", "--output=")) for one in words)
    return bool(words) and not asks_output and not any(one in ("-h", "--help", "--version") for one in words)
