"""Products of the experts that a mixture chooses, without asking the host.

`tests/ext/reference_experts.py` defines what the operations compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from exlchat.ext import functions as c
from exlchat.ext.expert_weights import DenseExperts, ExpertMatrices
from exlchat.ext.job import Job, check, check_on_gpu, check_together
from exlchat.ext.layout import PackedMatrix
from exlchat.ext.library import Library
from exlchat.ext.plan import WARPS, GemvPlan, make_plan, make_stacked_plan
from exlchat.ext.products import ACTIVATIONS, Activation, Normed, Residual, c_matrix, c_residual
from exlchat.ext.routing import Choice, RouteKernels, c_choice, check_choice, check_features, row_of

ExpertKind = Literal["gated", "float"]
ExpertActivation = Activation | Literal["swiglu_oai"]
InputOrder = Literal["features", "stored"]

_KINDS: dict[ExpertKind, tuple[int, torch.dtype, int]] = {
    "gated": (c.Y_GATED, torch.float16, 2),
    "float": (c.Y_FLOAT, torch.float32, 1),
}
OAI_LIMIT, OAI_ALPHA = 7.0, 1.702
"""gpt-oss's. The kernels know no other alpha."""
# What a warp of a dense product should read at least: a block costs about a microsecond whatever it does.
_WARP_BYTES = 8192
# Warps that share a column: an expert has many columns a block, and whoever goes from one to the next pays for it.
_WAYS = 2


