"""Floats -> the folder that is shipped: `python -m guide.packing FLOATS OUT` converts with exlchat's own converter."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

import torch

from exlchat.engine.convert.run import Wishes, Written, convert
from guide.corpus import dialogs

BITS = 5.0
DIALOGS = 6000
"""Some 4.6 MB of text, of which the converter takes what it needs."""


def main() -> None:
    """Converts, and prints what that lost."""
    parser = argparse.ArgumentParser(prog="python -m guide.packing", description="Packs the bundled model as EXL2.")
    parser.add_argument("floats", type=Path, help="a folder in float16")
    parser.add_argument("out", type=Path, help="where the model folder is written")
    typed = parser.parse_args()
    written = pack(typed.floats, typed.out, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    print(f"{written.folder}: {written.bytes:,} bytes, {written.bits:.2f} bits, head {written.head_bits:.2f}")


def pack(floats: Path, out: Path, device: torch.device, *, tokens: int = 256 * 1024) -> Written:
    """Calibrated with dialogs of the corpus, in the plain format: texts for calibration hold no special tokens."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "dialogs.txt"
        text.write_text("\n\n".join(_plain()), encoding="utf-8")
        made = Path(folder) / "made"
        wishes = Wishes(floats, made, (BITS,), device, text=text, tokens=tokens, work=Path(folder) / "work")
        written = convert(wishes, lambda step: print(step.line, flush=True) if step.line else None, print)[0]
        shutil.copytree(made, out, dirs_exist_ok=True)
    return written


def _plain() -> list[str]:
    found = []
    for dialog in dialogs(DIALOGS, "calibration"):
        parts = [dialog.system] if dialog.system else []
        for turn in dialog.turns:
            parts += [f"User: {turn.question}", f"Assistant: {turn.answer}"]
        found.append("\n\n".join(parts))
    return found


if __name__ == "__main__":
    main()
