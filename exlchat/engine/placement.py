"""Where a model goes and in which dtype it computes there."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from exlchat.engine.formats.dense import FLOAT_DTYPES
from exlchat.engine.formats.inventory import WeightSizes
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.ext.driver import hidden_cards
from exlchat.llm.info import ModelError

# Below this many weights a step is so short that threads wait for each other longer than they compute. On 2 cores
# shared with other programs the 10 M guide ran at 358 to 374 tok/s on one thread and at 185 to 412 on two.
_ONE_THREAD_BELOW = 64_000_000
_ALL_THREADS = torch.get_num_threads()

# Of the machine's memory; the rest is left to the cache, the program and the desktop.
_USABLE_OF_CPU = 0.8
# Of the card's, beside weights and cache: what a prompt of one chunk needs, CUDA itself, and the graph of a step.
WORKING_ON_GPU = 600 * 2**20


def choose_device(wanted: str) -> torch.device:
    """The device for `auto`, `cpu`, `cuda` or `cuda:N`.

    Raises:
        ModelError: there is no such device, in one line.
    """
    if wanted == "auto":
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise ModelError(f"device {wanted!r} is not known; use auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise ModelError(f"device {wanted!r} is not supported; use auto, cpu, cuda or cuda:N")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ModelError(f"device cuda: {hidden_cards() or 'torch sees no NVIDIA GPU; `exlchat doctor` says why'}")
        index = torch.cuda.current_device() if device.index is None else device.index
        if index >= torch.cuda.device_count():
            raise ModelError(f"device {wanted}: this machine has {torch.cuda.device_count()} GPU(s), counted from 0")
        return torch.device("cuda", index)
    return device


def choose_dtype(checkpoint: Checkpoint, device: torch.device, sizes: WeightSizes) -> torch.dtype:
    """The dtype that is most exact among those that fit into the memory now free.

    On a GPU float16, or bfloat16 for a bfloat16 model on a card that computes it; whether that fits depends on all
    cards (`card_choice.place`). On a CPU float32 where it fits, else the 16-bit dtype that holds the weights exactly.

    Raises:
        ModelError: not even 16 bits a weight fit.
    """
    candidates = dtypes_for(checkpoint, device)
    if device.type == "cuda":
        return candidates[0]
    for dtype in candidates:
        if sizes.bytes(dtype) <= usable_memory(device):
            return dtype
    needed = sizes.bytes(candidates[-1])
    raise ModelError(
        f"{checkpoint.path}: needs {needed / 2**30:.1f} GiB for its weights, and {device.type} memory has "
        f"{free_memory(device) / 2**30:.1f} GiB free; close other programs, or take fewer bits or a smaller model"
    )


def dtypes_for(checkpoint: Checkpoint, device: torch.device) -> list[torch.dtype]:
    """The dtypes in which a device may compute a model, the most exact first."""
    narrow = torch.bfloat16 if _is_bfloat16(checkpoint) else torch.float16
    if device.type != "cuda":
        return [torch.float32, narrow]
    if narrow == torch.bfloat16 and torch.cuda.get_device_capability(device)[0] < 8:
        narrow = torch.float16
    return [narrow]


def prepare_torch(device: torch.device, parameters: int) -> None:
    """Sets how torch computes: threads by the size of the model, and on a GPU sums in float32.

    That GPU becomes the calling thread's own, because kernels are launched on the stream of the thread's device.
    """
    if device.type == "cpu":
        torch.set_num_threads(1 if parameters < _ONE_THREAD_BELOW else _ALL_THREADS)
    else:
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def usable_memory(device: torch.device) -> int:
    """Bytes of the free memory that weights may take (on a GPU: weights and cache)."""
    if device.type == "cuda":
        return max(free_memory(device) - WORKING_ON_GPU, 0)
    return int(_USABLE_OF_CPU * free_memory(device))


def room_without_models(device: torch.device) -> int:
    """What `usable_memory` would be if this program held no model: another one takes the place of the one loaded."""
    if device.type == "cuda":
        free = int(torch.cuda.mem_get_info(device)[0])
        return max(free + torch.cuda.memory_reserved(device) - WORKING_ON_GPU, 0)
    resident, shared = _statm()[1:3]
    # Some 0.2 GiB of it are the program's own and stay.
    own = (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
    return int(_USABLE_OF_CPU * (free_memory(device) + own))


NO_MEMORY = (torch.OutOfMemoryError, MemoryError, RuntimeError)
"""What a lack of memory raises; a RuntimeError only where `is_shortage`."""


def is_shortage(error: BaseException) -> bool:
    """Of what `NO_MEMORY` catches. torch has no class of its own for the memory of the host."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return "out of memory" in str(error) or "allocate memory" in str(error)


def card_failure(error: BaseException) -> str | None:
    """In a line that a card has failed, and what then helps; `None` where an error says something else."""
    ours = isinstance(error, ModelError) or is_shortage(error)
    if ours or not (isinstance(error, torch.AcceleratorError) or "CUDA error" in str(error)):
        return None
    # Whoever launches next is told, so that nobody knows of which of several cards this is.
    reason = str(error).partition("\n")[0]
    mend = "start exlchat again"
    if torch.cuda.device_count() > 1:
        mend += ", and if it fails again leave it out (--cards)"
    return f"a card failed ({reason}); what was said is kept: {mend}"


@contextmanager
def shortage_named(device: torch.device, advice: str) -> Iterator[None]:
    """Raises `ModelError` in one line where memory runs out inside; `advice` says what the user can do."""
    try:
        yield
    except NO_MEMORY as error:
        if not is_shortage(error):
            raise
        where = "the machine" if device.type == "cpu" else f"the card ({device})"
        raise ModelError(f"memory of {where} ran out; {advice}") from error


def free_memory(device: torch.device) -> int:
    """Bytes that can be taken now: of the card, or of the machine without swapping."""
    if device.type == "cuda":
        # torch keeps what it once had, and gives it out again.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ModelError("/proc/meminfo: MemAvailable is missing; exlchat runs on Linux")


def card_memory(device: torch.device) -> tuple[int, int]:
    """Bytes of a card's memory in use, by all programs, and in all."""
    free, total = torch.cuda.mem_get_info(device)
    return total - free, total


def resident_memory() -> int:
    """Bytes of this program that lie in the machine's memory."""
    return int(_statm()[1]) * os.sysconf("SC_PAGE_SIZE")


def _statm() -> list[str]:
    return Path("/proc/self/statm").read_text(encoding="ascii").split()


def _is_bfloat16(checkpoint: Checkpoint) -> bool:
    """Whether the decoder's float weights are bfloat16; quantized layers decode to float16."""
    names = [name for name in checkpoint.names if name.endswith(".weight")]
    if any(name.endswith((".q_weight", ".qweight")) for name in checkpoint.names):
        return False
    dtypes = [FLOAT_DTYPES.get(checkpoint.dtype(name)) for name in names]
    return dtypes.count(torch.bfloat16) * 2 > len(dtypes)


def give_memory_back() -> None:
    """Frees what nobody refers to any more, and gives what torch keeps of a GPU back to the driver."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
