"""Generate with transformers, once as it is and once with c2t's trees: the same text, in less time.

python examples/generate_with_transformers.py "Why is the sky blue?"
"""

import sys
import time

import torch

from c2t import C2T, TreeClassifier, load_pair
from c2t.hf import TreeDecoding

QUESTION = "Write a Python function that returns the n-th Fibonacci number."


def main(question: str = QUESTION, max_new_tokens: int = 96) -> None:
    # Any model and tokenizer of transformers do; these come with c2t, and were loaded by AutoModelForCausalLM.
    # In bfloat16, which is faster on some processors, transformers and c2t would round apart.
    pair = load_pair("smollm2", dtype=torch.float32)
    model, tokenizer = pair.target.model, pair.tokenizer
    chat = [{"role": "user", "content": question}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    inputs = inputs.to(model.device)
    settings = {**inputs, "max_new_tokens": max_new_tokens, "do_sample": False}

    policy = C2T(TreeClassifier.from_pretrained("smollm2"), K=6, W=6, levels=3)  # small trees, for a CPU
    trees = TreeDecoding(draft="smollm2", policy=policy)
    model.generate(**settings, custom_generate=trees)  # loads the draft and packs the weights, once

    own, own_speed = timed(lambda: model.generate(**settings))
    text, speed = timed(lambda: model.generate(**settings, custom_generate=trees))

    prompt = inputs["input_ids"].shape[1]
    print(tokenizer.decode(text[0, prompt:], skip_special_tokens=True))
    print()
    print(f"same text: {'yes' if torch.equal(own, text) else 'no'}")
    print(f"transformers: {own_speed(prompt):.1f} tokens/s; with trees: {speed(prompt):.1f} tokens/s")


def timed(generate):
    """Return what generate returns, and a function from the prompt's length to its tokens per second."""
    begin = time.perf_counter()
    output = generate()
    seconds = time.perf_counter() - begin
    return output, lambda prompt: (output.shape[1] - prompt) / seconds


if __name__ == "__main__":
    main(*sys.argv[1:2])
