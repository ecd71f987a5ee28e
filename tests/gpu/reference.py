#!/usr/bin/env python3
"""Full-size shapes against transformers: is quern as near to the truth as a bf16 run can be?

    tests/gpu/reference.py --build build --models qwen3-0.6b,qwen3-8b --contexts 1,64,1000 --batch 3
    tests/gpu/reference.py --build build --models qwen3-4b,tinyllama-1.1b      shapes of tests/gpu/shapes

quern runs with its made-up weights (`--load-format dummy`), greedy; transformers gets the very same
weights (the formula of src/model/weights.c) and is fed quern's prompts and tokens. Compared are the
log-probabilities of the chosen tokens, teacher-forced: quern's and transformers' own bf16 run's, both
against transformers in float32. quern passes where its error is at most 1.5 times that of the bf16 run
(or below 1e-3). Needs torch, transformers and a GPU; results go to OUT (or bench/results).
"""
import argparse
import datetime
import json
import os
import pathlib
import random
import subprocess
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MASK = (1 << 64) - 1
DEVICE = "cuda"


def signed(x):
    x &= MASK
    return x - (1 << 64) if x >> 63 else x


def hash_name(name):
    """FNV-1a as in src/base/map.c, with its last shift."""
    h = 0xcbf29ce484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001b3) & MASK
    return h ^ (h >> 29)


def shift(x, n):
    return (x >> n) & ((1 << (64 - n)) - 1)  # logical, on signed 64-bit numbers


def fill(name, p):
    """The made-up values of one weight, rounded to bf16, into the float32 parameter p."""
    if p.dim() == 1:
        p.fill_(0.0 if name.endswith(".bias") else 1.0)
        return
    flat, seed, chunk = p.view(-1), hash_name(name), 1 << 26
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


def run_quern(options, model, prompts):
    lines = "".join(json.dumps({"prompt_ids": p}) + "\n" for p in prompts)
    longest = max(map(len, prompts)) + options.steps
    command = [str(pathlib.Path(options.build) / "quern"), "generate", "--model", config_of(model),
               "--load-format", "dummy", "--backend", "cuda", "--prompts-file", "-", "--max-tokens",
               str(options.steps), "--temperature", "0", "--ignore-eos", "--format", "json", "--max-num-seqs",
               str(max(len(prompts), 1)), "--max-model-len", str((longest + 127) // 128 * 128)]
    p = subprocess.run(command, cwd=ROOT, input=lines, capture_output=True, text=True, timeout=120)
    if p.returncode != 0:
        sys.exit(f"{model}: {p.stderr.strip()}")
    return [json.loads(line) for line in p.stdout.splitlines()]


def log_probabilities(model, outs):
    """Of every request's chosen tokens: one list of tensors."""
    result = []
    for o in outs:
        ids = torch.tensor([o["prompt_ids"] + o["ids"]], device=DEVICE)
        n = len(o["ids"])
        with torch.no_grad():
            logits = model(ids[:, :-1], logits_to_keep=n).logits[0].float()
        result.append(logits.log_softmax(-1).gather(1, ids[0, -n:, None])[:, 0].double().cpu())
    return result


def check(options, name, record):
    cases = []
    for context in options.contexts:
        for n in (1, options.batch):
            rng = random.Random(f"{name} {context} {n}")
            config = json.loads((ROOT / config_of(name) / "config.json").read_text(encoding="utf-8"))
            prompts = [[rng.randrange(config["vocab_size"]) for _ in range(context)] for _ in range(n)]
            cases.append((context, n, run_quern(options, name, prompts)))
    config = AutoConfig.from_pretrained(ROOT / config_of(name))
    with torch.device(DEVICE):
        torch.set_default_dtype(torch.float32)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            fill(key, p)
    torch.backends.cuda.matmul.allow_tf32 = False
    exact = [log_probabilities(model, outs) for _, _, outs in cases]
    model.to(torch.bfloat16)
    rounded = [log_probabilities(model, outs) for _, _, outs in cases]
    failed = 0
    for (context, n, outs), truth, bf16 in zip(cases, exact, rounded):
        ours = torch.cat([torch.tensor(o["logprobs"], dtype=torch.float64) for o in outs])
        truth, bf16 = torch.cat(truth), torch.cat(bf16)
        mine, theirs = (ours - truth).abs(), (bf16 - truth).abs()
        ok = bool(mine.mean() <= max(1.5 * theirs.mean(), 1e-3)) and not bool(mine.isnan().any())
        failed += not ok
        row = {"context": context, "batch": n, "quern_mean": mine.mean().item(), "quern_max": mine.max().item(),
               "bf16_mean": theirs.mean().item(), "bf16_max": theirs.max().item(), "ok": ok}
        record["models"].setdefault(name, []).append(row)
        print(f"{name:14} context {context:5} batch {n:3}  quern {row['quern_mean']:.5f} (max {row['quern_max']:.5f})"
              f"  transformers bf16 {row['bf16_mean']:.5f} (max {row['bf16_max']:.5f})  {'ok' if ok else 'FAILED'}",
              flush=True)
    del model
    torch.cuda.empty_cache()
    return failed


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--build", default="build")
    a.add_argument("--models", default="qwen3-0.6b")
    a.add_argument("--contexts", default="1,64,1000", type=lambda t: [int(x) for x in t.split(",")])
    a.add_argument("--batch", type=int, default=3)
    a.add_argument("--steps", type=int, default=64)
    options = a.parse_args()
    record = {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
              "device": torch.cuda.get_device_name(), "steps": options.steps, "models": {}}
    failed = sum(check(options, name, record) for name in options.models.split(","))
    folder = pathlib.Path(os.environ.get("OUT") or ROOT / "bench" / "results")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "reference.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{sum(len(r) for r in record['models'].values()) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
