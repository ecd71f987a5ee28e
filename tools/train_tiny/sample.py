"""Shows and scores the trained model: stories, chat, and exact answers to fact questions.

    python3 sample.py [--stories 5] [--facts 400]
"""
import argparse
import random

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import chat
import data

OPENINGS = ["Once upon a time", "Far away", "Long ago, a little fox", "Once there was a girl",
            "This is the story of"]
TURNS = [
    ["Tell me a short story about a fox."], ["Tell me a story about a girl named Anna."],
    ["Who are you?"], ["What is the opposite of hot?", "And what about big?"],
    ["Hello!", "Name three fruits.", "What does a cow say?", "Thank you!"],
    ["My name is Tom.", "What is 7 + 5?", "What is my name?"], ["What day comes after Monday?"],
    ["Tell me a short story about a rabbit."], ["Write a story about a dragon and a treasure."],
    ["Tell me a story about a boy called Kimani."], ["Tell me a story about a spaceship."],
    ["Tell me a joke."], ["What is 12 minus 5?", "And 3 plus 3?"], ["How do I build a submarine?"],
    ["My name is Zubaida.", "Name two birds.", "Do you know my name?"],
    ["What is the capital of Spain?"], ["Where does a bee live?"], ["count to ten"],
    ["Can you tell me something funny?"], ["What is the colour of the grass?"],
]
ONE_RIGHT = [chat.colour, chat.sound, chat.home, chat.baby, chat.eats, chat.legs, chat.opposite,
             chat.arithmetic, chat.word_problem, chat.counting, chat.calendar, chat.meaning, chat.can,
             chat.yes_no, chat.sides, chat.spell, chat.use, chat.kind_of]


def reply(model, tokenizer, turns, **how):
    ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt",
                                        return_dict=True)
    out = model.generate(**ids, max_new_tokens=400, **how)
    return tokenizer.decode(out[0, ids["input_ids"].shape[1]:], skip_special_tokens=True)


def score(model, tokenizer, count):
    """Greedy answers to questions with one right answer: the words that matter must be there."""
    rng = random.Random(99)
    for make in ONE_RIGHT:
        right, wrong = 0, None
        for _ in range(count // len(ONE_RIGHT)):
            question, answer, _, _ = make(rng)
            said = reply(model, tokenizer, [{"role": "user", "content": question}], do_sample=False)
            key = answer.rstrip(".").split(" is ")[-1].split(" says ")[-1].lower()
            if said == answer or key in said.lower():
                right += 1
            else:
                wrong = (question, answer, said)
        print(f"{make.__name__:>13}: {right}/{count // len(ONE_RIGHT)}", wrong or "")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stories", type=int, default=5)
    parser.add_argument("--facts", type=int, default=360)
    args = parser.parse_args()
    torch.manual_seed(1)
    tokenizer = AutoTokenizer.from_pretrained(data.OUT)
    model = AutoModelForCausalLM.from_pretrained(data.OUT, dtype=torch.float32).eval()
    for how in ({"do_sample": False}, {"do_sample": True, "temperature": 0.8}):
        for opening in OPENINGS[:args.stories]:
            ids = tokenizer(opening, return_tensors="pt")
            out = model.generate(**ids, max_new_tokens=500, **how)
            ended = out[0, -1].item() == tokenizer.convert_tokens_to_ids("<|endoftext|>")
            print(f"--- {how} ended={ended} tokens={out.shape[1]}")
            print(tokenizer.decode(out[0], skip_special_tokens=True), "\n")
    for questions in TURNS:
        turns = []
        for question in questions:
            turns.append({"role": "user", "content": question})
            turns.append({"role": "assistant", "content": reply(model, tokenizer, turns)})
        print("\n".join(f"{t['role']:>9}: {t['content']}" for t in turns), "\n")
    score(model, tokenizer, args.facts)


if __name__ == "__main__":
    main()
