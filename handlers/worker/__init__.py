"""The side of a handler that faces TorchServe, whatever the model is.

TorchServe's context and the raw requests of one call come in; one response for each request and metrics go out.
"""
