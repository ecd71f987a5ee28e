#!/usr/bin/env python3
"""Tiny random models and what transformers makes of them: tests/golden/models.

    python tools/golden_models.py            writes tests/golden/models/<name>/
    python tools/golden_models.py --check    compares what is there with this machine's reference
    python tools/golden_models.py NAME ...   only these

Each directory has config.json, safetensors and cases.json. The reference runs in float32 on the
weights as stored (rounded to the file's dtype, then widened), without a KV cache, and reads the
config.json that is in the directory, so that its meaning is transformers' and not ours. With a
KV cache where it makes a difference: dynamic RoPE and longrope turn a key by how long the context is
when it is made. cases.json:

    {"model": NAME, "max_new_tokens": 24, "cases": [
        {"prompt": [ids], "ids": [24 greedy ids], "logprobs": [of those, natural log],
         "margins": [best logit - second best, at each step]}]}

An implementation that rounds differently may choose another id where the margin is within its
rounding error; from there on the sequences have nothing to do with each other.
Needs torch, transformers and safetensors; docs/models.md has the versions last used.
"""

import argparse
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "models"
NEW_TOKENS = 24
PROMPT_LENGTHS = (1, 7, 33, 300)

BF16, F16, F32 = "bfloat16", "float16", "float32"

# Numbers that do not divide each other well: tails in every loop, groups of 1, 2, 3 and 6 heads.
BASE = dict(
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=3,
    vocab_size=301,
    max_position_embeddings=512,
    rms_norm_eps=1e-6,
    hidden_act="silu",
    tie_word_embeddings=False,
    bos_token_id=None,
    eos_token_id=2,
)
LONGROPE = dict(short_factor=[1.0, 1.1, 1.3, 1.6, 2.0, 2.1, 2.2, 2.5],
                long_factor=[1.2, 2.0, 3.5, 6.0, 9.0, 12.0, 14.0, 16.0])
LENGTHS = {"qwen2-dynamic": (1, 33, 50, 63)} # none beyond the original length
LLAMA3 = dict(factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)


def model(architecture, stored, shards=1, drop=(), **more):
    """A row: config fields over BASE; `drop` leaves fields out of config.json."""
    config = {"architectures": [architecture], "model_type": architecture.removesuffix("ForCausalLM").lower()}
    config |= BASE | more
    for key in drop:
        del config[key]
    return config, stored, shards


