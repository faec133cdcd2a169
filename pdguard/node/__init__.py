"""The script that reads a node: standard library only, Python 3.10 or newer, changes nothing."""