class ExpertKernels(RouteKernels):
    """What mixtures of experts need, of one open library.

    Args:
        room: bytes of shared memory that a block may take, as on cards that have less; 0: all there is.
    """

    def __init__(self, library: Library, *, room: int = 0) -> None:
        super().__init__(library)
        self._expert_room = room
        self._expert_product = library.function("exl_expert_product")
        self._expert_sum = library.function("exl_expert_sum")
        self._dense_product = library.function("exl_dense_product")
        self._expert_plans: dict[object, tuple[GemvPlan, Tensor]] = {}
        self._sum_plans: dict[object, tuple[GemvPlan, int, Tensor]] = {}

    def expert_product(
        self,
        experts: ExpertMatrices,
        chosen: Tensor | Choice,
        x: Tensor | Normed,
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
            chosen: int32 `[slots]` or `[tokens, slots]`, 1 to 65536 numbers of experts in all, on the device; or how
                they are chosen.
            x: float16 `[rows, width]`, each row for as many neighbouring slots: one for all, one for each token, or one
                for each slot. In the order of `features`, width is their number, of several rows a multiple of 8; in
                the `stored` order of each slot's expert it is `experts.stored`, and places without a feature are zero.
                Or what a residual left, behind a norm alone and in the order of the features.
            y: `gated`: float16 `[slots, outputs]`, or `[slots, experts.into.stored]` in the stored order of the chosen
                expert's matrix there, where places without a feature are left as they are: zero at first, always zero.
                `float`: float32 `[slots, outputs]`.
            kind: `gated`, of two matrices, is `activation(x W0) * (x W1)`, or with `swiglu_oai`
                `g sigmoid(1.702 g) (u + 1)` with `g` the first up to `limit`, `u` the second within `limit`.

        Raises:
            ValueError: a tensor of another device, dtype, shape or layout, or a kind that these matrices are not for.
        """
        number = _check_kind(kind, len(experts.first), limit)
        row, squares = row_of(x), []
        slots = _check_slots(chosen, row)
        if isinstance(x, Normed):
            if order != "features":
                raise ValueError("what a residual left is in the order of the features")
            check_features(x, experts.features)
            squares.append(x.squares)
        else:
            width = experts.features if order == "features" else experts.stored
            check("x", x, torch.float16, (len(x), width))
            if len(x) > 1 and width % 8:
                raise ValueError(f"x has rows of {width}; several rows must be a multiple of 8 wide")
        width = experts.outputs if experts.into is None else experts.into.stored
        check("y", y, _KINDS[kind][1], (slots, width))
        given = _given(chosen)
        check_on_gpu(chosen=given, x=row, y=y, weights=experts.first[0].words)
        check_together(given, row, *squares, y, experts.table)
        plan, table = self._expert_plan(experts.first, _slots_of_token(chosen))
        job = c.CExpertProduct(
            table=experts.table.data_ptr(),
            plan=table.data_ptr(),
            **_slots_of(slots, row, y, activation, limit),
            experts=len(experts.experts),
            matrices=len(experts.first),
            gathered=order == "features",
            y_kind=number,
            blocks=table.shape[0],
            plan_ints=table.shape[1],
            columns=plan.columns,
            segments=plan.segments,
            x_rows=plan.x_spans[0],
            room=self._expert_room,
        )
        if isinstance(x, Normed):
            job.squares, job.eps = x.squares.data_ptr(), x.eps
        if isinstance(chosen, Choice) and chosen.made is None:
            if chosen.rules.experts > len(experts.experts):
                raise ValueError(f"{chosen.rules.experts} experts are chosen among; these are {len(experts.experts)}")
            job.logits, job.choice = given.data_ptr(), c_choice(chosen)
        else:
            job.chosen = given.data_ptr()
        for index, matrix in enumerate(experts.first):
            job.matrix[index] = c_matrix(matrix)
        return Job(self._expert_product, job, (table, *experts.tensors, given, row, *squares, y))

    def add_experts(self, experts: ExpertMatrices, choice: Choice, x: Tensor, residual: Residual) -> Job:
        """`hidden += sum of weight[slot] * (x[slot] W)` of a token's experts, with all that a residual leaves.

        What a token comes to, to the last bit, does not depend on how many tokens there are. Started early, it reads
        the choice before the operation before it has ended: that must have begun behind it, as `expert_product` does.

        Args:
            experts: one matrix each, for which `why_not_summed` gives `None`.
            choice: of 1 to 8 tokens.
            x: float16 `[tokens * slots, stored]`, in the stored order of each slot's expert; zero where no feature is.
            residual: of `tokens` rows on one card; no norm stands behind what is added.

        Raises:
            ValueError: a tensor of another device, dtype, shape or layout, or experts that are not added up so.
        """
        tokens, rules, matrix = len(choice.logits), choice.rules, experts.first[0]
        if (why := experts.why_not_summed(rules.slots)) is not None or rules.experts != len(experts.experts):
            raise ValueError(f"what experts give is not added up by one product: {why or 'they are others'}")
        if not 1 <= tokens <= c.MAX_ROWS:
            raise ValueError(f"{tokens} tokens; there can be 1 to {c.MAX_ROWS}")
        if residual.deferred is not None or residual.exchange is not None:
            raise ValueError("what experts give is added on one card, without a norm behind it")
        check_choice(choice)
        check("x", x, torch.float16, (choice.slots, experts.stored))
        check_on_gpu(logits=choice.logits, x=x, words=matrix.words)
        tensors = [choice.logits, *(choice.made or ()), x, experts.table]
        plan, tiles, table = self._sum_plan(matrix, rules.slots)
        job = c.CExpertSum(
            plan=table.data_ptr(),
            table=experts.table.data_ptr(),
            matrix=c_matrix(matrix),
            logits=choice.logits.data_ptr(),
            x=x.data_ptr(),
            residual=c_residual(residual, tokens, matrix.outputs, tensors),
            choice=c_choice(choice),
            tokens=tokens,
            tiles=tiles,
            blocks=table.shape[0],
            plan_ints=table.shape[1],
            columns=plan.columns,
            segments=plan.segments,
            x_rows=plan.x_rows,
            room=self._expert_room,
        )
        job.matrix.words, job.matrix.scales = experts.first_words, experts.first_scales
        if choice.made is not None:
            job.chosen, job.weights = (tensor.data_ptr() for tensor in choice.made)
        check_together(*tensors)
        return Job(self._expert_sum, job, (table, *experts.tensors, *tensors))

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
            **_slots_of(slots, x, y, activation, limit),
            chosen=chosen.data_ptr(),
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
            plan = make_plan(matrices, blocks=blocks, paired=len(matrices) > 1, ways=_WAYS)
            self._expert_plans[key] = plan, plan.table.to(device)
        return self._expert_plans[key]

    def _sum_plan(self, matrix: PackedMatrix, slots: int) -> tuple[GemvPlan, int, Tensor]:
        """The plan of all of a token's slots, the most column tiles of a block, and the plan's table on the device."""
        device = matrix.words.device
        key = (device, slots, matrix.outputs, matrix.stored, matrix.sections)
        if key not in self._sum_plans:
            blocks = torch.cuda.get_device_properties(device).multi_processor_count
            plan, tiles = make_stacked_plan(matrix, slots, blocks=blocks)
            self._sum_plans[key] = plan, tiles, plan.table.to(device)
        return self._sum_plans[key]


def _check_kind(kind: ExpertKind, matrices: int, limit: float) -> int:
    """The number by which the kernels know a kind."""
    number, _, wanted = _KINDS[kind]
    if matrices != wanted:
        raise ValueError(f"a {kind} product of experts has {wanted} matrices of each; these have {matrices}")
    if not limit > 0:
        raise ValueError(f"limit is {limit}; it must be more than 0")
    return number


def _given(chosen: Tensor | Choice) -> Tensor:
    if isinstance(chosen, Choice):
        return chosen.logits if chosen.made is None else chosen.made[0]
    return chosen


def _slots_of_token(chosen: Tensor | Choice) -> int:
    return chosen.rules.slots if isinstance(chosen, Choice) else chosen.shape[-1]


def _check_slots(chosen: Tensor | Choice, x: Tensor) -> int:
    """How many slots there are, of all tokens."""
    if isinstance(chosen, Choice):
        check_choice(chosen)
        slots = chosen.slots
    else:
        check("chosen", chosen, torch.int32, tuple(chosen.shape[-2:]))
        slots = chosen.numel()
    if not 1 <= slots <= c.MAX_SLOTS:
        raise ValueError(f"{slots} experts are chosen; there can be 1 to {c.MAX_SLOTS}")
    if not len(x) or slots % len(x):
        raise ValueError(f"x has {len(x)} rows for {slots} slots; each must be of as many of them")
    return slots


def _slots_of(slots: int, x: Tensor, y: Tensor, activation: ExpertActivation, limit: float) -> dict[str, int | float]:
    return {
        "x": x.data_ptr(),
        "x_slots": slots // len(x),
        "x_stride": x.shape[1],
        "y": y.data_ptr(),
        "y_stride": y.shape[1],
        "slots": slots,
        "activation": c.SWIGLU_OAI if activation == "swiglu_oai" else ACTIVATIONS[activation],
        "limit": limit,
    }
