"""The words and options of `exlchat bench`."""

from __future__ import annotations

import argparse
from pathlib import Path

from exlchat.cli.argument_types import said, whole, whole_list, words
from exlchat.cli.option_groups import kernel_options
from exlchat.cli.parsers import about_group, new_parser
from exlchat.engine.bench.mixes import parse_mix
from exlchat.engine.bench.shapes import named_shape
from exlchat.engine.formats.sections import HEAD_RECIPES

_ABOUT = """Measure how fast a model runs here: loading, reading prompts (prefill), decoding
with short and long contexts, the time to the first token of a turn, memory.
GB/s are the weights and the cache that a token reads; beside them stands their
share of what copying memory reaches. The table goes to standard output,
progress to standard error; ctrl+c prints what there is so far."""
_EPILOG = """shapes: tiny, llama-1b, llama-8b, llama-70b; cut to fewer layers:
  llama-70b-10layers

mixes:
  4.1bpw                         as the EXL2 converter spends 4.1 bits a weight
  8:0.05g32,5:0.1g128,4:0.85g128 bits:share of the rows, rows in a group
  gptq-g128, gptq-g128-actorder  4 bits, the head in float16

examples:
  exlchat bench                  the model used last, else the bundled guide
  exlchat bench --shape llama-8b --mix 4.1bpw --json 8b.json --plot 8b.svg
  exlchat bench guide --quick

exit codes:
  0 ok   1 error   2 usage   130 stopped by ctrl+c"""


def bench_parser() -> argparse.ArgumentParser:
    """The options of `exlchat bench`."""
    parser = new_parser("exlchat bench", _ABOUT, _EPILOG, "exlchat bench [MODEL] [options]")
    model = parser.add_argument_group("model")
    model.add_argument("model", metavar="MODEL", nargs="?", help="model folder, or the word guide")
    model.add_argument("--shape", metavar="NAME", type=said(named_shape), help="a random model of that size instead")
    model.add_argument("--mix", metavar="MIX", type=said(parse_mix), help="bits of its layers (default: 4.1bpw)")
    model.add_argument("--head-bits", metavar="N", type=int, choices=HEAD_RECIPES, help="of its EXL2 head (default: 6)")
    model.add_argument("--write", metavar="DIR", type=Path, help="write it to a new folder and load it from there")
    measure = parser.add_argument_group("measurement")
    measure.add_argument(
        "--device", metavar="NAME", choices=("auto", "cpu", "cuda"), default="auto", help="auto (default), cpu or cuda"
    )
    kernel_options(measure)
    measure.add_argument(
        "--contexts", metavar="N,...", type=whole_list, help="tokens of prompts and contexts (default: 128,2048,16384)"
    )
    measure.add_argument(
        "--kv-cache", metavar="TYPE,...", type=words, help="types of the cache, or auto, or all (default)"
    )
    measure.add_argument("--runs", metavar="N", type=whole(1), help="runs of each figure (default: 5)")
    measure.add_argument("--quick", action="store_true", help="one type of cache, contexts to 2048, 3 short runs")
    results = parser.add_argument_group("results")
    results.add_argument("--json", metavar="FILE", type=Path, help="write all samples, with machine and versions")
    results.add_argument("--plot", metavar="FILE.svg", type=Path, help="draw the decode rates")
    about_group(parser)
    return parser
