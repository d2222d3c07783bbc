"""A Llama for training: no cache, whole sequences, dropout. Its state dict has the Hugging Face names."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Size:
    """The guide's dimensions; every matrix side is a multiple of 32, as EXL2 asks."""

    vocab: int = 2560
    hidden: int = 384
    layers: int = 6
    heads: int = 6
    kv_heads: int = 2
    intermediate: int = 896
    context: int = 2048
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads

    def config(self, *, bos: int, eos: int) -> dict[str, object]:
        """`config.json` of this model."""
        return {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float16",
            "hidden_act": "silu", "vocab_size": self.vocab, "hidden_size": self.hidden,
            "intermediate_size": self.intermediate, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim, "max_position_embeddings": self.context, "rope_theta": self.rope_theta,
            "rms_norm_eps": self.norm_eps, "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
            "bos_token_id": bos, "eos_token_id": eos,
        }  # fmt: skip


class Norm(nn.Module):
    """RMSNorm (Zhang and Sennrich 2019), computed in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """`[..., width]` -> the same shape."""
        return functional.rms_norm(x.float(), (x.shape[-1],), self.weight.float(), self.eps).to(x.dtype)


class Attention(nn.Module):
    """Causal attention with grouped keys and values. Padding on the right needs no mask: nothing looks ahead."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        kv_width = size.kv_heads * size.head_dim
        self.q_proj = nn.Linear(size.hidden, size.hidden, bias=False)
        self.k_proj = nn.Linear(size.hidden, kv_width, bias=False)
        self.v_proj = nn.Linear(size.hidden, kv_width, bias=False)
        self.o_proj = nn.Linear(size.hidden, size.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """`[batch, length, hidden]` -> the same shape."""
        batch, length, _ = x.shape
        q, k, v = (
            projection(x).view(batch, length, -1, self.size.head_dim).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return out


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size.hidden, size.intermediate, bias=False)
        self.up_proj = nn.Linear(size.hidden, size.intermediate, bias=False)
        self.down_proj = nn.Linear(size.intermediate, size.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., hidden]` -> the same shape."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, size: Size, dropout: float) -> None:
        super().__init__()
        self.input_layernorm = Norm(size.hidden, size.norm_eps)
        self.self_attn = Attention(size)
        self.post_attention_layernorm = Norm(size.hidden, size.norm_eps)
        self.mlp = Mlp(size)
        self.dropout = dropout

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """`[batch, length, hidden]` -> the same shape."""
        x = x + functional.dropout(self.self_attn(self.input_layernorm(x), cos, sin), self.dropout, self.training)
        return x + functional.dropout(self.mlp(self.post_attention_layernorm(x)), self.dropout, self.training)


class Decoder(nn.Module):
    """Everything below the head; called `model` in the state dict."""

    def __init__(self, size: Size, dropout: float) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(size.vocab, size.hidden)
        self.layers = nn.ModuleList(Layer(size, dropout) for _ in range(size.layers))
        self.norm = Norm(size.hidden, size.norm_eps)
        self.dropout = dropout
        angles = torch.outer(
            torch.arange(size.context).float(),
            size.rope_theta ** (-torch.arange(0, size.head_dim, 2).float() / size.head_dim),
        )
        self.register_buffer("cos", angles.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sin", angles.sin().repeat(1, 2), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """int `[batch, length]` -> `[batch, length, hidden]`, after the last norm."""
        x = functional.dropout(self.embed_tokens(ids), self.dropout, self.training)
        cos, sin = self.get_buffer("cos")[: ids.shape[1]], self.get_buffer("sin")[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, cos, sin)
        out: Tensor = self.norm(x)
        return out


class Guide(nn.Module):
    """The whole model."""

    def __init__(self, size: Size, dropout: float = 0.0) -> None:
        super().__init__()
        self.size = size
        self.model = Decoder(size, dropout)
        self.lm_head = nn.Linear(size.hidden, size.vocab, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # What writes into the residual stream starts smaller, so that its variance does not grow with depth.
                deep = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * size.layers) ** 0.5 if deep else 0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """int `[batch, length]` -> logits `[batch, length, vocab]`."""
        logits: Tensor = self.lm_head(self.model(ids))
        return logits


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions in the half-split layout of Llama; x `[batch, heads, length, head_dim]`."""
    first, second = x.chunk(2, -1)
    return (x * cos + torch.cat((-second, first), -1) * sin).to(x.dtype)


@torch.inference_mode()
def greedy(model: Guide, prompts: list[list[int]], stop: int, longest: int = 160) -> list[list[int]]:
    """The most likely continuation of each prompt, without the stop token. Recomputes everything: only for tests."""
    device = model.lm_head.weight.device
    rows = [list(prompt)[-model.size.context + longest :] for prompt in prompts]
    answers: list[list[int]] = [[] for _ in rows]
    running = list(range(len(rows)))
    for _ in range(longest):
        width = max(len(rows[index]) for index in running)
        batch = torch.tensor([rows[index] + [0] * (width - len(rows[index])) for index in running], device=device)
        last = torch.tensor([len(rows[index]) - 1 for index in running], device=device)
        hidden = model.model(batch)[torch.arange(len(running), device=device), last]
        tokens = model.lm_head(hidden).argmax(-1).tolist()
        for index, token in zip(running, tokens, strict=True):
            if token != stop:
                rows[index].append(token)
                answers[index].append(token)
        running = [index for index, token in zip(running, tokens, strict=True) if token != stop]
        if not running:
            break
    return answers
