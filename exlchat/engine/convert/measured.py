"""What was measured of a model, as the work folder keeps it: tables of matrices, and what caches lose."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from exlchat.engine.convert.allocation import Table
from exlchat.engine.convert.work import damaged, job_of
from exlchat.engine.formats.exl2 import BIT_WIDTHS
from exlchat.llm.info import ModelError
from exlchat.untrusted.files import NoSuchFileError, UntrustedFileError, read_bytes
from exlchat.untrusted.json_reader import JsonError, read_json

CACHES = "caches.json"
_LARGEST = 10**9
"""Bytes; a layer of hundreds of experts has a fiftieth of it."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One matrix.

    Args:
        key: of the layer that it is a part of, as `tensor_names` calls it.
        table: what it loses.
    """

    key: str
    table: Table


def table_part(index: int) -> str:
    """Where the work folder has the tables of a layer."""
    return f"tables/{index:05d}.json"


def to_json(measured: Mapping[str, Measured]) -> str:
    content = {
        name: {
            "key": entry.key,
            "features": entry.table.features,
            "outputs": entry.table.outputs,
            "widths": entry.table.widths,
            "losses": {size: losses.tolist() for size, losses in entry.table.losses.items()},
        }
        for name, entry in measured.items()
    }
    return json.dumps(content)


def read_tables(file: Path) -> dict[str, Measured] | None:
    """What `to_json` wrote, number by number the same; `None` where nothing is there.

    Raises:
        ModelError: it is damaged.
    """
    content = _read(file)
    if content is None:
        return None
    try:
        return {name: _measured(entry) for name, entry in content.items()}
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise damaged(file, str(error)) from None


def read_caches(file: Path) -> dict[str, float] | None:
    """The divergence that each kind of cache makes; `None` and errors as of `read_tables`."""
    content = _read(file)
    if content is None:
        return None
    if not all(isinstance(loss, float) and math.isfinite(loss) for loss in content.values()):
        raise damaged(file, "a loss is no number")
    return content


@dataclass(frozen=True, slots=True)
class Known:
    """What a work folder says of its model, whoever is at work there.

    Args:
        tables: of all matrices by name, or none while some are missing.
        caches: loss by kind, as far as they were measured.
    """

    tables: Mapping[str, Table]
    caches: Mapping[str, float]


def known_in(work: Path, identity: str, layers: int, matrices: Set[str]) -> Known | None:
    """What is known of a model; `None` where the folder is none of a conversion.

    Args:
        identity: of the model's checkpoint.
        layers: how many it has.
        matrices: names of those that are to be converted.

    Raises:
        ModelError: it belongs to another model, or is damaged.
    """
    job = job_of(work)
    if job is None:
        return None
    if job.get("source") != identity:
        raise ModelError(f"{work}: belongs to a conversion of another model; name that of this one with --work")
    tables: dict[str, Table] = {}
    for index in range(layers + 1):
        found = read_tables(work / table_part(index))
        if found is None:
            tables = {}
            break
        tables.update({name: entry.table for name, entry in found.items()})
    if tables and tables.keys() != matrices:
        raise ModelError(f"{work}: its tables are of other matrices than this model's; name another folder with --work")
    return Known(tables, read_caches(work / CACHES) or {})


def _read(file: Path) -> dict[str, Any] | None:
    try:
        content = read_json(read_bytes(file, largest=_LARGEST, kind="part"), most=_LARGEST)
    except NoSuchFileError:
        return None
    except UntrustedFileError as error:
        raise damaged(file, error.clause) from None
    except JsonError as error:
        raise damaged(file, str(error)) from None
    if not isinstance(content, dict):
        raise damaged(file, "no object")
    return content


def _measured(entry: Mapping[str, Any]) -> Measured:
    """Raises what a wrong kind of value raises."""
    features, outputs, widths = entry["features"], entry["outputs"], tuple(entry["widths"])
    losses = {int(size): np.array(rows, dtype=np.float64) for size, rows in entry["losses"].items()}
    if not (isinstance(features, int) and isinstance(outputs, int) and min(features, outputs) > 0):
        raise ValueError("sizes that are none")
    if not widths or not set(widths) <= set(BIT_WIDTHS) or list(widths) != sorted(set(widths), reverse=True):
        raise ValueError("widths that EXL2 does not have")
    for size, values in losses.items():
        if size < 1 or values.shape != (-(-features // size), len(widths)) or not bool(np.isfinite(values).all()):
            raise ValueError("losses that do not fit the sizes")
    if not losses:
        raise ValueError("no losses")
    return Measured(str(entry["key"]), Table(features, outputs, widths, losses))
