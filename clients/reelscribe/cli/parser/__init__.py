"""The parser of the command line: commands get their options from it, and their help.

Options come from dataclasses, and their values from the command line, the environment (both `command`) and the files
`reelscribe.toml` (`settings_file`); which of them counts is in `precedence`. `--help` shows them by group (`help`).
"""
