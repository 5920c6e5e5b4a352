"""Model archives for TorchServe: a handler with everything that it imports, its YAML and, on request, the weights.

`build` makes a `.mar` file in a model store from a handler, its settings and weights; handler_files.py finds and packs
what a handler imports. `model_store` reads which models and versions a model store holds. `cache` keeps archives that
came from another machine.
"""