MODELS = {
    "qwen3": model("Qwen3ForCausalLM", BF16, head_dim=10, rope_theta=1000000.0, torch_dtype=BF16),
    "qwen3-tied": model(
        "Qwen3ForCausalLM", F32, hidden_size=64, intermediate_size=96, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, tie_word_embeddings=True, vocab_size=256,
        rope_parameters={"rope_theta": 50000.0, "rope_type": "default"}, dtype=F32, eos_token_id=[2, 7],
    ),
    "qwen3-mqa": model("Qwen3ForCausalLM", F16, num_key_value_heads=1, head_dim=16, attention_bias=True,
                       rope_theta=10000.0, torch_dtype=F16),
    "qwen2": model("Qwen2ForCausalLM", F16, hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
                   intermediate_size=112, use_sliding_window=False, sliding_window=8, max_window_layers=0,
                   rope_theta=1000000.0, torch_dtype=F16, tie_word_embeddings=True),
    "qwen2-window": model("Qwen2ForCausalLM", BF16, use_sliding_window=True, sliding_window=24,
                          max_window_layers=0, rope_theta=10000.0, torch_dtype=BF16),
    # Full and sliding attention by layer: from max_window_layers on, or as layer_types says.
    "qwen2-mixed": model("Qwen2ForCausalLM", BF16, num_hidden_layers=3, use_sliding_window=True, sliding_window=24,
                         max_window_layers=1, rope_theta=10000.0, torch_dtype=BF16),
    "qwen3-mixed": model("Qwen3ForCausalLM", F16, num_hidden_layers=4, num_key_value_heads=2, head_dim=16,
                         use_sliding_window=True, sliding_window=140, max_window_layers=4, dtype=F16,
                         rope_parameters={"rope_theta": 50000.0, "rope_type": "default"},
                         layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"]),
    "llama2-mha": model("LlamaForCausalLM", F32, num_attention_heads=3, drop=["num_key_value_heads"],
                        rope_theta=10000.0, rope_scaling=None, torch_dtype=F32, rms_norm_eps=1e-5),
    "llama3-rope-scaling": model("LlamaForCausalLM", BF16, rope_theta=500000.0, torch_dtype=BF16,
                                 rope_scaling=dict(LLAMA3, rope_type="llama3")),
    "llama3-rope-parameters": model("LlamaForCausalLM", F16, dtype=F16, head_dim=14, num_attention_heads=4,
                                    num_key_value_heads=4,
                                    rope_parameters=dict(LLAMA3, rope_theta=500000.0, rope_type="llama3")),
    "llama-linear": model("LlamaForCausalLM", BF16, rope_scaling={"type": "linear", "factor": 2.5},
                          attention_bias=True, mlp_bias=True, torch_dtype=BF16, max_position_embeddings=64),
    "mistral-window": model("MistralForCausalLM", BF16, shards=3, hidden_size=96, intermediate_size=128,
                            head_dim=None, sliding_window=16, rope_theta=10000.0, torch_dtype=BF16),
    "mistral": model("MistralForCausalLM", F32, num_key_value_heads=2, head_dim=8, sliding_window=None,
                     rope_theta=1000000.0, torch_dtype=F32, intermediate_size=50, hidden_size=50,
                     vocab_size=519),
    "llama-yarn": model("LlamaForCausalLM", F32, head_dim=16, rope_theta=10000.0, torch_dtype=F32,
                        rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
    "qwen3-yarn": model("Qwen3ForCausalLM", F16, head_dim=32, dtype=F16, rope_parameters={
        "rope_type": "yarn", "rope_theta": 1000000.0, "factor": None, "original_max_position_embeddings": 128,
        "beta_fast": 16, "beta_slow": 2, "mscale": 0.8, "mscale_all_dim": 0.5, "truncate": False}),
    "mistral-yarn": model("MistralForCausalLM", BF16, head_dim=24, sliding_window=None, torch_dtype=BF16,
                          rope_theta=20000.0, max_position_embeddings=48, rope_scaling={
                              "rope_type": "yarn", "factor": 8.0, "attention_factor": 1.5}),
    "qwen2-dynamic": model("Qwen2ForCausalLM", F32, max_position_embeddings=64, rope_theta=10000.0, torch_dtype=F32,
                           rope_scaling={"type": "dynamic", "factor": 4.0}),
    "llama-longrope": model("LlamaForCausalLM", F32, head_dim=16, torch_dtype=F32, rope_theta=10000.0,
                            original_max_position_embeddings=28, rope_scaling=dict(LONGROPE, type="longrope")),
    "mistral-longrope": model("MistralForCausalLM", F16, head_dim=16, sliding_window=None, dtype=F16,
                              max_position_embeddings=512, rope_parameters=dict(
                                  LONGROPE, rope_type="longrope", rope_theta=10000.0, attention_factor=1.25,
                                  original_max_position_embeddings=50)),
}


def randomize(network, generator):
    """Weights large enough that neither attention nor logits are flat."""
    with torch.no_grad():
        for name, p in network.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if p.dim() == 1:
                p.copy_(noise * 0.3 if name.endswith("bias") else 1 + noise * 0.2)
            else:
                gain = 0.35 if "embed" in name or "lm_head" in name else 1.3 / p.shape[1] ** 0.5
                p.copy_(noise * gain)


def save(network, folder, dtype, shards, tied):
    state = {k: v.to(getattr(torch, dtype)).contiguous() for k, v in network.state_dict().items()}
    if tied:
        state.pop("lm_head.weight", None)
    for old in folder.glob("*.safetensors*"):
        old.unlink()
    if shards == 1:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(state)
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {n: state[n] for n in names[i::shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= {n: file for n in part}
    total = sum(t.numel() * t.element_size() for t in state.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def greedy(network, prompt):
    """The greedy continuation, its log-probabilities and margins, one full forward pass a token."""
    ids, out, logprobs, margins = list(prompt), [], [], []
    with torch.no_grad():
        for _ in range(NEW_TOKENS):
            logits = network(torch.tensor([ids]), use_cache=False).logits[0, -1].double()
            best, second = torch.topk(logits, 2).values.tolist()
            token = int(logits.argmax())
            logprobs.append(round(float(torch.log_softmax(logits, -1)[token]), 6))
            margins.append(round(best - second, 6))
            out.append(token)
            ids.append(token)
    return {"prompt": list(prompt), "ids": out, "logprobs": logprobs, "margins": margins}


def cached(network, prompt):
    """The same with a KV cache: the prompt at once, then token by token."""
    new, cache, out, logprobs, margins = list(prompt), None, [], [], []
    with torch.no_grad():
        for _ in range(NEW_TOKENS):
            result = network(torch.tensor([new]), past_key_values=cache, use_cache=True)
            logits, cache = result.logits[0, -1].double(), result.past_key_values
            best, second = torch.topk(logits, 2).values.tolist()
            new = [int(logits.argmax())]
            logprobs.append(round(float(torch.log_softmax(logits, -1)[new[0]]), 6))
            margins.append(round(best - second, 6))
            out += new
    return {"prompt": list(prompt), "ids": out, "logprobs": logprobs, "margins": margins}


def make_cases(name, folder):
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    config = network.config
    generator = torch.Generator().manual_seed(7)
    cases = []
    changes = config.rope_parameters["rope_type"] in ("dynamic", "longrope")
    stretched = config.max_position_embeddings * (config.rope_parameters.get("factor") or 1)
    for n in LENGTHS.get(name, PROMPT_LENGTHS):
        if n + NEW_TOKENS <= (stretched if name.endswith(("-yarn", "-dynamic")) else config.max_position_embeddings):
            prompt = torch.randint(0, config.vocab_size, (n,), generator=generator).tolist()
            cases.append((cached if changes else greedy)(network, prompt))
    return {"model": name, "max_new_tokens": NEW_TOKENS, "cases": cases}


def make(name):
    config, dtype, shards = MODELS[name]
    folder = ROOT / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    network = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    seed = sum(ord(c) * (i + 1) for i, c in enumerate(name))
    randomize(network, torch.Generator().manual_seed(seed))
    save(network, folder, dtype, shards, config["tie_word_embeddings"])
    cases = make_cases(name, folder)
    lines = ",\n".join("  " + json.dumps(c, separators=(",", ":")) for c in cases["cases"])
    text = f'{{"model": "{name}", "max_new_tokens": {NEW_TOKENS}, "cases": [\n{lines}\n]}}\n'
    (folder / "cases.json").write_text(text)
    distinct = {t for c in cases["cases"] for t in c["ids"]}
    margins = [m for c in cases["cases"] for m in c["margins"]]
    print(f"{name}: {len(cases['cases'])} cases, {len(distinct)} distinct ids, least margin {min(margins):.4f}")


def check(name):
    folder = ROOT / name
    have, want = json.loads((folder / "cases.json").read_text()), make_cases(name, folder)
    worst = 0.0
    for a, b in zip(have["cases"], want["cases"], strict=True):
        if a["ids"] != b["ids"] or a["prompt"] != b["prompt"]:
            print(f"{name}: prompt of {len(a['prompt'])}: other ids")
            return False
        worst = max([worst] + [abs(x - y) for x, y in zip(a["logprobs"], b["logprobs"])])
    print(f"{name}: same ids, log-probabilities within {worst:.6f}")
    return worst < 1e-4


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="default: all")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = [check(n) if args.check else make(n) for n in args.names or MODELS]
    sys.exit(1 if False in results else 0)


if __name__ == "__main__":
    main()
