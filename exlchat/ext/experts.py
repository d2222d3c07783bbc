"""Mixtures of experts in a decode step: the choice, and the products of those chosen, without asking the host.

`tests/ext/reference_experts.py` defines what the operations compute. What the chosen ones give is added up behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from exlchat.ext import functions as c
from exlchat.ext.expert_weights import DenseExperts, ExpertMatrices
from exlchat.ext.job import Job, check, check_on_gpu, check_together
from exlchat.ext.layout import PackedMatrix
from exlchat.ext.library import Library
from exlchat.ext.plan import WARPS, GemvPlan, make_plan
from exlchat.ext.products import ACTIVATIONS, Activation, c_matrix

ExpertKind = Literal["gated", "float"]
ExpertActivation = Activation | Literal["swiglu_oai"]
InputOrder = Literal["features", "stored"]

_KINDS: dict[ExpertKind, tuple[int, torch.dtype, int]] = {
    "gated": (c.Y_GATED, torch.float16, 2),
    "float": (c.Y_FLOAT, torch.float32, 1),
}
_ROUTERS = (torch.float16, torch.float32)
OAI_LIMIT, OAI_ALPHA = 7.0, 1.702
"""gpt-oss's. The kernels know no other alpha."""
# What a warp of a dense product should read at least: a block costs about a microsecond whatever it does.
_WARP_BYTES = 8192


@dataclass(frozen=True, slots=True)
class RouteRules:
    """How experts are chosen and weighed.

    Args:
        experts: how many there are, up to 512.
        slots: how many are chosen, 1 to 16.
        renormalised: weights are the softmax over the chosen logits and add up to 1 (Mixtral, Qwen3-MoE with
            `norm_topk_prob`, gpt-oss); else their part of the softmax over all (Qwen2-MoE).
    """

    experts: int
    slots: int
    renormalised: bool

    def __post_init__(self) -> None:
        if not 1 <= self.experts <= c.MAX_EXPERTS or not 1 <= self.slots <= min(self.experts, c.MAX_CHOSEN):
            raise ValueError(
                f"{self.slots} of {self.experts} experts; there can be 1 to {c.MAX_CHOSEN} of up to {c.MAX_EXPERTS}"
            )


