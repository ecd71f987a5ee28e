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
         "margins": [best logit - second best, at each step],
         "experts": [of prompt and ids but the last one: of each layer with experts the ids, ascending]}]}

An implementation that rounds differently may choose another id where the margin is within its
rounding error; from there on the sequences have nothing to do with each other.
Needs torch, transformers and safetensors; docs/models.md has the versions last used.
"""

import argparse
import contextlib
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
# Latent attention; dense layers only, unless a row says otherwise.
LATENT = dict(num_attention_heads=3, num_key_value_heads=3, kv_lora_rank=40, q_lora_rank=None, qk_nope_head_dim=16,
              qk_rope_head_dim=8, v_head_dim=20, first_k_dense_replace=2, rope_theta=10000.0)
LONGROPE = dict(short_factor=[1.0, 1.1, 1.3, 1.6, 2.0, 2.1, 2.2, 2.5],
                long_factor=[1.2, 2.0, 3.5, 6.0, 9.0, 12.0, 14.0, 16.0])
LENGTHS = {"qwen2-dynamic": (1, 33, 50, 63)} # none beyond the original length
LLAMA3 = dict(factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)


def model(architecture, stored, shards=1, drop=(), **more):
    """A row: config fields over BASE; `drop` leaves fields out of config.json."""
    config = {"architectures": [architecture], "model_type": architecture.removesuffix("ForCausalLM").lower()}
    config |= BASE | more
    for key in drop:
        config.pop(key, None)
    return config, stored, shards


YARN_LATENT = {"type": "yarn", "factor": 40.0, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707,
               "mscale_all_dim": 0.707}


def deepseek(stored, **more):
    return model("DeepseekV2ForCausalLM", stored, model_type="deepseek_v2", **(LATENT | more))


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
    "mistral-mixed": model("MistralForCausalLM", BF16, num_hidden_layers=3, head_dim=8, sliding_window=40, rope_theta=10000.0,
                           torch_dtype=BF16, layer_types=["sliding_attention", "sliding_attention", "full_attention"]),
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
    "deepseek-v2-lite": deepseek(BF16, rms_norm_eps=1e-3, torch_dtype=BF16, num_hidden_layers=3,
                                 first_k_dense_replace=1, n_routed_experts=9, num_experts_per_tok=3,
                                 moe_intermediate_size=24, n_shared_experts=2, topk_method="greedy", n_group=1,
                                 topk_group=1, norm_topk_prob=False, routed_scaling_factor=1.0),
    "deepseek-v2-yarn": deepseek(F32, q_lora_rank=24, attention_bias=True, mlp_bias=True, torch_dtype=F32,
                            num_attention_heads=4, num_key_value_heads=4, rms_norm_eps=1e-5,
                            max_position_embeddings=64, rope_scaling=dict(
                                YARN_LATENT, original_max_position_embeddings=16)),
    "deepseek-v2-f16": deepseek(F16, q_lora_rank=30, kv_lora_rank=34, qk_nope_head_dim=10, v_head_dim=13, dtype=F16,
                                max_position_embeddings=1024, rope_parameters=dict(
                                    YARN_LATENT, rope_theta=10000.0, mscale=1.0, mscale_all_dim=0.5,
                                    original_max_position_embeddings=24),
                                first_k_dense_replace=0, n_routed_experts=12, num_experts_per_tok=4,
                                moe_intermediate_size=33, n_shared_experts=1, topk_method="group_limited_greedy",
                                n_group=4, topk_group=2, routed_scaling_factor=2.5),
    # Dense, queries from the stream; whole lines of the cache, 18 heads: more than a product has rows.
    "deepseek-v2-dense": deepseek(BF16, torch_dtype=BF16, num_hidden_layers=1, hidden_size=72, num_attention_heads=18,
                                  num_key_value_heads=18, kv_lora_rank=112, qk_nope_head_dim=24, qk_rope_head_dim=16,
                                  v_head_dim=16),
    "qwen3-moe": model("Qwen3MoeForCausalLM", BF16, model_type="qwen3_moe", head_dim=10, rope_theta=10000.0,
                       torch_dtype=BF16, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=40,
                       norm_topk_prob=True),
    "qwen3-moe-sparse": model("Qwen3MoeForCausalLM", F32, model_type="qwen3_moe", head_dim=16, dtype=F32,
                              num_hidden_layers=5, num_local_experts=7, num_experts_per_tok=1, drop=["torch_dtype"],
                              moe_intermediate_size=33, norm_topk_prob=False, decoder_sparse_step=2,
                              mlp_only_layers=[3], rope_parameters={"rope_theta": 50000.0, "rope_type": "default"}),
    "qwen3-moe-all": model("Qwen3MoeForCausalLM", F16, model_type="qwen3_moe", num_key_value_heads=2, head_dim=8,
                           hidden_size=50, vocab_size=259, rope_theta=10000.0, torch_dtype=F16, num_experts=5,
                           num_experts_per_tok=5, moe_intermediate_size=88, shards=3),
    "qwen2-moe": model("Qwen2MoeForCausalLM", F32, model_type="qwen2_moe", hidden_size=64, num_attention_heads=4,
                       num_key_value_heads=4, rope_theta=1000000.0, torch_dtype=F32, num_experts=10,
                       num_experts_per_tok=4, moe_intermediate_size=24, shared_expert_intermediate_size=56,
                       use_sliding_window=False, sliding_window=8, max_window_layers=0, norm_topk_prob=False),
    "qwen2-moe-normed": model("Qwen2MoeForCausalLM", F32, model_type="qwen2_moe", qkv_bias=False, rope_theta=10000.0,
                              torch_dtype=F32, num_experts=17, num_experts_per_tok=2, moe_intermediate_size=17,
                              shared_expert_intermediate_size=90, norm_topk_prob=True, decoder_sparse_step=1,
                              mlp_only_layers=[0], use_sliding_window=True, sliding_window=24, max_window_layers=2,
                              num_hidden_layers=3),
    "mixtral": model("MixtralForCausalLM", BF16, num_key_value_heads=2, sliding_window=None, head_dim=None,
                     rope_theta=1000000.0, torch_dtype=BF16, num_local_experts=4, num_experts_per_tok=2,
                     rms_norm_eps=1e-5),
    "mixtral-window": model("MixtralForCausalLM", F32, sliding_window=20, rope_theta=10000.0, torch_dtype=F32,
                            num_local_experts=6, num_experts_per_tok=6, intermediate_size=45),
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


def by_expert(network):
    """The weights as checkpoints have them: transformers keeps a layer's experts in two tensors."""
    state = {}
    mixtral = network.config.model_type == "mixtral"
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    for name, value in network.state_dict().items():
        layer, _, part = name.partition(".mlp.experts.")
        block = f"{layer}.block_sparse_moe" if mixtral else f"{layer}.mlp"
        if part == "":
            state[name.replace(".mlp.", ".block_sparse_moe.") if mixtral else name] = value
        for i, expert in enumerate(value if part else ()):
            halves = {gate: expert.chunk(2)[0], up: expert.chunk(2)[1]} if part == "gate_up_proj" else {down: expert}
            state |= {f"{block}.experts.{i}.{k}.weight": v for k, v in halves.items()}
    return state


