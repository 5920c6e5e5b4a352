"""The inference API of one or several TorchServes: requests, retries, balancing and keys.

Frames or chunks of audio come in; captions or transcripts go out, or the reason why there are none.
"""
