"""Captioning of frames with BLIP-2 and other image-text-to-text models of transformers.

Request bodies that hold arrays of frames or a still come in; captions as text go out.
"""
