#!/usr/bin/env python3
"""Full-size shapes against transformers: is quern as near to the truth as a bf16 run can be?

    tests/gpu/reference.py --build build --models qwen3-0.6b,qwen3-8b --contexts 1,64,1000 --batches 1,3
    tests/gpu/reference.py --build build --models llama-3.1-8b --contexts 1000,8000 --batches 1,16
                                                                           a shape of tests/gpu/shapes
    tests/gpu/reference.py --build build --models qwen3-30b-a3b-of-4,deepseek-v2-lite-of-4
                                                                           experts: four layers of such a model

quern runs with its made-up weights (`--load-format dummy`), greedy; transformers gets the very same
weights (the formula of src/model/weights.c) and is fed quern's prompts and tokens. Compared are the
log-probabilities of the chosen tokens, teacher-forced: quern's and transformers' own bf16 run's, both
against transformers in float32. quern passes where its error is at most 1.5 times that of the bf16 run
(or below 1e-3). Where there are experts, `other sets` is how often a run chose other experts for a compared token in a
layer than float32 did: of transformers' bf16 run it is what rounding alone does, and quern's is at most 1.5 times
that, too (or below 2 %). A case that quern does not finish counts as failed and the rest goes on.

Needs torch, transformers and a GPU; results go to OUT (or bench/results), anew after every model. Memory:
transformers takes the float32 weights (32 GB for 8B) and, one request at a time, some 17 GB for the
scores of 8,000 positions; quern is done by then, its own weights and KV cache (20 GB for 16 requests
of 8,000 on Qwen3-8B) are gone. A context beyond the model's positions is left out.
"""
import argparse
import datetime
import json
import os
import pathlib
import random
import subprocess
import sys
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from golden_models import experts_chosen  # noqa: E402

MASK = (1 << 64) - 1
DEVICE = "cuda"
TOKENS_PER_SECOND = 500  # that quern surely reaches, prompts included: for time limits


def signed(x):
    x &= MASK
    return x - (1 << 64) if x >> 63 else x


def hash_name(name, seed=0):
    """FNV-1a as in src/base/map.c, with its last shift."""
    h = 0xcbf29ce484222325 ^ seed
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001b3) & MASK
    return h ^ (h >> 29)


def shift(x, n):
    return (x >> n) & ((1 << (64 - n)) - 1)  # logical, on signed 64-bit numbers


