"""`annotations.jsonl` as subtitles and tables.

The lines of annotations.jsonl come in; WebVTT, SubRip, CSV and Parquet files go out.
"""
