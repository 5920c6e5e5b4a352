"""How commands get their options, and how they explain them.

Options come from dataclasses, and their values from the command line, the environment (both `command`) and the files
`reelscribe.toml` (`settings_file`); which of them counts is in `precedence`. `--help` shows them by group (`help`).
"""
