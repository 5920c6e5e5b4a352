"""The options that the commands of runs share.

Each dataclass is a group of options: `flatten` gives them to a command, and a method converts them to the types of the
packages below. Defaults are repeated here, because importing them would import numpy for `reelscribe --help`.
"""
