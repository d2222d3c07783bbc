"""llama.cpp's own server, in a process of its own, with the bundled guide's weights written as GGUF."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import gguf
import numpy as np
from safetensors.torch import load_file

from exlchat.engine.formats.exl2 import dequantize
from exlchat.paths import bundled_model
from tests.patience import PATIENCE

SERVED = 1536
"""Tokens of its context."""
_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write_guide(file: Path) -> Path:
    """The guide as GGUF, by the writer of llama.cpp's authors."""
    folder = bundled_model()
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name("guide")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    _vocabulary(writer, folder, config)
    _weights(writer, folder, config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _vocabulary(writer: gguf.GGUFWriter, folder: Path, config: dict[str, int]) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    special = {one["id"] for one in tokenizer["added_tokens"]}
    texts = {id_: text for text, id_ in tokenizer["model"]["vocab"].items()}
    texts |= {one["id"]: one["content"] for one in tokenizer["added_tokens"]}
    many = config["vocab_size"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([texts.get(id_, f"[unused{id_}]") for id_ in range(many)])
    kinds = (gguf.TokenType.CONTROL, gguf.TokenType.NORMAL, gguf.TokenType.UNUSED)
    writer.add_token_types([kinds[0] if id_ in special else kinds[1 if id_ in texts else 2] for id_ in range(many)])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(json.loads((folder / "tokenizer_config.json").read_text())["chat_template"])


def _weights(writer: gguf.GGUFWriter, folder: Path, config: dict[str, int]) -> None:
    tensors = load_file(folder / "output.safetensors")

    def matrix(name: str) -> np.ndarray:
        if f"{name}.weight" in tensors:
            return tensors[f"{name}.weight"].numpy()
        parts = {key.removeprefix(f"{name}."): one for key, one in tensors.items() if key.startswith(f"{name}.")}
        return dequantize(parts).T.contiguous().numpy()

    def add(name: str, values: np.ndarray) -> None:
        writer.add_tensor(f"{name}.weight", values.astype(np.float16 if values.ndim == 2 else np.float32))

    add("token_embd", matrix("model.embed_tokens"))
    add("output_norm", matrix("model.norm"))
    add("output", matrix("lm_head"))
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for layer in range(config["num_hidden_layers"]):
        for theirs, ours in _NAMES.items():
            values = matrix(f"model.layers.{layer}.{theirs}")
            if ours in heads:
                # Its rope turns neighbours, where ours turns halves.
                halves = values.reshape(heads[ours], 2, -1, values.shape[1])
                values = halves.swapaxes(1, 2).reshape(values.shape)
            add(f"blk.{layer}.{ours}", values)


_SERVE = """
import sys, threading
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port, params.n_ctx = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
params.hostnames, params.n_parallel = ["127.0.0.1"], 4
params.kv_unified = params.endpoint_props = params.endpoint_slots = True
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
server = xllamacpp.Server(params)
print("listening at", server.listening_address, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def llama_server(model: Path, port: int = 0) -> Iterator[str]:
    """Its address, while it runs."""
    port = port or free_port()
    with subprocess.Popen(
        [sys.executable, "-c", _SERVE, str(model), str(port), str(SERVED)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            _wait(process, port)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        assert process.poll() is None, "llama.cpp's server has ended"
        connection = HTTPConnection("127.0.0.1", port, timeout=2)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except (OSError, HTTPException):
            time.sleep(0.05)
        finally:
            connection.close()
    raise AssertionError("llama.cpp's server does not listen")
