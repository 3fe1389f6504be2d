"""A small continuous-batching engine with speculative decoding, on tandemkv's managers.

It is an example to copy from. `engine.py` schedules, `runner.py` and `attention.py` run a model of
transformers on the pages, `drafting.py` guesses tokens, and `smollm2.py` finds a small model to try
it with. `serve.py` is a program that serves requests; `tandemkv chat` talks to the model.
"""
