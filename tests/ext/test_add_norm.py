"""The norm between the products of a prompt, run on the CPU: what it gives, and in which order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from exlchat.ext import prompt
from exlchat.ext.prompt import PromptKernels
from tests.ext import reference_prompt
from tests.ext.chain_cases import Functions
from tests.ext.emulation import emulated_library
from tests.ext.matrix_cases import relative_error


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("emulated")
    return emulated_library(folder, ("prompt",), ("-DEMULATED_DELAYS=3",))


@pytest.fixture
def kernels(functions: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> PromptKernels:
    monkeypatch.setattr(prompt, "check_on_gpu", lambda **_tensors: None)
    monkeypatch.setattr(prompt, "_stream", lambda: None)
    return PromptKernels(Functions(functions).library)


# Widths of a thread or some, of all threads and of more than they hold.
@pytest.mark.parametrize("width", [8, 40, 1096, 4096, 12296])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("adds", [False, True])
def test_numbers_go_where_they_are_told_to(kernels: PromptKernels, rows: int, width: int, adds: bool) -> None:
    hidden, added = torch.randn(rows, width) * 3, torch.randn(rows, width).half() if adds else None
    weight, permutation = (torch.randn(width) * 0.2 + 1).half(), torch.randperm(width)
    other = hidden.clone()
    wanted = reference_prompt.add_norm(other, added, weight, 1e-5)
    for told in (None, permutation.short()):
        mine = hidden.clone()
        found = kernels.add_norm(mine, added, weight, 1e-5, permutation=told)
        assert torch.equal(mine, other)
        assert relative_error(found if told is None else found[:, permutation], wanted) < 1e-3
