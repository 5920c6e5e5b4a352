"""Decode one source file: the chosen frames of its video, its clips, or its audio in chunks.

Input is a task with the path of the file. Output is a description of the file, and arrays with presentation times. All
of this runs in decode processes, because FFmpeg hangs or crashes on some damaged files.

A frame passes container.py (open, demux), packet_index.py (times and keyframes; bitstream.py reads headers of packets),
frame_reader.py (decode; random_access.py plans what), frame_conversion.py (RGB of the input size) and video.py, which
uses them all; clips.py does the same for clips. Audio passes container.py, audio_reader.py and audio.py.
"""
