"""Client of a model that is served by one or several TorchServes: requests, retries, load balancing and tokens.

Frames or chunks of audio come in; captions or transcripts go out, or the reason why there are none.
"""
