"""One conversion: costs, tables, choice, rounding, writing; every finished part is kept in the work folder."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from exlchat.engine.convert import budget, output
from exlchat.engine.convert.allocation import Table
from exlchat.engine.convert.matrices import Matrix, matrices_of, stays
from exlchat.engine.convert.measured import CACHES, Measured, read_caches, read_tables, table_part, to_json
from exlchat.engine.convert.observing import GREATEST, HEAD, Notes, ObservingLoader, Sum, open_observed
from exlchat.engine.convert.passes import Passes
from exlchat.engine.convert.rounding import Rounded, Statistics, losses, lost, round_matrix, statistics
from exlchat.engine.convert.shapes import staying
from exlchat.engine.convert.steps import KernelSteps, Steps, TorchSteps
from exlchat.engine.convert.text import digest
from exlchat.engine.convert.work import WorkFolder
from exlchat.engine.evaluate.compare import Read, figures_of, read, read_with
from exlchat.engine.formats import exl2
from exlchat.engine.formats.exl2 import BIT_WIDTHS
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.loading import open_extension
from exlchat.engine.model.architecture import read_spec
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.ext.kv_formats import KINDS
from exlchat.llm.info import ModelError

GROUP_SIZES = (32, 64, 128)
_NEAR = 2
"""Widths on either side of a wanted number of bits that are tried."""
_COST_TOKENS = 16_384
"""Of the text, what the backward pass reads."""
_COSTS, _COUNT = "costs.safetensors", ":count"
_BARE = 1e-6
"""Part of the mean importance that every output has at least, so that none is free to be anything."""


@dataclass(frozen=True, slots=True)
class Step:
    """How far a conversion is.

    Args:
        phase: `sensitivity`, `tables`, `caches` or `rounding`.
        done, total: layers of it.
        line: what is to be told of a matrix, if anything.
    """

    phase: str
    done: int
    total: int
    line: str = ""


OnStep = Callable[[Step], None]


class Conversion:
    """A model on its way into EXL2.

    Args:
        checkpoint: the source.
        rows: int64 `[rows, length]`, the calibration text.
        device: where all is computed, in float32.
        work: the folder that keeps what is done; its job is this one.
        wanted: bits a weight of the files to come.
        on_step: told how far it is.

    Raises:
        ModelError: the source cannot be converted.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        rows: Tensor,
        device: torch.device,
        work: WorkFolder,
        wanted: Sequence[float],
        *,
        on_step: OnStep,
    ) -> None:
        self._checkpoint, self._rows, self._device, self._work = checkpoint, rows, device, work
        self._spec = read_spec(checkpoint.config, str(checkpoint.path / "config.json"))
        self._widths = widths_near(wanted)
        self._on_step = on_step
        self._steps: Steps = TorchSteps()
        if device.type == "cuda":
            self._steps = KernelSteps(open_extension([device], None, None))
            # Statistics are sums of hundreds of thousands of products: their inputs need no more digits.
            torch.set_float32_matmul_precision("high")
        self._layers = self._spec.num_layers

    def measure(self) -> dict[str, Measured]:
        """What each matrix loses at each width, measured where the work folder does not have it yet."""
        costs = self._costs()
        missing = [index for index in range(self._layers + 1) if not self._work.has(table_part(index))]
        if missing:
            transformer, loader = self._open()
            passes = Passes(transformer, loader, self._rows)
            for index in range(missing[-1] + 1):
                notes = self._read(passes, index, moments=index in missing)
                if notes is not None:
                    self._work.keep_text(
                        table_part(index), to_json(self._measure(self._held(loader, index), notes, costs))
                    )
                self._on_step(Step("tables", index + 1, self._layers + 1))
        found: dict[str, Measured] = {}
        for index in range(self._layers + 1):
            found.update(read_tables(self._work.path / table_part(index)) or {})
        return found

    def caches(self, checked: Tensor) -> Read:
        """The source as it reads text that nothing is calibrated with; keeps what each kind of cache loses there."""
        part = self._work.path / CACHES
        if read_caches(part) is not None:
            return read(self._checkpoint, checked, self._device)
        kinds = [name for name, kind in KINDS.items() if name != "fp32" and kind.fits(self._spec.head_dim)]
        exact, *others = read_with(
            [None, *kinds], self._checkpoint, checked, self._device, _counted(self._on_step, "caches", self._layers)
        )
        lost: dict[str, float] = {}
        for kind, other in zip(kinds, others, strict=True):
            divergence = figures_of(other, checked, exact).divergence
            assert divergence is not None
            lost[kind] = max(divergence.mean, 0.0)
        self._work.keep_text(CACHES, json.dumps(lost))
        return exact

    def round(self, plan: budget.Plan, measured: Mapping[str, Measured], name: str) -> None:
        """Every layer's codes, kept under the plan's name where they are not there yet."""
        missing = [index for index in range(self._layers + 1) if not self._work.has(_codes_part(name, index))]
        if not missing:
            return
        costs = self._costs()
        transformer, loader = self._open()
        passes = Passes(transformer, loader, self._rows)
        for index in range(missing[-1] + 1):
            notes = self._read(passes, index, moments=index in missing)
            if notes is not None:
                tensors: dict[str, Tensor] = {}
                matrices = self._held(loader, index)
                known: dict[str, Statistics] = {}
                for matrix in matrices:
                    stats = self._statistics(matrix, notes, known)
                    layout = measured[matrix.name].table.layout(plan.choices[matrix.name])
                    weight = matrix.columns()[stats.order]
                    rounded = round_matrix(self._steps, weight, stats, layout, self._importance(matrix, costs, notes))
                    tensors.update(_checked(matrix, rounded))
                    error, size = lost(rounded, weight)
                    mean = plan.choices[matrix.name].bits / weight.numel()
                    line = f"{matrix.name}: {mean:.2f} bits, error {(error / max(size, 1e-30)) ** 0.5:.4f}"
                    self._on_step(Step("rounding", index, self._layers + 1, line))
                self._work.keep(_codes_part(name, index), tensors)
            self._on_step(Step("rounding", index + 1, self._layers + 1))

    def write(self, folder: Path, plan: budget.Plan, measured: Mapping[str, Measured], name: str, dataset: str) -> None:
        """The finished folder."""
        tables = {name: entry.table for name, entry in measured.items()}
        head = budget.nearest_recipe(plan.mean_bits(tables, head=True)) if HEAD in plan.choices else 16
        section = output.quantization_config(
            plan.mean_bits(tables, head=False),
            head,
            rows=self._rows.shape,
            dataset=dataset,
            job=job_digest(self._work.job, name),
        )
        config = {**self._checkpoint.config, "quantization_config": section}
        output.write_folder(folder, self._parts(name, measured), config, self._checkpoint.path)

    def _parts(self, name: str, measured: Mapping[str, Measured]) -> Iterator[output.Part]:
        for tensor in staying(self._checkpoint, {entry.key for entry in measured.values()}):
            yield partial(stays, self._checkpoint, tensor)
        for index in range(self._layers + 1):
            yield partial(self._codes, name, index)

    def _codes(self, name: str, index: int) -> dict[str, Tensor]:
        found = self._work.part(_codes_part(name, index))
        if found is None:
            raise ModelError(f"{self._work.path}: a finished layer has gone; the same command makes it again")
        return found

    def _open(self) -> tuple[Transformer, ObservingLoader]:
        return open_observed(self._checkpoint, self._spec, self._device, self._rows.shape[1], greatest=GREATEST)

    def _read(self, passes: Passes, index: int, *, moments: bool) -> Notes | None:
        if index < self._layers:
            return passes.forward(index, moments=moments)
        return passes.head() if moments else None

    def _held(self, loader: ObservingLoader, index: int) -> list[Matrix]:
        head = index == self._layers
        held = {key: layer for key, layer in loader.held.items() if (key == HEAD) == head}
        return matrices_of(held, self._spec, self._checkpoint)

    def _costs(self) -> dict[str, Sum]:
        found = self._work.part(_COSTS)
        if found is None:
            rows = self._rows[:: math.ceil(self._rows.numel() / _COST_TOKENS)]
            transformer, loader = self._open()
            tick = _counted(self._on_step, "sensitivity", 2 * self._layers)
            sums = Passes(transformer, loader, rows, kept=self._layers + 2).costs(tick)
            found = {f"{key}{_COUNT}": torch.tensor([entry.count]) for key, entry in sums.items()}
            found.update({key: entry.total.cpu() for key, entry in sums.items()})
            self._work.keep(_COSTS, found)
        return {
            key: Sum(total.to(self._device), int(found[f"{key}{_COUNT}"]))
            for key, total in found.items()
            if not key.endswith(_COUNT)
        }

    def _statistics(self, matrix: Matrix, notes: Notes, known: dict[str, Statistics]) -> Statistics:
        source = notes.input_of.get(matrix.key)
        key = source or matrix.key
        if key not in known:
            # An expert that no token of the text chose is rounded as if all its inputs were alike.
            moments = notes.inputs[source].mean if source else torch.eye(matrix.features, device=self._device)
            known[key] = statistics(moments, matrix.name)
        return known[key]

    def _importance(self, matrix: Matrix, costs: Mapping[str, Sum], notes: Notes) -> Tensor:
        """What a unit of mean squared error of each output costs in divergence a token: float32 `[N]`."""
        entry = costs.get(matrix.key)
        if entry is None:
            alike = [sum_ for key, sum_ in costs.items() if key.rpartition(".")[2] == matrix.key.rpartition(".")[2]]
            shape = len(matrix.weight) if matrix.rows is None else int(matrix.rows.max()) + 1
            mean = float(torch.cat([sum_.mean for sum_ in alike]).mean()) if alike else 1.0
            entry = Sum(torch.full((shape,), mean, device=self._device), 1)
        source = notes.input_of.get(matrix.key)
        # Of an expert, the share of the tokens that choose it.
        share = max(notes.inputs[source].count if source else 0, 1) / self._rows.numel()
        values = matrix.of_outputs(entry.mean * (share / 2))
        return values + _BARE * values.mean() + 1e-30

    def _measure(self, matrices: Sequence[Matrix], notes: Notes, costs: Mapping[str, Sum]) -> dict[str, Measured]:
        """The tables of a layer, matrices that read the same in one go."""
        known: dict[str, Statistics] = {}
        together: dict[int, list[Matrix]] = {}
        found: dict[str, Measured] = {}
        widths = self._widths
        for matrix in matrices:
            together.setdefault(id(self._statistics(matrix, notes, known)), []).append(matrix)
        for group in together.values():
            stats = self._statistics(group[0], notes, known)
            weight = torch.cat([matrix.columns() for matrix in group], dim=1)[stats.order]
            importance = torch.cat([self._importance(matrix, costs, notes) for matrix in group])
            parts = [matrix.outputs for matrix in group]
            lost_by = {
                size: losses(self._steps, weight, stats, importance, parts, widths=widths, size=size)
                for size in GROUP_SIZES
            }
            for number, matrix in enumerate(group):
                of_matrix = {size: values[:, :, number].T.double().numpy() for size, values in lost_by.items()}
                found[matrix.name] = Measured(
                    matrix.key, Table(matrix.features, matrix.outputs, self._widths, of_matrix)
                )
        return found


