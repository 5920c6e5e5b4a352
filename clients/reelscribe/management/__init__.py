"""TorchServe's management API: which models a server has, how their workers are, and how to change that.

Names, versions and numbers of workers come in; the state of models and workers goes out.
"""
