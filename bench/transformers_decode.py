#!/usr/bin/env python3
"""Greedy decoding with transformers, torch.compile and CUDA graphs: ms per token, as one JSON object.

    bench/transformers_decode.py tests/gpu/configs/qwen3-8b [--input-len 64] [--output-len 512]

Weights are drawn from config.json: nothing is downloaded. The prompt goes through the model as it is; a
decode step (forward over a static cache, argmax) is compiled with mode "reduce-overhead", which replays
it as CUDA graphs. Two passes over the same tokens: one reads every token on the host before it asks
for the next, as whoever streams text must ("ms_per_token"), one never looks ("ms_per_token_unread").
bench/compare.py runs this; --device cpu is for trying it without a GPU and measures nothing of worth.
"""
import argparse
import inspect
import json
import statistics
import sys
import time

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, StaticCache

WARM_UP = 16  # steps: compiles, records the graph, replays it


class Decoder:
    """A model, its cache and the compiled step; `token` [1, 1] is the newest token."""

    def __init__(self, options):
        self.device = torch.device(options.device)
        config = AutoConfig.from_pretrained(options.model)
        with self.device:
            self.model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
            self.prompt = torch.randint(config.vocab_size, (1, options.input_len),
                                        generator=torch.Generator(self.device).manual_seed(0))
        self.cache = StaticCache(config=config, max_cache_len=options.input_len + options.output_len)
        self.token = torch.zeros((1, 1), dtype=torch.long, device=self.device)
        self.position = torch.zeros(1, dtype=torch.long, device=self.device)
        for fixed in (self.token, self.position):  # the graph may use them in place
            torch._dynamo.mark_static_address(fixed)
        # Releases differ in whether the cache or the caller counts positions.
        self.by_caller = "cache_position" in inspect.signature(self.model.forward).parameters
        self.step = torch.compile(self.forward, mode="reduce-overhead", fullgraph=True)

    def forward(self):
        more = {"cache_position": self.position} if self.by_caller else {}
        logits = self.model(input_ids=self.token, past_key_values=self.cache, use_cache=True, **more).logits
        return logits[:, -1:].argmax(-1)

    def synchronize(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def prefill(self):
        """The prompt, and the first token after it; seconds."""
        self.synchronize()
        start = time.perf_counter()
        self.cache.reset()
        n = self.prompt.shape[1]
        more = {"cache_position": torch.arange(n, device=self.device)} if self.by_caller else {}
        logits = self.model(input_ids=self.prompt, past_key_values=self.cache, use_cache=True, logits_to_keep=1,
                            **more).logits
        self.token.copy_(logits[:, -1:].argmax(-1))
        self.position.fill_(n)
        self.token.item()
        return time.perf_counter() - start

    def advance(self):
        torch.compiler.cudagraph_mark_step_begin()
        self.token.copy_(self.step())
        self.position.add_(1)

    def read_every_token(self, steps):
        """(tokens, ms between one and the next)"""
        tokens, times = [], []
        last = time.perf_counter()
        for _ in range(steps):
            self.advance()
            tokens.append(self.token.item())
            now = time.perf_counter()
            times.append(1e3 * (now - last))
            last = now
        return tokens, times

    def read_nothing(self, steps):
        self.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            self.advance()
        self.synchronize()
        return 1e3 * (time.perf_counter() - start) / steps


def decode(options):
    start = time.perf_counter()
    d = Decoder(options)
    loaded = time.perf_counter()
    d.prefill()
    d.read_every_token(min(WARM_UP, options.output_len - 1))
    ready = time.perf_counter()
    ttft = d.prefill()
    # As quern counts: the first token comes with the prompt, the others a step each.
    tokens, times = d.read_every_token(options.output_len - 1)
    d.prefill()
    unread = d.read_nothing(options.output_len - 1)
    counters = torch._dynamo.utils.counters
    ordered = sorted(times)
    return {
        "model": options.model,
        "system": f"transformers {transformers.__version__}, torch {torch.__version__}, "
                  "torch.compile (reduce-overhead)",
        "device": torch.cuda.get_device_name() if d.device.type == "cuda" else options.device,
        "input_len": options.input_len, "output_len": options.output_len, "steps": len(times),
        "ms_per_token": {"median": statistics.median(times), "p99": ordered[int(0.99 * (len(ordered) - 1))],
                         "max": ordered[-1]},
        "ms_per_token_unread": unread,
        "ttft_ms": 1e3 * ttft,
        "weight_bytes": sum(p.numel() * p.element_size() for p in d.model.parameters()),
        "cudagraph_skips": counters["inductor"]["cudagraph_skips"],
        "distinct_tokens": len(set(tokens)),
        "startup_s": {"model": loaded - start, "compile": ready - loaded},
    }


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("model", help="folder with a config.json")
    a.add_argument("--input-len", type=int, default=64, help="tokens of the prompt (64)")
    a.add_argument("--output-len", type=int, default=512, help="tokens to generate, at least 2 (512)")
    a.add_argument("--device", default="cuda", help="cuda, or cpu for a trial (cuda)")
    options = a.parse_args()
    if options.output_len < 2 or options.input_len < 1:
        a.error("want a prompt of 1 and an output of 2 tokens at least")
    with torch.no_grad():
        print(json.dumps(decode(options)))


if __name__ == "__main__":
    sys.exit(main())