def _counted(on_step: OnStep, phase: str, total: int) -> Callable[[], None]:
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        on_step(Step(phase, done, total))

    return tick


def job(
    checkpoint: Checkpoint, rows: Tensor, device: torch.device, wanted: Sequence[float]
) -> dict[str, str | int | float]:
    """What determines a conversion's results, for its work folder."""
    return {
        "source": checkpoint.identity,
        "text": digest(rows),
        "widths": json.dumps(widths_near(wanted)),
        "device": device.type if device.type == "cpu" else torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "machine": platform.machine(),
    }


def job_digest(job: Mapping[str, str | int | float], name: str) -> str:
    """What tells a finished file from one that other options, or another text, made."""
    content = json.dumps([job, name], sort_keys=True)
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def widths_near(wanted: Sequence[float]) -> tuple[int, ...]:
    """The widths that are tried, in descending order."""
    found: set[int] = set()
    for bits in wanted:
        below = max((place for place, width in enumerate(BIT_WIDTHS) if width <= bits), default=0)
        found.update(BIT_WIDTHS[max(below - _NEAR, 0) : below + _NEAR + 1])
    return tuple(sorted(found, reverse=True))


def _checked(matrix: Matrix, rounded: Rounded) -> dict[str, Tensor]:
    """A matrix's tensors for the file, which the reader makes the same weights of."""
    tensors = rounded.tensors()
    back = exl2.dequantize(tensors)[rounded.stats.order.cpu()]
    if not torch.equal(back.float(), rounded.values().cpu()):
        raise ModelError(f"{matrix.name}: what was written does not read back as it was; please report this")
    named = {f"{matrix.name}.{part}": tensor for part, tensor in tensors.items()}
    if matrix.bias is not None:
        named[f"{matrix.name}.bias"] = matrix.bias.half().cpu()
    return named


def _codes_part(name: str, index: int) -> str:
    return f"{name}/{index:05d}.safetensors"
