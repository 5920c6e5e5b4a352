"""Caption and transcribe whole video libraries on a multi-GPU TorchServe."""

__version__ = "0.1.0"
