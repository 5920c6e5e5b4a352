"""TorchServe's management API: list, register, scale and unregister models, and wait until their workers are ready."""
