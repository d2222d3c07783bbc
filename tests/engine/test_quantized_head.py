"""A float output head rounded at load: how far logits may move, and who is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from exlchat.engine import ModelError
from exlchat.engine.decode.fit import why_not
from exlchat.engine.decode.plan import DecodePlan
from exlchat.engine.formats import awq_writer, exl2_writer, gptq_writer
from exlchat.engine.formats.gptq_writer import GptqRecipe
from exlchat.engine.formats.head import pack_head
from exlchat.engine.formats.inventory import has_float_head, weight_sizes
from exlchat.engine.formats.layers import LayerLoader
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.assembly import load_transformer
from exlchat.engine.layers.linear import Linear
from exlchat.engine.layers.quantized_linear import QuantizedLinear
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.model.architecture import read_spec
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.ext.layout import decode
from tests.engine.decoding import logits_in_steps, relative_error
from tests.engine.reference_kernels import ReferenceKernels
from tests.random_models import save_random_llama

CPU = torch.device("cpu")
BITS = (4, 6, 8)


def largest_errors(weight: torch.Tensor, bits: int) -> torch.Tensor:
    """float64 `[N, K]`: how far rounding may move each weight, from the widths and the layout of the scales alone.

    Half a step, and what the roundings to float16 cost. A step of 4 bits spans a 15th of the range of 32 weights of one
    output, or a 14th of its largest; the zero point is rounded too, so that an end of the range may be cut by half a
    step more. Of 6 and 8 bits the scale is `i^2 u`, u a 256th of the largest of the group, i the first whole number for
    which that is enough.
    """
    groups = torch.nn.functional.pad(weight.double(), (0, -weight.shape[1] % 32)).view(len(weight), -1, 32)
    if bits == 4:
        low, high = groups.amin(2).clamp_max(0), groups.amax(2).clamp_min(0)
        steps = torch.maximum((high - low) / 15, high / 14) * 2
    else:
        needed = groups.abs().amax(2) / (2 ** (bits - 1) - 1)
        # Scales below 6e-5 are subnormal in float16, a 2^-24 apart.
        unit = needed.amax(0) / 256 * (1 + 2**-10) + 2**-24
        steps = (needed.sqrt() + unit.sqrt()).square()
    errors = (steps / 2).repeat_interleave(32, 1)[:, : weight.shape[1]] + 2**-24
    return errors * (1 + 2**-9) + weight.double().abs() * 2**-10


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("outputs", "features"), [(384, 64), (391, 128), (2100, 96), (40, 200), (16, 33)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_every_weight_is_rounded_to_the_nearest_code(
    bits: int, outputs: int, features: int, dtype: torch.dtype
) -> None:
    draws = torch.Generator().manual_seed(bits)
    # Outputs of very different size, as the rows of a vocabulary are.
    sizes = torch.rand(outputs, 1, generator=draws).mul(4).exp() * 0.002
    weight = (torch.randn(outputs, features, generator=draws) * sizes).to(dtype)
    matrix = pack_head(weight, bits)
    assert matrix.outputs % 16 == 0
    found = decode(matrix).double().T
    assert not found[outputs:].any()
    assert ((found[:outputs] - weight.double()).abs() <= largest_errors(weight, bits)).all()


def test_more_bits_are_nearer_and_8_are_nearly_all() -> None:
    weight = torch.randn(512, 256, generator=torch.Generator().manual_seed(1)) * 0.02
    errors = [relative_error(decode(pack_head(weight, bits)).float().T, weight) for bits in BITS]
    # The largest of 32 normal numbers is about 2.1 deviations away, and errors spread evenly over a step have a mean
    # square of a 12th of its square; the steps of the scales cost up to a quarter more.
    for bits, error in zip(BITS, errors, strict=True):
        assert error < 1.25 * 2.1 / (2 ** (bits - 1) - 1) / 12**0.5
    assert errors[2] < 0.01


@pytest.mark.parametrize("bits", BITS)
def test_groups_of_zeros_and_of_single_values(bits: int) -> None:
    weight = torch.zeros(32, 128)
    assert not decode(pack_head(weight, bits)).any()
    weight[3, 40] = 0.5
    found = decode(pack_head(weight, bits)).T
    assert abs(found[3, 40].double() - 0.5) <= largest_errors(weight, bits)[3, 40]
    assert found.count_nonzero() == 1


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_a_head_that_is_no_number(wrong: float) -> None:
    weight = torch.randn(3000, 64)
    weight[2999, 5] = wrong
    with pytest.raises(ModelError, match="it holds what is no number"):
        pack_head(weight, 8)


def opened(path: Path, bits: int | None) -> Transformer:
    checkpoint = Checkpoint(path)
    spec = read_spec(checkpoint.config, "config.json")
    loader = LayerLoader(checkpoint, CPU, torch.float16, ReferenceKernels(), head_bits=bits)
    has_head = any(name.startswith("lm_head.") for name in checkpoint.names)
    return load_transformer(spec, loader, has_head, lambda: None)


def random_model(path: Path, kind: str, **config: object) -> Path:
    """Wide enough for the step: heads of 64."""
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = save_random_llama(path / "float", vocab_size=391, **sizes, **config)
    source = {name: part for name, part in model.state_dict().items() if name != "lm_head.weight" or not config}
    files = [path / "float" / name for name in ("tokenizer.json", "tokenizer_config.json")]
    settings = model.config.to_dict()
    if kind == "gptq":
        gptq_writer.write_model(source, settings, path / kind, GptqRecipe(32, act_order=True), extra_files=files)
    elif kind == "awq":
        awq_writer.write_model(source, settings, path / kind, 64, extra_files=files)
    elif kind == "exl2":
        exl2_writer.write_model(source, settings, path / kind, extra_files=files)
    return path / kind


@pytest.mark.usefixtures("decoded_once")
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kind", ["gptq", "awq", "float"])
@pytest.mark.parametrize("config", [{}, {"tie_word_embeddings": True}], ids=["", "tied"])
def test_logits_stay_within_what_the_bits_allow(
    bits: int, kind: str, config: dict[str, object], tmp_path: Path
) -> None:
    path = random_model(tmp_path, kind, **config)
    plain, rounded = opened(path, None), opened(path, bits)
    assert isinstance(plain.head, Linear)
    assert isinstance(rounded.head, QuantizedLinear)
    ids = torch.randint(391, (40,), generator=torch.Generator().manual_seed(5)).tolist()
    wanted = logits_in_steps(plain, ids, [40], kv_cache="fp16")
    found = logits_in_steps(rounded, ids, [30, 1, 9], kv_cache="fp16")
    assert found.shape == wanted.shape == (40, 391)
    # A logit is a sum over the normed hidden state, whose numbers are below 12 * their norm weight and whose sum of
    # magnitudes is below width * the largest norm weight, by Cauchy and Schwarz.
    stored = load_file(next(path.glob("*.safetensors")))
    head = stored["model.embed_tokens.weight" if config else "lm_head.weight"].half()
    norm = stored["model.norm.weight"].double().abs()
    bound = (largest_errors(head, bits) * norm).norm(dim=1) * head.shape[1] ** 0.5
    # Float16 products and chunks of another length move logits by about a thousandth.
    assert ((found - wanted).abs() <= bound + 4e-3 * wanted.abs().max()).all()
    assert relative_error(found, wanted) < {4: 0.15, 6: 0.04, 8: 0.012}[bits]


@pytest.mark.usefixtures("decoded_once")
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("config", [{}, {"tie_word_embeddings": True}], ids=["", "tied"])
def test_the_step_takes_a_rounded_head(bits: int, config: dict[str, object], tmp_path: Path) -> None:
    transformer = opened(random_model(tmp_path, "awq", **config), bits)
    cache = KVSequence(KVCache(transformer.spec, "fp16", torch.float16, CPU, 256))
    assert why_not(transformer, cache.cache) is None
    cache.reserve(20)
    ids = torch.arange(20)
    wanted = transformer.forward(ids, last_only=False)
    transformer.forward(ids[:-1], cache)
    cache.extend(ids[:-1].tolist())
    chain = DecodePlan(transformer, cache.cache, ReferenceKernels(), splits=2)
    chain.tables.show(cache.cache.tables, [cache.row])
    chain.token.fill_(19)
    chain.position.fill_(19)
    for job in chain.jobs():
        job.launch(dependent=False)
    assert chain.logits.shape == (1, 391)
    assert relative_error(chain.logits[0], wanted[-1]) < 5e-3


def test_a_tied_model_keeps_its_embedding(tmp_path: Path) -> None:
    path = random_model(tmp_path, "gptq", tie_word_embeddings=True)
    plain, rounded = opened(path, None), opened(path, 8)
    assert torch.equal(rounded.embedding, plain.embedding)
    assert rounded.embedding.dtype == torch.float16
    # The head is a second one now: about a byte a weight.
    assert 391 * 128 < rounded.bytes - plain.bytes < 1.1 * 400 * 128


def test_a_head_that_is_quantized_stays_as_it_is(tmp_path: Path) -> None:
    path = random_model(tmp_path, "exl2")
    assert not has_float_head(Checkpoint(path))
    plain, asked = opened(path, None).head, opened(path, 4).head
    assert isinstance(plain, QuantizedLinear)
    assert isinstance(asked, QuantizedLinear)
    assert torch.equal(asked.matrices[0].words, plain.matrices[0].words)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kind", ["gptq", "awq", "float"])
@pytest.mark.parametrize("config", [{}, {"tie_word_embeddings": True}], ids=["", "tied"])
def test_what_it_takes_is_counted(bits: int, kind: str, config: dict[str, object], tmp_path: Path) -> None:
    path = random_model(tmp_path, kind, **config)
    checkpoint = Checkpoint(path)
    assert has_float_head(checkpoint)
    sizes = weight_sizes(checkpoint, stay_quantized=True, head_bits=bits)
    assert opened(path, bits).bytes == pytest.approx(sizes.bytes(torch.float16), rel=0.05)


def test_a_bfloat16_model_may_have_a_rounded_head(tmp_path: Path) -> None:
    weight = torch.randn(400, 64) * 0.1
    loader = LayerLoader(
        Checkpoint(random_model(tmp_path, "float")), CPU, torch.bfloat16, ReferenceKernels(), head_bits=8
    )
    head = loader.float_head(Linear(weight.bfloat16()))
    x = torch.randn(3, 64).bfloat16()
    assert relative_error(head(x).float(), x.float() @ weight.T) < 0.02