def save(network, folder, dtype, shards, tied):
    state = {k: v.to(getattr(torch, dtype)).contiguous() for k, v in by_expert(network).items()}
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


@contextlib.contextmanager
def experts_chosen(network):
    """The experts of every call of every layer that has some, ascending, while the block runs."""
    chosen = []
    hooks = [m.register_forward_pre_hook(lambda m, given: chosen.append(given[1].sort(-1).values.cpu()))
             for name, m in network.named_modules() if name.endswith(".experts")]
    yield chosen
    for hook in hooks:
        hook.remove()


def greedy(network, prompt):
    """The greedy continuation, its log-probabilities and margins, one full forward pass a token; the experts of the last
    one, if there are any."""
    ids, out, logprobs, margins = list(prompt), [], [], []
    with torch.no_grad(), experts_chosen(network) as chosen:
        for _ in range(NEW_TOKENS):
            chosen.clear()
            logits = network(torch.tensor([ids]), use_cache=False).logits[0, -1].double()
            best, second = torch.topk(logits, 2).values.tolist()
            token = int(logits.argmax())
            logprobs.append(round(float(torch.log_softmax(logits, -1)[token]), 6))
            margins.append(round(best - second, 6))
            out.append(token)
            ids.append(token)
    case = {"prompt": list(prompt), "ids": out, "logprobs": logprobs, "margins": margins}
    return case | ({"experts": torch.stack(chosen, 1).tolist()} if chosen else {})


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
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                   experts_implementation="eager").eval()
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
        if a.get("experts") != b.get("experts"):
            print(f"{name}: prompt of {len(a['prompt'])}: other experts")
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
