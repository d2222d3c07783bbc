"""What routing and products of experts refuse before anything reaches the library, and their references. No GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from transformers.models.gpt_oss.configuration_gpt_oss import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP
from transformers.models.mixtral.configuration_mixtral import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
from transformers.models.qwen2_moe.configuration_qwen2_moe import Qwen2MoeConfig
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock

from exlchat.ext import functions as c
from exlchat.ext.expert_weights import DenseExperts, ExpertMatrices
from exlchat.ext.experts import ExpertKernels
from exlchat.ext.layout import NO_FEATURE, PackedMatrix, decode, unsigned
from exlchat.ext.library import Library
from exlchat.ext.routing import RouteRules
from tests.ext import reference_experts
from tests.ext.never_called import NeverCalled, small_matrix

HALF, FLOAT, INT = torch.float16, torch.float32, torch.int32


@pytest.fixture
def kernels() -> ExpertKernels:
    return ExpertKernels(cast(Library, NeverCalled()))


def zeros(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    return torch.zeros(*shape, dtype=dtype)


def pair(features: int = 64, outputs: int = 32) -> tuple[PackedMatrix, PackedMatrix]:
    gate = small_matrix(features, outputs)
    return gate, replace(small_matrix(features, outputs), gather=gate.gather)


# ---- refused


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "on the cpu"),
        ({"x": zeros(1, 63)}, "x is"),
        ({"x": zeros(2, 64)}, "logits is"),
        ({"x": zeros(9, 64)}, "x has 9 rows"),
        ({"x": zeros(1, 64, dtype=FLOAT)}, "x is torch.float32"),
        ({"router": zeros(8, 64, dtype=torch.bfloat16)}, "router is torch.bfloat16"),
        ({"router": zeros(7, 64)}, "8 or more"),
        ({"router": zeros(8, 60), "x": zeros(1, 60)}, "a multiple of 8"),
        ({"router": zeros(64, 8).T}, "not contiguous"),
        ({"logits": zeros(7, dtype=FLOAT)}, "logits is"),
        ({"chosen": zeros(2, dtype=torch.int64)}, "chosen is torch.int64"),
        ({"weights": zeros(3, dtype=FLOAT)}, "weights is"),
        ({"tickets": zeros(2, dtype=INT)}, "tickets is"),
        ({"bias": zeros(8)}, "bias is torch.float16"),
    ],
)
def test_a_route_names_the_tensor_that_does_not_fit(
    kernels: ExpertKernels, changed: dict[str, Tensor], words: str
) -> None:
    arguments: dict[str, Any] = {
        "x": zeros(1, 64),
        "router": zeros(8, 64),
        "logits": zeros(1, 8, dtype=FLOAT),
        "chosen": zeros(1, 2, dtype=INT),
        "weights": zeros(1, 2, dtype=FLOAT),
        "tickets": zeros(1, dtype=INT),
        **changed,
    }
    with pytest.raises(ValueError) as error:
        kernels.route(arguments.pop("x"), arguments.pop("router"), RouteRules(8, 2, True), **arguments)
    assert words in str(error.value)


@pytest.mark.parametrize(("experts", "slots"), [(8, 0), (8, 9), (64, 17), (0, 1), (513, 2)])
def test_rules_that_the_kernels_do_not_know(experts: int, slots: int) -> None:
    with pytest.raises(ValueError, match=f"{slots} of {experts} experts"):
        RouteRules(experts, slots, True)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "on the cpu"),
        ({"chosen": zeros(2, dtype=torch.int64)}, "chosen is torch.int64"),
        ({"chosen": zeros(65537, dtype=INT)}, "65537 experts are chosen"),
        ({"x": zeros(3, 64)}, "x has 3 rows for 2 slots"),
        ({"x": zeros(0, 64)}, "x has 0 rows"),
        ({"x": zeros(1, 32)}, "x is"),
        ({"y": zeros(2, 33)}, "y is"),
        ({"y": zeros(2, 32, dtype=FLOAT)}, "y is torch.float32"),
        ({"kind": "float", "y": zeros(2, 32, dtype=FLOAT)}, "1 matrices of each; these have 2"),
        ({"limit": 0.0}, "limit is 0.0"),
        ({"limit": float("nan")}, "limit is nan"),
    ],
)
@pytest.mark.parametrize("quantized", [True, False])
def test_a_product_names_what_does_not_fit(
    kernels: ExpertKernels, quantized: bool, changed: dict[str, Any], words: str
) -> None:
    arguments: dict[str, Any] = {
        "chosen": zeros(2, dtype=INT),
        "x": zeros(1, 64),
        "y": zeros(2, 32),
        "kind": "gated",
        **changed,
    }
    product: Any = kernels.expert_product if quantized else kernels.dense_expert_product
    experts = ExpertMatrices([pair(), pair()]) if quantized else DenseExperts((zeros(4, 32, 64), zeros(4, 32, 64)))
    with pytest.raises(ValueError) as error:
        product(experts, **arguments)
    assert words in str(error.value)


def test_several_rows_of_x_begin_at_whole_16_bytes(kernels: ExpertKernels) -> None:
    one = small_matrix(64)
    narrow = replace(one, features=60, gather=torch.where(one.gather < 60, one.gather, -1))
    experts = ExpertMatrices([(narrow,), (narrow,)])
    with pytest.raises(ValueError, match="multiple of 8"):
        kernels.expert_product(experts, zeros(2, dtype=INT), zeros(2, 60), zeros(2, 32, dtype=FLOAT), "float")


def test_experts_are_alike() -> None:
    first = pair()
    wider, other_order = pair(64, 64), replace(first[1], gather=first[1].gather.flip(0))
    section = first[0].sections[0]
    other_sections = tuple(replace(m, sections=(replace(section, rows_per_scale=64),)) for m in first)
    for experts, words in (
        ([], "0 experts"),
        ([()], "0 matrices"),
        ([(*first, first[0])], "3 matrices"),
        ([first, (first[0],)], "expert 1 is not shaped"),
        ([first, wider], "expert 1 is not shaped"),
        ([first, other_sections], "expert 1 is not shaped"),
        ([(first[0], wider[1])], "32 and 64 outputs"),
        ([(first[0], other_order)], "different orders"),
        ([first] * (c.MAX_EXPERTS + 1), "513 experts"),
    ):
        with pytest.raises(ValueError) as error:
            ExpertMatrices(experts)
        assert words in str(error.value)


def test_outputs_go_into_experts_that_fit() -> None:
    gates, downs = [pair(64, 32), pair(64, 32)], [(small_matrix(32, 64),), (small_matrix(32, 64),)]
    assert ExpertMatrices(gates, into=ExpertMatrices(downs)).into is not None
    with pytest.raises(ValueError, match="2 experts of 32 outputs do not go into 1 of 32 inputs"):
        ExpertMatrices(gates, into=ExpertMatrices(downs[:1]))
    with pytest.raises(ValueError, match="do not go into 2 of 64 inputs"):
        ExpertMatrices(gates, into=ExpertMatrices([(small_matrix(64, 64),)] * 2))


def test_empty_places_of_experts_are_the_same_or_not() -> None:
    one = small_matrix(64)
    order = torch.where(one.gather < 60, one.gather, -1)
    first, second = (replace(one, features=60, gather=gather) for gather in (order, order.roll(1)))
    assert ExpertMatrices([(one,), (replace(one, gather=one.gather.flip(0)),)]).same_places
    assert ExpertMatrices([(first,), (first,)]).same_places
    assert not ExpertMatrices([(first,), (second,)]).same_places


def test_the_table_points_to_each_expert() -> None:
    downs = ExpertMatrices([(small_matrix(32, 64),) for _ in range(3)])
    experts = ExpertMatrices([pair(64, 32) for _ in range(3)], into=downs)
    rows = (c.CExpert * 3).from_buffer_copy(experts.table.numpy().tobytes())
    for row, (gate, up), (down,) in zip(rows, experts.experts, downs.experts, strict=True):
        assert list(row.words) == [gate.words.data_ptr(), up.words.data_ptr()]
        assert list(row.scales) == [gate.scales.data_ptr(), up.scales.data_ptr()]
        assert list(row.bias) == [None, None]
        assert (row.gather, row.scatter) == (gate.gather.data_ptr(), down.scatter.data_ptr())


@pytest.mark.parametrize(
    ("weights", "biases", "words"),
    [
        ((), (), "0 matrices"),
        ((zeros(2, 32),), (), "weights are (2, 32)"),
        ((zeros(2, 32, 60),), (), "a multiple of 8"),
        ((zeros(2, 31, 64),), (), "even outputs"),
        ((zeros(1, 2, c.MAX_DENSE_INPUTS + 8),), (), "up to 24576"),
        ((zeros(2, 32, 64), zeros(2, 32, 64, dtype=FLOAT)), (), "weights are torch.float32"),
        ((zeros(2, 32, 64), zeros(2, 30, 64)), (), "(2, 30, 64)"),
        ((zeros(2, 64, 32).transpose(1, 2),), (), "must be contiguous"),
        ((zeros(2, 32, 64),), (zeros(2, 31),), "bias is"),
        ((zeros(2, 32, 64),), (zeros(2, 32), zeros(2, 32)), "2 biases for 1"),
    ],
)
def test_dense_weights_that_the_kernel_does_not_read(
    weights: tuple[Tensor, ...], biases: tuple[Tensor, ...], words: str
) -> None:
    with pytest.raises(ValueError) as error:
        DenseExperts(weights, biases)
    assert words in str(error.value)


# ---- the references against transformers' blocks


def filled(block: torch.nn.Module) -> torch.nn.Module:
    """float64, random weights that a half holds."""
    block = block.double().eval()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_((torch.randn_like(parameter) * parameter.shape[-1] ** -0.5).half())
    return block


def mixture(x: Tensor, gates: DenseExperts, downs: DenseExperts, rules: RouteRules, **how: Any) -> Tensor:
    """float64 `[1, width]`, from the references. `how`: router, router_bias, and how the gate is."""
    router, bias = how.pop("router"), how.pop("router_bias", None)
    _, chosen, weights = reference_experts.route(x, router, rules, bias=bias)
    inner = reference_experts.dense_expert_product(gates, chosen, x, **how)
    return weights @ reference_experts.dense_expert_product(downs, chosen, inner)


def test_a_mixture_is_mixtrals() -> None:
    config = MixtralConfig(hidden_size=64, intermediate_size=48, num_local_experts=8, num_experts_per_tok=2)
    block: Any = filled(MixtralSparseMoeBlock(config))
    gates = DenseExperts(tuple(block.experts.gate_up_proj.detach().half().chunk(2, 1)))
    downs = DenseExperts((block.experts.down_proj.detach().half(),))
    for _ in range(5):
        x = torch.randn(1, 64).half()
        found = mixture(x, gates, downs, RouteRules(8, 2, True), router=block.gate.weight.detach().float())
        # Their weights are rounded to float32.
        assert torch.allclose(found[0], block(x[None].double()).flatten(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("renormalised", [True, False])
def test_a_mixture_is_that_of_qwen2_moe(renormalised: bool) -> None:
    config = Qwen2MoeConfig(
        hidden_size=64,
        moe_intermediate_size=48,
        shared_expert_intermediate_size=32,
        num_experts=60,
        num_experts_per_tok=4,
        norm_topk_prob=renormalised,
    )
    block: Any = filled(Qwen2MoeSparseMoeBlock(config))
    gates = DenseExperts(tuple(block.experts.gate_up_proj.detach().half().chunk(2, 1)))
    downs = DenseExperts((block.experts.down_proj.detach().half(),))
    # The gate of the shared expert is a row behind those of the experts.
    router = torch.cat((block.gate.weight, block.shared_expert_gate.weight)).detach().float()
    rules = RouteRules(60, 4, renormalised)
    for _ in range(5):
        x = torch.randn(1, 64).half()
        shared = block.shared_expert(x.double()).flatten()
        logits, chosen, _ = reference_experts.route(x, router, rules)
        assert 60 not in chosen
        found = mixture(x, gates, downs, rules, router=router) + torch.sigmoid(logits[0, 60]) * shared
        assert torch.allclose(found[0], block(x[None].double()).flatten(), rtol=1e-5, atol=1e-6)


def test_a_mixture_is_that_of_gpt_oss() -> None:
    config = GptOssConfig(hidden_size=64, intermediate_size=48, num_local_experts=16, num_experts_per_tok=4)
    block: Any = filled(GptOssMLP(config))
    experts, limit = block.experts, block.experts.limit

    def halves(weights: Tensor) -> tuple[Tensor, Tensor]:
        """Gate and up, which stand in turn, inputs last."""
        turned = weights.detach().half()
        parts = (turned[..., ::2], turned[..., 1::2])
        gate, up = (part.transpose(1, 2).contiguous() if part.ndim == 3 else part.contiguous() for part in parts)
        return gate, up

    gates = DenseExperts(halves(experts.gate_up_proj), halves(experts.gate_up_proj_bias))
    down = experts.down_proj.detach().half().transpose(1, 2).contiguous()
    downs = DenseExperts((down,), (experts.down_proj_bias.detach().half(),))
    for size in (1.0, 30.0):
        x = (torch.randn(1, 64) * size).half()
        router = {"router": block.router.weight.detach().float(), "router_bias": block.router.bias.detach().float()}
        found = mixture(x, gates, downs, RouteRules(16, 4, True), activation="swiglu_oai", limit=limit, **router)
        assert torch.allclose(found, block(x[None].double())[0].detach().flatten(), rtol=1e-5, atol=1e-6)


def test_quantized_experts_are_dense_ones_of_their_weights() -> None:
    downs = ExpertMatrices([(small_matrix(32, 64),) for _ in range(3)])
    experts = ExpertMatrices([pair(64, 32) for _ in range(3)], into=downs)
    x, chosen = torch.randn(1, 64).half(), torch.tensor([2, 0])
    stacked = [torch.stack([decode(matrices[i]).T for matrices in experts.experts]).contiguous() for i in range(2)]
    wanted = reference_experts.dense_expert_product(DenseExperts(tuple(stacked)), chosen, x)
    found = reference_experts.expert_product(experts, chosen, x)
    assert torch.allclose(found, wanted)
    placed = reference_experts.to_places(experts, chosen, found)
    for slot, expert in enumerate(chosen.tolist()):
        order = unsigned(downs.experts[expert][0].gather)
        assert torch.equal(placed[slot], found[slot][order[order != NO_FEATURE]])
