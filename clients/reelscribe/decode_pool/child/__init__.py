"""The decode process itself: it executes the commands of its parent, and imports only what their media need.

main.py is its loop, and channel.py its connection to the parent. files.py has digests and headers; frames.py, clips.py
and audio.py read sources, and send what they read through feed.py.
"""
