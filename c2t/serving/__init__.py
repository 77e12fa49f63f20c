"""The server of `c2t serve`: an asynchronous front of continuous batching, and OpenAI's API on top of it."""