def fill(name, p, first_row=0):
    """The made-up values of one weight, rounded to bf16, into the float32 parameter p. first_row: of the tensor, where the
    weight is made of some of its rows."""
    if p.dim() == 1:
        p.fill_(0.0 if name.endswith(".bias") else 1.0)
        return
    flat, seed, chunk = p.view(-1), hash_name(name, first_row), 1 << 26
    for first in range(0, flat.numel(), chunk):
        n = min(chunk, flat.numel() - first)
        e = torch.arange(first, first + n, device=DEVICE, dtype=torch.int64)
        x = (e // 4) * signed(0x9e3779b97f4a7c15) + signed(seed)
        x = (x ^ shift(x, 30)) * signed(0xbf58476d1ce4e5b9)
        x = (x ^ shift(x, 27)) * signed(0x94d049bb133111eb)
        x = x ^ shift(x, 31)
        level = ((x >> (16 * (e % 4))) & 4095).double()
        value = 0.02 * 1.7320508075688772 * ((level + 0.5) / 2048 - 1)
        flat[first:first + n] = value.float().bfloat16().float()


def config_of(model):
    """The folder of a model's config.json, below ROOT: the measured ones, or other shapes."""
    for folder in ("tests/gpu/configs", "tests/gpu/shapes"):
        if (ROOT / folder / model / "config.json").exists():
            return f"{folder}/{model}"
    sys.exit(f"{model}: neither in tests/gpu/configs nor in tests/gpu/shapes")


def has_experts(model):
    config = json.loads((ROOT / config_of(model) / "config.json").read_text(encoding="utf-8"))
    return any(config.get(key) for key in ("num_experts", "num_local_experts", "n_routed_experts"))


def run_quern(options, model, prompts):
    """quern's continuations of all prompts in one batch, or what went wrong."""
    lines = "".join(json.dumps({"prompt_ids": p}) + "\n" for p in prompts)
    longest = max(map(len, prompts)) + options.steps
    command = [str(pathlib.Path(options.build) / "quern"), "generate", "--model", config_of(model),
               "--load-format", "dummy", "--backend", "cuda", "--prompts-file", "-", "--max-tokens",
               str(options.steps), "--temperature", "0", "--ignore-eos", "--format", "json", "--max-num-seqs",
               str(len(prompts)), "--max-model-len", str((longest + 127) // 128 * 128),
               *(["--enable-return-routed-experts"] if has_experts(model) else [])]
    limit = 120 + len(prompts) * longest / TOKENS_PER_SECOND
    try:
        p = subprocess.run(command, cwd=ROOT, input=lines, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return f"quern: no end within {limit:.0f} s"
    if p.returncode != 0:
        return f"quern: exit status {p.returncode}: {p.stderr.strip()[-500:]}"
    return [json.loads(line) for line in p.stdout.splitlines()]


def log_probabilities(model, outs):
    """Of every request's chosen tokens: one tensor for all requests."""
    result = []
    for o in outs:
        ids = torch.tensor([o["prompt_ids"] + o["ids"]], device=DEVICE)
        n = len(o["ids"])
        with torch.no_grad():
            logits = model(ids[:, :-1], logits_to_keep=n, use_cache=False).logits[0].float()
        result.append(logits.log_softmax(-1).gather(1, ids[0, -n:, None])[:, 0].double().cpu())
    return torch.cat(result)


def run_transformers(model, outs):
    """Log-probabilities of every request's chosen tokens, and the experts of these tokens in every sparse layer."""
    with experts_chosen(model) as chosen:
        result = log_probabilities(model, outs)
    n = [len(o["ids"]) for o in outs for _ in range(len(chosen) // len(outs))]
    return result, [experts[-k:] for experts, k in zip(chosen, n)]


def experts_of_quern(outs):
    """As run_transformers has them. quern's layers without experts have empty lists."""
    found = []
    for o in outs:
        positions = o["routed_experts"][-len(o["ids"]):]
        found += [torch.tensor([p[layer] for p in positions]) for layer, ids in enumerate(positions[0]) if ids]
    return found


def share_of_other_sets(truth, chosen):
    """Of a compared token's sets of experts in the layers, those that are not the truth's."""
    assert len(truth) == len(chosen)
    return torch.cat([(a != b).any(-1) for a, b in zip(truth, chosen)]).double().mean().item()


class Case:
    """A batch of prompts of one length, what came of it, and the seconds that each of the three took."""

    def __init__(self, name, context, batch, vocab):
        rng = random.Random(f"{name} {context} {batch}")
        self.name, self.context, self.batch = name, context, batch
        self.prompts = [[rng.randrange(vocab) for _ in range(context)] for _ in range(batch)]
        self.outs, self.wrong = [], None
        self.truth = self.bf16 = None
        self.truth_experts = self.bf16_experts = []
        self.seconds = {}

    def timed(self, what, function, *arguments):
        start = time.monotonic()
        result = function(*arguments)
        self.seconds[what] = round(time.monotonic() - start, 1)
        return result

    def run_quern(self, options):
        outs = self.timed("quern", run_quern, options, self.name, self.prompts)
        if isinstance(outs, str):
            self.wrong = outs
        else:
            self.outs = outs

    def row(self):
        """The record's row; prints it as a line."""
        head = {"context": self.context, "batch": self.batch}
        label = f"{self.name:21} context {self.context:5} batch {self.batch:3}"
        took = "  ".join(f"{what} {s} s" for what, s in self.seconds.items())
        if self.wrong:
            print(f"{label}  FAILED  {self.wrong}  ({took})", flush=True)
            return head | {"ok": False, "wrong": self.wrong, "seconds": self.seconds}
        ours = torch.cat([torch.tensor(o["logprobs"], dtype=torch.float64) for o in self.outs])
        mine, theirs = (ours - self.truth).abs(), (self.bf16 - self.truth).abs()
        ok = bool(mine.mean() <= max(1.5 * theirs.mean(), 1e-3)) and not bool(mine.isnan().any())
        row = head | {"quern_mean": mine.mean().item(), "quern_max": mine.max().item(),
                      "bf16_mean": theirs.mean().item(), "bf16_max": theirs.max().item(), "ok": ok,
                      "seconds": self.seconds}
        others = ""
        if self.truth_experts:
            row["quern_other_sets"] = share_of_other_sets(self.truth_experts, experts_of_quern(self.outs))
            row["bf16_other_sets"] = share_of_other_sets(self.truth_experts, self.bf16_experts)
            row["ok"] &= row["quern_other_sets"] <= max(1.5 * row["bf16_other_sets"], 0.02)
            others = f"  other sets {row['quern_other_sets']:.2%}, bf16 {row['bf16_other_sets']:.2%}"
        print(f"{label}  quern {row['quern_mean']:.5f} (max {row['quern_max']:.5f})  transformers bf16 "
              f"{row['bf16_mean']:.5f} (max {row['bf16_max']:.5f}){others}  {'ok' if row['ok'] else 'FAILED'}  ({took})",
              flush=True)
        return row


def fill_experts(key, p, mixtral):
    """A layer's experts, which transformers keeps in two tensors and checkpoints in three for each expert."""
    block, _, part = key.rpartition(".experts.")
    block = block.removesuffix("mlp") + "block_sparse_moe" if mixtral else block
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    for i, expert in enumerate(p):
        halves = {gate: expert.chunk(2)[0], up: expert.chunk(2)[1]} if part == "gate_up_proj" else {down: expert}
        for name, half in halves.items():
            fill(f"{block}.experts.{i}.{name}.weight", half)


def pairs_first(rows, run, pairs):
    """Rows of the tensor in the order in which a weight has them (src/graph/weight_source.h): of each run the last `pairs`
    rows, even ones first."""
    i = torch.arange(rows, device=DEVICE)
    at = i % run - (run - pairs)
    turned = torch.where(at < pairs // 2, 2 * at, 2 * at - pairs + 1)
    return i - i % run + torch.where(at < 0, i % run, run - pairs + turned)


def fill_latent(key, p, config):
    """Latent attention: weights are made of a tensor's rows in another order (src/model/decoder.c), and their values are
    made up in the weights' order."""
    keys, rope, rank = config.qk_nope_head_dim, config.qk_rope_head_dim, config.kv_lora_rank
    heads, values = config.num_attention_heads, config.v_head_dim
    if key.endswith("kv_b_proj.weight"):
        of_keys = torch.empty(heads, rank, keys, device=DEVICE)
        of_values = torch.empty(heads, values, rank, device=DEVICE)
        fill(key, of_keys)
        fill(key, of_values, keys)
        p.copy_(torch.cat([of_keys.transpose(1, 2), of_values], 1).reshape(p.shape))
        return
    made = torch.empty_like(p)
    fill(key, made)
    p[pairs_first(p.shape[0], rank + rope if "kv_a_proj" in key else keys + rope, rope)] = made


def is_latent(key):
    return key.endswith(tuple(f"{name}.weight" for name in ("self_attn.q_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")))


def load_model(name):
    """transformers' model in float32 with quern's made-up weights."""
    config = AutoConfig.from_pretrained(ROOT / config_of(name))
    mixtral = config.model_type == "mixtral"
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, experts_implementation="eager").eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            if ".experts." in key:
                fill_experts(key, p, mixtral)
            elif hasattr(config, "kv_lora_rank") and is_latent(key):
                fill_latent(key, p, config)
            else:
                fill(key.replace(".mlp.gate.", ".block_sparse_moe.gate.") if mixtral else key, p)
    return model


def cases_of(options, name):
    config = json.loads((ROOT / config_of(name) / "config.json").read_text(encoding="utf-8"))
    positions = config["max_position_embeddings"]
    for context in options.contexts:
        if context + options.steps > positions:
            print(f"{name:21} context {context:5} left out: the model has {positions} positions", flush=True)
            continue
        for batch in options.batches:
            yield Case(name, context, batch, config["vocab_size"])


def check(options, name):
    """The record's rows of a model. First all of quern, which has the card to itself then."""
    cases = list(cases_of(options, name))
    for case in cases:
        case.run_quern(options)
    done = [case for case in cases if not case.wrong]
    if done:
        model = load_model(name)
        for case in done:
            case.truth, case.truth_experts = case.timed("float32", run_transformers, model, case.outs)
        model.to(torch.bfloat16)
        for case in done:
            case.bf16, case.bf16_experts = case.timed("bf16", run_transformers, model, case.outs)
        del model
        torch.cuda.empty_cache()
    return [case.row() for case in cases]


def write(record):
    folder = pathlib.Path(os.environ.get("OUT") or ROOT / "bench" / "results")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "reference.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def numbers(text):
    return [int(x) for x in text.split(",")]


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--build", default="build")
    a.add_argument("--models", default="qwen3-0.6b")
    a.add_argument("--contexts", default="1,64,1000", type=numbers, help="tokens of a prompt")
    a.add_argument("--batches", default="1,3", type=numbers, help="requests at a time")
    a.add_argument("--steps", type=int, default=64, help="tokens to choose and compare")
    options = a.parse_args()
    torch.set_default_dtype(torch.float32)
    torch.backends.cuda.matmul.allow_tf32 = False
    record = {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
              "device": torch.cuda.get_device_name(), "steps": options.steps, "models": {}}
    for name in options.models.split(","):
        record["models"][name] = check(options, name)
        write(record)
    rows = [row for rows in record["models"].values() for row in rows]
    failed = sum(not row["ok"] for row in rows)
    print(f"{len(rows) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
