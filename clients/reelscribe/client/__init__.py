"""Client of a model on one or several TorchServe servers: requests, retries, load balancing and tokens.

Input are frames or chunks of audio. Output are captions or transcripts, or the errors of those that have none.
"""
