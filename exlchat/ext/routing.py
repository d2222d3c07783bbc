"""Which experts of a mixture each token goes to, without asking the host.

`tests/ext/reference_experts.py` defines what is computed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exlchat.ext import functions as c
from exlchat.ext.job import Job, check, check_on_gpu, check_together
from exlchat.ext.library import Library
from exlchat.ext.products import Normed, check_normed

_ROUTERS = (torch.float16, torch.float32)


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


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice that `RouteKernels.route` makes, or would make: each product that needs it then makes it for itself.

    Args:
        logits: float32 `[tokens, rows]`, as `RouteKernels.score` leaves them, too.
        made: `chosen` and `weights` as `route` leaves them.
    """

    logits: Tensor
    rules: RouteRules
    made: tuple[Tensor, Tensor] | None = None

    @property
    def slots(self) -> int:
        """Of all tokens."""
        return len(self.logits) * self.rules.slots


class RouteKernels:
    """Of one open library."""

    def __init__(self, library: Library) -> None:
        self._route = library.function("exl_route")

    def route(
        self,
        x: Tensor | Normed,
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
            x, router, logits, bias: as `score` has them.
            chosen: int32 `[tokens, slots]`, written. Whatever the logits are, those of a token are different experts.
            weights: float32 `[tokens, slots]`, written.
            tickets: int32 `[tokens]`, zero at first; all routes of a stream may share them.

        Raises:
            ValueError: a tensor of another device, dtype, shape or layout.
        """
        job, named = self._scored(x, router, rules, logits, bias)
        tokens = len(logits)
        check("chosen", chosen, torch.int32, (tokens, rules.slots))
        check("weights", weights, torch.float32, (tokens, rules.slots))
        check("tickets", tickets, torch.int32, (tokens,))
        return self._routed(job, {**named, "chosen": chosen, "weights": weights, "tickets": tickets})

    def score(
        self, x: Tensor | Normed, router: Tensor, rules: RouteRules, *, logits: Tensor, bias: Tensor | None = None
    ) -> Job:
        """The logits alone, for products that choose by them: see `Choice`.

        Args:
            x: float16 `[tokens, width]` of 1 to 8 tokens, in the order of the features; width is a multiple of 8. Or
                what a residual left, behind a norm alone.
            router: float16 or float32 `[rows, width]`, a row for each expert. Rows behind those are multiplied and no
                more: Qwen2-MoE's gate of the shared expert.
            logits: float32 `[tokens, rows]`, written.
            bias: float32 `[rows]`, part of the logits.

        Raises:
            ValueError: a tensor of another device, dtype, shape or layout.
        """
        return self._routed(*self._scored(x, router, rules, logits, bias))

    def _scored(
        self, x: Tensor | Normed, router: Tensor, rules: RouteRules, logits: Tensor, bias: Tensor | None
    ) -> tuple[c.CRoute, dict[str, Tensor]]:
        rows, width, tokens = router.shape[0], router.shape[-1], len(row_of(x))
        if router.dtype not in _ROUTERS:
            raise ValueError(f"router is {router.dtype}; it must be torch.float16 or torch.float32")
        check("router", router, router.dtype, (rows, width))
        if rows < rules.experts or width % 8:
            raise ValueError(f"router is {tuple(router.shape)}; it must be [{rules.experts} or more, a multiple of 8]")
        if not 1 <= tokens <= c.MAX_ROWS:
            raise ValueError(f"x has {tokens} rows; there can be 1 to {c.MAX_ROWS}")
        named = {"x": row_of(x), "router": router, "logits": logits}
        if isinstance(x, Normed):
            check_features(x, width)
            named["squares"] = x.squares
        else:
            check("x", x, torch.float16, (tokens, width))
        check("logits", logits, torch.float32, (tokens, rows))
        if bias is not None:
            check("bias", bias, torch.float32, (rows,))
            named["bias"] = bias
        job = c.CRoute(
            tokens=tokens,
            width=width,
            rows=rows,
            experts=rules.experts,
            slots=rules.slots,
            router_float=router.dtype == torch.float32,
            renormalised=rules.renormalised,
            eps=x.eps if isinstance(x, Normed) else 0.0,
        )
        return job, named

    def _routed(self, job: c.CRoute, named: dict[str, Tensor]) -> Job:
        """With the addresses of these tensors."""
        check_on_gpu(**named)
        check_together(*named.values())
        for name, tensor in named.items():
            setattr(job, name, tensor.data_ptr())
        return Job(self._route, job, tuple(named.values()))


def row_of(x: Tensor | Normed) -> Tensor:
    return x.values if isinstance(x, Normed) else x


def check_features(x: Normed, width: int) -> None:
    """Of what a residual left: in the order of the features, which are a multiple of 16."""
    if x.deferred is not None or width % 16:
        raise ValueError(f"what a residual left of {width} numbers; it must be a multiple of 16, and not deferred")
    check_normed(x, len(x.values), width, width, [])


def check_choice(choice: Choice) -> None:
    tokens, rows = len(choice.logits), choice.logits.shape[-1]
    check("logits", choice.logits, torch.float32, (tokens, rows))
    if choice.made is not None:
        for name, tensor, dtype in zip(("chosen", "weights"), choice.made, (torch.int32, torch.float32), strict=True):
            check(name, tensor, dtype, (tokens, choice.rules.slots))
    if rows < choice.rules.experts:
        raise ValueError(f"logits are of {rows} rows; {choice.rules.experts} experts are chosen among")


def c_choice(choice: Choice) -> c.CChoice:
    rules = choice.rules
    return c.CChoice(rules.experts, rules.slots, rules.renormalised, choice.logits.shape[1])
