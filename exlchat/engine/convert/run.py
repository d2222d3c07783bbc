"""`exlchat convert` from a source folder to finished ones, with what each of them lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from exlchat.engine.convert import budget, output, rules
from exlchat.engine.convert.conversion import Conversion, OnStep, Step, job, job_digest
from exlchat.engine.convert.matrices import check_floats
from exlchat.engine.convert.measured import Measured
from exlchat.engine.convert.shapes import Shapes, read_shapes
from exlchat.engine.convert.text import CALIBRATION, EVALUATION, bundled_text, check_apart, read_text, rows_of
from exlchat.engine.convert.work import JOB, WorkFolder
from exlchat.engine.evaluate.compare import Read, figures_of, read
from exlchat.engine.evaluate.measures import Figures
from exlchat.engine.formats.inventory import parameter_count, stored_bits
from exlchat.engine.model.architecture import read_spec
from exlchat.engine.model.spec import ModelSpec
from exlchat.engine.placement import shortage_named
from exlchat.engine.text.tokenizer import Tokenizer
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.llm.info import ModelError

DEFAULT_TOKENS = 262_144
LONGEST_ROW = 2048
CHECKED_TOKENS = 8192
_LEAST_BITS, _MOST_BITS = 2.0, 8.25
WIDEST = 8.0
"""Bits a weight of files that are made to a size, at most."""
_MORE = 1.02
"""Room on a disk is asked for with a little more than files take: tables and costs are in the work folder too."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What to make.

    Args:
        source, out: folders.
        bits: a weight of the body, one for each file; or else
        size: bytes of the one file, all told.
        head_bits: fixes the head's to the original's of this width.
        text: calibrates with this file instead of the bundled text.
        tokens: of it, at most.
        checked: tokens of the bundled text that finished files are measured on.
        device: where.
        work: what is done is kept here; beside `out` unless given.
        verify: makes one of one width for all as well, to compare with.
    """

    source: Path
    out: Path
    bits: tuple[float, ...]
    device: torch.device
    size: int | None = None
    head_bits: int | None = None
    text: Path | None = None
    tokens: int = DEFAULT_TOKENS
    checked: int = CHECKED_TOKENS
    work: Path | None = None
    verify: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """A finished file.

    Args:
        folder: where it is; the work folder's of one that was made to compare with only.
        bytes: of its weights.
        bits, head_bits: a weight of the body and of the head.
        predicted: divergence by the tables.
        figures: measured on text that was not calibrated with, from the folder as it was written.
        same: whether all matrices have one width.
    """

    folder: Path
    bytes: int
    bits: float
    head_bits: float
    predicted: float
    figures: Figures
    same: bool = False


def convert(wishes: Wishes, on_step: OnStep, tell: Callable[[str], None]) -> list[Written]:
    """Makes every file that is wished for, least bits last.

    Args:
        on_step: told how far it is.
        tell: takes notices, a line each.

    Raises:
        ModelError: what is wrong, in one line; nothing is overwritten, and what is done is kept.
    """
    checkpoint = Checkpoint(wishes.source)
    check_source(checkpoint, wishes.bits, tell)
    spec = read_spec(checkpoint.config, str(checkpoint.path / "config.json"))
    shapes = read_shapes(checkpoint, spec)
    if not shapes.matrices:
        raise ModelError(
            f"{checkpoint.path}: EXL2 can hold none of its matrices: their inputs are no multiples of 32, or biased "
            "outputs are not; run it as it is"
        )
    outs = _folders(wishes, shapes)
    check_floats(checkpoint)
    rows, checked = _texts(checkpoint, spec, wishes, tell)
    own = job(checkpoint, rows, wishes.device, tuple(outs))
    place = wishes.work or work_beside(wishes.out)
    made = _made(outs, wishes, own, begun=(place / JOB).exists())
    output.check_room(_room(outs, made, wishes, shapes, place))
    work = WorkFolder(place, own)
    try:
        with shortage_named(wishes.device, "free some, or take --device cpu; what is done is kept"):
            conversion = Conversion(checkpoint, rows, wishes.device, work, tuple(outs), on_step=on_step)
            measured = conversion.measure()
            maker = _Maker(conversion, measured, wishes, work, Checked(checked, conversion.caches(checked)), tell)
            written = [
                maker.make(bits, work.path / f"same-{bits!r}" if same else folder, same=same)
                for bits, folder in sorted(outs.items(), reverse=True)
                for same in ((False, True) if wishes.verify else (False,))
            ]
        for bits in outs:
            work.drop(f"same-{bits!r}")
        return written
    finally:
        work.close()


def _made(
    outs: Mapping[float, Path], wishes: Wishes, own: Mapping[str, str | int | float], *, begun: bool
) -> set[float]:
    """The files that an earlier run of this job has finished.

    Raises:
        ModelError: a folder is there that is none of them.
    """
    found = set()
    for bits, folder in outs.items():
        if begun and output.job_of(folder) == job_digest(own, _name(bits, wishes.head_bits, same=False)):
            found.add(bits)
        else:
            output.check_new(folder)
    return found


def _room(outs: Mapping[float, Path], made: set[float], wishes: Wishes, shapes: Shapes, work: Path) -> dict[Path, int]:
    """Bytes that are still to be written: codes of one file at a time, the files, and those to compare with."""
    floats = 2 * shapes.floats + shapes.header_bytes
    codes = {bits: budget.most_bits(shapes.matrices, bits, wishes.head_bits) // 8 for bits in outs}
    files = {bits: int(_MORE * (floats + codes[bits])) for bits in outs}
    left = [bits for bits in outs if bits not in made]
    beside = sum(files.values()) if wishes.verify else 0
    most = max((codes[bits] for bits in (outs if wishes.verify else left)), default=0)
    return {wishes.out: sum(files[bits] for bits in left), work: int(_MORE * most) + beside}


def _name(bits: float, head_bits: int | None, *, same: bool) -> str:
    """Of a plan, in the work folder."""
    return f"codes-{bits!r}-{head_bits or 'free'}{'-same' if same else ''}"


@dataclass(frozen=True, slots=True)
class Checked:
    """Text that nothing is calibrated with: int64 `[windows, length]`, and what the source says of it."""

    rows: Tensor
    reference: Read


@dataclass(frozen=True, slots=True)
class _Maker:
    conversion: Conversion
    measured: Mapping[str, Measured]
    wishes: Wishes
    work: WorkFolder
    checked: Checked
    tell: Callable[[str], None]

    def make(self, bits: float, folder: Path, *, same: bool) -> Written:
        """Unless it is there; measures it in any case."""
        tables = {name: entry.table for name, entry in self.measured.items()}
        plan = budget.plan(tables, bits, head_width=self.wishes.head_bits, same=same)
        name = _name(bits, self.wishes.head_bits, same=same)
        if output.job_of(folder) != job_digest(self.work.job, name):
            kind = "equal widths" if same else "the best widths"
            self.tell(f"{bits:g} bits, {kind}: predicted divergence {plan.loss:.4f} nats a token")
            self.conversion.round(plan, self.measured, name)
            dataset = "bundled" if self.wishes.text is None else self.wishes.text.name
            self.conversion.write(folder, plan, self.measured, name, dataset)
        self.work.drop(name)
        problems = rules.check_folder(folder)
        if problems:
            raise ModelError(f"{folder}: breaks a rule of the format: {problems[0]}; please report this")
        back = read(Checkpoint(folder), self.checked.rows, self.wishes.device)
        figures = figures_of(back, self.checked.rows, self.checked.reference)
        size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        bits_of = plan.mean_bits(tables, head=False), plan.mean_bits(tables, head=True)
        return Written(folder, size, *bits_of, predicted=plan.loss, figures=figures, same=same)


def work_beside(out: Path) -> Path:
    """The work folder of a conversion that names none."""
    return out.with_name(f"{out.name}.work")


def _folders(wishes: Wishes, shapes: Shapes) -> dict[float, Path]:
    """One file goes to the folder itself, several below it."""
    if wishes.size is not None:
        return {_bits_of_size(wishes.size, shapes, wishes.head_bits): wishes.out}
    if len(wishes.bits) < 2:
        return dict.fromkeys(wishes.bits, wishes.out)
    return {bits: wishes.out / f"{bits:g}bpw" for bits in wishes.bits}


def check_source(checkpoint: Checkpoint, wanted: Sequence[float], tell: Callable[[str], None]) -> None:
    """Sees that files of so many bits can be made of it.

    Raises:
        ModelError: they cannot.
    """
    for bits in wanted:
        if not _LEAST_BITS <= bits <= _MOST_BITS:
            raise ModelError(f"{bits:g} bits a weight cannot be made; EXL2 has from {_LEAST_BITS:g} to 8")
    if any(name.endswith(".q_weight") for name in checkpoint.names):
        raise ModelError(f"{checkpoint.path}: is in EXL2 already; convert the model that it was made of")
    if any(name.endswith(".qweight") for name in checkpoint.names):
        own = stored_bits(checkpoint) / max(parameter_count(checkpoint), 1)
        for bits in wanted:
            if bits < own + 0.3:
                tell(f"the source has {own:.1f} bits a weight itself; {bits:g} of them lose what it lost once more")


def _texts(
    checkpoint: Checkpoint, spec: ModelSpec, wishes: Wishes, tell: Callable[[str], None]
) -> tuple[Tensor, Tensor]:
    """Rows to calibrate with, and rows to measure on."""
    tokenizer = Tokenizer(checkpoint, spec.vocab_size)
    length = min(LONGEST_ROW, spec.max_position_embeddings)
    text = bundled_text(CALIBRATION) if wishes.text is None else read_text(wishes.text)
    measured_on = bundled_text(EVALUATION)
    if wishes.text is not None:
        check_apart(text, measured_on)
    rows = rows_of(text, tokenizer, wishes.tokens, length)
    checked = rows_of(measured_on, tokenizer, wishes.checked, min(length, 1024))
    if rows.numel() < wishes.tokens - length:
        tell(f"the text has {rows.numel():,} tokens; {wishes.tokens:,} were asked for")
    return rows, checked


def _bits_of_size(size: int, shapes: Shapes, head_width: int | None) -> float:
    left = size - 2 * shapes.floats - shapes.header_bytes
    bits = budget.bits_for(shapes.matrices, 8 * left, head_width)
    if bits < _LEAST_BITS:
        raise ModelError(
            f"{size / 1e9:.2f} GB leave {bits:.2f} bits a weight, and EXL2 begins at {_LEAST_BITS:g}; ask for more"
        )
    return min(bits, WIDEST)


__all__ = ["DEFAULT_TOKENS", "Step", "Wishes", "Written", "convert"]
