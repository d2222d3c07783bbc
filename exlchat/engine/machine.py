"""What torch finds on this machine, as plain values for `exlchat doctor`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One CUDA device as torch sees it. Bytes of device memory; `capability` is (major, minor)."""

    name: str
    capability: tuple[int, int]
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class TorchFacts:
    """The installed torch.

    Args:
        version: `None` when it cannot be imported; `problem` then says why.
        cuda: the CUDA version it was built for, `None` for a build without CUDA.
        gpus: the devices it can use now; empty without CUDA, without a card, or with a driver it rejects.
        architectures: the compute capabilities it has code for, such as `sm_90`.
        problem: the first line of what torch said when it could not start CUDA.
    """

    version: str | None
    cuda: str | None = None
    gpus: tuple[GpuFacts, ...] = ()
    architectures: tuple[str, ...] = ()
    problem: str | None = None


def probe_torch() -> TorchFacts:
    """Imports torch and asks it. Never raises: a broken installation is a fact too."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return TorchFacts(version=None, problem=_first_line(error))
    if torch.version.cuda is None:
        return TorchFacts(version=torch.__version__)
    gpus: tuple[GpuFacts, ...] = ()
    problem = None
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            gpus = tuple(_gpu(index) for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0))
            architectures = tuple(torch.cuda.get_arch_list())
        except RuntimeError as error:
            architectures, problem = (), _first_line(error)
    if problem is None and not gpus and said:
        problem = str(said[0].message).splitlines()[0]
    return TorchFacts(torch.__version__, torch.version.cuda, gpus, architectures, problem)


def _gpu(index: int) -> GpuFacts:
    import torch

    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    return GpuFacts(properties.name, (properties.major, properties.minor), total, free)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
