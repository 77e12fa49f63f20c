"""GGUF files as language models: what llama.cpp keeps a model, its tokenizer and its chat template in."""
