"""What was measured of each matrix, as the work folder keeps it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from exlchat.engine.convert.allocation import Table


@dataclass(frozen=True, slots=True)
class Measured:
    """One matrix.

    Args:
        key: of the layer that it is a part of, as `tensor_names` calls it.
        table: what it loses.
    """

    key: str
    table: Table


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


def from_json(text: str) -> dict[str, Measured]:
    """What `to_json` wrote, number by number the same."""
    return {
        name: Measured(
            entry["key"],
            Table(
                entry["features"],
                entry["outputs"],
                tuple(entry["widths"]),
                {int(size): np.array(losses) for size, losses in entry["losses"].items()},
            ),
        )
        for name, entry in json.loads(text).items()
    }
