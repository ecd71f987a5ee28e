"""Trains models/tiny from scratch. See README.md.

    python3 train.py --out DIR --steps 6000              on one GPU
    python3 train.py --out DIR --steps 50 --batch 4 --shards 1 --device cpu     a dry run
With --steps 0 the first steps are timed and the number of steps is chosen to fill --seconds.
"""
import argparse
import json
import math
import multiprocessing
import os
import pathlib
import time

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

import data

os.environ["TOKENIZERS_PARALLELISM"] = "false"


def config():
    tokenizer = data.load_tokenizer()
    end = tokenizer.token_to_id("<|endoftext|>")
    turn_end = tokenizer.token_to_id("<|im_end|>")
    return Qwen3Config(
        vocab_size=data.VOCAB, hidden_size=256, intermediate_size=512, num_hidden_layers=6,
        num_attention_heads=8, num_key_value_heads=4, head_dim=64, hidden_act="silu",
        max_position_embeddings=data.ROW, initializer_range=0.02, rms_norm_eps=1e-6,
        tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        attention_bias=False, use_sliding_window=False, attention_dropout=0.0,
        bos_token_id=None, eos_token_id=turn_end, pad_token_id=end, use_cache=False)


def generation_config():
    tokenizer = data.load_tokenizer()
    ids = [tokenizer.token_to_id(t) for t in ("<|im_end|>", "<|endoftext|>")]
    return {"do_sample": True, "temperature": 0.8, "top_p": 0.95, "top_k": 40,
            "eos_token_id": ids, "pad_token_id": ids[1]}


def learning_rate(step, steps, peak, warmup):
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))))


def losses(model, rows):
    """Mean cross entropy of the learnt tokens of rows [n, ROW] (int32, with NO_LOSS bits)."""
    ids = (rows & (data.NO_LOSS - 1)).long()
    targets = torch.where(rows >= data.NO_LOSS, -100, ids)[:, 1:]
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).float(), targets.reshape(-1), ignore_index=-100)


def held_out(step_loss, rows, batch, device, autocast):
    """Mean over batches of the loss on rows that were never trained on."""
    total = []
    with torch.no_grad(), autocast():
        for i in range(0, len(rows) - batch + 1, batch):
            total.append(step_loss(torch.from_numpy(rows[i:i + batch].astype(np.int32)).to(device)).item())
    return sum(total) / len(total)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--shards", type=int, default=256)
    parser.add_argument("--peak", type=float, default=2.5e-3)
    parser.add_argument("--warmup", type=int, default=200)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    log = open(out / "train.log", "w")

    def note(text):
        print(text, flush=True)
        log.write(text + "\n")
        log.flush()

    begin = time.time()
    jobs = [(n, args.seed) for n in range(args.shards)]
    n_held = max(args.batch * 2 // 128, 1)
    held_jobs = [(data.HELD_OUT + k * 100 + i, args.seed, data.DOCUMENTS_PER_SHARD, keep)
                 for k, keep in enumerate(("story", "chat")) for i in range(n_held)]
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        held_rows = pool.starmap_async(data.shard, held_jobs, chunksize=1)
        rows = np.concatenate(pool.starmap(data.shard, jobs, chunksize=1))
        held_rows = held_rows.get()
    held = {"story": np.concatenate(held_rows[:n_held]), "chat": np.concatenate(held_rows[n_held:])}
    learnt = int((rows < data.NO_LOSS).sum())
    note(f"data: {len(rows)} rows, {rows.size / 1e6:.1f} M tokens, {learnt / 1e6:.1f} M learnt, "
         f"{args.shards * data.DOCUMENTS_PER_SHARD} documents, {time.time() - begin:.0f} s")

    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device(args.device)
    model = Qwen3ForCausalLM(config()).to(device)
    n_parameters = sum(p.numel() for p in model.parameters())
    note(f"model: {n_parameters} parameters; "
         f"device: {torch.cuda.get_device_name() if args.device == 'cuda' else 'cpu'}; "
         f"torch {torch.__version__}")
    decay = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05},
                                   {"params": plain, "weight_decay": 0.0}],
                                  lr=args.peak, betas=(0.9, 0.95), fused=args.device == "cuda")

    def plain_loss(batch):
        return losses(model, batch)

    step_loss = plain_loss if args.no_compile else torch.compile(plain_loss)

    def autocast():
        return torch.autocast(args.device, dtype=torch.bfloat16, enabled=args.device == "cuda")

    pool_rows = torch.from_numpy(rows.astype(np.int32)).to(device)
    order = np.random.default_rng(args.seed)
    permutation, at = order.permutation(len(rows)), 0
    steps = args.steps or 10 ** 9
    measured_from, begin, step = 0.0, time.time(), 0
    while step < steps:
        if at + args.batch > len(rows):
            permutation, at = order.permutation(len(rows)), 0
        index = torch.from_numpy(permutation[at:at + args.batch]).to(device)
        at += args.batch
        rate = learning_rate(step, steps, args.peak, min(args.warmup, max(steps // 5, 1)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        with autocast():
            loss = step_loss(pool_rows[index])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if not args.steps and step in (20, 120):
            loss.item()
            if step == 120:
                per_step = (time.time() - measured_from) / 100
                steps = int((args.seconds - (time.time() - begin)) / per_step) + step
                steps = max(steps // 100 * 100, 200)
                note(f"{per_step * 1e3:.1f} ms a step: {steps} steps fill {args.seconds:.0f} s")
            measured_from = time.time()
        if step % 100 == 0 or step == steps or step in (1, 10):
            note(f"step {step} loss {loss.item():.4f} lr {rate:.2e} {time.time() - begin:.0f} s")
        if step % 1000 == 0 or step == steps:
            scores = {k: held_out(step_loss, v, args.batch, device, autocast) for k, v in held.items()}
            note(f"step {step} held out: story {scores['story']:.4f} chat {scores['chat']:.4f}")

    seconds = time.time() - begin
    model.config.use_cache = True
    model = model.to(torch.bfloat16)
    scores = {k: held_out(lambda b: losses(model, b), v, args.batch, device, autocast)
              for k, v in held.items()}
    note(f"bf16 weights, held out: story {scores['story']:.4f} chat {scores['chat']:.4f}")
    note(f"trained on {steps * args.batch * data.ROW / 1e6:.0f} M tokens in {steps} steps, "
         f"{seconds:.0f} s; peak lr {args.peak}, batch {args.batch} rows of {data.ROW}, "
         f"seed {args.seed}")
    model.save_pretrained(out)
    (out / "generation_config.json").write_text(json.dumps(generation_config(), indent=2) + "\n")


if __name__ == "__main__":
    main()
