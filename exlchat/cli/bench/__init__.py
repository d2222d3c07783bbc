"""`exlchat bench`: how fast a model runs here, as a table, JSON and a plot."""

from exlchat.cli.bench.options import bench_options
from exlchat.cli.bench.runner import run_bench

__all__ = ["bench_options", "run_bench"]
