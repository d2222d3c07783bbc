"""The command line of `exlchat bench` as plain frozen values."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from exlchat import paths
from exlchat.app.library.choice import choose_model
from exlchat.app.library.places import library
from exlchat.config.settings import load_settings
from exlchat.config.state import load_state
from exlchat.engine.bench.figures import BenchSettings
from exlchat.engine.bench.mixes import Gptq, MeanBits, Mix, layer_recipes
from exlchat.engine.bench.shapes import Shape
from exlchat.llm.info import ModelError

_QUICK = BenchSettings(kv_caches=("auto",), contexts=(128, 2048), runs=3, new_tokens=32, seconds=15, turn_cached=2048)


@dataclass(frozen=True, slots=True)
class RandomModel:
    """A model to be made: its sizes, the bits of its layers and of its head, and where to write it, if anywhere."""

    shape: Shape
    mix: Mix
    head_bits: int
    folder: Path | None


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """One `exlchat bench`.

    Args:
        model: a model folder, or a random model.
        settings: what to measure.
        json_file, plot_file: where results go beside the table.
    """

    model: Path | RandomModel
    settings: BenchSettings
    json_file: Path | None = None
    plot_file: Path | None = None


def bench_options(parser: argparse.ArgumentParser, typed: argparse.Namespace) -> BenchOptions:
    """What was typed. Options that contradict each other end the program with the parser's one line.

    Raises:
        ModelError: there is no such model folder.
        SettingsError: settings.toml is wrong.
    """
    extension = load_settings().extension if typed.extension is None else typed.extension
    base = _QUICK if typed.quick else BenchSettings()
    settings = BenchSettings(
        device=typed.device,
        extension=extension,
        quantize_head=typed.quantize_head,
        kv_caches=typed.kv_cache or base.kv_caches,
        contexts=typed.contexts or base.contexts,
        runs=typed.runs or base.runs,
        new_tokens=base.new_tokens,
        turn_cached=base.turn_cached,
    )
    model = _folder(typed.model) if typed.shape is None else _random(parser, typed)
    if typed.shape is None:
        for option, value in (("--mix", typed.mix), ("--head-bits", typed.head_bits), ("--write", typed.write)):
            if value is not None:
                parser.error(f"{option} is for a random model; give its --shape too")
    return BenchOptions(model, settings, typed.json, typed.plot)


def _folder(argument: str | None) -> Path:
    state, _ = load_state()
    last_used = Path(state.last_model) if state.last_model else None
    return choose_model(argument, last_used=last_used, bundled=paths.bundled_model(), library=library).path


def _random(parser: argparse.ArgumentParser, typed: argparse.Namespace) -> RandomModel:
    if typed.model is not None:
        parser.error("give a MODEL or a --shape, not both")
    mix: Mix = typed.mix or MeanBits(4.1)
    if isinstance(mix, Gptq) and typed.head_bits is not None:
        parser.error("--head-bits is for EXL2; the head of a GPTQ model is float16")
    shape: Shape = typed.shape
    try:
        if not isinstance(mix, Gptq):
            layer_recipes(mix, shape)
    except ValueError as error:
        parser.error(f"--mix does not fit {shape.name}: {error}")
    if typed.write is not None and typed.write.exists():
        raise ModelError(f"{typed.write}: is there already; give a new folder for the random model")
    return RandomModel(shape, mix, typed.head_bits or 6, typed.write)
