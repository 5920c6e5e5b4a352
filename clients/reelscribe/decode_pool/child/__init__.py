"""The decode process itself: it executes the commands of its parent, and imports only what their media need.

main.py is its loop, and channel.py its connection to the parent, with the batches that it sends. files.py has digests
and headers; frames.py, clips.py and audio.py read sources.
"""
