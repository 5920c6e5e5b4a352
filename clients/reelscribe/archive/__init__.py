"""Model archives for TorchServe: a handler with everything that it imports, its YAML and, if wanted, the weights.

A handler script, settings and weights come in; a `.mar` file in a model store goes out. `model_store` reads which
models and versions such a folder holds.
"""