class ExpertKernels:
    """What mixtures of experts need, of one open library.

    Args:
        room: bytes of shared memory that a block may take, as on cards that have less; 0: all there is.
    """

    def __init__(self, library: Library, *, room: int = 0) -> None:
        self._expert_room = room
        self._route = library.function("exl_route")
        self._expert_product = library.function("exl_expert_product")
        self._dense_product = library.function("exl_dense_product")
        self._expert_plans: dict[object, tuple[GemvPlan, Tensor]] = {}

    def route(
        self,
        x: Tensor,
        router: Tensor,
        rules: RouteRules,
        *,
        logits: Tensor,
        chosen: Tensor,
        weights: Tensor,
        tickets: Tensor,
        bias: Tensor | None = None,
    ) -> Job:
        """Chooses the experts of the largest logits, of equal ones that of the lower number; the best comes first.

        Each token chooses for itself, and as it would alone.

        Args:
            x: float16 `[tokens, width]` of 1 to 8 tokens, in the order of the features; width is a multiple of 8.
            router: float16 or float32 `[rows, width]`, a row for each expert. Rows behind those are multiplied and no
                more: Qwen2-MoE's gate of the shared expert.
            logits: float32 `[tokens, rows]`, written.
            chosen: int32 `[tokens, slots]`, written. Whatever the logits are, those of a token are different experts.
            weights: float32 `[tokens, slots]`, written.
            tickets: int32 `[tokens]`, zero at first; all routes of a stream may share them.
            bias: float32 `[rows]`, part of the logits.

        Raises:
            ValueError: a tensor of another device, dtype, shape or layout.
        """
        rows, width, tokens = router.shape[0], router.shape[-1], len(x)
        if router.dtype not in _ROUTERS:
            raise ValueError(f"router is {router.dtype}; it must be torch.float16 or torch.float32")
        check("router", router, router.dtype, (rows, width))
        if rows < rules.experts or width % 8:
            raise ValueError(f"router is {tuple(router.shape)}; it must be [{rules.experts} or more, a multiple of 8]")
        if not 1 <= tokens <= c.MAX_ROWS:
            raise ValueError(f"x has {tokens} rows; there can be 1 to {c.MAX_ROWS}")
        check("x", x, torch.float16, (tokens, width))
        check("logits", logits, torch.float32, (tokens, rows))
        check("chosen", chosen, torch.int32, (tokens, rules.slots))
        check("weights", weights, torch.float32, (tokens, rules.slots))
        check("tickets", tickets, torch.int32, (tokens,))
        named = {"x": x, "router": router, "logits": logits, "chosen": chosen, "weights": weights, "tickets": tickets}
        if bias is not None:
            check("bias", bias, torch.float32, (rows,))
            named["bias"] = bias
        check_on_gpu(**named)
        check_together(*named.values())
        job = c.CRoute(
            **{name: tensor.data_ptr() for name, tensor in named.items()},
            tokens=tokens,
            width=width,
            rows=rows,
            experts=rules.experts,
            slots=rules.slots,
            router_float=router.dtype == torch.float32,
            renormalised=rules.renormalised,
        )
        return Job(self._route, job, tuple(named.values()))

    def expert_product(
        self,
        experts: ExpertMatrices,
        chosen: Tensor,
        x: Tensor,
        y: Tensor,
        kind: ExpertKind,
        *,
        order: InputOrder = "features",
        activation: ExpertActivation = "silu",
        limit: float = OAI_LIMIT,
    ) -> Job:
        """`y[slot] = x[slot] W + b` of expert `chosen[slot]`, one row each; only the chosen ones' weights are read.

        What a token comes to depends on how many slots it has, and not on how many tokens there are.

        Args:
            chosen: int32 `[slots]` or `[tokens, slots]`, 1 to 65536 numbers of experts in all, on the device.
            x: float16 `[rows, width]`, each row for as many neighbouring slots: one for all, one for each token, or one
                for each slot. In the order of `features`, width is their number, of several rows a multiple of 8; in
                the `stored` order of each slot's expert it is `experts.stored`, and places without a feature are zero.
            y: `gated`: float16 `[slots, outputs]`, or `[slots, experts.into.stored]` in the stored order of the chosen
                expert's matrix there, where places without a feature are left as they are: zero at first, always zero.
                `float`: float32 `[slots, outputs]`.
            kind: `gated`, of two matrices, is `activation(x W0) * (x W1)`, or with `swiglu_oai`
                `g sigmoid(1.702 g) (u + 1)` with `g` the first up to `limit`, `u` the second within `limit`.

        Raises:
            ValueError: a tensor of another device, dtype, shape or layout, or a kind that these matrices are not for.
        """
        number = _check_kind(kind, len(experts.first), limit)
        slots = _check_slots(chosen, x)
        width = experts.features if order == "features" else experts.stored
        check("x", x, torch.float16, (len(x), width))
        if len(x) > 1 and width % 8:
            raise ValueError(f"x has rows of {width}; several rows must be a multiple of 8 wide")
        width = experts.outputs if experts.into is None else experts.into.stored
        check("y", y, _KINDS[kind][1], (slots, width))
        check_on_gpu(chosen=chosen, x=x, y=y, weights=experts.first[0].words)
        check_together(chosen, x, y, experts.table)
        plan, table = self._expert_plan(experts.first, chosen.shape[-1])
        job = c.CExpertProduct(
            table=experts.table.data_ptr(),
            plan=table.data_ptr(),
            **_slots_of(chosen, x, y, activation, limit),
            experts=len(experts.experts),
            matrices=len(experts.first),
            gathered=order == "features",
            y_kind=number,
            blocks=table.shape[0],
            plan_ints=table.shape[1],
            columns=plan.columns,
            segments=plan.segments,
            x_rows=plan.x_rows,
            room=self._expert_room,
        )
        for index, matrix in enumerate(experts.first):
            job.matrix[index] = c_matrix(matrix)
        return Job(self._expert_product, job, (table, *experts.tensors, chosen, x, y))

    def dense_expert_product(
        self,
        experts: DenseExperts,
        chosen: Tensor,
        x: Tensor,
        y: Tensor,
        kind: ExpertKind,
        *,
        activation: ExpertActivation = "silu",
        limit: float = OAI_LIMIT,
    ) -> Job:
        """The same for weights that are not quantized; x and y are in the order of features and columns."""
        number = _check_kind(kind, len(experts.weights), limit)
        slots = _check_slots(chosen, x)
        check("x", x, torch.float16, (len(x), experts.inputs))
        check("y", y, _KINDS[kind][1], (slots, experts.outputs))
        check_on_gpu(chosen=chosen, x=x, y=y, weights=experts.weights[0])
        check_together(chosen, x, y, *experts.weights, *experts.biases)
        pairs = experts.outputs if kind == "gated" else experts.outputs // 2
        rows = max(_WARP_BYTES // (4 * experts.inputs), 1)
        job = c.CDenseProduct(
            **_slots_of(chosen, x, y, activation, limit),
            expert_stride=experts.stride,
            matrices=len(experts.weights),
            inputs=experts.inputs,
            outputs=experts.outputs,
            y_kind=number,
            blocks=-(-pairs // (WARPS * rows)),
        )
        for index, weight in enumerate(experts.weights):
            job.weights[index] = weight.data_ptr()
        for index, bias in enumerate(experts.biases):
            job.bias[index] = bias.data_ptr()
        return Job(self._dense_product, job, (*experts.weights, *experts.biases, chosen, x, y))

    def _expert_plan(self, matrices: Sequence[PackedMatrix], slots: int) -> tuple[GemvPlan, Tensor]:
        """The plan of a slot and its table on the device; the blocks of a token's slots together fill the card once."""
        device = matrices[0].words.device
        blocks = max(torch.cuda.get_device_properties(device).multi_processor_count // slots, 1)
        key = (device, blocks, *((matrix.outputs, matrix.sections) for matrix in matrices))
        if key not in self._expert_plans:
            plan = make_plan(matrices, blocks=blocks, paired=len(matrices) > 1)
            self._expert_plans[key] = plan, plan.table.to(device)
        return self._expert_plans[key]


def _check_kind(kind: ExpertKind, matrices: int, limit: float) -> int:
    """The number by which the kernels know a kind."""
    number, _, wanted = _KINDS[kind]
    if matrices != wanted:
        raise ValueError(f"a {kind} product of experts has {wanted} matrices of each; these have {matrices}")
    if not limit > 0:
        raise ValueError(f"limit is {limit}; it must be more than 0")
    return number


def _check_slots(chosen: Tensor, x: Tensor) -> int:
    """How many slots there are, of all tokens."""
    check("chosen", chosen, torch.int32, tuple(chosen.shape[-2:]))
    slots = chosen.numel()
    if not 1 <= slots <= c.MAX_SLOTS:
        raise ValueError(f"{slots} experts are chosen; there can be 1 to {c.MAX_SLOTS}")
    if not len(x) or slots % len(x):
        raise ValueError(f"x has {len(x)} rows for {slots} slots; each must be of as many of them")
    return slots


def _slots_of(
    chosen: Tensor, x: Tensor, y: Tensor, activation: ExpertActivation, limit: float
) -> dict[str, int | float]:
    return {
        "chosen": chosen.data_ptr(),
        "x": x.data_ptr(),
        "x_slots": chosen.numel() // len(x),
        "x_stride": x.shape[1],
        "y": y.data_ptr(),
        "y_stride": y.shape[1],
        "slots": chosen.numel(),
        "activation": c.SWIGLU_OAI if activation == "swiglu_oai" else ACTIVATIONS[activation],
        "limit": limit,
    }
