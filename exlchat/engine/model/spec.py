"""What a decoder is, whatever its weights are stored as and whatever its `config.json` calls things: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RopeType = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]
Activation = Literal["silu", "gelu_tanh", "gelu", "swiglu_oai"]
NormKind = Literal["rms", "layer"]
HeadNorms = Literal["none", "rms", "layer", "joint"]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary positions: base frequency, how it is stretched for longer contexts, and which elements are turned.

    Args:
        type: how frequencies are made; see `rope.inverse_frequencies`.
        theta: base.
        dim: elements of a head that are turned, the first ones.
        factor: by which the context grows.
        low_freq_factor, high_freq_factor: of `llama3`.
        beta_fast, beta_slow, truncate: of `yarn`.
        attention_factor: by which cos and sin are multiplied (`yarn`, `longrope`).
        query_beta: queries grow by `1 + query_beta ln(1 + floor(position / original))` beyond the original context, as
            in Llama 4 and Ministral 3; 0 where they do not.
        short_factors, long_factors: divisors of each frequency (`longrope`), below and above the original length.
        original_max_position_embeddings: the context that the model was first trained for.
    """

    type: RopeType
    theta: float
    dim: int
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    query_beta: float = 0.0
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True, slots=True)
class ExpertSpec:
    """A mixture of experts in place of an MLP.

    Args:
        layers: for each layer whether it has experts; others have an MLP.
        count: how many there are.
        chosen: how many of them compute a token.
        inner: width inside one of them.
        renormalise: whether the weights of the chosen ones are made to sum to 1.
        shared_inner: width inside the expert that computes every token beside them; 0 where there is none.
        bias: whether router and experts have biases.
        stacked: whether the file holds all experts of a layer in one tensor.
    """

    layers: tuple[bool, ...]
    count: int
    chosen: int
    inner: int
    renormalise: bool
    shared_inner: int = 0
    bias: bool = False
    stacked: bool = False


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One decoder.

    Args:
        norm_kind: of all norms of the width of the model; `layer` subtracts the mean.
        norm_offset: what is added to the weights of all RMS norms.
        norm_bias: whether these norms have a bias.
        norm_before: whether attention and MLP read a normed residual.
        norm_after: whether what they add is normed.
        parallel: whether attention and MLP read the same normed residual, and both are added at once.
        head_norms: of queries and keys before they are turned: of each head (`rms`; `layer` subtracts the mean), or of
            all heads together (`joint`).
        ropes: the kinds of rotary positions there are.
        layer_ropes: which of them each layer has; `None` has none.
        interleaved: whether element 2i is turned with 2i + 1, not i with i + half.
        learned_positions: whether an embedding of the position is added to that of the token.
        windows: for each layer how many tokens it sees, the new one included; 0 sees all.
        sinks: whether each head has a logit that joins its softmax without a value.
        attention_scale: of the products of query and key.
        attention_softcap, logit_softcap: c of `c tanh(x / c)`; 0 where there is none.
        embedding_scale, residual_scale, logit_scale: factors of the embedding, of what a layer adds, of the logits.
        gated: whether the MLP is `down(activation(gate(x)) * up(x))`, not `down(activation(up(x)))`.
        swiglu_limit, swiglu_alpha: of the activation `swiglu_oai`.
        heads_by_group: whether a joined projection holds queries, key and value of a key-value head after each other.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    windows: tuple[int, ...]
    ropes: tuple[RopeSpec, ...]
    layer_ropes: tuple[int | None, ...]
    attention_scale: float
    norm_eps: float
    norm_kind: NormKind = "rms"
    norm_offset: float = 0.0
    norm_bias: bool = False
    norm_before: bool = True
    norm_after: bool = False
    parallel: bool = False
    head_norms: HeadNorms = "none"
    interleaved: bool = False
    learned_positions: bool = False
    sinks: bool = False
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    tied_head: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    activation: Activation = "silu"
    gated: bool = True
    swiglu_limit: float = 7.0
    swiglu_alpha: float = 1.702
    experts: ExpertSpec | None = None
    transposed: bool = False
    heads_by_group: bool = False

    @property
    def longest_context(self) -> int:
        """Tokens that a sequence may have: what the model was made for, or what dynamic positions stretch that to."""
        stretched = [rope.factor for rope in self.ropes if rope.type == "dynamic"]
        return int(self.max_position_embeddings * max(stretched, default=1.0))

    @property
    def rope_depends_on_context(self) -> bool:
        """Whether positions are turned by frequencies that follow from the longest context."""
        return any(rope.type in ("dynamic", "longrope") for rope in self.ropes)
